//! The start of a stream: who is there, may it come in, and what becomes of it afterwards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tutti_engine::{Command, Reply};
use tutti_model::{Epoch, Greeting as Hello, NodeId, Span};
use tutti_wire::frame::{self, FrameError, FrameReader};
use tutti_wire::guests::Room;
use tutti_wire::pki::{Ca, certificates, key_of};
use tutti_wire::stream::{PROTOCOL, ToAgent, ToController};

use super::holders::is_another_alive;
use super::link::{Greeting, Link, LinkPeer};
use super::{Links, pump};
use crate::core::{CallError, Core};
use crate::telemetry::Store;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const REFUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// What a node may say of itself. All of it is in every list of nodes and in the journal; a node with
/// hundreds of GPUs needs a fifth.
const FACTS_MAX: usize = 256 << 10;

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

/// In the words about an agent that knows a newer journal than this controller's, and in no others.
pub const OLDER_COPY: &str = "this data dir is an older copy";

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
        "the agent has followed a newer controller (epoch {agent}; this one has {ours}): {OLDER_COPY}. Start the controller on the newest one; if this copy was put back on purpose, stop the controller, say so with `tutti restore`, and start it again"
    )]
    OldController { agent: Epoch, ours: Epoch },
    #[error(
        "the agent describes its node in {0} bytes, and {FACTS_MAX} are accepted: start it with fewer or shorter labels"
    )]
    TooMuchSaid(usize),
    #[error(
        "an agent with the key of node '{node}' is connected from {first} and answers. One key is for one machine: if this one should have a node of its own, delete `node.pem` in its data dir and join with a new token; if somebody copied the key, remove the node with `tutti nodes remove {node}` and let it join again"
    )]
    Twin { node: String, first: String },
    #[error("a certificate is renewed for the key that it is for, and for no other")]
    RenewOther,
    #[error("the certificate can't be renewed")]
    Renew(#[from] tutti_wire::pki::PkiError),
    #[error("the controller did not take the node")]
    Engine(#[from] CallError),
}

#[derive(Debug, thiserror::Error)]
enum HelloError {
    #[error("no hello within {} s", HELLO_TIMEOUT.as_secs())]
    Late,
    #[error("the node opened too many other streams")]
    TooMany,
    #[error("closed before hello")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("refused")]
    Refused(#[from] Refusal),
}

/// What the agent at the other end has proved.
#[derive(Clone, Debug)]
pub struct Certified {
    /// The name in its certificate.
    pub node: String,
    /// The key that it holds.
    pub key: String,
    pub from: SocketAddr,
}

/// Serves one agent until its stream ends. The room may be taken away until the agent is welcome.
pub async fn serve<S>(config: Arc<AgentConfig>, stream: S, certified: Certified, room: Room<String>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader);
    let taken = tokio::select! {
        taken = welcome(&config, &mut reader, &certified) => taken,
        () = room.dropped() => Err(HelloError::TooMany),
    };
    room.working(taken.is_ok());
    let certified = certified.node;
    let (link, node, outgoing) = match taken {
        Ok(taken) => taken,
        Err(HelloError::Refused(refusal)) => {
            let reason = crate::error::chain(&refusal);
            tracing::warn!(node = certified, reason, "refused an agent");
            config.links.note_refused(&certified, &reason);
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
    certified: &Certified,
) -> Result<Taken, HelloError> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, reader.next::<ToController>());
    let first = first.await.map_err(|_| HelloError::Late)??.ok_or(HelloError::Closed)?;
    let ToController::Hello { protocol, greeting, epoch, renew, instance } = first else {
        return Err(Refusal::NoHello.into());
    };
    let Certified { node, key, from } = certified;
    check(config, node, protocol, &greeting, epoch)?;
    let certificate = renew.map(|csr| renewed(config, &csr, certified)).transpose()?;
    only_holder(config, certified, instance.as_deref()).await?;
    config.links.turn_of(node).await;
    let session = config.sessions.fetch_add(1, Ordering::Relaxed);
    let words = Greeting { epoch: config.epoch, heartbeat: config.heartbeat, certificate };
    let peer = LinkPeer { name: node.clone(), from: from.to_string(), instance };
    let (link, outgoing) = Link::new(session, peer, words);
    let hello = Command::Hello { greeting, session, key: Some(key.clone()) };
    match config.core.hello(hello, Arc::clone(&link)).await {
        Ok(Reply::Welcome { node }) => Ok((link, node, outgoing)),
        Ok(other) => unreachable!("the engine answers hello with a welcome, not {other:?}"),
        Err(error) => Err(Refusal::Engine(error).into()),
    }
}

/// The next certificate, for the same key: who holds a copy can't make a key of its own of it.
fn renewed(config: &AgentConfig, csr: &str, certified: &Certified) -> Result<String, Refusal> {
    let pem = config.ca.sign_node_csr(csr, &certified.node)?;
    let signed = certificates(&pem, "the certificate")?.remove(0);
    if key_of(&signed)? != certified.key {
        return Err(Refusal::RenewOther);
    }
    Ok(pem)
}

/// Refuses whoever comes with the key of a node whose agent is there and goes on answering.
async fn only_holder(
    config: &AgentConfig,
    certified: &Certified,
    instance: Option<&str>,
) -> Result<(), Refusal> {
    let Certified { node, from, .. } = certified;
    let known = config.core.peek(|w| w.engine.state().node_named(node).map(|n| n.id));
    let Some(id) = known.map_err(CallError::Stopped)? else { return Ok(()) };
    let Some(old) = config.links.get(id) else { return Ok(()) };
    if !is_another_alive(&old, instance, config.heartbeat).await {
        return Ok(());
    }
    let (first, second) = (old.from().to_owned(), from.to_string());
    tracing::error!(node, first, second, "two agents hold the key of one node");
    let shared = Command::KeyShared { node: id, first: first.clone(), second };
    config.core.call(shared).await?;
    Err(Refusal::Twin { node: node.clone(), first })
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
    match serde_json::to_vec(&greeting.facts).map_or(usize::MAX, |text| text.len()) {
        ..=FACTS_MAX => Ok(()),
        bytes => Err(Refusal::TooMuchSaid(bytes)),
    }
}
