//! When a snapshot is due, and how it is made without holding anything up.
//!
//! The engine thread clones the state (of jobs and of the ledger only pointers), another thread
//! encodes it, and the bytes come back through the queue to be written between two batches.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tutti_engine::packed_state;
use tutti_journal::codec::{self, EncodeError};
use tutti_journal::{Journal, Stats};
use tutti_model::{Seq, State, StoredText};

use super::{CoreError, Request, World};
use crate::memory;

#[derive(Clone, Copy, Debug)]
pub struct SnapshotRule {
    pub records: usize,
    pub bytes: usize,
    /// With so many bytes in the journal that no start needs, a snapshot is due this long after the
    /// last one: it lets go of them.
    pub surplus: usize,
    pub surplus_after: Duration,
}

impl Default for SnapshotRule {
    fn default() -> Self {
        SnapshotRule {
            records: 50_000,
            bytes: 64 << 20,
            surplus: 8 << 20,
            surplus_after: Duration::from_secs(5),
        }
    }
}

/// What a snapshot found, and what came after it.
#[derive(Clone, Copy, Default)]
struct Stretch {
    /// The snapshot itself.
    snapshot: usize,
    /// Stored texts in it, unpacked.
    texts: u64,
    /// The log from there to the next snapshot.
    log: usize,
}

pub(super) struct Snapshots {
    rule: SnapshotRule,
    queue: mpsc::WeakSender<Request>,
    /// Since the last snapshot.
    records: usize,
    bytes: usize,
    in_flight: bool,
    /// The journal keeps two snapshots, and the log from the older one on.
    older: Stretch,
    newest: Stretch,
    /// The last record in the newest one: the log goes only when two of different records are there.
    seq: Seq,
    /// Stored texts in the one that is being made, and when its making began.
    began: (u64, Instant),
}

impl Snapshots {
    /// `there` is what the journal has before the first batch of this controller.
    pub fn new(
        rule: SnapshotRule,
        queue: mpsc::WeakSender<Request>,
        there: Option<Stats>,
    ) -> Snapshots {
        let log = there.map_or(0, |stats| stats.bytes as usize);
        Snapshots {
            rule,
            queue,
            records: 0,
            bytes: 0,
            in_flight: false,
            older: Stretch::default(),
            // Whatever it is, it stays until two snapshots have come.
            newest: Stretch { log, ..Stretch::default() },
            seq: Seq(0),
            began: (0, Instant::now()),
        }
    }

    pub fn count(&mut self, records: usize, bytes: usize) {
        self.records += records;
        self.bytes += bytes;
        self.newest.log += bytes;
    }

    /// Bytes that are only there until the next snapshots, as far as that can be known without
    /// making one.
    fn has_surplus(&self, state: &State) -> bool {
        let SnapshotRule { surplus, surplus_after, .. } = self.rule;
        if self.began.1.elapsed() < surplus_after || state.seq <= self.seq {
            return false;
        }
        let Stretch { snapshot, texts, log } = self.newest;
        let stored = self.older.snapshot + self.older.log + snapshot + log;
        // A large state has a large surplus before it is worth writing down again.
        let idle = stored.saturating_sub(2 * snapshot);
        if idle >= surplus.max(2 * snapshot) {
            return true;
        }
        let now: u64 = state.texts.values().map(StoredText::bytes).sum();
        texts.saturating_sub(now) >= surplus as u64
    }

    pub fn start_if_due(&mut self, world: &Arc<RwLock<World>>) {
        if self.in_flight {
            return;
        }
        let world = world.read().expect("only this thread writes");
        let state = world.engine.state();
        let due = self.records >= self.rule.records || self.bytes >= self.rule.bytes;
        if !due && !self.has_surplus(state) {
            return;
        }
        let state = state.clone();
        drop(world);
        self.began = (state.texts.values().map(StoredText::bytes).sum(), Instant::now());
        let queue = self.queue.clone();
        let spawned = std::thread::Builder::new().name("tutti-snapshot".into()).spawn(move || {
            let seq = state.seq;
            let bytes = encode(state)
                .inspect_err(|error| tracing::error!(%error, %seq, "no snapshot: can't encode"))
                .ok();
            if let Some(queue) = queue.upgrade() {
                // Refused only when the controller stops.
                let _ = queue.blocking_send(Request::Snapshot(seq, bytes));
            }
        });
        match spawned {
            Ok(_) => self.in_flight = true,
            Err(error) => tracing::error!(%error, "no snapshot: can't start a thread"),
        }
        (self.records, self.bytes) = (0, 0);
    }

    pub fn write(
        &mut self,
        journal: &mut dyn Journal,
        seq: Seq,
        bytes: Option<Vec<u8>>,
    ) -> Result<(), CoreError> {
        self.in_flight = false;
        let Some(bytes) = bytes else { return Ok(()) };
        // A failed write leaves the journal of no use, so it counts like a failed append.
        journal.write_snapshot(seq, &bytes).map_err(CoreError::Append)?;
        self.seq = seq;
        let (snapshot, texts) = (bytes.len(), self.began.0);
        tracing::info!(%seq, bytes = snapshot, "wrote a snapshot");
        drop(bytes);
        // What was written while it was made is in the log after it.
        let log = self.bytes;
        self.older = Stretch { log: self.newest.log.saturating_sub(log), ..self.newest };
        self.newest = Stretch { snapshot, texts, log };
        let given_back = journal.give_back().map_err(CoreError::Append)?;
        if given_back > 0 {
            tracing::info!(bytes = given_back, "gave space of the journal back");
        }
        memory::give_back();
        Ok(())
    }
}

/// A program that does not know of texts beside the jobs must not read a snapshot that has some.
fn encode(state: State) -> Result<Vec<u8>, EncodeError> {
    if state.texts.is_empty() {
        return codec::encode_packed(&state);
    }
    codec::encode_packed_2(&packed_state(state))
}
