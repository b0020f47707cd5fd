//! A new connection: TLS or not, HTTP/1.1 or HTTP/2.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use tokio::net::TcpStream;

use crate::client::Client;
use crate::h1;
use crate::h2;
use crate::http::{Buffer, Io, Ticker};
use crate::shared::Worker;

/// What a client that speaks HTTP/2 without asking begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub async fn serve(worker: Arc<Worker>, stream: TcpStream, peer: IpAddr) {
    let timeouts = worker.shared.config.timeouts;
    let io = match worker.shared.config.tls.clone() {
        None => Io::Plain(stream),
        Some(config) => {
            let shaking = tokio_rustls::TlsAcceptor::from(config).accept(stream);
            match tokio::time::timeout(timeouts.head, shaking).await {
                Ok(Ok(stream)) => Io::Tls(Box::new(stream)),
                _ => return,
            }
        }
    };
    let mut client = Client { io, inbuf: Buffer::default(), ticker: Ticker::new(timeouts.tick()) };
    match speaks_h2(&mut client, timeouts.idle).await {
        Some(true) => {
            let io = Io::Rewound(client.inbuf, Box::new(client.io));
            h2::serve(worker, io, peer).await;
        }
        Some(false) => h1::Connection::new(worker, client, peer).serve().await,
        None => {}
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
