//! A directory of a file system.
//!
//! Whoever owns a directory below may put a link there at any moment, so everything is done by
//! directory handles and no link below the location is followed ([`tutti_files`]); an
//! administrator's tool acts with the rights of the location's owner ([`Acting`]).
//!
//! Files are written, synced, and their directories synced, before anybody is told. A manifest is
//! written under a scratch name, synced, and only then given its own, by a rename that never
//! replaces. Every step passes a [`Watch`], so that a test may stop the process at any of them.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use tutti_files::{ActedFolder, Acting, EntryKind};

use super::{Item, Source, Tier, TierError};

/// What is about to be done to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    MakeDir,
    Create,
    Write,
    SyncFile,
    Rename,
    SyncDir,
    Remove,
    RemoveDir,
}

/// Told before each change. An error from it is the change's own.
pub trait Watch: Send + Sync {
    fn before(&self, op: Op, path: &Path) -> io::Result<()>;
}

pub struct Dir {
    label: String,
    root: PathBuf,
    acting: Acting,
    watch: Option<Arc<dyn Watch>>,
}

/// Less what the process masks.
const FILE_MODE: u32 = 0o666;
const DIR_MODE: u32 = 0o777;

impl Dir {
    pub fn new(root: impl Into<PathBuf>) -> Dir {
        let root = root.into();
        Dir { label: root.display().to_string(), root, acting: Acting::Myself, watch: None }
    }

    pub fn watched(root: impl Into<PathBuf>, watch: Arc<dyn Watch>) -> Dir {
        Dir { watch: Some(watch), ..Dir::new(root) }
    }

    /// With whose rights files are looked at and changed.
    pub fn acting(self, acting: Acting) -> Dir {
        Dir { acting, ..self }
    }

    /// What a [`Watch`] is told.
    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// Opened anew each time: it may not be there yet, or not any more.
    fn folder(&self) -> io::Result<ActedFolder> {
        self.acting.open(&self.root)
    }

    fn before(&self, op: Op, path: &str) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |w| w.before(op, &self.at(path)))
    }

    fn error(&self, doing: &'static str, path: &str, bytes: u64, source: io::Error) -> TierError {
        let (place, path) = (self.label.clone(), path.to_owned());
        match source.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => TierError::Full { place, path, bytes },
            _ => TierError::Io { place, path, doing, source },
        }
    }

    /// Makes a directory and those above it, each known to its parent for good.
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let there = self.folder().and_then(|f| f.act(|folder| folder.folder(dir).map(drop)));
        match there {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            there => return there,
        }
        let above = match dir.rsplit_once('/') {
            Some((above, _)) => above,
            None if dir.is_empty() => {
                self.before(Op::MakeDir, dir)?;
                return self.acting.make(&self.root, DIR_MODE).map(drop);
            }
            None => "",
        };
        self.make_dir(above)?;
        self.before(Op::MakeDir, dir)?;
        self.folder()?.change(dir, |folder| folder.make_dir(dir, DIR_MODE))?;
        self.sync_dir(above)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.before(Op::SyncDir, dir)?;
        self.folder()?.act(|folder| folder.folder(dir)?.sync())
    }

    fn create(&self, path: &str, len: u64) -> io::Result<File> {
        self.before(Op::Create, path)?;
        let file = self.folder()?.change(path, |folder| folder.create_new(path, FILE_MODE))?;
        let room = i64::try_from(len).unwrap_or(i64::MAX);
        if room > 0 {
            // Too little room is known before a byte is written, where the file system can tell.
            match fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, room) {
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) | Ok(()) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(file)
    }

    fn write(&self, file: &mut File, path: &str, bytes: &[u8]) -> io::Result<()> {
        if self.watch.is_none() {
            return file.write_all(bytes);
        }
        // In two halves, so that a test may tear one write.
        let (left, right) = bytes.split_at(bytes.len() / 2);
        for half in [left, right] {
            self.before(Op::Write, path)?;
            file.write_all(half)?;
        }
        Ok(())
    }

    /// Writes and syncs a new file. The directory's entry for it is not synced yet.
    fn write_new(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        let fail = |e| self.error("write", path, len, e);
        let mut file = self.create(path, len).map_err(fail)?;
        let mut found = 0;
        for part in data {
            let part = part?;
            found += part.len() as u64;
            self.write(&mut file, path, &part).map_err(fail)?;
        }
        if found != len {
            let (place, path) = (self.label.clone(), path.to_owned());
            return Err(TierError::Short { place, path, wanted: len, found });
        }
        self.before(Op::SyncFile, path).map_err(fail)?;
        file.sync_all().map_err(fail)
    }

    /// Never replaces: `false` if there is a file of that name.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<bool> {
        self.before(Op::Rename, to)?;
        self.folder()?.change(from, |folder| folder.rename_new(from, to))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        self.before(Op::Remove, path)?;
        self.folder()?.change(path, |folder| folder.remove_file(path))
    }

    fn discard(&self, path: &str) {
        // The failure that led here is the one to tell; what can't be removed is swept later.
        let _ = self.unlink(path);
    }
}

