//! The folder of a table: one file for each day, put in place whole.
//!
//! ```text
//!  rows of a day ─► .2026-11-16.parquet.new ─► fsync ─► rename ─► fsync of the folder ─► they may be
//!                   (what the day's file has,                                           forgotten
//!                    then what is new)
//! ```
//! What is in the file of its day already is not written again. So whoever stops anywhere in between
//! does it all again, and nothing is lost or there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tutti_model::Day;

use crate::day::{self, ENDING};
use crate::file::{Reader, Writer};
use crate::table::{BadContent, Key, Row};

/// For the owner, and to look at for the group, which the folder may choose.
const FILE_MODE: u32 = 0o640;
const DIR_MODE: u32 = 0o750;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("{} can't be read: restore it, or move it out of the archive", path.display())]
    Read { path: PathBuf, source: BadContent },
    #[error("{} can't be written", path.display())]
    Write { path: PathBuf, source: BadContent },
    #[error("{} can't be {what}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} has {day} already, with other hours: it is of another cluster, or was changed; \
         start the controller with another --archive folder, or move the file away",
        path.display()
    )]
    Differs { path: PathBuf, day: Day },
}

/// What is about to be done with the file of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    Fill,
    Sync,
    Rename,
    SyncFolder,
}

impl Step {
    pub const ALL: [Step; 5] =
        [Step::Create, Step::Fill, Step::Sync, Step::Rename, Step::SyncFolder];
}

/// What is known of a file without reading it again, as long as it looks the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    size: u64,
    modified: Option<std::time::SystemTime>,
    /// Of the first column.
    first: (i64, i64),
    /// Whose jobs are in it, once somebody asked.
    teams: Option<Arc<Teams>>,
}

impl Summary {
    pub(crate) fn teams(&self) -> Option<Arc<Teams>> {
        self.teams.clone()
    }

    pub(crate) fn with_teams(self, teams: Arc<Teams>) -> Summary {
        Summary { teams: Some(teams), ..self }
    }
}

/// None if they are too many to remember: then any may be there.
pub(crate) type Teams = Option<BTreeSet<String>>;

/// All days of one table.
pub struct Table<R> {
    folder: PathBuf,
    known: Mutex<BTreeMap<Day, Summary>>,
    gate: Box<dyn Fn(Step) -> io::Result<()> + Send + Sync>,
    row: PhantomData<fn() -> R>,
}

impl<R: Row> Table<R> {
    /// Below this folder. It is made when the first file is written.
    pub fn at(archive: &Path) -> Table<R> {
        Table::gated(archive, |_| Ok(()))
    }

    pub fn gated(
        archive: &Path,
        gate: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static,
    ) -> Table<R> {
        let folder = archive.join(R::TABLE);
        let known = Mutex::new(BTreeMap::new());
        Table { folder, known, gate: Box::new(gate), row: PhantomData }
    }

    pub fn path(&self, day: Day) -> PathBuf {
        day::path(&self.folder, day)
    }

    /// Every day that has a file, in order.
    pub fn days(&self) -> Result<BTreeSet<Day>, ArchiveError> {
        let mut days = BTreeSet::new();
        for year in entries(&self.folder)? {
            for file in entries(&year)? {
                let name = file.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                let day = name.strip_suffix(ENDING).and_then(|day| day.parse().ok());
                days.extend(day.filter(|day| self.path(*day) == file));
            }
        }
        Ok(days)
    }

