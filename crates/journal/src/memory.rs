//! A journal in memory, for tests and simulation. Clones share what they hold, so a crash is
//! played by dropping everything but a clone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tutti_model::Seq;

use crate::order::{Follow, Order};
use crate::{Batch, Journal, JournalError, Loaded, Replay, Skipped, Stats};

#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    order: Order,
    log: VecDeque<Batch>,
    snapshots: BTreeMap<Seq, Vec<u8>>,
}

impl MemoryJournal {
    pub fn new() -> MemoryJournal {
        MemoryJournal::default()
    }

    /// A copy that shares nothing with this one: what a disk would hold after a crash now.
    pub fn copy(&self) -> MemoryJournal {
        let held = self.held();
        let held = Held {
            order: held.order.clone(),
            log: held.log.clone(),
            snapshots: held.snapshots.clone(),
        };
        MemoryJournal { held: Arc::new(Mutex::new(held)) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic elsewhere leaves the data whole: every change below is made at the end.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryJournal {
    fn load(&mut self, replay: &mut dyn Replay) -> Result<Loaded, JournalError> {
        let mut held = self.held();
        let mut loaded = Loaded::default();
        for (&seq, bytes) in held.snapshots.iter().rev() {
            match replay.snapshot(seq, bytes) {
                Ok(()) => {
                    loaded.snapshot = Some(seq);
                    break;
                }
                Err(why) => loaded.skipped.push(Skipped { seq, why }),
            }
        }
        let start = loaded.snapshot.unwrap_or_default();
        let mut follow = Follow::after(loaded.snapshot);
        for Batch { first, last, bytes } in held.log.iter().filter(|b| b.last > start) {
            follow.next(*first, *last)?;
            replay.batch(*first, *last, bytes).map_err(|source| JournalError::BadRecords {
                first: *first,
                last: *last,
                source,
            })?;
            loaded.batches += 1;
        }
        loaded.last = follow.end(held.order.last)?;
        for skipped in &loaded.skipped {
            held.snapshots.remove(&skipped.seq);
        }
        held.order.newest_snapshot = loaded.snapshot;
        Ok(loaded)
    }

    fn append(&mut self, batch: &Batch) -> Result<(), JournalError> {
        let mut held = self.held();
        held.order.check_append(batch)?;
        held.log.push_back(batch.clone());
        held.order.appended(batch);
        Ok(())
    }

    fn write_snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), JournalError> {
        let mut held = self.held();
        held.order.check_snapshot(seq)?;
        held.snapshots.insert(seq, bytes.to_vec());
        while held.snapshots.len() > 2 {
            held.snapshots.pop_first();
        }
        if held.snapshots.len() == 2
            && let Some(&older) = held.snapshots.keys().next()
        {
            held.log.retain(|b| b.last > older);
        }
        held.order.snapshot_written(seq);
        Ok(())
    }

    fn stats(&self) -> Result<Stats, JournalError> {
        let held = self.held();
        let log: usize = held.log.iter().map(|b| b.bytes.len()).sum();
        let snapshots: usize = held.snapshots.values().map(Vec::len).sum();
        let bytes = (log + snapshots) as u64;
        Ok(Stats {
            entries: held.log.len() as u64,
            bytes,
            disk_bytes: bytes,
            first: held.log.front().map(|b| b.first),
            last: held.order.last,
            snapshot: held.order.newest_snapshot,
            snapshots: held.snapshots.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[test]
    fn keeps_the_contract() {
        conformance::run_all(&mut || Box::new(MemoryJournal::new()));
    }
}
