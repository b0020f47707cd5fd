//! Room for the journal. New jobs are refused while there is still some: an append that fails ends the
//! controller, and what becomes of the jobs that it has needs room as well.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::statvfs::statvfs;
use tutti_model::journal_reserve;

use crate::start::JOURNAL_FILE;

/// What a submission takes of the disk, at most, for each byte that was sent: the record, its place in
/// a snapshot, and pages that are written anew around them.
const WEIGHT: u64 = 4;

/// What is left of the disk of a data dir, and how much of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskRoom {
    pub free: u64,
    pub reserve: u64,
}

/// Too little is left for a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the controller takes no new jobs: its disk has {} MiB free, and the last {} MiB are kept for the journal",
    .0.free >> 20, .0.reserve.div_ceil(1 << 20)
)]
pub struct NoRoom(pub DiskRoom);

impl DiskRoom {
    pub fn of(data_dir: &Path) -> std::io::Result<DiskRoom> {
        let found = statvfs(data_dir)?;
        let unit = found.fragment_size();
        let journal =
            std::fs::metadata(data_dir.join(JOURNAL_FILE)).map_or(0, |m| m.blocks() * 512);
        let reserve = journal_reserve(found.blocks() * unit, journal);
        Ok(DiskRoom { free: found.blocks_available() * unit, reserve })
    }

    fn has(self, bytes: u64) -> bool {
        self.free >= self.reserve.saturating_add(bytes)
    }
}

#[derive(Debug)]
pub struct JournalRoom {
    data_dir: PathBuf,
    /// Taken, and perhaps not on the disk yet.
    under_way: AtomicU64,
}

/// One submission on its way to the disk.
#[derive(Debug)]
pub struct Admitted<'a> {
    room: &'a JournalRoom,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.room.under_way.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl JournalRoom {
    pub fn new(data_dir: &Path) -> JournalRoom {
        JournalRoom { data_dir: data_dir.to_owned(), under_way: AtomicU64::new(0) }
    }

    /// Whether a submission of this size may come in. Held until the answer is sent.
    pub fn admit(&self, sent: u64) -> Result<Admitted<'_>, NoRoom> {
        let bytes = sent.saturating_mul(WEIGHT);
        let before = self.under_way.fetch_add(bytes, Ordering::Relaxed);
        let admitted = Admitted { room: self, bytes };
        match DiskRoom::of(&self.data_dir) {
            Ok(room) if !room.has(before.saturating_add(bytes)) => Err(NoRoom(room)),
            Ok(_) => Ok(admitted),
            Err(error) => {
                // The append itself will tell.
                tracing::debug!(%error, "the room on the disk is not known");
                Ok(admitted)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_counts_until_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let room = JournalRoom::new(dir.path());
        let free = DiskRoom::of(dir.path()).unwrap().free;
        let first = room.admit(1000).unwrap();
        assert_eq!(room.under_way.load(Ordering::Relaxed), 1000 * WEIGHT);
        let refused = room.admit(free).unwrap_err();
        assert!(refused.to_string().contains("MiB are kept for the journal"), "{refused}");
        assert_eq!(
            room.under_way.load(Ordering::Relaxed),
            1000 * WEIGHT,
            "one that is refused does not"
        );
        drop(first);
        assert_eq!(room.under_way.load(Ordering::Relaxed), 0);
    }
}
