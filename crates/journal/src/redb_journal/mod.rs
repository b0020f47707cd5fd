//! The journal in one redb file.
//!
//! An append touches one table and commits in one phase: redb writes the changed pages, both
//! commit slots are checksummed, and one fsync makes it durable. After a crash redb checks the
//! newest slot and falls back to the one before, so an unfinished write is dropped as a whole.
//! Quick repair would save that check but needs two fsyncs per commit.

mod guard;
mod open;
mod overlay;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use redb::{Database, Durability, ReadableDatabase, ReadableTable};
use tutti_model::Seq;

pub(crate) use self::guard::{Guard, lock_shared};
pub(crate) use self::open::{Header, open_overlay, read_header};
pub use self::open::{Options, Recovery};
pub(crate) use self::tables::{CHUNKS, LOG, SNAPSHOTS, read_format, read_snapshot, stats};
use crate::order::{Follow, Order};
use crate::{Batch, Journal, JournalError, Loaded, Replay, Skipped, Stats};

#[derive(Debug)]
pub struct RedbJournal {
    /// There until the journal is dropped.
    db: Option<Database>,
    guard: Guard,
    order: Order,
    recovery: Recovery,
    /// Snapshots that a load could not use: the next one replaces them, not the good one.
    damaged: BTreeSet<Seq>,
    /// Which file it is. None: no file at all.
    identity: Option<FileIdentity>,
}

/// Device and inode: the same for as long as the file is open, whatever becomes of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity(u64, u64);

impl FileIdentity {
    pub fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity(metadata.dev(), metadata.ino())
    }
}

/// A smaller file is not worth the trouble.
const SLACK_FROM: u64 = 32 << 20;
/// A file this many times as large as what it holds is made smaller.
const SLACK_FACTOR: u64 = 3;

impl RedbJournal {
    /// Opens the journal, or makes a new one where there is no file. Its mode is 0600.
    pub fn open(path: &Path, options: &Options) -> Result<RedbJournal, JournalError> {
        open::open(path, options)
    }

    /// What had to be done to open it.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    pub fn path(&self) -> &Path {
        self.guard.path()
    }

    fn db(&self) -> Result<&Database, redb::Error> {
        self.db.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    fn from_database(
        db: Database,
        path: PathBuf,
        recovery: Recovery,
    ) -> Result<RedbJournal, JournalError> {
        let guard = Guard::new(path);
        tables::check_format(&db, &guard)?;
        let (last_batch, newest) = guard.run("reading", || {
            let txn = db.begin_read()?;
            let last = txn.open_table(LOG)?.last()?.map(|(k, _)| Seq(k.value().1));
            let newest = txn.open_table(SNAPSHOTS)?.last()?.map(|(k, _)| Seq(k.value()));
            Ok((last, newest))
        })?;
        let order = Order::new(last_batch, newest);
        let damaged = BTreeSet::new();
        Ok(RedbJournal { db: Some(db), guard, order, recovery, damaged, identity: None })
    }

    /// The newest snapshot that can be read and that `replay` accepts.
    fn load_snapshot(
        &self,
        replay: &mut dyn Replay,
        loaded: &mut Loaded,
    ) -> Result<(), JournalError> {
        let seqs = self.guard.run("reading", || {
            let table = self.db()?.begin_read()?.open_table(SNAPSHOTS)?;
            table.iter()?.rev().map(|e| Ok(Seq(e?.0.value()))).collect::<Result<Vec<_>, _>>()
        })?;
        let db = self.guard.run("reading", || self.db())?;
        for seq in seqs {
            let taken =
                read_snapshot(db, &self.guard, seq).and_then(|bytes| replay.snapshot(seq, &bytes));
            match taken {
                Ok(()) => {
                    loaded.snapshot = Some(seq);
                    return Ok(());
                }
                Err(why) => {
                    tracing::warn!(%seq, error = %why, "snapshot cannot be used, trying the one before");
                    loaded.skipped.push(Skipped { seq, why });
                }
            }
        }
        Ok(())
    }

    fn load_batches(
        &self,
        replay: &mut dyn Replay,
        loaded: &mut Loaded,
    ) -> Result<(), JournalError> {
        let start = loaded.snapshot.unwrap_or_default();
        let mut entries = self.guard.run("reading", || {
            let table = self.db()?.begin_read()?.open_table(LOG)?;
            // The last batch that starts at or before the first record wanted; what comes earlier
            // is covered by the snapshot.
            let from = table.range(..=(start.0 + 1, u64::MAX))?.next_back().transpose()?;
            let from = from.map_or((0, 0), |(k, _)| k.value());
            Ok(table.range(from..)?)
        })?;
        let mut follow = Follow::after(loaded.snapshot);
        // One at a time, and outside the guard, so that a panic of `replay` stays a panic.
        while let Some((first, last, bytes)) = self.guard.run("reading", || {
            let entry = entries.next().transpose()?;
            Ok(entry.map(|(k, v)| (Seq(k.value().0), Seq(k.value().1), v.value().to_vec())))
        })? {
            if last <= start {
                continue;
            }
            follow.next(first, last)?;
            replay.batch(first, last, &bytes).map_err(|source| JournalError::BadRecords {
                first,
                last,
                source,
            })?;
            loaded.batches += 1;
        }
        loaded.last = follow.end(self.order.last)?;
        Ok(())
    }
}

