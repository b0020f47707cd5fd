//! Everything that can go wrong between a command and its controller: what, what to do, and the
//! exit code.

use std::io;
use std::path::PathBuf;

use tutti_files::{NotTrusted, is_refusal};
use tutti_model::Span;

use crate::api::{ApiError, NODE_REMOVED, POLICY_MOVED};
use crate::tls::WrongCa;
use crate::token::BadToken;

/// Exit codes that scripts rely on.
pub mod exit {
    pub const FAILED: i32 = 1;
    pub const USAGE: i32 = 2;
    pub const NOT_FOUND: i32 = 3;
    pub const DENIED: i32 = 4;
    pub const IMPOSSIBLE: i32 = 5;
    pub const UNREACHABLE: i32 = 75;
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("there is no cluster in {}", path.display())]
    NoDataDir { path: PathBuf },
    #[error("no controller runs in {}", path.display())]
    NotStarted { path: PathBuf },
    #[error("'{0}' is not the address of a controller")]
    BadAddress(String),
    #[error("'{0}' is not on this machine, and beyond it nothing is sent as plain text")]
    PlainText(String),
    #[error("no token for {cluster}")]
    NoToken { cluster: String },
    #[error("the token in {from} can't be used")]
    BadToken {
        from: String,
        #[source]
        source: BadToken,
    },
    #[error("can't read {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} belongs to {owner}, and this runs as {me}: what it says is not believed, and no token is sent",
        path.display()
    )]
    Foreign { path: PathBuf, owner: String, me: String },
    #[error(
        "{} can be written by others than {me} (mode {mode:04o}): what it says is not believed, and no token is sent",
        path.display()
    )]
    Open { path: PathBuf, mode: u32, me: String },
    #[error(transparent)]
    ForeignPeer(ForeignPeer),
    #[error("the controller at {endpoint} can't be reached")]
    Unreachable {
        endpoint: String,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error("the controller at {endpoint} has not answered for {silent_for}")]
    Silent { endpoint: String, silent_for: Span },
    #[error("the controller at {endpoint} is not to be trusted")]
    NotTrusted {
        endpoint: String,
        #[source]
        source: WrongCa,
    },
    #[error("the certificate of the controller at {endpoint} is refused")]
    BadCertificate {
        endpoint: String,
        #[source]
        source: rustls::Error,
    },
    #[error("the connection to the controller broke before the end")]
    Interrupted(#[source] Option<io::Error>),
    #[error("{}", .0.message)]
    Denied(ApiError),
    #[error("{}", .0.message)]
    Api(ApiError),
    #[error("the controller's answer can't be read: it is of another version, or no controller")]
    Answer(#[source] serde_json::Error),
    #[error("the controller did not say which policy it gave (no ETag)")]
    NoTag,
    #[error("an event of the controller is too long")]
    EventTooLong(#[from] crate::sse::TooLong),
    #[error("the answer of the controller is not one: status {0}")]
    Status(u16),
    #[error("the input can't be read")]
    Input(#[source] io::Error),
    #[error("TLS can't be set up")]
    Tls(#[from] crate::tls::TlsError),
    #[error("the certificate that the controller gave can't be used")]
    Certificate(#[from] crate::pki::PkiError),
    #[error("the request can't be written")]
    Request(#[from] http::Error),
    #[error("the question can't be written as a query")]
    Query(#[from] serde_urlencoded::ser::Error),
    #[error("the request can't be written as JSON")]
    Body(#[source] serde_json::Error),
    #[error("the system gives no random bytes")]
    NoRandomness(#[source] getrandom::Error),
}

/// A process of another user answers where the controller should.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "at {} a process of {owner} answers, and this runs as {me}: no token was sent",
    path.display()
)]
pub struct ForeignPeer {
    pub path: PathBuf,
    pub owner: String,
    pub me: String,
}

impl From<NotTrusted> for ClientError {
    fn from(refused: NotTrusted) -> ClientError {
        match refused {
            NotTrusted::Foreign { path, owner, me } => ClientError::Foreign { path, owner, me },
            NotTrusted::Open { path, mode, me } => ClientError::Open { path, mode, me },
            NotTrusted::Io { path, source } => ClientError::File { path, source },
        }
    }
}

/// An address is as good for everybody: there the token names the cluster that may have it.
fn of_another_user(owner: &str) -> String {
    format!(
        "run this as {owner}, for root: sudo -u '{}' tutti …; or name the cluster by its address, \
         --cluster HOST:PORT, with a token of your own in TUTTI_TOKEN",
        owner.replace("user ", "#")
    )
}

/// There was nobody to take it.
fn never_arrived(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound};
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(e) => {
            matches!(e.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | NotFound)
        }
        _ => false,
    }
}

impl ClientError {
    /// The controller knows nothing of the kind.
    pub fn is_not_found(&self) -> bool {
        matches!(self, ClientError::Api(error) if error.exit == exit::NOT_FOUND)
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        use ClientError::*;
        Some(match self {
            NoDataDir { .. } => "start one with `tutti up`, or name one with --cluster or \
                                 TUTTI_CLUSTER (a data directory or host:port)"
                .to_owned(),
            NotStarted { path } => {
                format!("start it with `tutti up --data-dir {}`", path.display())
            }
            BadAddress(_) => "write host:port or https://host:port".to_owned(),
            PlainText(_) => "write https:// instead of http://".to_owned(),
            NoToken { .. } => "set TUTTI_TOKEN, or put the token into ~/.config/tutti/token; an \
                               admin makes one with `tutti token create`"
                .to_owned(),
            BadToken { .. } => "copy it again, whole and on one line".to_owned(),
            Foreign { owner, .. } | ForeignPeer(self::ForeignPeer { owner, .. }) => {
                of_another_user(owner)
            }
            Open { path, .. } => {
                format!("look at what is in it, then chmod go-w {}", path.display())
            }
            File { source, .. } if is_refusal(source) => return None,
            File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "ask an admin of the cluster for a token and set TUTTI_TOKEN".to_owned()
            }
            Unreachable { .. } => {
                "is it running? `tutti up` starts one; --cluster and TUTTI_CLUSTER say which"
                    .to_owned()
            }
            Silent { .. } => "it may be stopped, overloaded or cut off: `tutti doctor` on its \
                              machine looks; --timeout or TUTTI_TIMEOUT waits longer"
                .to_owned(),
            NotTrusted { .. } => "check the address, and that the token is for this cluster; \
                                  nothing was sent"
                .to_owned(),
            BadCertificate { .. } => "use a name or address that the controller knows as its own, \
                                      and check the clocks of both machines"
                .to_owned(),
            Interrupted(_) => "the job goes on; run the command again".to_owned(),
            Denied(error) | Api(error) => return error.hint.clone(),
            Answer(_) | Status(_) | NoTag => {
                "`tutti --version` here and there should agree".to_owned()
            }
            _ => return None,
        })
    }

    /// What the command line exits with.
    pub fn exit_code(&self) -> i32 {
        use ClientError::*;
        match self {
            NoDataDir { .. } | NotStarted { .. } | Unreachable { .. } => exit::UNREACHABLE,
            Silent { .. } | Interrupted(_) => exit::UNREACHABLE,
            BadAddress(_) | PlainText(_) => exit::USAGE,
            NoToken { .. } | BadToken { .. } | Denied(_) => exit::DENIED,
            NotTrusted { .. } | BadCertificate { .. } => exit::DENIED,
            Foreign { .. } | Open { .. } | ForeignPeer(_) => exit::DENIED,
            File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => exit::DENIED,
            Api(error) if error.exit != 0 => error.exit,
            _ => exit::FAILED,
        }
    }

    /// Nobody answered; with an idempotency key the same may be asked again.
    pub fn is_unreachable(&self) -> bool {
        use ClientError::{Interrupted, Silent, Unreachable};
        matches!(self, Unreachable { .. } | Silent { .. } | Interrupted(_))
            || matches!(self, ClientError::Api(e) if e.exit == exit::UNREACHABLE)
    }

    /// Nobody answered, and yet what was asked for may be done: only the answer was lost.
    pub fn may_be_done(&self) -> bool {
        match self {
            ClientError::Unreachable { source, .. } => !never_arrived(source),
            other => other.is_unreachable(),
        }
    }

    /// Somebody else changed the policy since it was read; nothing was done.
    pub fn is_policy_moved(&self) -> bool {
        matches!(self, ClientError::Api(e) if e.code == POLICY_MOVED)
    }

    /// There was such a node, and somebody took it out of the cluster.
    pub fn is_node_removed(&self) -> bool {
        matches!(self, ClientError::Api(e) if e.code == NODE_REMOVED)
    }

    /// From an answer with an error status.
    pub(super) fn from_answer(status: u16, body: &[u8]) -> ClientError {
        let Ok(mut error) = serde_json::from_slice::<ApiError>(body) else {
            return match status {
                503 => ClientError::Api(ApiError {
                    code: "unavailable".to_owned(),
                    message: "the controller is not ready".to_owned(),
                    hint: Some("try again in a moment".to_owned()),
                    exit: exit::UNREACHABLE,
                    problems: Vec::new(),
                }),
                _ => ClientError::Status(status),
            };
        };
        if error.exit == 0 {
            error.exit = match status {
                400 | 413 | 415 | 422 => exit::USAGE,
                404 => exit::NOT_FOUND,
                503 => exit::UNREACHABLE,
                _ => exit::FAILED,
            };
        }
        match status {
            401 | 403 => ClientError::Denied(error),
            _ => ClientError::Api(error),
        }
    }
}
