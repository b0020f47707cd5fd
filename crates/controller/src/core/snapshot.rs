//! When a snapshot is due, and how it is made without holding anything up.
//!
//! The engine thread clones the state (of jobs and of the ledger only pointers), another thread
//! encodes it, and the bytes come back through the queue to be written between two batches.

use std::sync::{Arc, RwLock};

use tokio::sync::mpsc;
use tutti_journal::{Journal, codec};
use tutti_model::Seq;

use super::{CoreError, Request, World};

#[derive(Clone, Copy, Debug)]
pub struct SnapshotRule {
    pub records: usize,
    pub bytes: usize,
}

impl Default for SnapshotRule {
    fn default() -> Self {
        SnapshotRule { records: 50_000, bytes: 64 << 20 }
    }
}

pub(super) struct Snapshots {
    rule: SnapshotRule,
    queue: mpsc::WeakSender<Request>,
    records: usize,
    bytes: usize,
    in_flight: bool,
}

impl Snapshots {
    pub fn new(rule: SnapshotRule, queue: mpsc::WeakSender<Request>) -> Snapshots {
        Snapshots { rule, queue, records: 0, bytes: 0, in_flight: false }
    }

    pub fn count(&mut self, records: usize, bytes: usize) {
        self.records += records;
        self.bytes += bytes;
    }

    pub fn start_if_due(&mut self, world: &Arc<RwLock<World>>) {
        let due = self.records >= self.rule.records || self.bytes >= self.rule.bytes;
        if !due || self.in_flight {
            return;
        }
        let state = world.read().expect("only this thread writes").engine.state().clone();
        let queue = self.queue.clone();
        let spawned = std::thread::Builder::new().name("tutti-snapshot".into()).spawn(move || {
            let seq = state.seq;
            let bytes = codec::encode_packed(&state)
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
        tracing::info!(%seq, bytes = bytes.len(), "wrote a snapshot");
        Ok(())
    }
}
