//! What can go wrong, and what to do about it.

use std::path::PathBuf;

use tutti_model::Seq;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("another controller is using {}: stop it first", path.display())]
    InUse { path: PathBuf },
    #[error("the disk is full: {} cannot be written; free some space and start again", path.display())]
    DiskFull {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("no permission to use {}: run as its owner, or choose another data dir", path.display())]
    Permission {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not a tutti journal: {found}; move it away or choose another data dir", path.display())]
    NotAJournal { path: PathBuf, found: String },
    #[error(
        "{} has format {found}, this tutti knows up to {known}: it was made by a newer tutti; run that one",
        path.display()
    )]
    NewerFormat { path: PathBuf, found: u64, known: u64 },
    #[error("{} has format {found}, which this tutti no longer reads: open it with an older tutti first", path.display())]
    OlderFormat { path: PathBuf, found: u64 },
    #[error(
        "{} is damaged: {what}; `tutti doctor` says what can be read, else restore a copy",
        path.display()
    )]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{} is no longer the journal that this controller writes: {what}; nothing more is accepted. Put the data dir back, or restore a copy of it, and start again",
        path.display()
    )]
    Gone { path: PathBuf, what: &'static str },
    #[error("{doing} {}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{doing} {}", path.display())]
    Store {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },

    #[error("the journal ends at record {last}, so the next batch starts at {}, not at {first}", last.0 + 1)]
    Gap { last: Seq, first: Seq },
    #[error("a batch from record {first} to {last} holds nothing: records count from 1 upwards")]
    BadBatch { first: Seq, last: Seq },
    #[error("a batch of {bytes} bytes is too large for the journal")]
    TooLarge { bytes: usize },
    #[error("a snapshot of record {seq} is ahead of the journal, which ends at {last}")]
    SnapshotAhead { seq: Seq, last: Seq },
    #[error("a snapshot of record {seq} is older than the newest, of record {newest}")]
    SnapshotOld { seq: Seq, newest: Seq },
    #[error("an earlier write failed, so what is on disk is unknown: start again")]
    Broken,

    #[error("records {first} to {last} of the journal cannot be used")]
    BadRecords {
        first: Seq,
        last: Seq,
        #[source]
        source: BoxError,
    },
    #[error("records {} to {} are missing from the journal", after.0 + 1, found.0 - 1)]
    Missing { after: Seq, found: Seq },
}
