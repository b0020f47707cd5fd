//! A directory of a file system.
//!
//! Files are written, synced, and their directories synced, before anybody is told. A manifest is
//! written under a scratch name, synced, and only then given its own, by a rename that never
//! replaces. Every step passes a [`Watch`], so that a test may stop the process at any of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};

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
    watch: Option<Arc<dyn Watch>>,
}

impl Dir {
    pub fn new(root: impl Into<PathBuf>) -> Dir {
        let root = root.into();
        Dir { label: root.display().to_string(), root, watch: None }
    }

    pub fn watched(root: impl Into<PathBuf>, watch: Arc<dyn Watch>) -> Dir {
        Dir { watch: Some(watch), ..Dir::new(root) }
    }

    fn at(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn before(&self, op: Op, path: &Path) -> io::Result<()> {
        self.watch.as_ref().map_or(Ok(()), |w| w.before(op, path))
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
        let path = self.at(dir);
        if path.is_dir() {
            return Ok(());
        }
        match dir.rsplit_once('/') {
            Some((above, _)) => self.make_dir(above)?,
            None if dir.is_empty() => {
                self.before(Op::MakeDir, &path)?;
                return fs::create_dir_all(&path);
            }
            None => self.make_dir("")?,
        }
        self.before(Op::MakeDir, &path)?;
        match fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let above = path.parent().expect("it is below the root");
        self.sync_dir(above)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.before(Op::SyncDir, path)?;
        File::open(path)?.sync_all()
    }

    fn create(&self, path: &Path, len: u64) -> io::Result<File> {
        self.before(Op::Create, path)?;
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
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

    fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()> {
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
        let full = self.at(path);
        let fail = |e| self.error("write", path, len, e);
        let mut file = self.create(&full, len).map_err(fail)?;
        let mut found = 0;
        for part in data {
            let part = part?;
            found += part.len() as u64;
            self.write(&mut file, &full, &part).map_err(fail)?;
        }
        if found != len {
            let (place, path) = (self.label.clone(), path.to_owned());
            return Err(TierError::Short { place, path, wanted: len, found });
        }
        self.before(Op::SyncFile, &full).map_err(fail)?;
        file.sync_all().map_err(fail)
    }

    /// Never replaces: `false` if there is a file of that name.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool> {
        self.before(Op::Rename, to)?;
        match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => Ok(false),
            // A file system without it, NFS for one. A link never replaces either.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => match fs::hard_link(from, to)
            {
                Ok(()) => fs::remove_file(from).map(|()| true),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
                Err(e) => Err(e),
            },
            Err(e) => Err(e.into()),
        }
    }

    fn discard(&self, path: &Path) {
        // The failure that led here is the one to tell; what can't be removed is swept later.
        if self.before(Op::Remove, path).is_ok() {
            let _ = fs::remove_file(path);
        }
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
        let done = self.write_new(path, len, data).and_then(|()| {
            self.sync_dir(&self.at(dir)).map_err(|e| self.error("sync", dir, len, e))
        });
        if done.is_err() {
            self.discard(&self.at(path));
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
        let from = self.at(&hidden);
        let renamed = self
            .write_new(&hidden, len, &mut [Ok(Bytes::copy_from_slice(bytes))].into_iter())
            .and_then(|()| self.rename_new(&from, &self.at(path)).map_err(|e| fail("publish", e)));
        if !matches!(renamed, Ok(true)) {
            self.discard(&from);
            return renamed;
        }
        self.sync_dir(&self.at(dir)).map_err(|e| fail("sync", e))?;
        Ok(true)
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        let fail = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => {
                TierError::Missing { place: self.label.clone(), path: path.to_owned() }
            }
            _ => self.error("read", path, 0, e),
        };
        let file = File::open(self.at(path)).map_err(fail)?;
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
        match fs::metadata(self.at(path)) {
            Ok(found) => Ok(found.is_file().then_some(found.len())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.error("look at", path, 0, e)),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        let fail = |e| self.error("list", dir, 0, e);
        let entries = match fs::read_dir(self.at(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fail)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            let is_dir = entry.file_type().map_err(fail)?.is_dir();
            // A name that is not text is none of ours.
            if let Ok(name) = entry.file_name().into_string() {
                found.push(Item { name, is_dir });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        let full = self.at(path);
        let removed = self.before(Op::Remove, &full).and_then(|()| fs::remove_file(&full));
        match removed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| self.error("remove", path, 0, e)),
        }
    }

    fn settle(&self, dir: &str) -> Result<(), TierError> {
        match self.sync_dir(&self.at(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|e| self.error("sync", dir, 0, e)),
        }
    }

    fn prune(&self, dir: &str) -> Result<(), TierError> {
        let full = self.at(dir);
        let removed = self.before(Op::RemoveDir, &full).and_then(|()| fs::remove_dir(&full));
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
