//! The newest table on disk, for a router that starts while the controller is away.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tutti_model::RouteTable;

#[derive(Debug, thiserror::Error)]
pub enum TableFileError {
    #[error("can't read the route table in {}: check that the router may", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is no route table: remove it, and the router waits for the controller", .path.display())]
    Shape { path: PathBuf, source: serde_json::Error },
    #[error("can't keep the route table in {}: check the folder and its permissions", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// None if there is no such file yet.
pub fn load(path: &Path) -> Result<Option<RouteTable>, TableFileError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TableFileError::Read { path: path.to_owned(), source }),
    };
    let shape = |source| TableFileError::Shape { path: path.to_owned(), source };
    serde_json::from_slice(&bytes).map(Some).map_err(shape)
}

/// Replaces the file as a whole: after a crash there is the old table or the new one.
pub fn save(path: &Path, table: &RouteTable) -> Result<(), TableFileError> {
    let bytes = serde_json::to_vec(table)
        .map_err(|source| TableFileError::Shape { path: path.to_owned(), source })?;
    write(path, &bytes).map_err(|source| TableFileError::Write { path: path.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut options = File::options();
    // Hashes of keys are in it.
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_back_as_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.json");
        assert_eq!(load(&path).unwrap(), None);
        for version in [1, 2] {
            let table = RouteTable { version, ..RouteTable::default() };
            save(&path, &table).unwrap();
            assert_eq!(load(&path).unwrap(), Some(table));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn nonsense_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.json");
        fs::write(&path, "{").unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("routes.json"), "{error}");
        let error = save(&folder.path().join("no/such"), &RouteTable::default()).unwrap_err();
        assert!(matches!(error, TableFileError::Write { .. }), "{error}");
    }
}
