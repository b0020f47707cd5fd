//! Says what a journal holds and what is wrong with it, and changes nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable};
use serde::Serialize;
use tutti_model::Seq;

use crate::order::Follow;
use crate::redb_journal::{
    CHUNKS, Guard, Header, LOG, Recovery, SNAPSHOTS, lock_shared, open_overlay, read_format,
    read_header, read_snapshot, stats,
};
use crate::{BoxError, JournalError, Stats};

/// What the caller's check is given.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    Snapshot { seq: Seq, bytes: &'a [u8] },
    Batch { first: Seq, last: Seq, bytes: &'a [u8] },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Note,
    Warning,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    File,
    Log,
    Snapshot { seq: Seq },
    Batch { first: Seq, last: Seq },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Nothing was ever written.
    Empty,
    /// The last owner was killed. Nothing is lost; the next start checks the file.
    NotClosed,
    /// The last write fails its checksums, as one that power cut short. The next start drops it.
    Unfinished,
    /// Others may read the file.
    Mode { mode: u32 },
    /// The file could not be read at all; the text says why.
    Unreadable { why: String },
    /// Pages are not as they were written.
    Pages { why: String },
    /// Records are missing or come twice.
    Order { why: String },
    /// A snapshot or batch cannot be used.
    Refused { why: String },
    /// Parts of a snapshot that does not exist.
    LooseChunks { count: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    pub place: Place,
    pub what: What,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub path: PathBuf,
    pub findings: Vec<Finding>,
    /// Absent when the file could not be read.
    pub stats: Option<Stats>,
}

impl Report {
    /// No acknowledged record is lost, and the controller will start.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|f| f.level < Level::Error)
    }

    fn add(&mut self, level: Level, place: Place, what: What) {
        self.findings.push(Finding { level, place, what });
    }

    fn unreadable(&mut self, error: &JournalError) {
        self.add(Level::Error, Place::File, What::Unreadable { why: chain(error) });
    }
}

/// Reads the whole journal; `check` decodes each entry, or says why it cannot.
///
/// A journal in use, or one that may not be read, is an error of this call. Everything that is
/// wrong with the file itself is a finding.
pub fn verify(
    path: &Path,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
) -> Result<Report, JournalError> {
    let guard = Guard::new(path.to_owned());
    let file = File::open(path).map_err(|e| guard.of_io("opening", e))?;
    lock_shared(&guard, &file)?;
    let mut report = Report { path: path.to_owned(), findings: Vec::new(), stats: None };
    let mode = file.metadata().map_err(|e| guard.of_io("reading", e))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        report.add(Level::Warning, Place::File, What::Mode { mode });
    }
    match read_header(&file, &guard) {
        Ok(Header::Empty | Header::Unfinished) => {
            report.add(Level::Note, Place::File, What::Empty);
            report.stats = Some(Stats::default());
        }
        Ok(Header::Redb { .. }) => verify_redb(file, &guard, &mut report, check),
        Err(error) => report.unreadable(&error),
    }
    Ok(report)
}

fn verify_redb(
    file: File,
    guard: &Guard,
    report: &mut Report,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
) {
    let disk_bytes = file.metadata().map_or(0, |m| m.len());
    let (mut db, recovery) = match open_overlay(file, guard) {
        Ok(opened) => opened,
        Err(error) => return report.unreadable(&error),
    };
    match recovery {
        Recovery::Clean => {}
        Recovery::Checked => report.add(Level::Note, Place::File, What::NotClosed),
        Recovery::DroppedUnfinished => report.add(Level::Warning, Place::File, What::Unfinished),
    }
    let whole = guard.run("checking", || Ok(db.check_integrity()?));
    match whole {
        Ok(true) => verify_tables(&db, guard, report, check, disk_bytes),
        Ok(false) => {
            let why = "the newest commit fails its checksums".to_owned();
            report.add(Level::Error, Place::File, What::Pages { why });
            // What follows describes the older state that redb fell back to, in memory only.
            verify_tables(&db, guard, report, check, disk_bytes);
        }
        Err(error) => report.add(Level::Error, Place::File, What::Pages { why: chain(&error) }),
    }
    if let Err(error) = guard.close(db) {
        report.unreadable(&error);
    }
}

fn verify_tables(
    db: &Database,
    guard: &Guard,
    report: &mut Report,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
    disk_bytes: u64,
) {
    match read_format(db, guard) {
        Ok(Some(_)) => {
            if let Err(error) = walk(db, guard, report, check, disk_bytes) {
                report.unreadable(&error);
            }
        }
        Ok(None) => {
            report.add(Level::Note, Place::File, What::Empty);
            report.stats = Some(Stats { disk_bytes, ..Stats::default() });
        }
        Err(error) => report.unreadable(&error),
    }
}

