//! The foreground of `tutti up`: restart what dies until somebody says stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use super::process::{Daemon, Proc};
use super::{CONTROLLER, ROUTER, RunningCluster};
use crate::fail::{Fail, JOURNAL_GONE};
use crate::terminal;

const LOOK_EVERY: Duration = Duration::from_millis(200);
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Who lived this long before dying is restarted without a longer pause.
const STEADY: Duration = Duration::from_secs(60);

/// Ctrl-C and SIGTERM, as a question that can be asked at any time.
pub struct StopSignals {
    asked: Arc<AtomicBool>,
}

impl StopSignals {
    /// Before other threads exist, so that only the watcher takes the signals.
    pub fn watch() -> Result<StopSignals, Fail> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block().map_err(|e| Fail::new(format!("can't take over Ctrl-C: {e}")))?;
        let asked = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&asked);
        std::thread::spawn(move || {
            while signals.wait().is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
        });
        Ok(StopSignals { asked })
    }

    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// When the next start of something that died is due.
struct Pause {
    since: Instant,
    length: Duration,
    due: Option<Instant>,
}

impl Pause {
    fn new(now: Instant) -> Pause {
        Pause { since: now, length: PAUSE_FIRST, due: None }
    }

    /// It died: how long to wait, longer each time in a row.
    fn died(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.since) > STEADY {
            self.length = PAUSE_FIRST;
        }
        let length = self.length;
        self.due = Some(now + length);
        self.length = (length * 2).min(PAUSE_MAX);
        length
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|t| t <= now)
    }

    fn started(&mut self, now: Instant) {
        (self.since, self.due) = (now, None);
    }
}

impl RunningCluster {
    /// Until a signal comes, or there is nothing left to start again.
    pub fn supervise(&mut self, stop: &StopSignals) -> Result<(), Fail> {
        let me = Proc::of(std::process::id());
        self.note_what_runs(me)?;
        let mut pauses: Vec<Pause> =
            (0..self.agents.len() + 2).map(|_| Pause::new(Instant::now())).collect();
        while !stop.asked() {
            self.check_journal()?;
            let began = Instant::now();
            let mut changed = false;
            let daemons = std::iter::once(&mut self.controller).chain(&mut self.agents);
            let daemons = daemons.chain(&mut self.router);
            for (daemon, pause) in daemons.zip(&mut pauses) {
                changed |= look_after(daemon, pause);
            }
            if changed {
                self.note_what_runs(me)?;
            }
            // A thousand take a while to look at, and most of the time is theirs.
            std::thread::sleep((began.elapsed() * 4).max(LOOK_EVERY));
        }
        Ok(())
    }

    /// Where that fails because all of the data dir is gone, this is the reason to tell.
    fn note_what_runs(&self, me: Option<Proc>) -> Result<(), Fail> {
        self.write_record(me).or_else(|failed| self.check_journal().and(Err(failed)))
    }

    /// A controller whose journal is gone would begin anew, with nothing and for nobody.
    fn check_journal(&self) -> Result<(), Fail> {
        let journal = self.data_dir.join(tutti_controller::JOURNAL_FILE);
        match std::fs::symlink_metadata(&journal) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let gone = format!("{} was deleted or moved away", journal.display());
                Err(Fail::new(format!("{gone} while the cluster ran, so it is stopped"))
                    .exit(JOURNAL_GONE)
                    .hint("put the data dir back, or restore a copy of it, and start again"))
            }
            _ => Ok(()),
        }
    }
}

/// True when it was started again.
fn look_after(daemon: &mut Daemon, pause: &mut Pause) -> bool {
    let now = Instant::now();
    if pause.due.is_none() {
        if let Some(death) = daemon.death() {
            let wait = pause.died(now);
            let what = match daemon.name.as_str() {
                CONTROLLER => "the controller".to_owned(),
                ROUTER => "the router".to_owned(),
                node => format!("the agent of {node}"),
            };
            let (message, secs) = (death.message, wait.as_secs_f32());
            terminal::complain(&format!("{what} ended ({message}); again in {secs} s"));
        }
        return false;
    }
    if !pause.is_due(now) {
        return false;
    }
    match daemon.restart() {
        Ok(()) => {
            pause.started(now);
            true
        }
        Err(fail) => {
            terminal::complain(&fail.to_string());
            pause.died(now);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_forgiven() {
        let start = Instant::now();
        let mut pause = Pause::new(start);
        let mut now = start + Duration::from_secs(1);
        let lengths: Vec<_> = (0..8)
            .map(|_| {
                let length = pause.died(now);
                assert!(!pause.is_due(now));
                now += length;
                assert!(pause.is_due(now));
                pause.started(now);
                length.as_millis()
            })
            .collect();
        assert_eq!(lengths, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        now += STEADY * 2;
        assert_eq!(pause.died(now), PAUSE_FIRST);
    }
}