    /// Adds rows to the file of a day; those of `keys` that it has already are left out. How many came.
    /// When this returns they are there for good.
    pub fn add(
        &self,
        day: Day,
        keys: &BTreeSet<Key>,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<u64, ArchiveError> {
        if keys.is_empty() {
            return Ok(0);
        }
        let path = self.path(day);
        let bad = |source| ArchiveError::Read { path: path.clone(), source };
        let old = self.open(day)?;
        let known = old.as_ref().map_or(Ok(BTreeSet::new()), |old| old.known(keys)).map_err(bad)?;
        if known.len() == keys.len() {
            // The rename may not be on disk for good yet, if the one who did it was killed.
            self.sync_folder(&path)?;
            return Ok(0);
        }
        let new = rows.into_iter().filter(|row| !known.contains(&row.key()));
        let temporary = temporary(&path);
        let added = self.write(&path, &temporary, old.as_ref(), new).inspect_err(|_| {
            // The first error is the one to tell; what can't be removed is written over.
            let _ = fs::remove_file(&temporary);
        })?;
        self.sync_folder(&path)?;
        Ok(added)
    }

    fn write(
        &self,
        path: &Path,
        temporary: &Path,
        old: Option<&Reader<R>>,
        rows: impl Iterator<Item = R>,
    ) -> Result<u64, ArchiveError> {
        let unwritten = |source| ArchiveError::Write { path: path.to_owned(), source };
        let file = self.create(temporary)?;
        self.may(Step::Fill, path)?;
        let mut writer = Writer::new(file).map_err(unwritten)?;
        if let Some(old) = old {
            writer.take_over(old).map_err(unwritten)?;
        }
        let mut added = 0;
        for row in rows {
            writer.push(&row).map_err(unwritten)?;
            added += 1;
        }
        let file = writer.finish().map_err(unwritten)?;
        self.may(Step::Sync, path)?;
        file.sync_all().map_err(failed("synced", temporary))?;
        self.may(Step::Rename, path)?;
        fs::rename(temporary, path).map_err(failed("put in place", path))?;
        Ok(added)
    }

    fn create(&self, temporary: &Path) -> Result<File, ArchiveError> {
        self.may(Step::Create, temporary)?;
        if let Some(folder) = temporary.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(DIR_MODE)
                .create(folder)
                .map_err(failed("made", folder))?;
        }
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(temporary)
            .map_err(failed("made", temporary))
    }

    /// A new folder is new in the one above it.
    fn sync_folder(&self, path: &Path) -> Result<(), ArchiveError> {
        self.may(Step::SyncFolder, path)?;
        for folder in path.ancestors().skip(1).take(4) {
            File::open(folder).and_then(|f| f.sync_all()).map_err(failed("synced", folder))?;
        }
        Ok(())
    }

    fn may(&self, step: Step, path: &Path) -> Result<(), ArchiveError> {
        (self.gate)(step).map_err(failed("written", path))
    }

    /// None if that day has no file.
    pub(crate) fn open(&self, day: Day) -> Result<Option<Reader<R>>, ArchiveError> {
        let path = self.path(day);
        match path.try_exists() {
            Ok(true) => {
                Reader::open(&path).map(Some).map_err(|source| ArchiveError::Read { path, source })
            }
            Ok(false) => Ok(None),
            Err(source) => Err(failed("looked at", &path)(source)),
        }
    }

    /// Could the first column of this day's rows have this number?
    pub(crate) fn may_have(&self, day: Day, first: i64) -> Result<bool, ArchiveError> {
        let has = |Summary { first: (min, max), .. }| (min..=max).contains(&first);
        Ok(self.summary(day)?.is_some_and(has))
    }

    /// What the file of a day says of itself, read once. None if there is no file.
    pub(crate) fn summary(&self, day: Day) -> Result<Option<Summary>, ArchiveError> {
        let path = self.path(day);
        let meta = match fs::metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            meta => meta.map_err(failed("looked at", &path))?,
        };
        let (size, modified) = (meta.len(), meta.modified().ok());
        let same = |s: &&Summary| s.size == size && s.modified == modified;
        let known = self.summaries().get(&day).filter(same).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(reader) = self.open(day)? else { return Ok(None) };
        let summary = Summary { size, modified, first: whole_range(&reader), teams: None };
        self.remember(day, summary.clone());
        Ok(Some(summary))
    }

    pub(crate) fn remember(&self, day: Day, summary: Summary) {
        self.summaries().insert(day, summary);
    }

    fn summaries(&self) -> std::sync::MutexGuard<'_, BTreeMap<Day, Summary>> {
        // What is remembered is read again if it is wrong.
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn whole_range<R: Row>(reader: &Reader<R>) -> (i64, i64) {
    let all = (i64::MIN, i64::MAX);
    let ranges = (0..reader.groups()).map(|g| reader.range(g, R::FIELDS[0].name).unwrap_or(all));
    ranges.fold((i64::MAX, i64::MIN), |(a, b), (min, max)| (a.min(min), b.max(max)))
}

/// Hidden, and of another ending, so that nobody takes it for a file of the archive.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ArchiveError> {
    let list = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // A file that somebody put beside the years.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        list => list.map_err(failed("listed", folder))?,
    };
    let paths = list.map(|entry| entry.map(|e| e.path()));
    paths.collect::<Result<_, _>>().map_err(failed("listed", folder))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |source| ArchiveError::Io { what, path, source }
}
