//! Checkpoints of other frameworks: a file, or a directory whose files, are hashed into a manifest.
//!
//! Nothing in it is read as anything but bytes, and nothing is changed. From then on it can
//! be listed, verified, pinned, restored and removed like any other.
//!
//! Files are found and opened below the location's handle, without following a link and with the
//! rights that the store acts with: whoever owns the directory can't have others hash what is theirs.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tutti_files::{EntryKind, Folder};

use crate::error::Error;
use crate::hash::{self, CHUNK, TreeHash, chunk_range, chunk_value};
use crate::layout;
use crate::manifest::{Entry, FileEntry, Kind, Manifest};
use crate::store::{Store, Verdict, now_ms};

/// How far a directory is looked into: whoever owns it can make it as deep and as wide as they like, and
/// a level costs a handle, an entry memory and a line of the manifest.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    depth: usize,
    /// Files, directories and all else, in all levels together.
    entries: usize,
}

/// Frameworks use a handful of levels, and a file for each rank and tensor at most.
const BOUNDS: Bounds = Bounds { depth: 64, entries: 1_000_000 };

#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    #[error("{} is neither a directory nor a file below {}", dir.display(), location.display())]
    NotBelow { dir: PathBuf, location: PathBuf },
    #[error("there is no file in {}", dir.display())]
    Empty { dir: PathBuf },
    #[error(
        "{} is more than {most} directories deep: no checkpoint is; register what is inside of it",
        dir.display()
    )]
    TooDeep { dir: PathBuf, most: usize },
    #[error(
        "there are more than {most} files and directories in {}: register parts of it, or put them into fewer files",
        dir.display()
    )]
    TooMany { dir: PathBuf, most: usize },
    #[error("{} has a name that is not text", path.display())]
    Name { path: PathBuf },
    #[error("{} changed while it was read; register it when its writer is done", path.display())]
    Changed { path: PathBuf },
    #[error("can't read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("step {step} is here already and has other files; remove it first")]
    Taken { step: u64 },
    #[error(transparent)]
    Store(#[from] Error),
}

impl Store {
    /// Records `dir`, a directory or a single file somewhere below `location`, the home of this store,
    /// as the checkpoint of a step. `reading` is told of bytes as they are hashed.
    pub fn register(
        &self,
        location: &Path,
        dir: &Path,
        step: u64,
        meta: serde_json::Value,
        reading: &(dyn Fn(u64) + Sync),
    ) -> Result<Manifest, ForeignError> {
        let attempt = self.writer()?.attempt.clone();
        let opened = self.acting().open(location);
        let home =
            opened.map_err(|source| ForeignError::Io { path: location.to_owned(), source })?;
        // What is named may be a link to what is meant; what is meant is found without one.
        let (location, dir) = (canonical(location)?, canonical(dir)?);
        let below = dir.strip_prefix(&location).ok().filter(|b| !b.as_os_str().is_empty());
        let Some(below) = below else { return Err(ForeignError::NotBelow { dir, location }) };
        let not_read = |source| ForeignError::Io { path: dir.clone(), source };
        let found = home.act(|folder| Ok(find(folder, below, BOUNDS))).map_err(not_read)?;
        let Some(files) = found? else { return Err(ForeignError::NotBelow { dir, location }) };
        if files.is_empty() {
            return Err(ForeignError::Empty { dir });
        }
        let mut entries = Vec::new();
        for path in files {
            let full = location.join(&path);
            let opened = home.act(|folder| folder.read(&path));
            let file = opened.map_err(|source| ForeignError::Io { path: full.clone(), source })?;
            let (bytes, hash) = digest(&file, &full, reading)?;
            entries.push(FileEntry { path, bytes, hash, copies: Vec::new() });
        }
        let manifest = Manifest {
            kind: Kind::Foreign,
            step,
            attempt,
            created_ms: now_ms(),
            world: 0,
            pinned: None,
            meta,
            chunk: CHUNK,
            files: entries,
            tensors: Vec::new(),
        };
        let files = &manifest.files;
        let added = self.append(step, Entry::Published(manifest.clone()), |now| {
            match now.map(|n| &n.entry) {
                Some(Entry::Published(same)) if same.files == *files => Ok(Verdict::SameAlready),
                Some(Entry::Published(_)) => Err(Error::Raced { step }),
                Some(Entry::Retracted(_)) | None => Ok(Verdict::Replace),
            }
        });
        match added {
            Ok((_, entry)) => Ok(entry.manifest().clone()),
            Err(Error::Raced { step }) => Err(ForeignError::Taken { step }),
            Err(e) => Err(e.into()),
        }
    }
}

fn canonical(path: &Path) -> Result<PathBuf, ForeignError> {
    path.canonicalize().map_err(|source| ForeignError::Io { path: path.to_owned(), source })
}

