//! What a new controller goes on with: how far the counters of each router were counted.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tutti_wire::pki::replace_file;

use super::accounts::Accounts;

const NAME: &str = "routers.json";

pub(super) struct File {
    path: PathBuf,
}

impl File {
    pub fn new(data_dir: &Path) -> File {
        File { path: data_dir.join(NAME) }
    }

    /// Without the file, what routers have counted so far is counted again.
    pub fn load(&self) -> Accounts {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Accounts::default(),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "counts of routers can't be read");
                return Accounts::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "counts of routers are damaged");
            Accounts::default()
        })
    }

    pub fn save(&self, accounts: &Accounts) {
        let written = match serde_json::to_vec(accounts) {
            Ok(text) => replace_file(&self.path, &text, 0o600).map_err(|e| crate::chain(&e)),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), error, "counts of routers can't be kept");
        }
    }
}
