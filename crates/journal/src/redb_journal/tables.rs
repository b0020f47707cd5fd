//! What the file holds.
//!
//! ```text
//! log        (first, last)   encoded batch
//! snapshots  seq             (length, chunks, crc32)
//! chunks     (seq, index)    part of a snapshot
//! meta       "format"        1
//! ```
//! An append changes `log` alone: every further table would cost more pages per commit.

use std::collections::BTreeSet;

use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableHandle,
    WriteTransaction,
};
use tutti_model::Seq;

use super::Guard;
use crate::{BoxError, JournalError, Stats};

pub(crate) const LOG: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("log");
pub(crate) const SNAPSHOTS: TableDefinition<u64, (u64, u32, u32)> =
    TableDefinition::new("snapshots");
pub(crate) const CHUNKS: TableDefinition<(u64, u32), &[u8]> = TableDefinition::new("chunks");
pub(crate) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// The tables above. A change that an older tutti cannot read raises it.
pub(crate) const FORMAT: u64 = 1;
const FORMAT_KEY: &str = "format";

/// A little under 1 MiB, because redb rounds a value with its page header up to a power of two.
const CHUNK: usize = (1 << 20) - 4096;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotDamage {
    #[error("chunk {index} of {chunks} is missing")]
    MissingChunk { index: u32, chunks: u32 },
    #[error("it holds {found} bytes where {expected} were written")]
    Length { found: u64, expected: u64 },
    #[error("checksum does not match: stored {stored:08x}, computed {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotHead {
    pub length: u64,
    pub chunks: u32,
    pub crc: u32,
}

impl SnapshotHead {
    pub fn from_value((length, chunks, crc): (u64, u32, u32)) -> SnapshotHead {
        SnapshotHead { length, chunks, crc }
    }
}

/// `None`: the file has no table at all, so nothing was ever written to it.
pub(crate) fn read_format(db: &Database, guard: &Guard) -> Result<Option<u64>, JournalError> {
    let names = guard.run("reading", || {
        let txn = db.begin_read()?;
        let mut names: Vec<String> = txn.list_tables()?.map(|t| t.name().to_owned()).collect();
        names.extend(txn.list_multimap_tables()?.map(|t| {
            use redb::MultimapTableHandle;
            t.name().to_owned()
        }));
        Ok(names)
    })?;
    if names.is_empty() {
        return Ok(None);
    }
    let not_ours = || JournalError::NotAJournal {
        path: guard.path().to_owned(),
        found: format!("a redb file with the tables {}", names.join(", ")),
    };
    if !names.iter().any(|n| n == META.name()) {
        return Err(not_ours());
    }
    let format = guard.run("reading", || {
        let format = db.begin_read()?.open_table(META)?.get(FORMAT_KEY)?;
        Ok(format.map(|f| f.value()))
    })?;
    match format {
        None => Err(not_ours()),
        Some(found) if found > FORMAT => {
            let path = guard.path().to_owned();
            Err(JournalError::NewerFormat { path, found, known: FORMAT })
        }
        Some(found) => Ok(Some(found)),
    }
}

/// Makes the tables in a new file, so that no reader meets a missing one.
pub(super) fn check_format(db: &Database, guard: &Guard) -> Result<(), JournalError> {
    if read_format(db, guard)?.is_some() {
        return Ok(());
    }
    guard.run("writing", || {
        let txn = db.begin_write()?;
        txn.open_table(LOG)?;
        txn.open_table(SNAPSHOTS)?;
        txn.open_table(CHUNKS)?;
        txn.open_table(META)?.insert(FORMAT_KEY, FORMAT)?;
        Ok(txn.commit()?)
    })
}

pub(super) fn store_snapshot(
    txn: &WriteTransaction,
    seq: Seq,
    bytes: &[u8],
) -> Result<(), redb::Error> {
    remove_snapshot(txn, seq)?;
    let mut chunks = txn.open_table(CHUNKS)?;
    let mut count = 0u32;
    for chunk in bytes.chunks(CHUNK) {
        chunks.insert((seq.0, count), chunk)?;
        count += 1;
    }
    let head = (bytes.len() as u64, count, crc32fast::hash(bytes));
    txn.open_table(SNAPSHOTS)?.insert(seq.0, head)?;
    Ok(())
}

/// Keeps `newest` and the good snapshot before it, and the log after that one.
pub(super) fn drop_covered(
    txn: &WriteTransaction,
    newest: Seq,
    damaged: &BTreeSet<Seq>,
) -> Result<(), redb::Error> {
    let mut older = Vec::new();
    for entry in txn.open_table(SNAPSHOTS)?.range(..newest.0)? {
        older.push(Seq(entry?.0.value()));
    }
    let previous = older.iter().rev().find(|s| !damaged.contains(s)).copied();
    for seq in older.into_iter().filter(|s| Some(*s) != previous) {
        remove_snapshot(txn, seq)?;
    }
    if let Some(previous) = previous {
        let covered = ..=(previous.0, u64::MAX);
        txn.open_table(LOG)?.retain_in(covered, |(_, last), _| last > previous.0)?;
    }
    Ok(())
}

fn remove_snapshot(txn: &WriteTransaction, seq: Seq) -> Result<(), redb::Error> {
    txn.open_table(SNAPSHOTS)?.remove(seq.0)?;
    txn.open_table(CHUNKS)?.retain_in((seq.0, 0)..=(seq.0, u32::MAX), |_, _| false)?;
    Ok(())
}

pub(crate) fn read_snapshot(db: &Database, guard: &Guard, seq: Seq) -> Result<Vec<u8>, BoxError> {
    let (head, bytes, found) = guard.run("reading", || {
        let txn = db.begin_read()?;
        let head = txn.open_table(SNAPSHOTS)?.get(seq.0)?;
        let head = SnapshotHead::from_value(head.map_or((0, 0, 0), |h| h.value()));
        let table = txn.open_table(CHUNKS)?;
        let mut bytes = Vec::new();
        let mut found = 0u32;
        for entry in table.range((seq.0, 0)..=(seq.0, u32::MAX))? {
            let (key, chunk) = entry?;
            if key.value().1 != found {
                break;
            }
            bytes.extend_from_slice(chunk.value());
            found += 1;
        }
        Ok((head, bytes, found))
    })?;
    if found < head.chunks {
        return Err(SnapshotDamage::MissingChunk { index: found, chunks: head.chunks }.into());
    }
    if bytes.len() as u64 != head.length {
        let found = bytes.len() as u64;
        return Err(SnapshotDamage::Length { found, expected: head.length }.into());
    }
    let computed = crc32fast::hash(&bytes);
    if computed != head.crc {
        return Err(SnapshotDamage::Checksum { stored: head.crc, computed }.into());
    }
    Ok(bytes)
}

/// Counts from table roots and snapshot heads; `last` and `snapshot` are the caller's to fill in.
pub(crate) fn stats(db: &Database) -> Result<Stats, redb::Error> {
    let txn = db.begin_read()?;
    let log = txn.open_table(LOG)?;
    let snapshots = txn.open_table(SNAPSHOTS)?;
    let stored = log.stats()?.stored_bytes() + txn.open_table(CHUNKS)?.stats()?.stored_bytes();
    Ok(Stats {
        entries: log.len()?,
        bytes: stored,
        first: log.first()?.map(|(k, _)| Seq(k.value().0)),
        snapshots: snapshots.len()?,
        ..Stats::default()
    })
}
