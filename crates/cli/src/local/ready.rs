//! Waiting until every node can take work.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tutti_controller::links::OLDER_COPY;
use tutti_model::thousands;
use tutti_wire::api::{Finding, FindingLevel};

use super::process::Daemon;
use super::{POLL, RunningCluster, StopSignals, names, usable};
use crate::fail::Fail;
use crate::show::count;

/// Without another node that became ready.
const NODES_WAIT: Duration = Duration::from_secs(60);
/// Without another one for this long, those who wait are told for whom, and why.
const NODES_WORD: Duration = Duration::from_secs(5);
const REASONS_MAX: usize = 10;
const POLL_MAX: Duration = Duration::from_secs(2);
/// Most of the time is theirs who start, not ours who ask.
const REST: u32 = 8;
const SAY_EVERY: Duration = Duration::from_secs(2);

impl RunningCluster {
    /// Until every node can take work. `say` hears now and then how many do.
    pub fn wait_ready(
        &mut self,
        stop: &StopSignals,
        mut say: impl FnMut(&str),
    ) -> Result<(), Fail> {
        let ours: BTreeSet<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        let mut progress = Progress::new(ours.len(), Instant::now());
        loop {
            let began = Instant::now();
            if let Some(dead) = self.agents.iter_mut().find_map(Daemon::death) {
                return Err(dead);
            }
            let ready: BTreeSet<String> = self
                .client
                .nodes()?
                .into_iter()
                .filter(|node| usable(node.state) && ours.contains(&node.name))
                .map(|node| node.name)
                .collect();
            if ready.len() == ours.len() {
                return Ok(());
            }
            if stop.asked() {
                return Err(Fail::new("interrupted").exit(130));
            }
            let now = Instant::now();
            if let Some(text) = progress.saw(ready.len(), now) {
                say(&text);
            }
            let mut missing: Vec<&String> = ours.difference(&ready).collect();
            missing.sort_by_cached_key(|name| tutti_controller::views::counted(name));
            if progress.is_late(now) {
                let reasons = self.with_reasons(&missing);
                if reasons.contains(OLDER_COPY) {
                    return Err(self.older_copy(&reasons));
                }
                say(&format!("waiting for {reasons}"));
            }
            if progress.is_stuck(now) {
                let logs = self.data_dir.join("logs");
                return Err(Fail::new(format!(
                    "not ready in time: {}",
                    self.with_reasons(&missing)
                ))
                .hint(format!("their logs are in {}", logs.display())));
            }
            // A list of a thousand nodes takes a while to make and to read.
            std::thread::sleep((began.elapsed() * REST).clamp(POLL, POLL_MAX));
        }
    }

    /// Nobody mends that by waiting.
    fn older_copy(&self, reasons: &str) -> Fail {
        let dir = self.data_dir.display();
        Fail::new(format!("the journal in {dir} is older than what its nodes know: {reasons}"))
            .hint(format!(
                "if this copy was put back on purpose: tutti down --data-dir {dir}, then tutti \
                 restore --data-dir {dir}, then tutti up again"
            ))
    }

    /// The names, and what the controller knows to be wrong with them.
    fn with_reasons(&self, missing: &[&String]) -> String {
        let findings = self.client.doctor().map_or_else(|_| Vec::new(), |report| report.findings);
        let reason = |name: &str| {
            let subject = format!("node {name}");
            let error = |f: &&Finding| f.level == FindingLevel::Error && f.subject == subject;
            findings.iter().find(error).map(|f| format!("\n  {name}: {}", f.message))
        };
        let reasons: String =
            missing.iter().filter_map(|name| reason(name)).take(REASONS_MAX).collect();
        format!("{}{reasons}", names::list(missing))
    }
}

/// How many are ready, when that last grew, and when it was last said.
struct Progress {
    all: usize,
    ready: usize,
    grew: Instant,
    said: Instant,
    /// It was said why some are late.
    named: bool,
}

impl Progress {
    fn new(all: usize, now: Instant) -> Progress {
        Progress { all, ready: 0, grew: now, said: now, named: false }
    }

    /// In words, if it is time.
    fn saw(&mut self, ready: usize, now: Instant) -> Option<String> {
        if ready > self.ready {
            self.grew = now;
        }
        self.ready = ready;
        let due = now.duration_since(self.said) >= SAY_EVERY;
        due.then(|| {
            self.said = now;
            let are = if ready == 1 { "is" } else { "are" };
            format!("{} of {} {are} ready", thousands(ready as u64), count(self.all as u64, "node"))
        })
    }

    /// Once, when none has become ready for a while.
    fn is_late(&mut self, now: Instant) -> bool {
        let late = !self.named && now.duration_since(self.grew) > NODES_WORD;
        self.named |= late;
        late
    }

    fn is_stuck(&self, now: Instant) -> bool {
        now.duration_since(self.grew) > NODES_WAIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_how_far_they_are_and_patience_is_for_those_who_get_further() {
        let start = Instant::now();
        let at = |secs: u64| start + Duration::from_secs(secs);
        let mut progress = Progress::new(1000, start);
        assert_eq!(progress.saw(5, at(1)), None);
        assert_eq!(progress.saw(612, at(2)).unwrap(), "612 of 1,000 nodes are ready");
        assert_eq!(progress.saw(640, at(3)), None, "not at every look");
        assert_eq!(progress.saw(1, at(5)).unwrap(), "1 of 1,000 nodes is ready");
        assert!(!progress.is_stuck(at(63)) && progress.is_stuck(at(64)));
        progress.saw(700, at(64));
        assert!(!progress.is_stuck(at(124)));
    }
}
