//! Small JSON files in the data dir, for their owner alone and replaced in one step.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fail::Fail;

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

/// In one step, so that a reader never sees half of it.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Fail> {
    let failed = |e: std::io::Error| Fail::new(format!("can't write {}: {e}", path.display()));
    let text = serde_json::to_vec_pretty(value).map_err(|e| failed(e.into()))?;
    let new = path.with_extension("json.new");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}
