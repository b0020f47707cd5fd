//! What a new controller goes on with: a small file that is replaced when an alert begins or ends.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tutti_model::Alert;
use tutti_watch::Standing;
use tutti_wire::pki::replace_file;

const NAME: &str = "alerts.json";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    pub standing: Vec<Standing>,
    pub next: u64,
    /// What is over, newest first.
    pub history: VecDeque<Alert>,
}

pub struct File {
    path: PathBuf,
}

impl File {
    pub fn new(data_dir: &Path) -> File {
        File { path: data_dir.join(NAME) }
    }

    /// Alerts are levels: without the file all that stands is found again, and told again.
    pub fn load(&self) -> Kept {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Kept::default(),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "earlier alerts can't be read");
                return Kept::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "earlier alerts are damaged");
            Kept::default()
        })
    }

    pub fn save(&self, standing: Vec<Standing>, next: u64, history: VecDeque<Alert>) {
        let kept = Kept { standing, next, history };
        let written = match serde_json::to_vec(&kept) {
            Ok(text) => replace_file(&self.path, &text, 0o600).map_err(|e| crate::chain(&e)),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), error, "alerts can't be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_costs_no_more_than_telling_twice() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::new(dir.path());
        assert_eq!(file.load().next, 0);
        file.save(Vec::new(), 7, VecDeque::new());
        assert_eq!(file.load().next, 7);
        std::fs::write(dir.path().join(NAME), b"{\"next\": ").unwrap();
        assert_eq!(file.load().next, 0);
    }
}
