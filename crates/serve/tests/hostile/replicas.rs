//! Replicas: one that lives, one that is dead, one that hangs.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tutti_model::{EndpointRoute, RouteTable, Span};

use crate::common::{self, endpoint, read_head, serve_replica, whole_request};
use crate::victim::STALL;

/// Requests that wait at `full`.
pub const QUEUE: u32 = 20;

/// `m` has all three kinds. `full` has one that is always busy, `dead` none that lives, and `stuck` one
/// that looks well and never answers.
pub async fn table() -> RouteTable {
    let (live, live_at) = listen();
    tokio::spawn(serve_replica(live, answer));
    let (stuck, stuck_at) = listen();
    tokio::spawn(serve_replica(stuck, |mut stream, _| async move {
        while read_head(&mut stream).await.is_some() {}
    }));
    let (live, stuck, dead, hanging) = (live_at, stuck_at, dead(), hanging());
    let mut full = impatient("full", &[stuck]);
    (full.max_in_flight, full.queue) = (Some(1), QUEUE);
    let stuck = impatient("stuck", &[stuck]);
    common::table(vec![
        endpoint("m", &[live, dead, hanging]),
        impatient("dead", &[dead, hanging]),
        full,
        stuck,
    ])
}

fn impatient(name: &str, replicas: &[SocketAddr]) -> EndpointRoute {
    let wait = Span(STALL.as_millis() as u64);
    EndpointRoute { queue_wait: wait, hold: wait, ..endpoint(name, replicas) }
}

/// Its path says what it does. Connections are not kept, so that those of the router are easily counted.
async fn answer(mut stream: TcpStream, mut request: Vec<u8>) {
    let path = request.split(|b| *b == b' ').nth(1).unwrap_or_default().to_vec();
    if path == b"/endless" {
        return endless(stream).await;
    }
    // The rest of a body may never come; then the router leaves.
    while path == b"/hang" || whole_request(&request).is_none() {
        request.truncate(1 << 20);
        if !matches!(tokio::io::AsyncReadExt::read_buf(&mut stream, &mut request).await, Ok(1..)) {
            return;
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let _ = stream.write_all(answer).await;
}

async fn endless(mut stream: TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut chunk = b"4000\r\n".to_vec();
    chunk.extend_from_slice(&[b'x'; 0x4000]);
    chunk.extend_from_slice(b"\r\n");
    let mut result = stream.write_all(head).await;
    while result.is_ok() {
        result = stream.write_all(&chunk).await;
    }
}

/// With room for all that come at once: what is lost on the way to it is not what is tested.
fn listen() -> (TcpListener, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(4096).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Where nobody listens.
fn dead() -> SocketAddr {
    listen().1
}

/// Takes connections and says nothing.
fn hanging() -> SocketAddr {
    let (listener, address) = listen();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move { while read_head(&mut stream).await.is_some() {} });
        }
    });
    address
}
