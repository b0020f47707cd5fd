//! A place that holds checkpoints: a directory, a peer, an object store. All have the same layout.

mod bounded;
mod dir;
mod memory;
#[cfg(feature = "cloud")]
mod object;

pub use bounded::Bounded;
pub use dir::{Dir, Op, Watch};
pub use memory::Memory;
#[cfg(feature = "cloud")]
pub use object::{Object, ObjectError};

use std::io;
use std::ops::Range;

use bytes::Bytes;

/// Data on its way to a place, in order.
pub type Source<'a> = dyn Iterator<Item = Result<Bytes, TierError>> + Send + 'a;

/// Paths are relative, with `/` between their parts. What a call has written when it returns will
/// survive a loss of power.
pub trait Tier: Send + Sync {
    /// What people call it.
    fn label(&self) -> &str;

    /// Whether reading it is as good as free: the same machine.
    fn is_near(&self) -> bool;

    /// Writes a file that nobody reads yet. If it fails nothing is left of it.
    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError>;

    /// Makes a small file appear at once and whole, unless there is one of that name: `false`.
    /// `scratch` is a directory for what is not visible yet.
    fn publish(&self, path: &str, scratch: &str, bytes: &[u8]) -> Result<bool, TierError>;

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError>;

    /// None if there is no such file.
    fn size(&self, path: &str) -> Result<Option<u64>, TierError>;

    /// What is directly in a directory, in the order of names. One that does not exist is empty.
    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError>;

    /// One that is gone already is no error.
    fn remove(&self, path: &str) -> Result<(), TierError>;

    /// Makes removals in a directory final. Places where they are final at once have nothing to do.
    fn settle(&self, dir: &str) -> Result<(), TierError>;

    /// Removes a directory if it is empty. Places without directories have nothing to do.
    fn prune(&self, dir: &str) -> Result<(), TierError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    pub is_dir: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TierError {
    #[error("{path} is missing in {place}")]
    Missing { place: String, path: String },
    #[error(
        "{place} is full: {path} with {bytes} bytes does not fit; free some room, or keep fewer checkpoints"
    )]
    Full { place: String, path: String, bytes: u64 },
    #[error("{path} in {place} ends after {found} bytes, {wanted} were expected")]
    Short { place: String, path: String, wanted: u64, found: u64 },
    #[error("can't {doing} {path} in {place}")]
    Io {
        place: String,
        path: String,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    /// Whether it has the file is not known.
    #[error("can't {doing} {path} in {place}: it does not answer")]
    Silent {
        place: String,
        path: String,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

impl TierError {
    /// The place could not be asked; it may have what was wanted all the same.
    pub fn is_silence(&self) -> bool {
        matches!(self, TierError::Silent { .. })
    }
}

/// A whole small file.
pub fn read_all(tier: &dyn Tier, path: &str) -> Result<Option<Bytes>, TierError> {
    let Some(size) = tier.size(path)? else { return Ok(None) };
    match tier.read(path, 0..size) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(TierError::Missing { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
