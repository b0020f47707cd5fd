//! The contract that every journal keeps.

use serde::Serialize;
use tutti_model::Seq;

use crate::{BoxError, JournalError};

/// Records `first` to `last`, encoded together: one commit, one fsync, one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub first: Seq,
    pub last: Seq,
    pub bytes: Vec<u8>,
}

/// A durable, ordered log with one owner.
///
/// - Records are numbered from 1 without gaps. [`append`](Journal::append) refuses anything else.
/// - When `append` or `write_snapshot` returns `Ok`, the data survives a crash of the process and
///   of the machine. When it returns an IO error the outcome is unknown: every later write
///   answers [`JournalError::Broken`] and the owner must stop and load again.
/// - The newest **two** snapshots are kept, and the log back to the older of them. A newest
///   snapshot that is damaged is therefore skipped, not fatal. After the first snapshot the log
///   is still whole.
/// - One owner at a time. A file is locked; a journal that is shared over a network must fence
///   an older owner inside the same transaction as the write.
pub trait Journal: Send {
    /// Hands over the newest usable snapshot, then every batch that holds a record after it, in
    /// order, one at a time. The first batch may start before the snapshot's end: skip records
    /// up to the snapshot's `Seq`.
    fn load(&mut self, replay: &mut dyn Replay) -> Result<Loaded, JournalError>;

    /// Adds a batch that starts right after the last record. Durable when it returns.
    fn append(&mut self, batch: &Batch) -> Result<(), JournalError>;

    /// Stores the state after record `seq`, and drops what is then no longer needed: all or
    /// nothing. `seq` is at most the last record. Only an empty journal takes any `seq`, which is
    /// how a copy is restored; the log then goes on after it.
    fn write_snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), JournalError>;

    fn stats(&self) -> Result<Stats, JournalError>;

    /// Whether what is written goes where the next start will look for it. Cheap; [`append`] asks
    /// this too before it answers.
    ///
    /// [`append`]: Journal::append
    fn check_in_place(&self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Gives space back that nothing needs any more, if there is much of it: how much. May take as
    /// long as writing down all that is still needed. As `append` after an error.
    fn give_back(&mut self) -> Result<u64, JournalError> {
        Ok(0)
    }
}

/// Takes what a journal holds.
pub trait Replay {
    /// An error means that this snapshot cannot be used and the one before it is tried, so a
    /// snapshot must be taken whole or not at all.
    fn snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), BoxError>;
    /// An error ends the load.
    fn batch(&mut self, first: Seq, last: Seq, bytes: &[u8]) -> Result<(), BoxError>;
}

/// What [`Journal::load`] handed over.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The snapshot it started from.
    pub snapshot: Option<Seq>,
    pub batches: u64,
    /// The last record of the journal.
    pub last: Seq,
    /// Snapshots that were damaged or refused, newest first.
    pub skipped: Vec<Skipped>,
}

#[derive(Debug)]
pub struct Skipped {
    pub seq: Seq,
    pub why: BoxError,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Batches in the log.
    pub entries: u64,
    /// What batches and snapshots take.
    pub bytes: u64,
    /// What the journal takes on disk, free pages included; as `bytes` where there is no disk.
    pub disk_bytes: u64,
    /// The first record still in the log.
    pub first: Option<Seq>,
    /// The last record, whether in the log or in a snapshot. 0: nothing was ever written.
    pub last: Seq,
    /// The newest snapshot.
    pub snapshot: Option<Seq>,
    pub snapshots: u64,
}
