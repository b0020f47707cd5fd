//! What tasks take of the machine's processors and memory, looked at every few seconds: to ask every
//! process each second would cost more than it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use tutti_model::{Bytes, TaskId, TaskSample};

use super::{Marks, Owners};

const EVERY: Duration = Duration::from_secs(5);
/// Processes of others are asked again after so many looks: a number may have become one of ours.
const ASK_AGAIN: u32 = 12;
/// Linux tells programs of processor time in these, whatever the kernel does inside.
const TICKS_PER_SECOND: f64 = 100.0;

pub struct Tasks {
    root: PathBuf,
    owners: Owners,
    page: u64,
    last: Option<Duration>,
    looks: u32,
    /// Processes that are nobody's we know: most of them, and each costs a file to ask.
    strangers: BTreeSet<u32>,
    /// Ticks of each process, by it and when it was started.
    ticks: BTreeMap<(u32, u64), u64>,
    newest: Vec<TaskSample>,
}

#[derive(Default)]
struct Sum {
    ticks: u64,
    /// Pages that each has for itself, and the most that one shares with others.
    own: u64,
    shared: u64,
}

impl Tasks {
    pub fn new(root: PathBuf, marks: Marks) -> Tasks {
        let owners = Owners::new(root.clone(), marks);
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page = page.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096);
        Tasks {
            root,
            owners,
            page,
            last: None,
            looks: 0,
            strangers: BTreeSet::new(),
            ticks: BTreeMap::new(),
            newest: Vec::new(),
        }
    }

    /// What was seen last; looks again when it is time.
    pub fn read(&mut self, clock: Duration) -> Vec<TaskSample> {
        let since = self.last.map(|last| clock.saturating_sub(last));
        if since.is_none_or(|since| since >= EVERY) {
            self.newest = self.look(since);
            self.last = Some(clock);
        }
        self.newest.clone()
    }

    fn look(&mut self, since: Option<Duration>) -> Vec<TaskSample> {
        let mut sums: BTreeMap<TaskId, Sum> = BTreeMap::new();
        let mut ticks = BTreeMap::new();
        let at_most = since.map_or(0.0, |since| since.as_secs_f64() * TICKS_PER_SECOND) as u64;
        for (pid, task) in self.owned() {
            let dir = self.root.join("proc").join(pid.to_string());
            let Some((started, used)) = read(&dir, "stat", times) else { continue };
            let before = self.ticks.get(&(pid, started)).copied();
            let (resident, shared) = read(&dir, "statm", pages).unwrap_or_default();
            let sum = sums.entry(task).or_default();
            // One that was not seen before may be older than the last look: it had one CPU at most.
            sum.ticks += before.map_or(used.min(at_most), |before| used.saturating_sub(before));
            sum.own += resident.saturating_sub(shared);
            sum.shared = sum.shared.max(shared);
            ticks.insert((pid, started), used);
        }
        self.ticks = ticks;
        let rate = |ticks: u64| {
            let secs = since.map_or(0.0, |since| since.as_secs_f64());
            if secs > 0.0 { (ticks as f64 / TICKS_PER_SECOND / secs) as f32 } else { 0.0 }
        };
        let page = self.page;
        let sample = |(task, sum): (TaskId, Sum)| TaskSample {
            task,
            cpus: rate(sum.ticks),
            mem: Bytes((sum.own + sum.shared) * page),
        };
        sums.into_iter().map(sample).collect()
    }

    fn owned(&mut self) -> Vec<(u32, TaskId)> {
        // Without a part no process can be of one. A thousand idle agents on one machine would else
        // ask each other's processes all day.
        if !self.owners.has_parts() {
            self.strangers.clear();
            self.looks = 0;
            return Vec::new();
        }
        if self.looks.is_multiple_of(ASK_AGAIN) {
            self.strangers.clear();
        }
        self.looks = self.looks.wrapping_add(1);
        let mut pids = self.pids();
        pids.retain(|pid| !self.strangers.contains(pid));
        let owned = self.owners.tasks(&pids);
        self.strangers.extend(pids);
        owned.iter().for_each(|(pid, _)| {
            self.strangers.remove(pid);
        });
        owned
    }

    fn pids(&self) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(self.root.join("proc")) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }
}

