//! The start of a stream: who is there, may it come in, and what becomes of it afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tutti_engine::{Command, Reply};
use tutti_model::{Epoch, Greeting as Hello, NodeId, Span};
use tutti_wire::frame::{self, FrameError, FrameReader};
use tutti_wire::pki::Ca;
use tutti_wire::stream::{PROTOCOL, ToAgent, ToController};

use super::link::{Greeting, Link};
use super::{Links, pump};
use crate::core::{CallError, Core};
use crate::telemetry::Store;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const REFUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What all streams share.
pub struct AgentConfig {
    pub core: Core,
    pub links: Arc<Links>,
    pub telemetry: Arc<Store>,
    pub ca: Arc<Ca>,
    pub epoch: Epoch,
    pub heartbeat: Span,
    /// A stream that is silent for this long is closed.
    pub silence_max: Duration,
    /// One write may take this long.
    pub write_max: Duration,
    sessions: AtomicU64,
}

impl AgentConfig {
    pub fn new(
        core: Core,
        links: Arc<Links>,
        telemetry: Arc<Store>,
        ca: Arc<Ca>,
        epoch: Epoch,
        heartbeat: Span,
    ) -> Self {
        let heartbeat_ms = Duration::from_millis(heartbeat.0);
        AgentConfig {
            core,
            links,
            telemetry,
            ca,
            epoch,
            heartbeat,
            silence_max: (heartbeat_ms * 6).max(Duration::from_secs(3)),
            write_max: Duration::from_secs(5),
            // Later starts have larger sessions than earlier ones.
            sessions: AtomicU64::new(epoch.0 << 32),
        }
    }
}

/// Why a stream is not taken.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the stream has to start with hello")]
    NoHello,
    #[error(
        "agent speaks protocol {0}, this controller {PROTOCOL}: install tutti {version} on the node",
        version = env!("CARGO_PKG_VERSION")
    )]
    Protocol(u32),
    #[error(
        "the certificate is for node '{certified}', but the agent calls itself '{claimed}': start it with --name {certified}, or join again with a new token"
    )]
    OtherName { certified: String, claimed: String },
    #[error(
        "the agent has followed a newer controller (epoch {agent}; this one has {ours}): this data dir is an old copy, start the controller on the newest"
    )]
    OldController { agent: Epoch, ours: Epoch },
    #[error("the certificate can't be renewed")]
    Renew(#[from] tutti_wire::pki::PkiError),
    #[error("the controller did not take the node")]
    Engine(#[from] CallError),
}

#[derive(Debug, thiserror::Error)]
enum HelloError {
    #[error("no hello within {} s", HELLO_TIMEOUT.as_secs())]
    Late,
    #[error("closed before hello")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("refused")]
    Refused(#[from] Refusal),
}

/// Serves one agent until its stream ends. `certified` is the name in its certificate.
pub async fn serve<S>(config: Arc<AgentConfig>, stream: S, certified: String)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader);
    let taken = welcome(&config, &mut reader, &certified).await;
    let (link, node, outgoing) = match taken {
        Ok(taken) => taken,
        Err(HelloError::Refused(refusal)) => {
            let reason = crate::error::chain(&refusal);
            tracing::warn!(node = certified, reason, "refused an agent");
            let refused = ToAgent::Refused { reason };
            let told = tokio::time::timeout(REFUSE_TIMEOUT, frame::write(&mut writer, &refused));
            if !matches!(told.await, Ok(Ok(()))) {
                tracing::debug!(node = certified, "the agent left before it heard why");
            }
            return;
        }
        Err(error) => {
            tracing::warn!(node = certified, error = crate::error::chain(&error), "no hello");
            return;
        }
    };
    tracing::info!(node = certified, session = link.session, "agent connected");
    let why = pump::run(&config, &link, node, reader, writer, outgoing).await;
    link.close("the stream has ended");
    config.links.detach(node, link.session);
    tracing::info!(node = certified, session = link.session, why, "agent gone");
    let gone = Command::Gone { node, session: link.session };
    if config.core.tell(vec![gone]).await.is_err() {
        tracing::debug!(node = certified, "the engine has stopped before");
    }
}

/// Tells an agent without a node's certificate what to do, and hangs up.
pub async fn turn_away<S: AsyncWrite + Unpin>(mut stream: S) {
    let reason =
        "no certificate of this cluster: join first, with a token from `tutti token create --join`";
    let refused = ToAgent::Refused { reason: reason.to_owned() };
    let told = tokio::time::timeout(REFUSE_TIMEOUT, frame::write(&mut stream, &refused)).await;
    if !matches!(told, Ok(Ok(()))) {
        tracing::debug!("a stranger left before it heard why");
    }
}

type Taken = (Arc<Link>, NodeId, tokio::sync::mpsc::Receiver<super::link::Outgoing>);

async fn welcome<R: AsyncRead + Unpin>(
    config: &AgentConfig,
    reader: &mut FrameReader<R>,
    certified: &str,
) -> Result<Taken, HelloError> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, reader.next::<ToController>());
    let first = first.await.map_err(|_| HelloError::Late)??.ok_or(HelloError::Closed)?;
    let ToController::Hello { protocol, greeting, epoch, renew } = first else {
        return Err(Refusal::NoHello.into());
    };
    check(config, certified, protocol, &greeting, epoch)?;
    let certificate = renew
        .map(|csr| config.ca.sign_node_csr(&csr, certified))
        .transpose()
        .map_err(Refusal::Renew)?;
    let session = config.sessions.fetch_add(1, Ordering::Relaxed);
    let words = Greeting { epoch: config.epoch, heartbeat: config.heartbeat, certificate };
    let (link, outgoing) = Link::new(session, certified.to_owned(), words);
    let hello = Command::Hello { greeting, session };
    match config.core.hello(hello, Arc::clone(&link)).await {
        Ok(Reply::Welcome { node }) => Ok((link, node, outgoing)),
        Ok(other) => unreachable!("the engine answers hello with a welcome, not {other:?}"),
        Err(error) => Err(Refusal::Engine(error).into()),
    }
}

fn check(
    config: &AgentConfig,
    certified: &str,
    protocol: u32,
    greeting: &Hello,
    epoch: Epoch,
) -> Result<(), Refusal> {
    if protocol != PROTOCOL {
        return Err(Refusal::Protocol(protocol));
    }
    if greeting.facts.name != certified {
        let claimed = greeting.facts.name.clone();
        return Err(Refusal::OtherName { certified: certified.to_owned(), claimed });
    }
    if epoch > config.epoch {
        return Err(Refusal::OldController { agent: epoch, ours: config.epoch });
    }
    Ok(())
}
