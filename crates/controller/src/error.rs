//! What stops a controller, and what to do about it.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;

use tutti_files::OwnDirError;
use tutti_journal::JournalError;
use tutti_wire::pki::PkiError;
use tutti_wire::tls::TlsError;

use crate::core::{CallError, CoreError};

#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error(
        "can't use {} as data dir: choose another with --data-dir, or make it writable for this user",
        path.display()
    )]
    DataDir {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("can't use {} as data dir", path.display())]
    NotOwnDir {
        path: PathBuf,
        #[source]
        source: OwnDirError,
    },
    #[error("can't write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the disk of {} is full: free some space and start again", path.display())]
    DiskFull { path: PathBuf },
    #[error(
        "{0} is in use by another program: stop it, or choose another address with --listen (port 0 picks a free one)"
    )]
    PortInUse(SocketAddr),
    #[error("can't listen on {address}: choose another address with --listen")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} is missing, though this data dir has had a cluster: put it back, or restore a copy of the whole directory; to begin a new cluster, choose another --data-dir",
        path.display()
    )]
    JournalMissing { path: PathBuf },
    #[error("the journal can't be opened")]
    Journal(#[from] JournalError),
    #[error("the cluster's certificates can't be used")]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("no token could be made for the admin")]
    Token(#[from] tutti_wire::token::NoRandomness),
    #[error("the engine did not start")]
    Start(#[from] CallError),
    #[error("the policy that it was started with is refused")]
    Policy(#[source] tutti_engine::Rejected),
    #[error("no thread or runtime could be started")]
    Runtime(#[source] std::io::Error),
    #[error(
        "stopped, because what is in memory could not be made durable; nothing that was acknowledged is lost. Clients that repeat with their idempotency key lose nothing. Repair the cause and start again"
    )]
    NotDurable(#[source] CoreError),
    /// Nothing in it can be told from the outside, so it has an exit code of its own.
    #[error(
        "stopped, because its journal is gone, and with it everything that it had acknowledged"
    )]
    JournalGone(#[source] JournalError),
}

impl From<CoreError> for ControllerError {
    fn from(error: CoreError) -> ControllerError {
        match error {
            CoreError::Append(gone @ JournalError::Gone { .. }) => {
                ControllerError::JournalGone(gone)
            }
            error => ControllerError::NotDurable(error),
        }
    }
}

/// An error with all its causes on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Transparent errors repeat the words of their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