impl Journal for RedbJournal {
    fn load(&mut self, replay: &mut dyn Replay) -> Result<Loaded, JournalError> {
        let mut loaded = Loaded::default();
        self.load_snapshot(replay, &mut loaded)?;
        self.load_batches(replay, &mut loaded)?;
        self.damaged = loaded.skipped.iter().map(|s| s.seq).collect();
        self.order.newest_snapshot = loaded.snapshot;
        Ok(loaded)
    }

    fn append(&mut self, batch: &Batch) -> Result<(), JournalError> {
        self.order.check_append(batch)?;
        let written = self.guard.run("writing", || {
            let mut txn = self.db()?.begin_write()?;
            txn.set_durability(Durability::Immediate)?;
            txn.open_table(LOG)?.insert((batch.first.0, batch.last.0), batch.bytes.as_slice())?;
            Ok(txn.commit()?)
        });
        let written = written.and_then(|()| self.check_in_place());
        match written {
            Ok(()) => self.order.appended(batch),
            Err(_) => self.order.broke(),
        }
        written
    }

    fn write_snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), JournalError> {
        self.order.check_snapshot(seq)?;
        let written = self.guard.run("writing", || {
            let mut txn = self.db()?.begin_write()?;
            txn.set_durability(Durability::Immediate)?;
            tables::store_snapshot(&txn, seq, bytes)?;
            tables::drop_covered(&txn, seq, &self.damaged)?;
            Ok(txn.commit()?)
        });
        let written = written.and_then(|()| self.check_in_place());
        match written {
            Ok(()) => {
                self.order.snapshot_written(seq);
                self.damaged.clear();
            }
            Err(_) => self.order.broke(),
        }
        written
    }

    fn stats(&self) -> Result<Stats, JournalError> {
        let mut stats = self.guard.run("reading", || tables::stats(self.db()?))?;
        stats.last = self.order.last;
        stats.snapshot = self.order.newest_snapshot;
        stats.disk_bytes = std::fs::metadata(self.path()).map_or(stats.bytes, |m| m.len());
        Ok(stats)
    }

    fn check_in_place(&self) -> Result<(), JournalError> {
        let Some(identity) = self.identity else { return Ok(()) };
        let gone = |what| JournalError::Gone { path: self.path().to_owned(), what };
        match std::fs::metadata(self.path()) {
            Ok(there) if FileIdentity::of(&there) == identity => Ok(()),
            Ok(_) => Err(gone("another file has its name")),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(gone("the file was deleted or moved away"))
            }
            Err(e) => Err(self.guard.of_io("looking at", e)),
        }
    }

    fn give_back(&mut self) -> Result<u64, JournalError> {
        let before = self.stats()?;
        if before.disk_bytes < SLACK_FROM || before.disk_bytes < SLACK_FACTOR * before.bytes {
            return Ok(0);
        }
        let RedbJournal { db, guard, .. } = self;
        let compacted = guard
            .run("compacting", || Ok(db.as_mut().ok_or(redb::Error::DatabaseClosed)?.compact()?));
        if let Err(error) = compacted {
            self.order.broke();
            return Err(error);
        }
        self.check_in_place()?;
        Ok(before.disk_bytes.saturating_sub(self.stats()?.disk_bytes))
    }
}

impl Drop for RedbJournal {
    fn drop(&mut self) {
        if let Some(db) = self.db.take()
            && let Err(error) = self.guard.close(db)
        {
            tracing::warn!(%error, "journal was not closed cleanly; the next start checks it");
        }
    }
}
