//! A new connection: TLS or not, HTTP/1.1 or HTTP/2.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tutti_wire::guests::client_address;

use crate::client::Client;
use crate::h1;
use crate::h2;
use crate::http::{Buffer, Io, Ticker};
use crate::shared::{ClientRoom, Worker, unless_dropped};

/// What a client that speaks HTTP/2 without asking begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub async fn serve(worker: Arc<Worker>, stream: TcpStream, peer: IpAddr, room: ClientRoom) {
    let opened = unless_dropped(&room, open(&worker, stream, peer)).await;
    match opened.flatten() {
        Some((client, true)) => {
            let io = Io::Rewound(client.inbuf, Box::new(client.io));
            let room = Arc::new(room);
            unless_dropped(&room, h2::serve(worker, io, peer, room.clone())).await;
        }
        Some((client, false)) => h1::Connection::new(worker, client, peer, room).serve().await,
        None => {}
    }
}

/// The client, and whether it speaks HTTP/2. None if it has nothing to say.
async fn open(worker: &Worker, stream: TcpStream, peer: IpAddr) -> Option<(Client, bool)> {
    let timeouts = worker.shared.config.timeouts;
    let io = match worker.shared.config.tls.clone() {
        None => Io::Plain(stream),
        Some(config) => {
            let shaking = shake_hands(worker, config, stream, peer);
            let done = tokio::time::timeout(timeouts.head, shaking).await;
            Io::Tls(Box::new(done.ok()?.ok()?))
        }
    };
    let mut client = Client { io, inbuf: Buffer::default(), ticker: Ticker::new(timeouts.tick()) };
    let h2 = speaks_h2(&mut client, timeouts.first).await?;
    Some((client, h2))
}

/// One address that begins thousands of handshakes delays another's by one.
async fn shake_hands(
    worker: &Worker,
    config: Arc<rustls::ServerConfig>,
    stream: TcpStream,
    peer: IpAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let acceptor = rustls::server::Acceptor::default();
    let hello = LazyConfigAcceptor::new(acceptor, stream).await?;
    let turn = worker.turns.take(client_address(peer)).await;
    let mut shaking = std::pin::pin!(hello.into_stream(config));
    // The costly step is at the beginning; then the client is waited for, which is nobody's turn.
    let begun = poll_fn(|cx| Poll::Ready(shaking.as_mut().poll(cx))).await;
    drop(turn);
    match begun {
        Poll::Ready(done) => done,
        Poll::Pending => shaking.await,
    }
}

/// By what was agreed under TLS, else by the first bytes. None: nothing came.
async fn speaks_h2(client: &mut Client, patience: std::time::Duration) -> Option<bool> {
    if let Io::Tls(stream) = &client.io
        && let Some(protocol) = stream.get_ref().1.alpn_protocol()
    {
        return Some(protocol == b"h2");
    }
    poll_fn(|cx| {
        loop {
            let seen = client.inbuf.bytes();
            let n = seen.len().min(PREFACE.len());
            if seen[..n] != PREFACE[..n] {
                return Poll::Ready(Some(false));
            }
            if n == PREFACE.len() {
                return Poll::Ready(Some(true));
            }
            match client.inbuf.poll_fill(&mut client.io, 16 << 10, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        match client.ticker.poll_still(patience, cx) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    })
    .await
}
