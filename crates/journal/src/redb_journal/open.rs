//! From a path to an open journal: lock, look, check, hand to redb.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use redb::{Builder, Database, DatabaseError};
use serde::Serialize;

use super::overlay::Overlay;
use super::{FileIdentity, Guard, RedbJournal};
use crate::JournalError;

#[derive(Clone, Debug)]
pub struct Options {
    /// Memory for pages. Appends go to the end and a load reads once, so little is enough.
    pub cache_bytes: usize,
    /// Check every page before a file that was closed cleanly is used. redb does so by itself
    /// after a crash only. It takes about as long as reading the file.
    pub check: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { cache_bytes: 16 << 20, check: true }
    }
}

/// What had to be done to open a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// It was closed cleanly, or is new.
    Clean,
    /// It was not closed; every page was checked and nothing was lost.
    Checked,
    /// The last write failed its checksums and was dropped: power went while it was under way, so
    /// it was not acknowledged. (Should the disk itself have lost it later, nothing here can tell.)
    DroppedUnfinished,
}

const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";
const FLAGS: usize = 9;
const NOT_CLOSED: u8 = 2;
/// Both commit slots start with the version of redb's file format.
const SLOTS: [usize; 2] = [64, 192];
const REDB_FORMAT: u8 = 3;
const HEADER: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Empty,
    /// The process that made the file died before redb had marked it as its own.
    Unfinished,
    Redb {
        closed: bool,
    },
}

pub(super) fn open(path: &Path, options: &Options) -> Result<RedbJournal, JournalError> {
    let guard = Guard::new(path.to_owned());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| guard.of_io("opening", e))?;
    guard.lock(&file)?;
    let header = read_header(&file, &guard)?;
    restrict(&file, &guard)?;
    match header {
        Header::Redb { closed: true } if options.check => check_clean(&file, &guard)?,
        Header::Unfinished => file.set_len(0).map_err(|e| guard.of_io("writing", e))?,
        _ => {}
    }
    let identity = file.metadata().map_err(|e| guard.of_io("opening", e))?;
    let (db, recovery) = create(&guard, options, |b| b.create_file(file))?;
    let mut journal = RedbJournal::from_database(db, path.to_owned(), recovery)?;
    journal.identity = Some(FileIdentity::of(&identity));
    if !matches!(header, Header::Redb { .. }) {
        sync_parent(path, &guard)?;
    }
    Ok(journal)
}

/// Looks at the first page before redb does: redb says "corrupted" to a newer format, and cannot
/// tell a file whose making was cut short from one that is not its own.
pub(crate) fn read_header(file: &File, guard: &Guard) -> Result<Header, JournalError> {
    let of_io = |e| guard.of_io("reading", e);
    let len = file.metadata().map_err(of_io)?.len();
    if len == 0 {
        return Ok(Header::Empty);
    }
    let mut head = [0u8; HEADER];
    let there = (len as usize).min(HEADER);
    file.read_exact_at(&mut head[..there], 0).map_err(of_io)?;
    if head[..MAGIC.len()] != MAGIC {
        // redb sets its mark last, so a file without it never held anything.
        if head[..MAGIC.len()] == [0; MAGIC.len()] && zero_after_header(file, len).map_err(of_io)? {
            return Ok(Header::Unfinished);
        }
        let path = guard.path().to_owned();
        let found = format!("it starts with {:02x?}", &head[..MAGIC.len().min(there)]);
        return Err(JournalError::NotAJournal { path, found });
    }
    if there < HEADER {
        return Err(guard.damaged(format!("only {len} bytes are left of it")));
    }
    // A single odd slot is damage, which redb handles; two that agree are another format.
    let [a, b] = SLOTS.map(|at| head[at]);
    if a == b && a > REDB_FORMAT {
        let path = guard.path().to_owned();
        return Err(JournalError::NewerFormat { path, found: a.into(), known: REDB_FORMAT.into() });
    }
    Ok(Header::Redb { closed: head[FLAGS] & NOT_CLOSED == 0 })
}

fn zero_after_header(file: &File, len: u64) -> std::io::Result<bool> {
    let mut buffer = vec![0u8; 1 << 16];
    let mut at = HEADER as u64;
    while at < len {
        let take = (len - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..take], at)?;
        if buffer[..take].iter().any(|&b| b != 0) {
            return Ok(false);
        }
        at += take as u64;
    }
    Ok(true)
}

/// The journal holds hashed tokens and everybody's commands.
fn restrict(file: &File, guard: &Guard) -> Result<(), JournalError> {
    let of_io = |e| guard.of_io("restricting access to", e);
    let mode = file.metadata().map_err(of_io)?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %guard.path().display(), mode = format!("{:o}", mode & 0o777), "journal was open to others, now 600");
        file.set_permissions(Permissions::from_mode(0o600)).map_err(of_io)?;
    }
    Ok(())
}

fn check_clean(file: &File, guard: &Guard) -> Result<(), JournalError> {
    let file = file.try_clone().map_err(|e| guard.of_io("opening", e))?;
    let (mut db, _) = open_overlay(file, guard)?;
    let whole = guard.run("checking", || Ok(db.check_integrity()?));
    let closed = guard.close(db);
    if !whole? {
        return Err(guard.damaged("it was closed cleanly, yet its pages are not as written"));
    }
    closed
}

/// Opens the file for redb without ever changing it.
pub(crate) fn open_overlay(
    file: File,
    guard: &Guard,
) -> Result<(Database, Recovery), JournalError> {
    let overlay = Overlay::new(file).map_err(|e| guard.of_io("reading", e))?;
    create(guard, &Options::default(), |b| b.create_with_backend(overlay))
}

/// Runs redb's own opening and notes what it repaired.
pub(super) fn create(
    guard: &Guard,
    options: &Options,
    open: impl FnOnce(&Builder) -> Result<Database, DatabaseError>,
) -> Result<(Database, Recovery), JournalError> {
    const CHECKED: u8 = 1;
    const DROPPED: u8 = 2;
    let repair = Arc::new(AtomicU8::new(0));
    let seen = repair.clone();
    let db = guard.run("opening", move || {
        let mut builder = Builder::new();
        builder.set_cache_size(options.cache_bytes);
        builder.set_repair_callback(move |session| {
            // redb starts at 0.0, and says 0.3 only when the newest commit failed its check.
            let dropped = (0.1..0.5).contains(&session.progress());
            let found = if dropped { DROPPED } else { CHECKED };
            seen.fetch_max(found, Ordering::Relaxed);
        });
        Ok(open(&builder)?)
    })?;
    let recovery = match repair.load(Ordering::Relaxed) {
        0 => Recovery::Clean,
        CHECKED => Recovery::Checked,
        _ => Recovery::DroppedUnfinished,
    };
    Ok((db, recovery))
}

/// A new file is only durable once its name is.
fn sync_parent(path: &Path, guard: &Guard) -> Result<(), JournalError> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|d| d.sync_all())
        .map_err(|e| guard.of_io("syncing the folder of", e))
}
