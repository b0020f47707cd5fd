//! Hierarchies of single controllers (cgroup v1), as hosts with the old or the hybrid layout have
//! them. They limit; holding processes together and killing them is for the unified hierarchy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{CgroupError, failed, make_dir, remove_tree};

/// Where a controller is mounted, and the group that this process is in there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    pub mount: PathBuf,
    pub own: String,
}

/// `mounts` and `own` are the texts of `/proc/self/mounts` and `/proc/self/cgroup`.
pub fn find(mounts: &str, own: &str, controller: &str) -> Option<Hierarchy> {
    let named = |list: &str| list.split(',').any(|word| word == controller);
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (at, kind, options) = (fields.get(1)?, fields.get(2)?, fields.get(3)?);
        (*kind == "cgroup" && named(options)).then(|| PathBuf::from(at.replace("\\040", " ")))
    })?;
    let own = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (list, path) = (fields.next()?, fields.next()?);
        named(list).then(|| path.trim_start_matches('/').to_owned())
    });
    Some(Hierarchy { mount, own: own.unwrap_or_default() })
}

impl Hierarchy {
    /// Makes the agent's group: below its own, whose limits then hold for jobs as well.
    pub fn make(&self, names: &[&str]) -> Result<PathBuf, CgroupError> {
        let own = self.mount.join(&self.own);
        // In a container the path may be one of the host's.
        let mut dir = if own.is_dir() { own } else { self.mount.clone() };
        for name in names {
            let above = dir.clone();
            dir.push(name);
            make_dir(&dir)?;
            inherit_cpuset(&above, &dir)?;
        }
        Ok(dir)
    }
}

/// A new group of the cpuset controller has no CPU and no memory to run on.
fn inherit_cpuset(above: &Path, dir: &Path) -> Result<(), CgroupError> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = dir.join(name);
        match fs::read_to_string(&file) {
            Ok(text) if text.trim().is_empty() => {
                let from = above.join(name);
                let value = fs::read_to_string(&from).map_err(failed("can't read", &from))?;
                fs::write(&file, value.trim()).map_err(failed("can't write", &file))?;
            }
            Ok(_) => {}
            // Another controller.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("can't read", &file)(e)),
        }
    }
    Ok(())
}

/// Who is still in the group when the part's processes are gone does not belong there: only root
/// could have put it there.
pub fn is_done(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => return true,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return true,
        Err(_) => {}
    }
    let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 0) {
        // SAFETY: a plain system call.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    remove_tree(path)
}
