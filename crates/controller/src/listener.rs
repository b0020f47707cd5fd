//! One port for everything. The first byte tells TLS from plain HTTP, ALPN tells agents from HTTP.
//!
//! ```text
//!  accept ─ first byte ─┬─ 0x16: TLS ─┬─ tutti-agent/1 ─► links::serve   (node certificate)
//!                       │             └─ else ──────────► HTTP           (token)
//!                       └─ else: HTTP, only from loopback to loopback    (token)
//! ```
//!
//! Beside the port there is a socket in the data dir: see [`local`].

mod http;
pub mod local;
mod rooms;
mod standing;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};
use tutti_wire::guests::{Room, client_address};
use tutti_wire::tls::Peer;

use crate::api::auth::Ends;
use crate::links::{self, AgentConfig, Certified};
use rooms::{Rooms, descriptors};

pub use standing::Standing;

/// Until the first byte.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Until TLS is agreed on, from the beginning of the connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After an error of `accept` itself, such as no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// So many strangers have to go then.
const SHED: usize = 64;

const TLS_HANDSHAKE: u8 = 0x16;

const USE_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 45\r\n\r\nuse https: plain text is for loopback alone.\n";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 28\r\n\r\ntoo many connections, retry\n";

pub struct Listener {
    pub router: Router,
    pub tls: TlsAcceptor,
    pub agents: Arc<AgentConfig>,
    pub shutdown: watch::Receiver<bool>,
    rooms: Arc<Rooms>,
    http_open: AtomicUsize,
}

impl Listener {
    pub fn new(
        router: Router,
        tls: TlsAcceptor,
        agents: Arc<AgentConfig>,
        shutdown: watch::Receiver<bool>,
        connections_max: usize,
    ) -> Listener {
        let rooms = Arc::new(Rooms::new(connections_max, descriptors()));
        Listener { router, tls, agents, shutdown, rooms, http_open: AtomicUsize::new(0) }
    }

    /// Some HTTP connection is open.
    pub fn busy(&self) -> bool {
        self.http_open.load(Ordering::Relaxed) > 0
    }

