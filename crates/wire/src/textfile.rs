//! Files that people write. Every format becomes the same tree of values with positions, and one
//! reader turns that tree into any type by its serde derive. So an error has line, column and key
//! whatever the file was written in, and there is no second list of keys.
//!
//! ```text
//! toml ─┐
//! yaml ─┼─► tree (values + positions) ─► read ─► T
//! json ─┘
//! ```

pub(crate) mod error;
pub(crate) mod from_json;
pub(crate) mod from_toml;
pub(crate) mod from_yaml;
pub(crate) mod read;
pub(crate) mod tree;

pub use error::{FileError, Problem, nearest};

use tree::Lines;

/// The bytes as text, without a byte-order mark.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, FileError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(e) => {
            let good = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
            Err(FileError::new(Lines::new(&good).end(), Problem::NotUtf8))
        }
    }
}
