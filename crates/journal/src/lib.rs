//! What the controller remembers: an ordered log of batches, and snapshots that shorten it.
//!
//! The journal keeps opaque bytes under sequence numbers. It does not know what a record means
//! (that is `engine`), it does not decide when a snapshot is due (that is `controller`), and it
//! repairs nothing on its own beyond dropping a write that never finished.
//!
//! ```text
//!  records ─ codec::encode ─► Batch ─ append (one fsync) ─►┐
//!  state ─ codec::encode_packed ──── write_snapshot ──────►│ Journal: redb file, memory, etcd
//!  state ◄─ Replay::snapshot, Replay::batch ◄──── load ────┘
//!                                    findings ◄── verify (reads only)
//! ```

pub mod codec;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
mod journal;
mod memory;
mod order;
mod redb_journal;
mod verify;

pub use error::{BoxError, JournalError};
pub use journal::{Batch, Journal, Loaded, Replay, Skipped, Stats};
pub use memory::MemoryJournal;
pub use redb_journal::{Options, Recovery, RedbJournal};
pub use verify::{Entry, Finding, Level, Place, Report, What, verify};