    /// Takes connections until the shutdown, or until it is dropped. The tasks of connections end by
    /// themselves then.
    ///
    /// In a thread of its own: what the kernel keeps for us is soon full while everybody else is busy
    /// with handshakes, and whoever comes then has to try again after a second.
    pub async fn run(self: Arc<Self>, sockets: TcpListener) {
        let here = Handle::current();
        let (_alive, dropped) = oneshot::channel::<()>();
        let (told, ended) = oneshot::channel::<io::Result<()>>();
        let thread = std::thread::Builder::new().name("tutti-accept".to_owned());
        let started = sockets.into_std().and_then(|sockets| {
            thread.spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                let ended = runtime.and_then(|r| r.block_on(self.accept(sockets, &here, dropped)));
                // Whoever asked may be gone.
                let _ = told.send(ended);
            })
        });
        let ended = match started {
            Ok(_) => ended.await.unwrap_or(Ok(())),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::error!(%error, "no connections are taken any more");
        }
    }

    async fn accept(
        self: Arc<Self>,
        sockets: std::net::TcpListener,
        here: &Handle,
        mut dropped: oneshot::Receiver<()>,
    ) -> io::Result<()> {
        let sockets = TcpListener::from_std(sockets)?;
        let mut shutdown = self.shutdown.clone();
        loop {
            let greeting = Arc::clone(&self.rooms.greetings).acquire_owned();
            let taken = tokio::select! {
                () = stopped(&mut shutdown) => return Ok(()),
                _ = &mut dropped => return Ok(()),
                taken = async { (greeting.await, sockets.accept().await) } => taken,
            };
            match taken {
                (greeting, Ok((socket, peer))) => {
                    if let Err(error) = self.take(socket, peer, here, greeting.ok()) {
                        tracing::debug!(%peer, %error, "it left at once");
                    }
                }
                (_, Err(error)) => self.accept_failed(&error).await,
            }
        }
    }

    /// Hands it over to those who have time for it.
    fn take(
        self: &Arc<Self>,
        socket: TcpStream,
        peer: SocketAddr,
        here: &Handle,
        greeting: Option<OwnedSemaphorePermit>,
    ) -> io::Result<()> {
        let room = match self.rooms.strangers.enter(client_address(peer.ip())) {
            Ok(room) => room,
            Err(full) => return Err(io::Error::other(full)),
        };
        let socket = socket.into_std()?;
        let _there = here.enter();
        let socket = TcpStream::from_std(socket)?;
        let this = Arc::clone(self);
        here.spawn(async move { this.greet(socket, peer, room, greeting).await });
        Ok(())
    }

    /// Where the system has nothing left for another connection, strangers make room: the next one
    /// may be somebody with a token.
    async fn accept_failed(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionAborted {
            return;
        }
        tracing::warn!(%error, "can't take a connection; those of strangers are closed");
        self.rooms.strangers.shed(SHED);
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    async fn greet(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        room: Room<IpAddr>,
        greeting: Option<OwnedSemaphorePermit>,
    ) {
        let since = Instant::now();
        let mut shutdown = self.shutdown.clone();
        let kind = tokio::select! {
            biased;
            () = room.dropped() => {
                tracing::debug!(%peer, "its room was needed for another");
                return;
            }
            kind = timeout(HANDSHAKE_TIMEOUT, self.handshake(socket, peer)) => kind,
            () = stopped(&mut shutdown) => return,
        };
        drop(greeting);
        let standing = |room| Standing::stranger(&self.rooms, room, since);
        match kind {
            Ok(Ok(Kind::Plain(socket, ends))) => self.http(socket, ends, standing(room)).await,
            Ok(Ok(Kind::Https(stream, ends))) => self.http(*stream, ends, standing(room)).await,
            Ok(Ok(Kind::Agent(stream, certified))) => {
                drop(room);
                match self.rooms.agents.enter(certified.node.clone()) {
                    Ok(room) => {
                        links::serve(Arc::clone(&self.agents), *stream, certified, room).await;
                    }
                    Err(_) => {
                        tracing::warn!(%peer, certified.node, "too many streams of one node");
                    }
                }
            }
            Ok(Ok(Kind::Refused)) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no connection was made"),
            Err(_) => tracing::debug!(%peer, "the handshake took too long"),
        }
    }

    async fn handshake(&self, mut socket: TcpStream, peer: SocketAddr) -> io::Result<Kind> {
        socket.set_nodelay(true)?;
        let ends = Ends { peer, local: socket.local_addr()?, tls: false, uid: None };
        let mut first = [0];
        if timeout(SILENCE_MAX, socket.peek(&mut first)).await?? == 0 {
            return Ok(Kind::Refused);
        }
        if first[0] != TLS_HANDSHAKE {
            if may_be_plain(ends) {
                return Ok(Kind::Plain(socket, ends));
            }
            refuse(&mut socket, USE_HTTPS).await?;
            return Ok(Kind::Refused);
        }
        let hello = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        // The work of a handshake is in this step; a turn is not held while the client is waited for.
        let turn = self.rooms.handshakes.take(client_address(peer.ip())).await;
        let shaking = hello.into_stream(Arc::clone(self.tls.config()));
        drop(turn);
        let stream = Box::new(shaking.await?);
        Ok(match Peer::of(stream.get_ref().1) {
            Peer::Http => Kind::Https(stream, Ends { tls: true, ..ends }),
            Peer::Agent { node, key } => Kind::Agent(stream, Certified { node, key, from: peer }),
            Peer::AgentUnknown => {
                tracing::warn!(%peer, "an agent without a node's certificate: it has to join first");
                links::turn_away(*stream).await;
                Kind::Refused
            }
        })
    }
}

/// Resolves when the controller is to stop.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // The guard must not live on, and an error means that the controller is gone already.
    let _ = shutdown.wait_for(|s| *s).await;
}

enum Kind {
    Plain(TcpStream, Ends),
    Https(Box<tokio_rustls::server::TlsStream<TcpStream>>, Ends),
    Agent(Box<tokio_rustls::server::TlsStream<TcpStream>>, Certified),
    Refused,
}

/// Plain text stays on this machine.
fn may_be_plain(ends: Ends) -> bool {
    let loopback = |a: SocketAddr| a.ip().to_canonical().is_loopback();
    loopback(ends.peer) && loopback(ends.local)
}

/// Takes what the client has sent so far, since closing on unread bytes would reset the connection
/// before the answer arrives.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    answer: &[u8],
) -> io::Result<()> {
    let mut sink = [0; 4096];
    let _ = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut sink)).await;
    stream.write_all(answer).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_only_between_loopback_addresses() {
        let ends = |peer: &str, local: &str| Ends {
            peer: peer.parse().unwrap(),
            local: local.parse().unwrap(),
            tls: false,
            uid: None,
        };
        for (peer, local, fine) in [
            ("127.0.0.1:1", "127.0.0.1:2", true),
            ("127.0.0.9:1", "127.1.2.3:2", true),
            ("[::1]:1", "[::1]:2", true),
            ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:2", true),
            ("10.0.0.1:1", "10.0.0.2:2", false),
            ("127.0.0.1:1", "10.0.0.2:2", false),
            ("10.0.0.1:1", "127.0.0.1:2", false),
            ("[::ffff:10.0.0.1]:1", "[::1]:2", false),
        ] {
            assert_eq!(may_be_plain(ends(peer, local)), fine, "{peer} to {local}");
        }
    }

    #[tokio::test]
    async fn refusals_are_whole_answers() {
        for answer in [USE_HTTPS, BUSY] {
            let (mut client, mut server) = tokio::io::duplex(4096);
            client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            refuse(&mut server, answer).await.unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).await.unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
        }
    }
}
