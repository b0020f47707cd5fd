//! Whose a process is: the mark that the agent puts into the environment of every rank, or the
//! cgroup that it was started in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tutti_model::{GpuProcess, TaskId};

use super::DeviceProcess;

/// The variable that marks processes of a part.
const VARIABLE: &str = "TUTTI_PART=";

/// How an agent's processes are known among those of others, and of other agents.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    /// The value of `TUTTI_PART` is this directory and a lease.
    pub parts: PathBuf,
    /// The name of the agent's own cgroup; its children are named after leases.
    pub cgroup: Option<String>,
}

/// Remembers what it found out, by process and the moment it was started.
pub struct Owners {
    root: PathBuf,
    marks: Marks,
    known: BTreeMap<u32, Known>,
}

struct Known {
    started: u64,
    task: Option<TaskId>,
    seen: bool,
}

impl Owners {
    pub fn new(root: PathBuf, marks: Marks) -> Owners {
        Owners { root, marks, known: BTreeMap::new() }
    }

    /// Whether the agent has any part, or had one that it has not forgotten.
    pub fn has_parts(&self) -> bool {
        let mut records = fs::read_dir(&self.marks.parts).into_iter().flatten().flatten();
        records.any(|record| {
            let name = record.file_name();
            let lease = name.to_str().and_then(|name| name.rsplit_once('.')).map(|(stem, _)| stem);
            lease.and_then(lease_task).is_some()
        })
    }

    /// Each with its task. Forgets processes that are no longer there.
    pub fn join(&mut self, on: Vec<DeviceProcess>) -> Vec<GpuProcess> {
        self.known.values_mut().for_each(|known| known.seen = false);
        let joined = on.into_iter().map(|p| p.of(p.task.or_else(|| self.task(p.pid)))).collect();
        self.known.retain(|_, known| known.seen);
        joined
    }

    /// The task of each of these processes that is somebody's. Forgets all others.
    pub fn tasks(&mut self, pids: &[u32]) -> Vec<(u32, TaskId)> {
        self.known.values_mut().for_each(|known| known.seen = false);
        let tasks = pids.iter().filter_map(|&pid| Some((pid, self.task(pid)?))).collect();
        self.known.retain(|_, known| known.seen);
        tasks
    }

    fn task(&mut self, pid: u32) -> Option<TaskId> {
        let dir = self.root.join("proc").join(pid.to_string());
        let started = started(&fs::read_to_string(dir.join("stat")).ok()?)?;
        if let Some(known) = self.known.get_mut(&pid).filter(|known| known.started == started) {
            known.seen = true;
            return known.task;
        }
        let task = self.look(&dir);
        self.known.insert(pid, Known { started, task, seen: true });
        task
    }

    /// What can't be read belongs to nobody we know: agents that are not root see only their own.
    fn look(&self, dir: &Path) -> Option<TaskId> {
        let environ = fs::read(dir.join("environ")).unwrap_or_default();
        let marked = by_mark(&environ, &self.marks.parts);
        marked.or_else(|| {
            let groups = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
            by_cgroup(&groups, self.marks.cgroup.as_deref()?)
        })
    }
}

/// In ticks since the machine started: the 20th value after the name, which may contain anything.
fn started(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn by_mark(environ: &[u8], parts: &Path) -> Option<TaskId> {
    environ.split(|&byte| byte == 0).find_map(|var| {
        let value = var.strip_prefix(VARIABLE.as_bytes())?;
        let path = Path::new(std::str::from_utf8(value).ok()?);
        (path.parent() == Some(parts)).then(|| lease_task(path.file_name()?.to_str()?))?
    })
}

/// Any hierarchy, any depth: "0::/tutti/n1-0a1b2c3d/12@7/inner".
fn by_cgroup(groups: &str, agent: &str) -> Option<TaskId> {
    groups.lines().find_map(|line| {
        let mut names = line.splitn(3, ':').nth(2)?.split('/');
        names.find(|name| *name == agent)?;
        lease_task(names.next()?)
    })
}

/// "12_3@7" is a lease of task 12_3.
fn lease_task(lease: &str) -> Option<TaskId> {
    let (task, generation) = lease.split_once('@')?;
    generation.parse::<u64>().ok()?;
    task.parse().ok()
}

#[cfg(test)]
mod tests {
    use tutti_model::{Bytes, GpuIndex, JobId};

    use super::*;

    fn stat(started: u64) -> String {
        let before = "S 1 7 7 0 -1 4194560 100 0 0 0 5 2 0 0 20 0 1 0";
        format!("7 (a (weird) name) {before} {started} 1000 200\n")
    }

    #[test]
    fn marks_are_told_from_those_of_other_agents() {
        let parts = Path::new("/var/lib/tutti/parts");
        let environ = b"PATH=/bin\0TUTTI_PART=/var/lib/tutti/parts/12_3@7\0HOME=/";
        assert_eq!(by_mark(environ, parts), Some(TaskId::of_array(JobId(12), 3)));
        assert_eq!(by_mark(environ, Path::new("/tmp/other/parts")), None);
        assert_eq!(by_mark(b"TUTTI_PART=/var/lib/tutti/parts/nothing", parts), None);
        assert_eq!(by_mark(b"", parts), None);
    }

    #[test]
    fn cgroups_of_both_layouts_tell_the_task() {
        let v2 = "0::/user.slice/tutti/n1-0a1b2c3d/12@7/inner\n";
        let v1 = "4:memory:/tutti/n1-0a1b2c3d/5@9\n1:name=systemd:/init.scope\n";
        let of = |text| by_cgroup(text, "n1-0a1b2c3d");
        assert_eq!(of(v2), Some(TaskId::single(JobId(12))));
        assert_eq!(of(v1), Some(TaskId::single(JobId(5))));
        assert_eq!(of("0::/tutti/n2-ffffffff/12@7\n"), None);
        assert_eq!(of("0::/tutti/n1-0a1b2c3d\n"), None);
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        assert_eq!(started(&stat(4711)), Some(4711));
        assert_eq!(started("7 (x"), None);
    }

    /// The environment is read once per process, and again when the pid is another's.
    #[test]
    fn a_process_is_looked_at_once() {
        let root = std::env::temp_dir().join(format!("tutti-owners-{}", std::process::id()));
        let dir = root.join("proc/7");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("stat"), stat(100)).unwrap();
        fs::write(dir.join("environ"), "TUTTI_PART=/p/1@1").unwrap();
        let marks = Marks { parts: "/p".into(), cgroup: None };
        let mut owners = Owners::new(root.clone(), marks);
        let on = || vec![DeviceProcess { gpu: GpuIndex(0), pid: 7, mem: Bytes(5), task: None }];
        let task = |job| Some(TaskId::single(JobId(job)));
        assert_eq!(owners.join(on())[0].task, task(1));
        fs::write(dir.join("environ"), "TUTTI_PART=/p/2@2").unwrap();
        assert_eq!(owners.join(on())[0].task, task(1), "known");
        fs::write(dir.join("stat"), stat(200)).unwrap();
        assert_eq!(owners.join(on())[0].task, task(2), "another process with its number");
        assert!(owners.join(Vec::new()).is_empty() && owners.known.is_empty(), "forgotten");
        fs::remove_dir_all(root).unwrap();
    }
}
