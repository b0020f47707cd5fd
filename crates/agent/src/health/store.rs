//! The board on disk, so that a fence outlives the agent.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tutti_wire::pki::{PkiError, replace_file};

use super::Board;

const FILE: &str = "health.json";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stored {
    /// Of the start of the machine during which it was written.
    pub boot: String,
    /// The last record of the kernel's log that was read.
    pub kernel_log: Option<u64>,
    /// UUIDs of the GPUs that the machine has when all of them are there.
    pub gpus: BTreeSet<String>,
    pub board: Board,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("can't read {FILE}")]
    Read(#[source] io::Error),
    #[error("{FILE} can't be understood; remove it, and every finding is forgotten")]
    Parse(#[source] serde_json::Error),
    #[error("findings can't be written as JSON")]
    Encode(#[source] serde_json::Error),
    #[error("can't write {FILE}")]
    Write(#[source] PkiError),
}

impl Stored {
    /// What an earlier agent left; what the machine has been started anew for is mended.
    pub fn load(dir: &Path, boot: &str) -> Result<Stored, StoreError> {
        let stored = match std::fs::read(dir.join(FILE)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(StoreError::Parse)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Stored::default(),
            Err(error) => return Err(StoreError::Read(error)),
        };
        Ok(stored.after_start(boot))
    }

    fn after_start(mut self, boot: &str) -> Stored {
        if self.boot != boot {
            self.board.rebooted();
            self.kernel_log = None;
            self.boot = boot.to_owned();
        }
        self
    }

    pub fn save(&self, dir: &Path) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(self).map_err(StoreError::Encode)?;
        replace_file(&dir.join(FILE), &bytes, 0o600).map_err(StoreError::Write)
    }
}

/// Another one after every start of the machine. Empty where the kernel does not say: then nothing
/// is mended by a reboot.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_gpu::health::{Keep, Seen};
    use tutti_model::{Finding, GpuIndex, HealthAction, Time};

    fn broken(key: &str, keep: Keep) -> Seen {
        let finding = Finding {
            key: key.into(),
            check: "xid".into(),
            gpu: Some(GpuIndex(0)),
            action: HealthAction::ResetGpu,
            text: "broken".into(),
            since: Time(5),
            drill: false,
            by_job: false,
        };
        Seen { finding, keep }
    }

    #[test]
    fn a_fence_outlives_the_agent_and_a_reboot_mends() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Stored::load(dir.path(), "one").unwrap().board, Board::default());
        let mut stored = Stored { boot: "one".into(), kernel_log: Some(7), ..Stored::default() };
        stored.board.put(broken("a", Keep::UntilReboot));
        stored.board.put(broken("b", Keep::UntilResolved));
        stored.save(dir.path()).unwrap();
        assert_eq!(Stored::load(dir.path(), "one").unwrap(), stored);
        let after = Stored::load(dir.path(), "two").unwrap();
        assert_eq!((after.kernel_log, after.board.findings().len()), (None, 1));
        assert_eq!(after.board.findings()[0].key, "b");
    }

    #[test]
    fn a_broken_file_is_not_taken_for_good_health() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(matches!(Stored::load(dir.path(), "one"), Err(StoreError::Parse(_))));
    }
}
