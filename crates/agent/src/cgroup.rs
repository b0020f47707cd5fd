//! The cgroups of one part: a boundary that no process can leave by forking, limits on what it
//! uses, and the devices that it may open.
//!
//! The part's group in the unified hierarchy (v2) holds its processes together, is what they are
//! killed by, and carries the device program. Limits are written there too, where the controllers
//! are; on a host that still has them in hierarchies of their own (v1), the part has a group in each
//! of those besides. `tree` says where all of them are.

mod older;
mod tree;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tutti_model::Bytes;

use crate::devices::{Rules, bpf};
pub use tree::Cgroups;

/// What a shim makes for its part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartCgroup {
    /// In the unified hierarchy.
    pub path: PathBuf,
    /// Lines to write: file name and value.
    pub limits: Vec<(String, String)>,
    /// In hierarchies of single controllers.
    pub older: Vec<OlderGroup>,
    /// None: all devices are as the file system has them.
    pub devices: Option<Rules>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderGroup {
    pub path: PathBuf,
    pub limits: Vec<(String, String)>,
}

/// What a part is to be held to; nothing where a field is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub mem: Option<Bytes>,
    /// How many at a time, by time.
    pub cpus: Option<u32>,
    /// Which ones: "0-3,8".
    pub cpuset: Option<String>,
    /// Processes and threads.
    pub pids: Option<u64>,
    pub devices: Option<Rules>,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup v2 is mounted, and none can be mounted at {path}")]
    NotMounted {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path}")]
    Devices {
        path: PathBuf,
        #[source]
        source: bpf::BpfError,
    },
}

/// The groups of a part, ready for its processes.
pub struct Made {
    /// Processes are born in it.
    pub dir: fs::File,
    /// Files into which a process writes itself before it becomes the job.
    pub join: Vec<CString>,
    /// The program that says which devices may be opened.
    devices: Option<OwnedFd>,
}

impl Made {
    /// Other devices from now on. Nothing where devices are as the file system has them.
    pub fn allow(&mut self, rules: &Rules) -> Result<(), bpf::BpfError> {
        if let Some(old) = &self.devices {
            self.devices = Some(bpf::restrict(self.dir.as_fd(), rules, Some(old.as_fd()))?);
        }
        Ok(())
    }
}

impl PartCgroup {
    pub fn make(&self) -> Result<Made, CgroupError> {
        make_dir(&self.path)?;
        write_limits(&self.path, &self.limits)?;
        let mut join = Vec::with_capacity(self.older.len());
        for group in &self.older {
            make_dir(&group.path)?;
            write_limits(&group.path, &group.limits)?;
            let procs = group.path.join("cgroup.procs");
            let name = CString::new(procs.as_os_str().as_bytes());
            join.push(name.map_err(|e| failed("can't name", &procs)(e.into()))?);
        }
        let dir = fs::File::open(&self.path).map_err(failed("can't open", &self.path))?;
        let restrict = |rules| {
            let path = self.path.clone();
            let restricted = bpf::restrict(dir.as_fd(), rules, None);
            restricted.map_err(|source| CgroupError::Devices { path, source })
        };
        let devices = self.devices.as_ref().map(restrict).transpose()?;
        Ok(Made { dir, join, devices })
    }

    /// SIGKILL to everything in the group, however it forks.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// True once no process is in the groups, which are then removed. Groups that a job made inside
    /// its own go with it.
    pub fn is_done(&self) -> bool {
        is_done(&self.path) && self.older.iter().all(|group| older::is_done(&group.path))
    }
}

fn make_dir(path: &Path) -> Result<(), CgroupError> {
    let made = match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Somebody tidied the agent's own group away while it was empty.
        Err(e) if e.kind() == io::ErrorKind::NotFound => fs::create_dir_all(path),
        made => made,
    };
    made.map_err(failed("can't make", path))
}

fn write_limits(dir: &Path, limits: &[(String, String)]) -> Result<(), CgroupError> {
    for (name, value) in limits {
        let path = dir.join(name);
        fs::write(&path, value).map_err(failed("can't write", &path))?;
    }
    Ok(())
}

fn is_done(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => return true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return true,
        Err(_) => {}
    }
    let Ok(events) = fs::read_to_string(path.join("cgroup.events")) else { return false };
    if events.lines().any(|line| line == "populated 1") {
        return false;
    }
    if !remove_tree(path) {
        tracing::warn!("the empty cgroup {} can't be removed", path.display());
    }
    true
}

fn remove_tree(path: &Path) -> bool {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    fs::remove_dir(path).is_ok()
}

fn read(path: &str) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("can't read", Path::new(path)))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io { what, path, source }
}

#[cfg(test)]
mod tests;
