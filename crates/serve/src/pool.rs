//! Idle connections to replicas, one set per thread.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::logic::Listing;

/// Longer idle than this, a connection is closed: servers do so too, often after 5 s, and the request
/// that meets such a one is lost time.
const IDLE_MAX: Duration = Duration::from_secs(60);

struct Idle {
    stream: TcpStream,
    since: Instant,
}

pub struct Pool {
    idle: Mutex<HashMap<Listing, Vec<Idle>>>,
    per_replica: usize,
}

impl Pool {
    pub fn new(per_replica: usize) -> Pool {
        Pool { idle: Mutex::default(), per_replica }
    }

    /// The one used last, which is the least likely to have been closed meanwhile.
    pub fn take(&self, replica: Listing) -> Option<TcpStream> {
        let mut idle = self.idle.lock().ok()?;
        let list = idle.get_mut(&replica)?;
        while let Some(Idle { stream, .. }) = list.pop() {
            if is_quiet(&stream) {
                return Some(stream);
            }
        }
        None
    }

    pub fn put(&self, replica: Listing, stream: TcpStream, now: Instant) {
        let Ok(mut idle) = self.idle.lock() else { return };
        let list = idle.entry(replica).or_default();
        if list.len() < self.per_replica {
            list.push(Idle { stream, since: now });
        }
    }

    /// Closes what was closed from the other side, or not used for long.
    pub fn sweep(&self, now: Instant) {
        let Ok(mut idle) = self.idle.lock() else { return };
        idle.retain(|_, list| {
            list.retain(|i| now.duration_since(i.since) < IDLE_MAX && is_quiet(&i.stream));
            list.shrink_to_fit();
            !list.is_empty()
        });
    }
}

/// Nothing has come since the last answer, not even its end.
fn is_quiet(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// A new connection to `host:port`.
pub async fn connect(address: &str, within: Duration) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(within, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    // A machine that vanishes says nothing; this finds out within a minute.
    let alive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(20))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(&stream).set_tcp_keepalive(&alive)?;
    Ok(stream)
}
