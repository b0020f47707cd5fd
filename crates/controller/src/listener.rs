//! One port for everything. The first byte tells TLS from plain HTTP, ALPN tells agents from HTTP.
//!
//! ```text
//!  accept ─ first byte ─┬─ 0x16: TLS ─┬─ tutti-agent/1 ─► links::serve   (node certificate)
//!                       │             └─ else ──────────► HTTP           (token)
//!                       └─ else: HTTP, only from loopback to loopback    (token)
//! ```
//!
//! Beside the port there is a socket in the data dir: see [`local`].

pub mod local;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tutti_wire::tls::Peer;

use crate::api::auth::Ends;
use crate::guests::{Guests, Room};
use crate::links::{self, AgentConfig};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Also how long an idle connection is kept; longer than clients keep theirs, so that these close first.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// TLS handshakes at once.
const HANDSHAKES_MAX: usize = 512;
/// After an error of `accept` itself, such as no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TLS_HANDSHAKE: u8 = 0x16;

const USE_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 45\r\n\r\nuse https: plain text is for loopback alone.\n";
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 28\r\n\r\ntoo many connections, retry\n";

pub struct Listener {
    pub router: Router,
    pub tls: TlsAcceptor,
    pub agents: Arc<AgentConfig>,
    pub shutdown: watch::Receiver<bool>,
    connections_max: usize,
    http_room: Arc<Semaphore>,
    handshake_room: Arc<Semaphore>,
}

impl Listener {
    pub fn new(
        router: Router,
        tls: TlsAcceptor,
        agents: Arc<AgentConfig>,
        shutdown: watch::Receiver<bool>,
        connections_max: usize,
    ) -> Listener {
        let http_room = Arc::new(Semaphore::new(connections_max));
        let handshake_room = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        Listener { router, tls, agents, shutdown, connections_max, http_room, handshake_room }
    }

    /// Some HTTP connection is open.
    pub fn busy(&self) -> bool {
        self.http_room.available_permits() < self.connections_max
    }

    /// Takes connections until the shutdown. The tasks of connections end by themselves then.
    pub async fn run(self: Arc<Self>, sockets: TcpListener) {
        let guests: Arc<Guests> = Arc::default();
        let mut shutdown = self.shutdown.clone();
        loop {
            let taken = tokio::select! {
                () = stopped(&mut shutdown) => return,
                taken = sockets.accept() => taken,
            };
            match taken {
                Ok((socket, peer)) => {
                    let Some(room) = guests.enter(peer.ip()) else {
                        tracing::debug!(%peer, "too many from there are being greeted");
                        continue;
                    };
                    let this = Arc::clone(&self);
                    tokio::spawn(async move { this.greet(socket, peer, room).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "can't take a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn greet(&self, socket: TcpStream, peer: SocketAddr, room: Room) {
        let kind = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(socket, peer)).await;
        drop(room);
        match kind {
            Ok(Ok(Kind::Plain(socket, ends))) => self.http(socket, ends).await,
            Ok(Ok(Kind::Https(stream, ends))) => self.http(*stream, ends).await,
            Ok(Ok(Kind::Agent(stream, node))) => {
                links::serve(Arc::clone(&self.agents), *stream, node).await;
            }
            Ok(Ok(Kind::Refused)) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no connection was made"),
            Err(_) => tracing::debug!(%peer, "the handshake took too long"),
        }
    }

    async fn handshake(&self, mut socket: TcpStream, peer: SocketAddr) -> std::io::Result<Kind> {
        socket.set_nodelay(true)?;
        let ends = Ends { peer, local: socket.local_addr()?, tls: false };
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Ok(Kind::Refused);
        }
        if first[0] != TLS_HANDSHAKE {
            if may_be_plain(ends) {
                return Ok(Kind::Plain(socket, ends));
            }
            refuse(&mut socket, USE_HTTPS).await?;
            return Ok(Kind::Refused);
        }
        // Only here: a socket that says nothing takes no room from those that do.
        let _room = self.handshake_room.acquire().await.map_err(std::io::Error::other)?;
        let stream = Box::new(self.tls.accept(socket).await?);
        Ok(match Peer::of(stream.get_ref().1) {
            Peer::Http => Kind::Https(stream, Ends { tls: true, ..ends }),
            Peer::Agent { node } => Kind::Agent(stream, node),
            Peer::AgentUnknown => {
                tracing::warn!(%peer, "an agent without a node's certificate: it has to join first");
                links::turn_away(*stream).await;
                Kind::Refused
            }
        })
    }

    async fn http<S>(&self, mut stream: S, ends: Ends)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(_room) = Arc::clone(&self.http_room).try_acquire_owned() else {
            tracing::warn!(peer = %ends.peer, "too many connections");
            if let Err(error) = refuse(&mut stream, BUSY).await {
                tracing::debug!(%error, "and it left before it heard so");
            }
            return;
        };
        let service = self.router.clone().map_request(move |mut r: http::Request<_>| {
            r.extensions_mut().insert(ConnectInfo(ends));
            r
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let mut shutdown = self.shutdown.clone();
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut shutdown) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %ends.peer, %error, "a connection ended badly");
        }
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
    Agent(Box<tokio_rustls::server::TlsStream<TcpStream>>, String),
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
) -> std::io::Result<()> {
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
