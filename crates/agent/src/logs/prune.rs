//! Removes logs that are no longer kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use tutti_model::{JobId, TaskId};

use crate::config::LogRetention;

/// At most this many tasks at a time, so that a pass never takes long; the next goes on.
const PER_PASS: usize = 5000;
const MARK: &str = "removed";

/// Jobs up to this one may have had logs that are gone.
pub fn removed_up_to(logs: &Path) -> Option<JobId> {
    fs::read_to_string(logs.join(MARK)).ok()?.trim().parse().ok()
}

/// Removes the logs of tasks that are too old, too many or too large together, the oldest first;
/// never of `live` ones.
pub fn prune(logs: &Path, keep: LogRetention, live: &BTreeSet<TaskId>) -> io::Result<usize> {
    let mut found = tasks(logs)?;
    let mut sizes = BTreeMap::new();
    for (_, task) in &found {
        sizes.insert(*task, size(&logs.join(task.to_string()))?);
    }
    let total: u64 = sizes.values().sum();
    let too_much = total.saturating_sub(most(logs, keep, total)?);
    found.retain(|(_, task)| !live.contains(task));
    found.sort_unstable();
    let excess = found.len().saturating_sub(keep.tasks).max(oldest(&found, &sizes, too_much));
    let now = SystemTime::now();
    let too_old = |at: SystemTime| now.duration_since(at).is_ok_and(|age| age > keep.age);
    let doomed: Vec<TaskId> = found
        .iter()
        .enumerate()
        .take_while(|(i, (at, _))| *i < excess || too_old(*at))
        .map(|(_, (_, task))| *task)
        .take(PER_PASS)
        .collect();
    let Some(newest) = doomed.iter().map(|task| task.job).max() else { return Ok(0) };
    // The mark first: a log must not be gone without it.
    if removed_up_to(logs).is_none_or(|known| known < newest) {
        fs::write(logs.join(MARK), format!("{newest}\n"))?;
    }
    for task in &doomed {
        fs::remove_dir_all(logs.join(task.to_string()))?;
    }
    Ok(doomed.len())
}

/// How many of the oldest make up this many bytes.
fn oldest(found: &[(SystemTime, TaskId)], sizes: &BTreeMap<TaskId, u64>, bytes: u64) -> usize {
    let mut gone = 0;
    let enough = |(_, task): &(SystemTime, TaskId)| {
        let more = gone < bytes;
        gone += sizes.get(task).copied().unwrap_or(0);
        more
    };
    found.iter().copied().take_while(enough).count()
}

/// How many bytes may stay, when `total` are there.
fn most(logs: &Path, keep: LogRetention, total: u64) -> io::Result<u64> {
    match nix::sys::statvfs::statvfs(logs) {
        Ok(disk) => {
            let free = disk.blocks_available() * disk.fragment_size();
            Ok(keep.bytes.min((free + total) / 2))
        }
        Err(nix::Error::ENOENT) => Ok(keep.bytes),
        Err(e) => Err(e.into()),
    }
}

/// Bytes on disk below this directory. What disappears meanwhile does not count.
fn size(dir: &Path) -> io::Result<u64> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += size(&entry.path())?,
            Ok(found) => bytes += found.blocks() * 512,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// Every task with logs, and when an attempt of it began.
fn tasks(logs: &Path) -> io::Result<Vec<(SystemTime, TaskId)>> {
    let entries = match fs::read_dir(logs) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(task) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
            found.push((entry.metadata()?.modified()?, task));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::TempDir;

    fn logs(dir: &TempDir, tasks: &[&str]) {
        for (age, task) in tasks.iter().rev().enumerate() {
            let path = dir.path().join(task).join("1");
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("0.log"), "1 o x\n").unwrap();
            let at = SystemTime::now() - Duration::from_secs(60 * (1 + age as u64));
            fs::File::open(dir.path().join(task)).unwrap().set_modified(at).unwrap();
        }
    }

    fn left(dir: &TempDir) -> Vec<String> {
        let tasks = tasks(dir.path()).unwrap();
        let names: BTreeSet<String> = tasks.iter().map(|(_, t)| t.to_string()).collect();
        names.into_iter().collect()
    }

    #[test]
    fn the_newest_stay() {
        let dir = TempDir::new("prune-count");
        logs(&dir, &["1", "2_0", "2_1", "3"]);
        let keep = LogRetention { tasks: 2, age: Duration::from_secs(86_400), bytes: 1 << 30 };
        assert_eq!(prune(dir.path(), keep, &BTreeSet::new()).unwrap(), 2);
        assert_eq!(left(&dir), ["2_1", "3"]);
        assert_eq!(removed_up_to(dir.path()), Some(JobId(2)));
    }

    #[test]
    fn the_old_go_but_not_those_that_run() {
        let dir = TempDir::new("prune-age");
        logs(&dir, &["1", "2", "3"]);
        let keep = LogRetention { tasks: 100, age: Duration::from_secs(90), bytes: 1 << 30 };
        let live = BTreeSet::from(["1".parse().unwrap()]);
        assert_eq!(prune(dir.path(), keep, &live).unwrap(), 1);
        assert_eq!(left(&dir), ["1", "3"]);
    }

    #[test]
    fn the_oldest_go_when_all_together_are_too_large() {
        let dir = TempDir::new("prune-bytes");
        logs(&dir, &["1", "2", "3", "4"]);
        for task in ["1", "2", "3", "4"] {
            let mut file = fs::File::create(dir.path().join(task).join("1/0.log")).unwrap();
            std::io::Write::write_all(&mut file, &[b'x'; 100_000]).unwrap();
            file.sync_all().unwrap();
        }
        let keep = LogRetention { tasks: 100, age: Duration::from_secs(86_400), bytes: 250_000 };
        let live = BTreeSet::from(["1".parse().unwrap()]);
        assert_eq!(prune(dir.path(), keep, &live).unwrap(), 2);
        assert_eq!(left(&dir), ["1", "4"]);
    }
}
