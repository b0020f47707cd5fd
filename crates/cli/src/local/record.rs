//! `up.json`: what was started, so that another process can stop it.

use std::path::Path;

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
}

impl UpRecord {
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
        };
        record.write(dir.path()).unwrap();
        assert_eq!(UpRecord::read(dir.path()).unwrap(), Some(record.clone()));
        assert!(record.alive().is_empty());
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(UpRecord::read(dir.path()).is_err());
    }
}
