//! Stopping: agents with their jobs first, then the controller, and nothing that is not ours.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::JOB_GRACE;
use super::process::{Daemon, Proc};
use super::record::UpRecord;
use crate::fail::{Fail, NOT_FOUND};

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

/// Stops what `tutti up` started in this data dir, from any process.
pub fn down(dir: &Path) -> Result<Vec<String>, Fail> {
    if !dir.is_dir() {
        return Err(Fail::new(format!("there is no cluster in {}", dir.display()))
            .exit(NOT_FOUND)
            .hint("name its data dir with --data-dir"));
    }
    let Some(record) = UpRecord::read(dir)? else {
        return Err(Fail::new(format!("tutti up started nothing in {}", dir.display()))
            .exit(NOT_FOUND)
            .hint("a controller or agent that was started by itself is stopped by SIGTERM"));
    };
    let running = record.alive();
    if let Some(supervisor) = record.supervisor.filter(|s| s.is_alive()) {
        // It would start again what we stop; it stops everything itself.
        supervisor.signal(Signal::SIGTERM);
        supervisor.wait_gone(patience() * 2);
    }
    // Read again: it may have restarted something just before.
    let record = UpRecord::read(dir)?.unwrap_or(record);
    stop_procs(&record.agents.iter().map(|(_, p)| *p).collect::<Vec<_>>());
    stop_procs(&[record.controller]);
    let left = record.alive();
    if !left.is_empty() {
        let names: Vec<_> = left.iter().map(|(n, p)| format!("{n} ({})", p.pid)).collect();
        return Err(Fail::new(format!("can't stop {}", names.join(", ")))
            .hint("they may belong to another user"));
    }
    UpRecord::remove(dir);
    Ok(running.into_iter().map(|(name, _)| name).collect())
}

fn stop_procs(procs: &[Proc]) {
    procs.iter().for_each(|p| p.signal(Signal::SIGTERM));
    let deadline = Instant::now() + patience();
    for proc in procs {
        if !proc.wait_gone(deadline.saturating_duration_since(Instant::now())) {
            proc.signal(Signal::SIGKILL);
            proc.wait_gone(Duration::from_secs(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_knows_what_is_not_there() {
        let fail = down("/nonexistent/tutti".as_ref()).unwrap_err();
        assert_eq!(fail.exit, 3);
        let dir = tempfile::tempdir().unwrap();
        let fail = down(dir.path()).unwrap_err();
        assert_eq!(fail.exit, 3);
        assert!(fail.message.contains("started nothing"));
    }

    #[test]
    fn down_stops_only_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ours = Proc::of(sleeper.id()).unwrap();
        let me = Proc::of(std::process::id()).unwrap();
        let not_me = Proc { started: me.started + 1, ..me };
        let record =
            UpRecord { supervisor: None, controller: not_me, agents: vec![("n1".into(), ours)] };
        record.write(dir.path()).unwrap();
        let reaper = std::thread::spawn(move || sleeper.wait());
        assert_eq!(down(dir.path()).unwrap(), ["n1"]);
        reaper.join().unwrap().unwrap();
        assert!(me.is_alive());
        assert_eq!(UpRecord::read(dir.path()).unwrap(), None);
    }
}
