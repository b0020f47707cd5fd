//! `up.json`: what was started, so that another process can stop it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::process::Proc;
use super::{CONTROLLER, ROUTER, file};
use crate::fail::Fail;

const FILE: &str = "up.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpRecord {
    /// A `tutti up` in the foreground, which restarts what dies.
    pub supervisor: Option<Proc>,
    pub controller: Proc,
    pub agents: Vec<(String, Proc)>,
    #[serde(default)]
    pub router: Option<Proc>,
    /// Where it was written. A copy of the directory has it too, and has started nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

impl UpRecord {
    /// The directory that this one is a copy of. One that was moved took its processes along.
    pub fn copied_from(&self, dir: &Path) -> Option<&Path> {
        self.dir.as_deref().filter(|own| *own != dir && own.is_dir())
    }

    pub fn read(dir: &Path) -> Result<Option<UpRecord>, Fail> {
        file::read(&dir.join(FILE), "stop what still runs by hand and remove the file")
    }

    pub fn write(&self, dir: &Path) -> Result<(), Fail> {
        file::write(&dir.join(FILE), self)
    }

    pub fn remove(dir: &Path) {
        // Without it the next start finds only processes that are gone, which is the same.
        let _ = std::fs::remove_file(dir.join(FILE));
    }

    /// What of it still runs, in the order in which things are stopped.
    pub fn alive(&self) -> Vec<(String, Proc)> {
        let router = self.router.map(|proc| (ROUTER.to_owned(), proc));
        let all = router.into_iter().chain(self.agents.iter().cloned());
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
        let record = UpRecord {
            supervisor: None,
            controller: gone,
            agents: vec![("n1".into(), gone)],
            router: None,
            dir: None,
        };
        record.write(dir.path()).unwrap();
        assert_eq!(UpRecord::read(dir.path()).unwrap(), Some(record.clone()));
        assert!(record.alive().is_empty());
        let elsewhere = tempfile::tempdir().unwrap();
        let of = |own: PathBuf| UpRecord { dir: Some(own), ..record.clone() };
        assert_eq!(of(dir.path().into()).copied_from(dir.path()), None);
        assert_eq!(of("/moved/away".into()).copied_from(dir.path()), None);
        let copy = of(elsewhere.path().into());
        assert_eq!(copy.copied_from(dir.path()), Some(elsewhere.path()));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(UpRecord::read(dir.path()).is_err());
    }
}
