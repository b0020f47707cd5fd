//! Stopping: the router first, agents with their jobs, then the controller, and nothing that is not ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::{Daemon, Proc, wait_all_gone};
use super::record::UpRecord;
use super::sweep::{self, Role};
use super::{CONTROLLER, JOB_GRACE, ROUTER, names};
use crate::fail::{Fail, NOT_FOUND};
use crate::show::count;

/// Jobs get their grace; the agent needs a moment more.
fn patience() -> Duration {
    Duration::from_millis(JOB_GRACE.0) + Duration::from_secs(5)
}

/// All at once, then waits for each. Says which were running.
pub fn stop_all(daemons: &mut [Daemon]) -> Vec<String> {
    let mut stopped = Vec::new();
    for daemon in daemons.iter_mut() {
        if !daemon.has_ended() {
            daemon.signal(Signal::SIGTERM);
            stopped.push(daemon.name.clone());
        }
    }
    let deadline = Instant::now() + patience();
    daemons.iter_mut().for_each(|d| d.finish(deadline));
    stopped
}

/// What jobs left behind because their agent was killed; in words, if anything.
pub fn stop_orphans(dir: &Path) -> Option<String> {
    let killed = sweep::kill_jobs(dir, |_| true) as u64;
    (killed > 0).then(|| format!("{} of jobs whose agent was gone", count(killed, "process")))
}

/// Stops what `tutti up` started in this data dir, from any process.
pub fn down(dir: &Path) -> Result<Vec<String>, Fail> {
    let there = dir.canonicalize();
    let is_there = there.is_ok();
    // Of one that was deleted the processes still know where it was.
    let Some(dir) = there.ok().or_else(|| where_it_was(dir)) else { return Err(no_cluster(dir)) };
    if is_there {
        super::check_own(&dir)?;
    }
    // A copy of the directory has started nothing, and must stop nothing of the other.
    let record = UpRecord::read(&dir)?.filter(|record| record.copied_from(&dir).is_none());
    let running = running(&dir, record.as_ref());
    if !is_there && running.is_empty() {
        return Err(no_cluster(&dir));
    }
    if record.is_none() && running.is_empty() {
        return Err(Fail::new(format!("nothing runs in {}", dir.display()))
            .exit(NOT_FOUND)
            .hint("tutti up starts a cluster there"));
    }
    if let Some(supervisor) = record.and_then(|r| r.supervisor).filter(|s| s.is_alive()) {
        // It would start again what we stop; it stops everything itself.
        supervisor.signal(Signal::SIGTERM);
        supervisor.wait_gone(patience() * 2);
    }
    let mut stopped: Vec<String> = running.iter().map(|(name, _)| name.clone()).collect();
    let (controllers, others): (Vec<_>, Vec<_>) =
        running.into_iter().partition(|(name, _)| name == CONTROLLER);
    let (routers, agents): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(name, _)| name == ROUTER);
    // What it has is answered while there is still somebody to answer it.
    stop_procs(&routers);
    stop_procs(&agents);
    stopped.extend(stop_orphans(&dir));
    stop_procs(&controllers);
    let left = self::running(&dir, None);
    if !left.is_empty() {
        let left: Vec<_> = left.iter().map(|(n, p)| format!("{n} ({})", p.pid)).collect();
        return Err(Fail::new(format!("can't stop {}", names::list(&left)))
            .hint("they may belong to another user"));
    }
    UpRecord::remove(&dir);
    Ok(stopped)
}

fn no_cluster(dir: &Path) -> Fail {
    Fail::new(format!("there is no cluster in {0}: there is no such directory", dir.display()))
        .exit(NOT_FOUND)
        .hint("name the data dir that tutti up was given, as its `data in` line says it")
}

/// The path as `tutti up` wrote it on command lines while there was such a directory.
pub fn where_it_was(dir: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(dir).ok()?;
    let there = whole.ancestors().skip(1).find_map(|a| Some((a, a.canonicalize().ok()?)));
    let (above, real) = there?;
    Some(real.join(whole.strip_prefix(above).ok()?))
}

/// By the record and by command line: either alone could miss one. The controller last.
pub fn running(dir: &Path, record: Option<&UpRecord>) -> Vec<(String, Proc)> {
    let mut all = record.map(UpRecord::alive).unwrap_or_default();
    let known: BTreeSet<u32> = all.iter().map(|(_, proc)| proc.pid).collect();
    for found in sweep::find(dir) {
        let helper = matches!(found.role, Role::Helper { .. });
        if !helper && !known.contains(&found.proc.pid) {
            all.push((found.name(), found.proc));
        }
    }
    all.sort_by_key(|(name, _)| name == CONTROLLER);
    all
}

pub fn stop_procs(procs: &[(String, Proc)]) {
    let procs: Vec<Proc> = procs.iter().map(|(_, proc)| *proc).collect();
    procs.iter().for_each(|proc| proc.signal(Signal::SIGTERM));
    let left = wait_all_gone(&procs, patience());
    left.iter().for_each(|proc| proc.signal(Signal::SIGKILL));
    wait_all_gone(&left, Duration::from_secs(2));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_knows_what_is_not_there() {
        let fail = down("/nonexistent/tutti".as_ref()).unwrap_err();
        assert_eq!(fail.exit, 3);
        assert!(fail.message.ends_with("/nonexistent/tutti: there is no such directory"), "{fail}");
        let dir = tempfile::tempdir().unwrap();
        let fail = down(dir.path()).unwrap_err();
        assert_eq!(fail.exit, 3);
        assert!(fail.message.contains("nothing runs"));
    }

    #[test]
    fn down_stops_only_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ours = Proc::of(sleeper.id()).unwrap();
        let me = Proc::of(std::process::id()).unwrap();
        let not_me = Proc { started: me.started + 1, ..me };
        let record = UpRecord {
            supervisor: None,
            controller: not_me,
            agents: vec![("n1".into(), ours)],
            router: None,
            dir: None,
        };
        record.write(dir.path()).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let original = Some(dir.path().canonicalize().unwrap());
        UpRecord { dir: original, ..record }.write(copy.path()).unwrap();
        assert!(down(copy.path()).unwrap_err().message.contains("nothing runs"));
        assert!(ours.is_alive());
        let reaper = std::thread::spawn(move || sleeper.wait());
        assert_eq!(down(dir.path()).unwrap(), ["n1"]);
        reaper.join().unwrap().unwrap();
        assert!(me.is_alive());
        assert_eq!(UpRecord::read(dir.path()).unwrap(), None);
    }
}
