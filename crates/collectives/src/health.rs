//! What this rank knows of the world's health: the verdict, who has left, and who waits for whom.
//!
//! Operations look here; the control thread (`control`) writes here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, Verb, Why};
use crate::peer::Peer;

/// How long a rank that found a failure waits for rank 0's verdict on it.
const VERDICT: Duration = Duration::from_secs(3);

/// Who is to blame, as agreed by all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub rank: usize,
    pub why: Why,
}

/// One wait that takes long: in which operation of which group, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub group: u64,
    pub seq: u64,
    pub on: usize,
}

/// What an operation found, for rank 0 to judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub wait: Wait,
    pub why: Why,
}

pub(crate) struct Health {
    pub peers: Arc<[Peer]>,
    failed: AtomicBool,
    verdict: Mutex<Option<Verdict>>,
    decided: Condvar,
    left: Vec<AtomicBool>,
    waits: Mutex<BTreeMap<u64, Wait>>,
    next_wait: AtomicU64,
    /// Found here, to be judged by rank 0; taken by the control thread.
    reports: Mutex<Vec<Report>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // No invariant spans a panic here: every section is a plain read or write.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Health {
    pub fn new(peers: Arc<[Peer]>, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        Self {
            peers,
            failed: AtomicBool::new(false),
            verdict: Mutex::default(),
            decided: Condvar::new(),
            left,
            waits: Mutex::default(),
            next_wait: AtomicU64::new(0),
            reports: Mutex::default(),
            wake,
        }
    }

    /// An error if the world is spoilt.
    pub fn check(&self, op: Verb) -> Result<()> {
        if self.failed.load(Ordering::Acquire) { Err(self.error(op)) } else { Ok(()) }
    }

    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn error(&self, op: Verb) -> Error {
        let verdict = lock(&self.verdict).clone().expect("failed is set after the verdict");
        let node = self.peers[verdict.rank].node.clone();
        Error::Peer { rank: verdict.rank, node, op, why: verdict.why }
    }

    /// The first verdict stands; a later one changes nothing.
    pub fn condemn(&self, verdict: Verdict) {
        let mut slot = lock(&self.verdict);
        if slot.is_none() {
            *slot = Some(verdict);
            self.failed.store(true, Ordering::Release);
            self.decided.notify_all();
        }
    }

    pub fn verdict(&self) -> Option<Verdict> {
        lock(&self.verdict).clone()
    }

    pub fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::Acquire)
    }

    pub fn set_left(&self, rank: usize) {
        self.left[rank].store(true, Ordering::Release);
    }

    /// Tells rank 0 what was found, and returns what it makes of it; what was found itself if
    /// rank 0 does not answer.
    pub fn blame(&self, wait: Wait, op: Verb, why: Why) -> Error {
        lock(&self.reports).push(Report { wait, why: why.clone() });
        (self.wake)();
        let deadline = Instant::now() + VERDICT;
        let mut slot = lock(&self.verdict);
        while slot.is_none() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            slot = self.decided.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(slot);
        self.condemn(Verdict { rank: wait.on, why });
        self.error(op)
    }

    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut lock(&self.reports))
    }

    /// Puts a long wait on record until the guard is dropped.
    pub fn waiting(&self, wait: Wait) -> Waiting<'_> {
        let id = self.next_wait.fetch_add(1, Ordering::Relaxed);
        lock(&self.waits).insert(id, wait);
        Waiting { health: self, id }
    }

    pub fn waits(&self) -> Vec<Wait> {
        lock(&self.waits).values().copied().collect()
    }
}

pub(crate) struct Waiting<'a> {
    health: &'a Health,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.health.waits).remove(&self.id);
    }
}

/// The patience of one wait inside an operation: when to look for failures, put the wait on
/// record, and give up.
pub(crate) struct Patience<'a> {
    health: &'a Health,
    wait: Wait,
    op: Verb,
    since: Instant,
    limit: Duration,
    record: Option<Waiting<'a>>,
}

impl<'a> Patience<'a> {
    /// How long one sleep may last before the world's health is looked at.
    pub const SLICE: Duration = Duration::from_millis(100);

    pub fn new(health: &'a Health, wait: Wait, op: Verb, limit: Duration) -> Self {
        Self { health, wait, op, since: Instant::now(), limit, record: None }
    }

    /// After every slice without progress.
    pub fn tick(&mut self) -> Result<()> {
        self.health.check(self.op)?;
        let waited = self.since.elapsed();
        if self.record.is_none() && waited >= Self::SLICE {
            self.record = Some(self.health.waiting(self.wait));
        }
        if waited >= self.limit {
            return Err(self.health.blame(self.wait, self.op, Why::Absent(waited)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn health() -> Health {
        let peers: Vec<Peer> = (0..3)
            .map(|r| {
                let mut c = Config::new(r, 3, ("127.0.0.1".into(), 1));
                c.node = format!("n{r}");
                Peer::here(&c, "127.0.0.1:1".parse().unwrap())
            })
            .collect();
        Health::new(peers.into(), Box::new(|| ()))
    }

    #[test]
    fn the_first_verdict_stands_and_names_rank_node_and_operation() {
        let h = health();
        h.check(Verb::Barrier).unwrap();
        h.condemn(Verdict { rank: 2, why: Why::Died });
        h.condemn(Verdict { rank: 1, why: Why::Left });
        let accused = h.check(Verb::AllReduce).unwrap_err().accused().unwrap();
        assert_eq!((accused.rank, accused.node.as_str()), (2, "n2"));
        assert_eq!((accused.op, accused.why), (Verb::AllReduce, Why::Died));
    }

    #[test]
    fn a_wait_is_on_record_only_while_it_lasts() {
        let h = health();
        let wait = Wait { group: 1, seq: 2, on: 1 };
        let guard = h.waiting(wait);
        assert_eq!(h.waits(), [wait]);
        drop(guard);
        assert!(h.waits().is_empty());
    }
}
