//! `up.json`: what was started, so that another process can stop it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CONTROLLER;
use super::process::Proc;
use crate::fail::Fail;

const FILE: &str = "up.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpRecord {
    /// A `tutti up` in the foreground, which restarts what dies.
    pub supervisor: Option<Proc>,
    pub controller: Proc,
    pub agents: Vec<(String, Proc)>,
}

impl UpRecord {
    pub fn read(dir: &Path) -> Result<Option<UpRecord>, Fail> {
        let path = dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Fail::new(format!("can't read {}: {e}", path.display()))),
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| {
            Fail::new(format!("{} can't be read: {e}", path.display()))
                .hint("stop what still runs by hand and remove the file")
        })
    }

    /// In one step, so that a reader never sees half of it.
    pub fn write(&self, dir: &Path) -> Result<(), Fail> {
        let (path, new) = (dir.join(FILE), dir.join("up.json.new"));
        let failed = |e: std::io::Error| Fail::new(format!("can't write {}: {e}", path.display()));
        let text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        std::fs::rename(&new, &path).map_err(failed)
    }

    pub fn remove(dir: &Path) {
        // Without it the next start finds only processes that are gone, which is the same.
        let _ = std::fs::remove_file(dir.join(FILE));
    }

    /// What of it still runs; agents first, in the order in which things are stopped.
    pub fn alive(&self) -> Vec<(String, Proc)> {
        let all = self.agents.iter().cloned();
        all.chain([(CONTROLLER.to_owned(), self.controller)])
            .filter(|(_, p)| p.is_alive())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(UpRecord::read(dir.path()).unwrap(), None);
        let gone = Proc { pid: 1, started: u64::MAX };
        let record =
            UpRecord { supervisor: None, controller: gone, agents: vec![("n1".into(), gone)] };
        record.write(dir.path()).unwrap();
        assert_eq!(UpRecord::read(dir.path()).unwrap(), Some(record.clone()));
        assert!(record.alive().is_empty());
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(UpRecord::read(dir.path()).is_err());
    }
}