/// The plain files that are meant, in order, by their paths inside the location. None: it is neither a
/// file nor a directory.
fn find(
    location: &Folder,
    below: &Path,
    bounds: Bounds,
) -> Result<Option<Vec<String>>, ForeignError> {
    let full = || location.path().join(below);
    let fail = |source| ForeignError::Io { path: full(), source };
    if location.file_len(below).map_err(fail)?.is_some() {
        return Ok(Some(vec![inside(below, &full())?]));
    }
    let mut walk = Walk { top: full(), bounds, seen: 0, files: Vec::new() };
    match location.folder(below) {
        Ok(folder) => walk.go(&folder, below, 0)?,
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(e) => return Err(fail(e)),
    }
    // In the order of whole paths, which is another than that of names.
    walk.files.sort();
    Ok(Some(walk.files))
}

struct Walk {
    /// What was named.
    top: PathBuf,
    bounds: Bounds,
    seen: usize,
    files: Vec<String>,
}

impl Walk {
    /// All plain files in a directory. Links are not followed: what they point to is a checkpoint of its
    /// own or none of our business.
    fn go(&mut self, folder: &Folder, below: &Path, depth: usize) -> Result<(), ForeignError> {
        let fail = |source| ForeignError::Io { path: folder.path().to_owned(), source };
        let (dir, most) = (|| self.top.clone(), self.bounds);
        if depth > most.depth {
            return Err(ForeignError::TooDeep { dir: dir(), most: most.depth });
        }
        let Some(entries) = folder.list_up_to(most.entries - self.seen).map_err(fail)? else {
            return Err(ForeignError::TooMany { dir: dir(), most: most.entries });
        };
        self.seen += entries.len();
        for entry in entries {
            let below = below.join(&entry.name);
            match entry.kind {
                EntryKind::Folder => {
                    let folder = folder.folder(&entry.name).map_err(fail)?;
                    self.go(&folder, &below, depth + 1)?;
                }
                EntryKind::File => {
                    self.files.push(inside(&below, &folder.path().join(&entry.name))?);
                }
                EntryKind::Link | EntryKind::Other => {}
            }
        }
        Ok(())
    }
}

fn inside(below: &Path, full: &Path) -> Result<String, ForeignError> {
    let path = below.to_str().filter(|p| layout::is_inside(p));
    path.map(str::to_owned).ok_or_else(|| ForeignError::Name { path: full.to_owned() })
}

/// Hashes a file, and makes sure that it did not change meanwhile.
fn digest(
    file: &File,
    path: &Path,
    reading: &(dyn Fn(u64) + Sync),
) -> Result<(u64, TreeHash), ForeignError> {
    let fail = |source| ForeignError::Io { path: path.to_owned(), source };
    let look = || -> io::Result<_> {
        let found = file.metadata()?;
        Ok((found.len(), found.modified()?))
    };
    let before = look().map_err(fail)?;
    let len = before.0;
    let hash = TreeHash::compute(len, hash::threads(), |index| {
        let range = chunk_range(len, index);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("one chunk")];
        file.read_exact_at(&mut bytes, range.start).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => ForeignError::Changed { path: path.to_owned() },
            _ => fail(e),
        })?;
        reading(bytes.len() as u64);
        Ok::<_, ForeignError>(chunk_value(len, index, std::iter::once(&bytes[..])))
    })?;
    if look().map_err(fail)? != before {
        return Err(ForeignError::Changed { path: path.to_owned() });
    }
    Ok((len, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_as_deep_or_wide_as_its_owner_likes_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let location = Folder::open(home.path()).unwrap();
        let found = |depth, entries| {
            find(&location, Path::new("a"), Bounds { depth, entries }).map(Option::unwrap)
        };
        location.make_dirs("a/b/c", 0o700).unwrap();
        for name in ["a/1", "a/b/2", "a/b/c/3"] {
            location.create_new(name, 0o600).unwrap();
        }
        assert_eq!(found(2, 5).unwrap(), ["a/1", "a/b/2", "a/b/c/3"]);
        let deep = found(1, 5).unwrap_err().to_string();
        assert!(deep.contains("/a is more than 1 directories deep"), "{deep}");
        let wide = found(2, 4).unwrap_err().to_string();
        assert!(wide.contains("more than 4 files and directories in"), "{wide}");
    }

    /// Each level costs a handle, and a thread its stack.
    #[test]
    fn a_bottomless_directory_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let location = Folder::open(home.path()).unwrap();
        location.make_dir("a", 0o700).unwrap();
        let mut at = location.folder("a").unwrap();
        for _ in 0..200 {
            at.make_dir("d", 0o700).unwrap();
            at = at.folder("d").unwrap();
        }
        let error = find(&location, Path::new("a"), BOUNDS).unwrap_err();
        assert!(matches!(error, ForeignError::TooDeep { most: 64, .. }), "{error}");
        location.remove_tree("a").unwrap();
    }
}
