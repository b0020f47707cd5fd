//! Which write may come next. Shared by all journals so that they refuse the same things.

use tutti_model::Seq;

use crate::{Batch, JournalError};

#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// The last record, in the log or in a snapshot.
    pub last: Seq,
    pub newest_snapshot: Option<Seq>,
    broken: bool,
}

impl Order {
    pub fn new(last_batch: Option<Seq>, newest_snapshot: Option<Seq>) -> Order {
        let last = last_batch.max(newest_snapshot).unwrap_or_default();
        Order { last, newest_snapshot, broken: false }
    }

    pub fn check_append(&self, batch: &Batch) -> Result<(), JournalError> {
        self.check_whole()?;
        let Batch { first, last, .. } = *batch;
        if first.0 == 0 || last < first {
            return Err(JournalError::BadBatch { first, last });
        }
        if first.0 != self.last.0 + 1 {
            return Err(JournalError::Gap { last: self.last, first });
        }
        Ok(())
    }

    pub fn check_snapshot(&self, seq: Seq) -> Result<(), JournalError> {
        self.check_whole()?;
        let empty = self.last == Seq(0);
        if seq > self.last && !empty {
            return Err(JournalError::SnapshotAhead { seq, last: self.last });
        }
        match self.newest_snapshot {
            Some(newest) if seq < newest => Err(JournalError::SnapshotOld { seq, newest }),
            _ => Ok(()),
        }
    }

    pub fn appended(&mut self, batch: &Batch) {
        self.last = batch.last;
    }

    pub fn snapshot_written(&mut self, seq: Seq) {
        self.newest_snapshot = Some(seq);
        self.last = self.last.max(seq);
    }

    /// After a failed write nobody knows what is stored.
    pub fn broke(&mut self) {
        self.broken = true;
    }

    fn check_whole(&self) -> Result<(), JournalError> {
        if self.broken { Err(JournalError::Broken) } else { Ok(()) }
    }
}

/// Follows batches while they are read, and notices what is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follow {
    pub last: Seq,
    started: bool,
}

impl Follow {
    pub fn after(snapshot: Option<Seq>) -> Follow {
        Follow { last: snapshot.unwrap_or_default(), started: false }
    }

    /// The first batch may overlap the snapshot; every other one starts where the last ended.
    pub fn next(&mut self, first: Seq, last: Seq) -> Result<(), JournalError> {
        if first.0 == 0 || last < first {
            return Err(JournalError::BadBatch { first, last });
        }
        let expected = Seq(self.last.0 + 1);
        if first > expected {
            return Err(JournalError::Missing { after: self.last, found: first });
        }
        if self.started && first < expected {
            return Err(JournalError::Gap { last: self.last, first });
        }
        self.started = true;
        self.last = self.last.max(last);
        Ok(())
    }

    /// A skipped snapshot may have been the only one that reached the journal's last record.
    pub fn end(self, last: Seq) -> Result<Seq, JournalError> {
        if self.last < last {
            return Err(JournalError::Missing { after: self.last, found: Seq(last.0 + 1) });
        }
        Ok(self.last)
    }
}
