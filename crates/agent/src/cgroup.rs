//! One cgroup v2 per part, where the agent may make one: a boundary that no process can leave by
//! forking, and memory and CPU limits where those controllers are ours to use.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
        let mut cgroups = Cgroups { dir, memory: false, cpu: false };
        let levels = [base.clone(), top, cgroups.dir.clone()];
        if may_enable(&base) {
            cgroups.memory = enable(&levels, "memory");
            cgroups.cpu = enable(&levels, "cpu");
        }
        let probed = cgroups.probe();
        if probed.is_err() && cgroups.has_limits() {
            tracing::warn!("no limits on memory and CPUs: a process can't start under them");
            disable(&levels, "memory", cgroups.memory);
            disable(&levels, "cpu", cgroups.cpu);
            (cgroups.memory, cgroups.cpu) = (false, false);
            cgroups.probe()?;
        } else {
            probed?;
        }
        Ok(cgroups)
    }

    fn has_limits(&self) -> bool {
        self.memory || self.cpu
    }

    /// The last name in the path of the agent's own group.
    pub fn name(&self) -> Option<String> {
        Some(self.dir.file_name()?.to_str()?.to_owned())
    }

    /// What operators are told.
    pub fn describe(&self) -> &'static str {
        match (self.memory, self.cpu) {
            (true, true) => "cgroup2",
            (true, false) => "cgroup2, no CPU limit",
            (false, true) => "cgroup2, no memory limit",
            (false, false) => "cgroup2, no limits",
        }
    }

    /// Starts a process as a rank would be: better that this fails than every job.
    fn probe(&self) -> Result<(), CgroupError> {
        let mut limits = Vec::new();
        if self.memory {
            limits.push(("memory.max".to_owned(), "max".to_owned()));
        }
        if self.cpu {
            limits.push(("cpu.max".to_owned(), "max 100000".to_owned()));
        }
        let path = self.dir.join(format!("probe-{}", std::process::id()));
        let group = PartCgroup { path, limits };
        let probed = group.make().and_then(|dir| {
            let started = crate::spawn::probe(dir.as_fd());
            started.map_err(failed("can't start a process in", &group.path))
        });
        let deadline = Instant::now() + Duration::from_secs(1);
        while !is_done(&group.path) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        probed
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

/// Controllers can be handed down from the root, or from a group without processes of its own. The
/// kernel refuses others, or makes the groups below unusable.
fn may_enable(base: &Path) -> bool {
    // Only the real root has no type; that of a container has.
    if !base.join("cgroup.type").exists() {
        return true;
    }
    fs::read_to_string(base.join("cgroup.procs")).is_ok_and(|procs| procs.trim().is_empty())
}

/// Hands a controller down through all levels, or through none.
fn enable(levels: &[PathBuf], name: &str) -> bool {
    let mut changed = Vec::new();
    for at in levels {
        let control = at.join("cgroup.subtree_control");
        let has = fs::read_to_string(&control)
            .is_ok_and(|text| text.split_whitespace().any(|word| word == name));
        if has {
            continue;
        }
        if fs::write(&control, format!("+{name}")).is_err() {
            disable(&changed, name, true);
            return false;
        }
        changed.push(at.clone());
    }
    true
}

fn disable(levels: &[PathBuf], name: &str, enabled: bool) {
    // From below: a controller can't be taken back while a group further down hands it on. What is
    // still used by others stays.
    for at in levels.iter().rev().filter(|_| enabled) {
        let _ = fs::write(at.join("cgroup.subtree_control"), format!("-{name}"));
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

/// True once no process is in the group, which is then removed. Groups that a job made inside its
/// own go with it.
pub fn is_done(path: &Path) -> bool {
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

    /// Plain files in place of the kernel's.
    fn group(dir: &Path, kind: Option<&str>, procs: &str) {
        fs::create_dir_all(dir).unwrap();
        if let Some(kind) = kind {
            fs::write(dir.join("cgroup.type"), kind).unwrap();
        }
        fs::write(dir.join("cgroup.procs"), procs).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), "").unwrap();
    }

    #[test]
    fn controllers_are_not_handed_down_from_a_group_with_processes() {
        let dir = crate::testing::TempDir::new("cgroup");
        let (root, full, empty) =
            (dir.path().join("root"), dir.path().join("full"), dir.path().join("empty"));
        group(&root, None, "1\n2\n");
        group(&full, Some("domain\n"), "17\n");
        group(&empty, Some("domain\n"), "");
        assert!(may_enable(&root) && may_enable(&empty));
        assert!(!may_enable(&full));
    }

    #[test]
    fn a_controller_that_stops_half_way_is_taken_back() {
        let dir = crate::testing::TempDir::new("cgroup-half");
        let levels = ["a", "b"].map(|name| dir.path().join(name));
        group(&levels[0], None, "");
        assert!(!enable(&levels, "memory"), "the second level is missing");
        let control = fs::read_to_string(levels[0].join("cgroup.subtree_control")).unwrap();
        assert_eq!(control, "-memory");
    }

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
