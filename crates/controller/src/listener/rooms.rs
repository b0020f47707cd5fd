//! How many connections there are room for, and whose.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tutti_wire::guests::{Lobby, PoolLimits, Turns};

/// Streams of one node at once: one that is served, and those that come to replace it.
const STREAMS_OF_ONE_NODE: usize = 4;
/// First steps of TLS handshakes at once: the controller has a thread more than that for all else.
const HANDSHAKES_AT_ONCE: usize = 1;
/// Connections that had to go and have not noticed yet, at most: more are not taken before.
const LEAVING_MAX: usize = 1024;

/// Strangers can't take the room of those who have shown a token, a session or a certificate.
pub(super) struct Rooms {
    /// Those who have not said who they are, by address.
    pub strangers: Lobby<IpAddr>,
    /// Those who have, by token.
    pub known: Lobby<String>,
    /// Agents, by the node of their certificate.
    pub agents: Lobby<String>,
    pub handshakes: Turns<IpAddr>,
    /// One for each connection that is being greeted, or has to go.
    pub greetings: Arc<Semaphore>,
}

impl Rooms {
    /// `connections_max`: of strangers and of the known, each. Fewer where the system gives this
    /// process few descriptors: a quarter of them for each, and the rest for agents and files.
    pub fn new(connections_max: usize, descriptors: Option<usize>) -> Rooms {
        let total = descriptors.map_or(connections_max, |all| connections_max.min(all / 4)).max(2);
        let strangers = PoolLimits { total, per_key: total / 2, drops_working: false };
        let known = PoolLimits { total, per_key: total, drops_working: true };
        let streams = usize::MAX / 2;
        let agents =
            PoolLimits { total: streams, per_key: STREAMS_OF_ONE_NODE, drops_working: false };
        Rooms {
            strangers: Lobby::new(strangers),
            known: Lobby::new(known),
            agents: Lobby::new(agents),
            handshakes: Turns::new(HANDSHAKES_AT_ONCE),
            greetings: Arc::new(Semaphore::new(total + LEAVING_MAX)),
        }
    }
}

/// How many descriptors the system gives this process. None: as many as it likes.
pub(super) fn descriptors() -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit};
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    usize::try_from(soft).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_leave_descriptors_for_others() {
        let fill = |rooms: &Rooms| {
            let from = |n: u8| rooms.strangers.enter(IpAddr::from([10, 0, 0, n])).unwrap();
            let held: Vec<_> = (0..=255).flat_map(|n| [from(n), from(n)]).collect();
            let len = rooms.strangers.len();
            drop(held);
            len
        };
        assert_eq!(fill(&Rooms::new(300, None)), 300);
        assert_eq!(fill(&Rooms::new(300, Some(1024))), 256);
        assert!(descriptors().is_none_or(|n| n > 0));
    }
}
