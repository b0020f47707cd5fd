//! Replicas and clients that speak in raw bytes, around a real router on loopback.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tutti_model::{
    Access, EndpointReport, EndpointRoute, Generation, JobId, KeyLimits, KeyRoute, ReplicaRoute,
    RetryRule, RoutePolicy, RouteTable, Span,
};
use tutti_serve::{Handle, Router, RouterConfig, Timeouts};

/// Nothing in these tests should take that long.
pub const LONG: Duration = Duration::from_secs(20);

pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("this should have happened long ago")
}

/// A replica: answers its health path, and hands every other request to `on_request`, with what was read
/// of it: its head, and perhaps some of its body.
pub async fn replica<F, R>(on_request: F) -> SocketAddr
where
    F: Fn(TcpStream, Vec<u8>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_replica(listener, on_request));
    address
}

pub async fn serve_replica<F, R>(listener: TcpListener, on_request: F)
where
    F: Fn(TcpStream, Vec<u8>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let on_request = Arc::new(on_request);
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let on_request = on_request.clone();
        tokio::spawn(async move {
            let Some(request) = read_head(&mut stream).await else { return };
            if request.starts_with(b"GET /health ") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            } else if request.starts_with(b"GET /metrics ") {
                let none = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(none).await;
            } else {
                on_request(stream, request).await;
            }
        });
    }
}

/// At least a whole head; none if the other side leaves before.
pub async fn read_head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(bytes)
}

/// Reads until these bytes have come.
pub async fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.windows(end.len()).any(|w| w == end) {
        let n = soon(stream.read_buf(&mut bytes)).await.expect("the connection holds");
        assert!(n > 0, "it ended after {}", bytes.escape_ascii());
    }
    bytes
}

pub async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

/// A replica that answers each request by its path, on connections that it keeps.
pub async fn answers(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> SocketAddr {
    let answer = Arc::new(answer);
    replica(move |mut stream, mut bytes| {
        let answer = answer.clone();
        async move {
            loop {
                while let Some(len) = whole_request(&bytes) {
                    let head = String::from_utf8_lossy(&bytes[..len]).into_owned();
                    let answer = answer(head.split(' ').nth(1).unwrap());
                    bytes.drain(..len);
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
                if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                    return;
                }
            }
        }
    })
    .await
}

pub fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A replica that answers everything with 200 and this body.
pub async fn says(body: &'static str) -> SocketAddr {
    answers(move |_| ok(body)).await
}

/// Length of a request with `Content-Length`, or none of it.
pub fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.split("content-length: ").nth(1).map_or(0, |rest| {
        rest.split("\r\n").next().and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(0)
    });
    (bytes.len() >= head + length).then_some(head + length)
}

pub fn endpoint(name: &str, replicas: &[SocketAddr]) -> EndpointRoute {
    EndpointRoute {
        name: name.to_owned(),
        models: Vec::new(),
        policy: RoutePolicy::RoundRobin,
        sticky_header: "x-session-id".to_owned(),
        health: "/health".to_owned(),
        slow_start: Span(0),
        max_in_flight: None,
        target_in_flight: 16,
        queue: 100,
        queue_wait: Span::secs(10),
        hold: Span::secs(10),
        access: Access::Keys,
        retry: RetryRule::Safe,
        replicas: replicas.iter().enumerate().map(|(n, a)| at(n as u64 + 1, *a)).collect(),
        split: Vec::new(),
    }
}

pub fn at(job: u64, address: SocketAddr) -> ReplicaRoute {
    ReplicaRoute {
        job: JobId(job),
        generation: Generation(1),
        revision: 1,
        address: address.to_string(),
        draining: false,
        health: None,
    }
}

pub fn table(endpoints: Vec<EndpointRoute>) -> RouteTable {
    RouteTable { version: 1, endpoints, keys: Vec::new() }
}

pub const SECRET: &str = "9c419c419c419c419c419c419c419c419c419c419c419c419c419c419c419c41";
pub const KEY: &str = "tutti_s_0123456789abcdef_k3jx09tq2m_\
    9c419c419c419c419c419c419c419c419c419c419c419c419c419c419c419c41";

pub fn key(limits: KeyLimits) -> KeyRoute {
    KeyRoute {
        id: "k3jx09tq2m".to_owned(),
        hash: blake3::hash(SECRET.as_bytes()).to_hex().to_string(),
        user: "ada".to_owned(),
        expires_at: None,
        limits,
    }
}

/// A router, and the way to give it other tables.
pub struct Running {
    pub handle: Handle,
    pub tables: watch::Sender<Arc<RouteTable>>,
}

impl Running {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.handle.addr).await.unwrap()
    }

    /// From another of this machine's addresses.
    pub async fn connect_from(&self, from: IpAddr) -> TcpStream {
        connect_from(from, self.handle.addr).await.unwrap()
    }

    /// One request on a connection of its own; everything that comes back until it is closed.
    pub async fn ask(&self, request: &str) -> String {
        let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&read_to_end(&mut stream).await).into_owned()
    }

    pub async fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: r\r\n\r\n")).await
    }

    pub async fn post(&self, path: &str, body: &str) -> String {
        self.ask(&post(path, body)).await
    }

    /// Waits until every replica of an endpoint has answered a probe.
    pub async fn all_ready(&self, name: &str) {
        self.until(name, |endpoint| endpoint.replicas.values().all(|r| r.ready)).await;
    }

    /// The books are closed after the client has its answer, so what they say must be waited for.
    pub async fn until(
        &self,
        name: &str,
        holds: impl Fn(&EndpointReport) -> bool,
    ) -> EndpointReport {
        let mut last = self.handle.report().endpoints[name].clone();
        let start = tokio::time::Instant::now();
        while !holds(&last) {
            assert!(start.elapsed() < LONG, "it never came to that: {last:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
            last = self.handle.report().endpoints[name].clone();
        }
        last
    }

    pub fn set(&self, table: RouteTable) {
        self.tables.send(Arc::new(table)).unwrap();
    }
}

pub async fn connect_from(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

pub fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: r\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub fn config() -> RouterConfig {
    let mut config = RouterConfig::new("127.0.0.1:0".parse().unwrap());
    config.threads = 2;
    config.names = ["r", "router"].map(str::to_owned).into();
    config.timeouts = Timeouts {
        probe: Duration::from_millis(50),
        probe_first: Duration::from_millis(10),
        ..Timeouts::default()
    };
    config
}

pub fn start_with(config: RouterConfig, table: RouteTable) -> Running {
    let (tables, receiver) = watch::channel(Arc::new(table));
    Running { handle: Router::start(config, receiver).unwrap(), tables }
}

/// A router with one endpoint, `m`, on this replica.
pub fn before(address: SocketAddr) -> Running {
    start(table(vec![endpoint("m", &[address])]))
}

pub fn start(table: RouteTable) -> Running {
    start_with(config(), table)
}
