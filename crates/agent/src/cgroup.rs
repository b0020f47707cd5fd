//! One cgroup v2 per part, where the agent may make one: a boundary that no process can leave by
//! forking, and memory and CPU limits where those controllers are ours to use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, LeaseId};

/// Whether to use cgroups at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupMode {
    /// Where they can be made, on nodes with real devices.
    #[default]
    Auto,
    /// Also on simulated nodes.
    On,
    Off,
}

/// What a shim makes for its part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartCgroup {
    pub path: PathBuf,
    /// Lines to write: file name and value.
    pub limits: Vec<(String, String)>,
}

/// The agent's place in the tree.
#[derive(Clone, Debug)]
pub struct Cgroups {
    dir: PathBuf,
    memory: bool,
    cpu: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup v2 is mounted")]
    NotMounted,
    #[error("{what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Cgroups {
    /// Makes the agent's own group, so that failing is known before a job needs one.
    pub fn set_up(node: &str, data_dir: &Path) -> Result<Cgroups, CgroupError> {
        let mounts = read("/proc/self/mounts")?;
        let mount = find_mount(&mounts).ok_or(CgroupError::NotMounted)?;
        let own = read("/proc/self/cgroup")?;
        let own = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or("");
        // Several clusters may share a machine, and with it node names.
        let hash = blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex();
        let base = mount.join(own);
        let top = base.join("tutti");
        let dir = top.join(format!("{node}-{}", &hash[..8]));
        fs::create_dir_all(&dir).map_err(failed("can't make", &dir))?;
        let kill = dir.join("cgroup.kill");
        if !kill.exists() {
            return Err(failed("no", &kill)(io::ErrorKind::NotFound.into()));
        }
        let delegate = |name: &str| {
            let enable =
                |at: &Path| fs::write(at.join("cgroup.subtree_control"), format!("+{name}"));
            [&base, &top, &dir].into_iter().all(|at| enable(at).is_ok())
        };
        Ok(Cgroups { memory: delegate("memory"), cpu: delegate("cpu"), dir })
    }

    pub fn for_part(&self, lease: LeaseId, mem: Bytes, cpus: u32, limited: bool) -> PartCgroup {
        let mut limits = Vec::new();
        if limited && self.memory && mem.0 > 0 {
            limits.push(("memory.max".to_owned(), mem.0.to_string()));
        }
        if limited && self.cpu && cpus > 0 {
            limits.push(("cpu.max".to_owned(), format!("{} 100000", u64::from(cpus) * 100_000)));
        }
        PartCgroup { path: self.part_path(lease), limits }
    }

    pub fn part_path(&self, lease: LeaseId) -> PathBuf {
        self.dir.join(lease.to_string())
    }
}

impl PartCgroup {
    pub fn make(&self) -> Result<fs::File, CgroupError> {
        let made = match fs::create_dir(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Somebody tidied the agent's own group away while it was empty.
            Err(e) if e.kind() == io::ErrorKind::NotFound => fs::create_dir_all(&self.path),
            made => made,
        };
        made.map_err(failed("can't make", &self.path))?;
        for (name, value) in &self.limits {
            let path = self.path.join(name);
            fs::write(&path, value).map_err(failed("can't write", &path))?;
        }
        fs::File::open(&self.path).map_err(failed("can't open", &self.path))
    }
}

/// SIGKILL to everything in the group, however it forks.
pub fn kill(path: &Path) -> io::Result<()> {
    fs::write(path.join("cgroup.kill"), "1")
}

/// True once the group is gone. It can't be removed while a process is in it.
pub fn remove(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn find_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at.replace("\\040", " ")))
    })
}

fn read(path: &str) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("can't read", Path::new(path)))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_mount_is_found_in_both_layouts() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(find_mount(hybrid).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        let pure = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(find_mount(pure).unwrap(), Path::new("/sys/fs/cgroup"));
        assert_eq!(find_mount("proc /proc proc rw 0 0\n"), None);
    }
}
