//! What is remembered of checks, on the node's disk.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tutti_gpu::active::judge::{Known, passed};
use tutti_model::ActiveReport;
use tutti_wire::pki::{PkiError, replace_file};

const FILE: &str = "active.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub known: Known,
    /// Of the start of the machine during which these were checked.
    pub boot: String,
    /// UUIDs of GPUs that passed since then.
    pub passed: BTreeSet<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("can't read {FILE}")]
    Read(#[source] io::Error),
    #[error("{FILE} can't be understood")]
    Parse(#[source] serde_json::Error),
    #[error("it can't be written as JSON")]
    Encode(#[source] serde_json::Error),
    #[error("can't write {FILE}")]
    Write(#[source] PkiError),
}

impl Record {
    pub fn load(dir: &Path) -> Result<Record, RecordError> {
        match std::fs::read(dir.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(RecordError::Parse),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(RecordError::Read(error)),
        }
    }

    pub fn save(&self, dir: &Path) -> Result<(), RecordError> {
        let bytes = serde_json::to_vec(self).map_err(RecordError::Encode)?;
        replace_file(&dir.join(FILE), &bytes, 0o600).map_err(RecordError::Write)
    }

    /// Under another driver nothing was ever checked.
    pub fn under(mut self, driver: &str) -> Record {
        if self.known.driver != driver {
            self.passed.clear();
            self.known = self.known.under(driver);
        }
        self
    }

    /// After another start of the machine, too. A kernel that does not tell starts never.
    pub fn since(mut self, boot: &str) -> Record {
        if self.boot != boot {
            self.passed.clear();
            self.boot = boot.to_owned();
        }
        self
    }

    pub fn learn(&mut self, report: &ActiveReport) {
        self.known.learn(report);
        let right = passed(report);
        for gpu in &report.gpus {
            match right.contains(&gpu.gpu) {
                true => self.passed.insert(gpu.uuid.clone()),
                false => self.passed.remove(&gpu.uuid),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_driver_and_a_new_start_need_a_new_check() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::load(dir.path()).unwrap().under("580").since("one");
        record.passed.insert("GPU-1".into());
        record.known.sums.insert("GPU-1 GPU-2".into(), 7);
        record.save(dir.path()).unwrap();
        let load = || Record::load(dir.path()).unwrap();
        assert_eq!(load().under("580").since("one"), record);
        let anew = load().under("580").since("two");
        assert!(anew.passed.is_empty() && !anew.known.sums.is_empty());
        let other = load().under("590").since("one");
        assert!(other.passed.is_empty() && other.known.sums.is_empty());
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(matches!(Record::load(dir.path()), Err(RecordError::Parse(_))));
    }
}