fn walk(
    db: &Database,
    guard: &Guard,
    report: &mut Report,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
    disk_bytes: u64,
) -> Result<(), JournalError> {
    let mut stats = guard.run("reading", || stats(db))?;
    stats.disk_bytes = disk_bytes;
    let usable = walk_snapshots(db, guard, report, check, &mut stats)?;
    let last = walk_log(db, guard, report, check, usable)?;
    stats.last = last.max(stats.snapshot.unwrap_or_default());
    if stats.last > last {
        let why = format!("records {} to {} are missing", last.0 + 1, stats.last);
        report.add(Level::Error, Place::Log, What::Order { why });
    }
    report.stats = Some(stats);
    Ok(())
}

/// Answers with the newest snapshot that can be used.
fn walk_snapshots(
    db: &Database,
    guard: &Guard,
    report: &mut Report,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
    stats: &mut Stats,
) -> Result<Option<Seq>, JournalError> {
    let (seqs, loose) = guard.run("reading", || {
        let txn = db.begin_read()?;
        let mut seqs = Vec::new();
        for entry in txn.open_table(SNAPSHOTS)?.iter()?.rev() {
            seqs.push(Seq(entry?.0.value()));
        }
        let known: BTreeSet<u64> = seqs.iter().map(|s| s.0).collect();
        let mut loose = 0u64;
        for entry in txn.open_table(CHUNKS)?.iter()? {
            loose += u64::from(!known.contains(&entry?.0.value().0));
        }
        Ok((seqs, loose))
    })?;
    if loose > 0 {
        report.add(Level::Warning, Place::File, What::LooseChunks { count: loose });
    }
    stats.snapshot = seqs.first().copied();
    let mut usable = None;
    for seq in seqs {
        let checked = read_snapshot(db, guard, seq)
            .and_then(|bytes| check(Entry::Snapshot { seq, bytes: &bytes }));
        match checked {
            Ok(()) => usable = usable.max(Some(seq)),
            // The one before it, or the log, still leads to the same state; if not, the log says.
            Err(error) => {
                let what = What::Refused { why: chain(&*error) };
                report.add(Level::Warning, Place::Snapshot { seq }, what);
            }
        }
    }
    Ok(usable)
}

/// Answers with the last record that can be reached.
fn walk_log(
    db: &Database,
    guard: &Guard,
    report: &mut Report,
    check: &mut dyn FnMut(Entry<'_>) -> Result<(), BoxError>,
    usable: Option<Seq>,
) -> Result<Seq, JournalError> {
    let mut entries =
        guard.run("reading", || Ok(db.begin_read()?.open_table(LOG)?.range((0, 0)..)?))?;
    let mut whole = None;
    let mut from_snapshot = Follow::after(usable);
    while let Some((first, last, bytes)) = guard.run("reading", || {
        let entry = entries.next().transpose()?;
        Ok(entry.map(|(k, v)| (Seq(k.value().0), Seq(k.value().1), v.value().to_vec())))
    })? {
        let place = Place::Batch { first, last };
        // The log as such has no gaps, wherever it starts.
        let follow = whole.get_or_insert_with(|| Follow::after(Some(Seq(first.0.max(1) - 1))));
        let in_order = follow.next(first, last);
        // And it goes on from the snapshot that a start would use.
        let reached = if Some(last) > usable { from_snapshot.next(first, last) } else { Ok(()) };
        if let Err(error) = in_order.and(reached) {
            report.add(Level::Error, place, What::Order { why: chain(&error) });
            whole = Some(Follow::after(Some(last)));
            from_snapshot = Follow::after(Some(last));
        }
        if let Err(error) = check(Entry::Batch { first, last, bytes: &bytes }) {
            report.add(Level::Error, place, What::Refused { why: chain(&*error) });
        }
    }
    Ok(from_snapshot.last)
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => f.write_str("file"),
            Place::Log => f.write_str("log"),
            Place::Snapshot { seq } => write!(f, "snapshot {seq}"),
            Place::Batch { first, last } => write!(f, "records {first} to {last}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Empty => f.write_str("nothing was ever written"),
            What::NotClosed => f.write_str("not closed by its last controller; nothing is lost"),
            What::Unfinished => {
                f.write_str("the last write was cut short, as by a power cut, and will be dropped")
            }
            What::Mode { mode } => write!(f, "mode {mode:o} lets others in; 600 is right"),
            What::Unreadable { why }
            | What::Pages { why }
            | What::Order { why }
            | What::Refused { why } => f.write_str(why),
            What::LooseChunks { count } => {
                write!(f, "{count} chunks belong to no snapshot; they only take space")
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}
