//! Lets redb work on a file that must not change: writes stay in memory.
//!
//! redb opens for reading only what was closed cleanly, and its integrity check wants to write.
//! Over this, both run on any file, and what they would repair is forgotten.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

const PAGE: u64 = 4096;

#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    len: u64,
    /// Below this the file is still seen; a shrunken file does not come back when it grows.
    file_len: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Overlay {
    /// The caller holds a lock on the file, so it does not change underneath.
    pub fn new(file: File) -> Result<Overlay> {
        let len = file.metadata()?.len();
        let changed = Changed { len, file_len: len, pages: BTreeMap::new() };
        Ok(Overlay { file, changed: Mutex::new(changed) })
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one page's worth from the file, zeros beyond its end.
    fn read_file(&self, offset: u64, out: &mut [u8], file_len: u64) -> Result<()> {
        let there = file_len.saturating_sub(offset).min(out.len() as u64) as usize;
        self.file.read_exact_at(&mut out[..there], offset)?;
        out[there..].fill(0);
        Ok(())
    }
}

/// The pages that a range touches: (page, where in the page, where in the range).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let take = (PAGE as usize - within).min(len - done);
        let piece = (at / PAGE, within, done..done + take);
        done += take;
        Some(piece)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> Result<u64> {
        Ok(self.changed().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let changed = self.changed();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > changed.len) {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        for (page, within, range) in pieces(offset, out.len()) {
            let out = &mut out[range];
            match changed.pages.get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
                None => self.read_file(page * PAGE + within as u64, out, changed.file_len)?,
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut changed = self.changed();
        if len < changed.len {
            changed.file_len = changed.file_len.min(len);
            changed.pages.split_off(&len.div_ceil(PAGE));
            if let Some(page) = changed.pages.get_mut(&(len / PAGE)) {
                page[(len % PAGE) as usize..].fill(0);
            }
        }
        changed.len = len;
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut changed = self.changed();
        for (page, within, range) in pieces(offset, data.len()) {
            if !changed.pages.contains_key(&page) {
                let mut bytes = Box::new([0; PAGE as usize]);
                self.read_file(page * PAGE, &mut bytes[..], changed.file_len)?;
                changed.pages.insert(page, bytes);
            }
            if let Some(bytes) = changed.pages.get_mut(&page) {
                bytes[within..within + range.len()].copy_from_slice(&data[range]);
            }
        }
        changed.len = changed.len.max(offset + data.len() as u64);
        Ok(())
    }
}