fn read<T>(dir: &Path, name: &str, parse: fn(&str) -> Option<T>) -> Option<T> {
    parse(&fs::read_to_string(dir.join(name)).ok()?)
}

/// When it was started, and the ticks that it has used, of its own and in the kernel. The name may
/// contain anything.
fn times(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let values: Vec<u64> =
        rest.split_ascii_whitespace().skip(1).map(|v| v.parse().unwrap_or(0)).collect();
    Some((*values.get(18)?, values.get(10)? + values.get(11)?))
}

/// Resident pages, and those of them that are shared.
fn pages(statm: &str) -> Option<(u64, u64)> {
    let mut values = statm.split_ascii_whitespace().skip(1).map(|v| v.parse().ok());
    Some((values.next()??, values.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::JobId;

    fn process(root: &Path, pid: u32, task: &str, ticks: u64, pages: (u64, u64)) {
        let dir = root.join("proc").join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("{pid} (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 {ticks} 5 0 0 20 0 1 0 77 0 0");
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("statm"), format!("900 {} {} 0 0 0 0", pages.0, pages.1)).unwrap();
        let part = root.join("parts").join(format!("{task}@3"));
        fs::write(dir.join("environ"), format!("A=b\0TUTTI_PART={}\0", part.display())).unwrap();
        fs::write(dir.join("cgroup"), "0::/\n").unwrap();
    }

    fn idle(root: &Path) -> Tasks {
        fs::create_dir_all(root.join("parts")).unwrap();
        fs::write(root.join("parts/0.spare"), "").unwrap();
        Tasks::new(root.to_owned(), Marks { parts: root.join("parts"), cgroup: None })
    }

    fn with_a_part(root: &Path) -> Tasks {
        let tasks = idle(root);
        fs::write(root.join("parts/7@3.running"), "").unwrap();
        tasks
    }

    #[test]
    fn without_a_part_no_process_is_asked() {
        let root = tempfile::tempdir().unwrap();
        let mut tasks = idle(root.path());
        process(root.path(), 10, "7", 100, (30, 10));
        assert_eq!(tasks.read(Duration::from_secs(0)), []);
        assert!(tasks.strangers.is_empty(), "nobody was asked");
        fs::write(root.path().join("parts/7@3.running"), "").unwrap();
        assert_eq!(tasks.read(Duration::from_secs(5)).len(), 1, "found at the next look");
    }

    #[test]
    fn processes_of_a_task_are_summed_and_what_they_share_counts_once() {
        let root = tempfile::tempdir().unwrap();
        let mut tasks = with_a_part(root.path());
        process(root.path(), 10, "7", 100, (30, 10));
        process(root.path(), 11, "7", 0, (50, 20));
        process(root.path(), 12, "other", 0, (50, 20));
        let first = tasks.read(Duration::from_secs(100));
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!((first[0].task, first[0].cpus), (TaskId::single(JobId(7)), 0.0));
        assert_eq!(first[0].mem.0, (20 + 30 + 20) * tasks.page);
        process(root.path(), 10, "7", 1100, (30, 10));
        assert_eq!(tasks.read(Duration::from_secs(101)), first, "it is too soon to look");
        let later = tasks.read(Duration::from_secs(105));
        assert_eq!(later[0].cpus, 2.0, "ten seconds of work in five");
    }

    #[test]
    fn strangers_are_asked_once_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let mut tasks = with_a_part(root.path());
        process(root.path(), 12, "other", 0, (50, 20));
        let mut look = |second: u64| tasks.read(Duration::from_secs(second)).len();
        assert_eq!(look(0), 0);
        // Its number is another's now, and a new one is there.
        process(root.path(), 12, "7", 0, (50, 20));
        assert_eq!(look(5), 0);
        process(root.path(), 13, "8", 0, (50, 20));
        assert_eq!(look(10), 1, "new numbers are asked at once");
        assert_eq!((3..12).map(|n| look(n * 5)).max(), Some(1));
        assert_eq!(look(60), 2);
    }

    #[test]
    fn who_is_found_late_has_not_done_all_of_it_since() {
        let root = tempfile::tempdir().unwrap();
        let mut tasks = with_a_part(root.path());
        assert_eq!(tasks.read(Duration::from_secs(0)), []);
        process(root.path(), 10, "7", 90_000, (30, 10));
        assert_eq!(tasks.read(Duration::from_secs(5))[0].cpus, 1.0);
    }
}
