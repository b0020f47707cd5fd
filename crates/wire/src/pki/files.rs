//! Writing keys and certificates so that neither a crash nor another user can see half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{PkiError, hex, random};

/// For what only the owner may read.
pub(super) const SECRET: u32 = 0o600;
pub(super) const PUBLIC: u32 = 0o644;

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PkiError + 'a {
    move |source| PkiError::File { what, path: path.to_owned(), source }
}

/// Makes a file that must not exist yet. The mode is set by the very call that makes it.
pub fn write_new_file(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(failed("create", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(failed("write", path))?;
    sync_dir(path)
}

/// Puts `content` in the place of the file, if there is one. A reader sees the old or the new.
pub fn replace_file(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", hex(&random::<4>()?)));
    let temporary = path.with_file_name(name);
    write_new_file(&temporary, content, mode)?;
    if let Err(source) = fs::rename(&temporary, path) {
        // The rename's error is the one to tell; what can't be removed is only litter.
        let _ = fs::remove_file(&temporary);
        return Err(failed("replace", path)(source));
    }
    sync_dir(path)
}

fn sync_dir(path: &Path) -> Result<(), PkiError> {
    let dir = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(dir).and_then(|d| d.sync_all()).map_err(failed("sync the directory of", path))
}

pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(failed("read", path))
}

/// Like [`read`], and warns when others may read it too.
pub(super) fn read_secret(path: &Path) -> Result<String, PkiError> {
    let mode = fs::metadata(path).map_err(failed("read", path))?.mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777),
            "others may read this key: chmod 600");
    }
    read(path)
}
