//! Idle connections to replicas, one set per thread.
//!
//! Each is used again only for the caller whose requests went through it before. A replica that answers without
//! reading a body, and reads on after it, takes the body for the beginning of the next request: what a caller
//! writes there must become no part of somebody else's.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::logic::{Listing, Who};

/// Longer idle than this, a connection is closed: servers do so too, often after 5 s, and the request
/// that meets such a one is lost time.
const IDLE_MAX: Duration = Duration::from_secs(60);

struct Idle {
    stream: TcpStream,
    who: Who,
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
    pub fn take(&self, replica: Listing, who: Who) -> Option<TcpStream> {
        let mut idle = self.idle.lock().ok()?;
        let list = idle.get_mut(&replica)?;
        while let Some(at) = list.iter().rposition(|i| i.who == who) {
            let Idle { stream, .. } = list.remove(at);
            if is_quiet(&stream) {
                return Some(stream);
            }
        }
        None
    }

    /// Where there are too many, the one goes that was not used for longest.
    pub fn put(&self, replica: Listing, who: Who, stream: TcpStream, now: Instant) {
        let Ok(mut idle) = self.idle.lock() else { return };
        let list = idle.entry(replica).or_default();
        list.push(Idle { stream, who, since: now });
        if list.len() > self.per_replica {
            list.remove(0);
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

/// A new connection to `host:port`, but for where the router itself `listens`: whoever says that a replica is
/// there would have it ask itself.
pub async fn connect(
    address: &str,
    listens: SocketAddr,
    within: Duration,
) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(within, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // Only now it is known where a name, or `0.0.0.0`, leads.
    if is_own(listens, stream.peer_addr()?, stream.local_addr()?) {
        return Err(io::Error::other("this router itself listens there"));
    }
    stream.set_nodelay(true)?;
    // A machine that vanishes says nothing; this finds out within a minute.
    let alive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(20))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(&stream).set_tcp_keepalive(&alive)?;
    Ok(stream)
}

/// A connection from `local` to `peer` leads to who `listens`, as far as addresses tell.
fn is_own(listens: SocketAddr, peer: SocketAddr, local: SocketAddr) -> bool {
    let [listens_ip, peer_ip, local_ip] = [listens, peer, local].map(|a| a.ip().to_canonical());
    let on_this_machine = || peer_ip.is_loopback() || peer_ip == local_ip;
    peer.port() == listens.port()
        && (peer_ip == listens_ip || listens_ip.is_unspecified() && on_this_machine())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `(where it listens, whom it reaches, from where, is that itself)`.
    #[test]
    fn the_router_knows_itself_by_every_address() {
        for (listens, peer, local, own) in [
            ("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:4000", true),
            ("127.0.0.1:80", "127.0.0.1:81", "127.0.0.1:4000", false),
            ("127.0.0.1:80", "127.0.0.2:80", "127.0.0.1:4000", false),
            ("127.0.0.1:80", "10.0.0.1:80", "10.0.0.1:4000", false),
            ("10.0.0.1:80", "[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]:4000", true),
            ("0.0.0.0:80", "127.0.0.2:80", "127.0.0.1:4000", true),
            ("0.0.0.0:80", "10.0.0.1:80", "10.0.0.1:4000", true),
            ("0.0.0.0:80", "10.0.0.2:80", "10.0.0.1:4000", false),
            ("0.0.0.0:80", "10.0.0.1:81", "10.0.0.1:4000", false),
            ("[::]:80", "[::1]:80", "[::1]:4000", true),
            ("[::]:80", "10.0.0.1:80", "10.0.0.1:4000", true),
        ] {
            let [l, p, c] = [listens, peer, local].map(|a| a.parse().unwrap());
            assert_eq!(is_own(l, p, c), own, "{listens} {peer} {local}");
        }
    }
}
