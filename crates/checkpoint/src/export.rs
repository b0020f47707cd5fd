//! Taking a checkpoint elsewhere: into another store, as one safetensors file, or as the plain files
//! of the framework that wrote it. Every byte is checked on its way.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tutti_files::{ActedFolder, Acting};

use crate::error::Error;
use crate::load::Loaded;
use crate::manifest::{Entry, Kind, Manifest};
use crate::shard;
use crate::store::{Reading, Store, Verdict, check};
use crate::tier::TierError;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Load(#[from] Error),
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("can't write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Store {
    /// Takes in a checkpoint of another store, as it is. Its pin stays where it was.
    pub fn receive(&self, loaded: &Loaded, moved: &Reading<'_>) -> Result<Manifest, Error> {
        let mut manifest = loaded.manifest().clone();
        let step = manifest.step;
        manifest.pinned = None;
        let home = self.home();
        for (index, file) in manifest.files.iter_mut().enumerate() {
            file.copies = vec![home.label().to_owned()];
            // One that is right was left by a copy that was interrupted.
            if home.size(&file.path)? == Some(file.bytes) && check(&**home, file, moved) == Ok(true)
            {
                continue;
            }
            home.remove(&file.path)?;
            let mut bad = None;
            let mut data = loaded.file_chunks(index).map(|chunk| match chunk {
                Ok(chunk) => {
                    moved(chunk.len() as u64);
                    Ok(chunk)
                }
                Err(e) => {
                    let why = io::Error::other(crate::chain(&e));
                    bad = Some(e);
                    let (place, path) = (String::new(), String::new());
                    Err(TierError::Io { place, path, doing: "read", source: why })
                }
            });
            let put = home.put(&file.path, file.bytes, &mut data);
            match (put, bad) {
                (_, Some(e)) => return Err(e),
                (put, None) => put?,
            }
        }
        let own = manifest.clone();
        let (_, entry) = self.append(step, Entry::Published(manifest), |now| match now {
            Some(now) if now.is_published() && now.entry.manifest().has_files_of(&own) => {
                Ok(Verdict::SameAlready)
            }
            Some(now) if now.is_published() => {
                Err(Error::Lost { step, winner: now.entry.manifest().attempt.clone() })
            }
            _ => Ok(Verdict::Replace),
        })?;
        Ok(entry.manifest().clone())
    }
}

impl Loaded {
    /// All tensors, whole, in one safetensors file that any framework reads.
    pub fn export(
        &self,
        path: &Path,
        acting: &Acting,
        moved: &Reading<'_>,
    ) -> Result<(), ExportError> {
        let step = self.step();
        if self.manifest().kind == Kind::Foreign {
            return Err(Error::Foreign { step }.into());
        }
        let about = [("tutti_step", step.to_string())].into();
        let tensors =
            self.manifest().tensors.iter().map(|t| (t.name.as_str(), t.dtype, &t.shape[..]));
        let (header, order) = shard::whole_header(tensors, &about);
        let fail = |source| ExportError::Io { path: path.to_owned(), source };
        let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|n| n.to_str());
        let name = name.ok_or_else(|| fail(io::ErrorKind::InvalidFilename.into()))?;
        let place = Place { folder: acting.open(above).map_err(fail)?, path: above };
        place.write_new(name, |file| {
            file.write_all(&header).map_err(fail)?;
            for name in order {
                let tensor = self.tensor(name)?;
                file.write_all(&tensor.bytes).map_err(fail)?;
                moved(tensor.bytes.len() as u64);
            }
            Ok(())
        })
    }

    /// The files as they were, without the directory that they were all in.
    pub fn restore_files(
        &self,
        to: &Path,
        acting: &Acting,
        moved: &Reading<'_>,
    ) -> Result<(), ExportError> {
        let files = &self.manifest().files;
        let above = common_dir(files.iter().map(|f| f.path.as_str()));
        let made = acting.make(to, 0o777);
        let folder = made.map_err(|source| ExportError::Io { path: to.to_owned(), source })?;
        let place = Place { folder, path: to };
        for (index, entry) in files.iter().enumerate() {
            let path = &entry.path[above..];
            let fail = |source| ExportError::Io { path: to.join(path), source };
            if let Some((dir, _)) = path.rsplit_once('/') {
                let made = place.folder.change(dir, |folder| folder.make_dirs(dir, 0o777));
                made.map_err(fail)?;
            }
            place.write_new(path, |file| {
                for chunk in self.file_chunks(index) {
                    let chunk = chunk?;
                    file.write_all(&chunk).map_err(fail)?;
                    moved(chunk.len() as u64);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// How many bytes of each path are the directory that they have in common, slash included.
fn common_dir<'a>(mut paths: impl Iterator<Item = &'a str>) -> usize {
    let Some(first) = paths.next() else { return 0 };
    let mut dir = first.rsplit_once('/').map_or("", |(dir, _)| dir);
    for path in paths {
        while !dir.is_empty() && !path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/')) {
            dir = dir.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    if dir.is_empty() { 0 } else { dir.len() + 1 }
}

/// The directory that is written to.
struct Place<'a> {
    folder: ActedFolder,
    path: &'a Path,
}

impl Place<'_> {
    /// Writes a file that was not there. If that fails nothing is left of it.
    fn write_new(
        &self,
        below: &str,
        write: impl FnOnce(&mut io::BufWriter<File>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let path = || self.path.join(below);
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => ExportError::Exists { path: path() },
            _ => ExportError::Io { path: path(), source },
        };
        let created = self.folder.act(|folder| folder.create_new(below, 0o666)).map_err(fail)?;
        let mut file = io::BufWriter::with_capacity(1 << 20, created);
        let written = write(&mut file).and_then(|()| {
            let file = file.into_inner().map_err(|e| fail(e.into_error()))?;
            file.sync_all().map_err(fail)
        });
        if written.is_err() {
            // The failure that led here is the one to tell.
            let _ = self.folder.act(|folder| folder.remove_file(below));
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_paths_have_in_common() {
        for (paths, want) in [
            (vec!["a/b/x", "a/b/c/y"], 4),
            (vec!["a/b/x", "a/bc/y"], 2),
            (vec!["x", "a/y"], 0),
            (vec!["a/x"], 2),
            (vec![], 0),
        ] {
            assert_eq!(common_dir(paths.iter().copied()), want, "{paths:?}");
        }
    }
}
