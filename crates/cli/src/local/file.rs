//! Small JSON files in the data dir, for their owner alone and replaced in one step.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tutti_wire::pki;

use crate::fail::{Fail, chain};

/// None if it is not there; `broken` says what to do about one that makes no sense.
pub fn read<T: DeserializeOwned>(path: &Path, broken: &str) -> Result<Option<T>, Fail> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Fail::new(format!("can't read {}: {e}", path.display()))),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|e| Fail::new(format!("{} can't be read: {e}", path.display())).hint(broken))
}

pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Fail> {
    let failed = |e: &(dyn std::error::Error + 'static)| {
        Fail::new(format!("can't write {}: {}", path.display(), chain(e)))
    };
    let text = serde_json::to_vec_pretty(value).map_err(|e| failed(&e))?;
    pki::replace_file(path, &text, 0o600).map_err(|e| failed(&e))
}
