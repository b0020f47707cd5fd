//! What a router is started with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct RouterConfig {
    pub listen: SocketAddr,
    /// Where people reach it, if not at `listen`: a host name, or the address before a wildcard.
    pub address: Option<String>,
    /// None: plain HTTP. For HTTP/2, `alpn_protocols` must list `h2`.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Threads that serve requests. One more looks after everything else.
    pub threads: usize,
    pub limits: ServerLimits,
    pub timeouts: Timeouts,
    /// From the router's own machine too only those with a key may ask: a proxy there speaks for others.
    pub local_needs_key: bool,
    /// Host names by which it is called, beside `localhost`: where no key is asked, a request by another name
    /// may be a page's that had its own name point here. Addresses are always good.
    pub names: Vec<String>,
    /// Whose pages may ask without a key: `https://app.example`.
    pub origins: Vec<String>,
    /// The newest table is kept here, and taken from here at a start without a controller.
    pub table_file: Option<PathBuf>,
}

impl RouterConfig {
    pub fn new(listen: SocketAddr) -> Self {
        RouterConfig {
            listen,
            address: None,
            tls: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            limits: ServerLimits::default(),
            timeouts: Timeouts::default(),
            local_needs_key: false,
            names: Vec::new(),
            origins: Vec::new(),
            table_file: None,
        }
    }
}

/// Bounds on what the router keeps in memory.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Clients' connections. When there are so many, one more takes the place of the one that has been
    /// silent longest, of the address with the most.
    pub connections: usize,
    /// Of one address, as a part of `connections`: others need not wait for its connections to end.
    pub share: f64,
    /// Requests at a time, waiting ones included. Beyond half of them they are shared among callers; a
    /// quarter is for those with a key alone. HTTP/2 has many on a connection.
    pub requests: usize,
    /// Of a request's or an answer's head.
    pub head: usize,
    /// Of a request's body that is read before a replica is chosen.
    pub peek: usize,
    /// All bodies that are kept like that, together; shared among callers as `requests` are.
    pub peek_total: usize,
    /// Of a request's body. None: any.
    pub body: Option<u64>,
    /// Of bytes on their way, in each direction of a connection.
    pub buffer: usize,
    /// Idle connections kept to each replica, by each thread.
    pub idle_per_replica: usize,
    /// Replicas that a request is sent to, one after another.
    pub tries: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections: 10_000,
            share: 0.75,
            requests: 20_000,
            head: 64 << 10,
            peek: 1 << 20,
            peek_total: 256 << 20,
            body: None,
            buffer: 32 << 10,
            idle_per_replica: 256,
            tries: 3,
        }
    }
}

/// A body that is waited for moves if so much of it comes, or its end: a byte now and then would hold
/// memory for ever.
pub const PACE: usize = 4 << 10;

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the first byte on a connection. Who has asked something before is waited for longer.
    pub first: Duration,
    /// For a request's head, from its first byte.
    pub head: Duration,
    /// Without a byte of a request's body that is passed on as it comes, without 4 KiB of one that is
    /// read before a replica is chosen, or without the client taking a byte of its answer.
    pub body: Duration,
    /// Between requests on a connection.
    pub idle: Duration,
    /// Until a replica takes a connection.
    pub connect: Duration,
    /// Without a byte of an answer from a replica. Long prompts take long.
    pub answer: Duration,
    /// Without a byte in either direction after an upgrade.
    pub tunnel: Duration,
    /// Between probes of a replica's health path,
    pub probe: Duration,
    /// and before it has answered once.
    pub probe_first: Duration,
    /// For an answer to a probe.
    pub probe_answer: Duration,
    /// Between looks at a replica's own metrics.
    pub metrics: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Timeouts {
            first: secs(10),
            head: secs(10),
            body: secs(30),
            idle: secs(75),
            connect: secs(2),
            answer: secs(1800),
            tunnel: secs(3600),
            probe: secs(1),
            probe_first: Duration::from_millis(250),
            probe_answer: secs(2),
            metrics: secs(2),
        }
    }
}

impl Timeouts {
    /// How often connections look whether something has taken too long.
    pub fn tick(&self) -> Duration {
        let shortest = self.first.min(self.head).min(self.body).min(self.idle).min(self.answer);
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(2))
    }
}