impl Tier for Dir {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_near(&self) -> bool {
        true
    }

    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        self.make_dir(dir).map_err(|e| self.error("make the directory of", path, len, e))?;
        let done = self
            .write_new(path, len, data)
            .and_then(|()| self.sync_dir(dir).map_err(|e| self.error("sync", dir, len, e)));
        if done.is_err() {
            self.discard(path);
        }
        done
    }

    fn publish(&self, path: &str, scratch: &str, bytes: &[u8]) -> Result<bool, TierError> {
        let len = bytes.len() as u64;
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        let fail = |doing, e| self.error(doing, path, len, e);
        self.make_dir(scratch).map_err(|e| fail("make the directory of", e))?;
        self.make_dir(dir).map_err(|e| fail("make the directory of", e))?;
        let hidden = format!("{scratch}/.manifest-{}", crate::layout::nonce());
        let renamed = self
            .write_new(&hidden, len, &mut [Ok(Bytes::copy_from_slice(bytes))].into_iter())
            .and_then(|()| self.rename_new(&hidden, path).map_err(|e| fail("publish", e)));
        if !matches!(renamed, Ok(true)) {
            self.discard(&hidden);
            return renamed;
        }
        self.sync_dir(dir).map_err(|e| fail("sync", e))?;
        Ok(true)
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        let fail = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => {
                TierError::Missing { place: self.label.clone(), path: path.to_owned() }
            }
            _ => self.error("read", path, 0, e),
        };
        let opened = self.folder().and_then(|f| f.act(|folder| folder.read(path)));
        let file = opened.map_err(fail)?;
        let len = usize::try_from(range.end - range.start).expect("a chunk fits into memory");
        let mut bytes = vec![0; len];
        let mut found = 0;
        while found < len {
            match file.read_at(&mut bytes[found..], range.start + found as u64) {
                Ok(0) => {
                    let (place, path) = (self.label.clone(), path.to_owned());
                    let found = range.start + found as u64;
                    return Err(TierError::Short { place, path, wanted: range.end, found });
                }
                Ok(n) => found += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(fail(e)),
            }
        }
        Ok(bytes.into())
    }

    fn size(&self, path: &str) -> Result<Option<u64>, TierError> {
        let found = self.folder().and_then(|f| f.act(|folder| folder.file_len(path)));
        match found {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map_err(|e| self.error("look at", path, 0, e)),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        let listed = self.folder().and_then(|f| f.act(|folder| folder.folder(dir)?.list()));
        let entries = match listed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(|e| self.error("list", dir, 0, e))?,
        };
        // A name that is not text is none of ours.
        let item = |entry: tutti_files::Entry| {
            let is_dir = entry.kind == EntryKind::Folder;
            Some(Item { name: entry.name.into_string().ok()?, is_dir })
        };
        Ok(entries.into_iter().filter_map(item).collect())
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        match self.unlink(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| self.error("remove", path, 0, e)),
        }
    }

    fn settle(&self, dir: &str) -> Result<(), TierError> {
        match self.sync_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|e| self.error("sync", dir, 0, e)),
        }
    }

    fn prune(&self, dir: &str) -> Result<(), TierError> {
        let pruned = self.before(Op::RemoveDir, dir).and_then(|()| self.folder());
        let removed = pruned.and_then(|f| f.change(dir, |folder| folder.remove_dir(dir)));
        match removed.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Ok(()),
            _ => removed.map_err(|e| self.error("remove", dir, 0, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_publish_wins() {
        let dir = tempfile::tempdir().unwrap();
        let tier = Dir::new(dir.path().join("new"));
        assert!(tier.publish("s/m", "s/a", b"first").unwrap());
        assert!(!tier.publish("s/m", "s/a", b"second").unwrap());
        assert_eq!(&tier.read("s/m", 0..5).unwrap()[..], b"first");
        assert_eq!(tier.list("s/a").unwrap(), []);
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let tier = Dir::new(dir.path());
        let mut cut = [Ok(Bytes::from_static(b"abc"))].into_iter();
        let error = tier.put("a/x", 4, &mut cut).unwrap_err();
        assert!(matches!(error, TierError::Short { wanted: 4, found: 3, .. }), "{error}");
        assert_eq!(tier.size("a/x").unwrap(), None);
        let missing = tier.read("a/x", 0..1).unwrap_err();
        assert_eq!(missing.to_string(), format!("a/x is missing in {}", dir.path().display()));
    }
}
