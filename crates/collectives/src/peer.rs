//! What ranks know of each other.

use std::net::SocketAddr;

use crate::config::Config;
use crate::wire::{Reader, Writer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub rank: usize,
    pub node: String,
    /// Where it listens for the other ranks.
    pub addr: SocketAddr,
    pub pid: u32,
    /// Which running kernel: ranks of several simulated nodes share the cores of one machine.
    pub machine: String,
    /// Shared memory is on for it.
    pub shares: bool,
}

impl Peer {
    pub fn here(config: &Config, addr: SocketAddr) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Self {
            rank: config.rank,
            node: config.node.clone(),
            addr,
            pid: std::process::id(),
            machine: boot.map_or_else(|_| config.node.clone(), |s| s.trim().to_owned()),
            shares: config.shared_memory,
        }
    }

    pub fn write(&self, w: Writer) -> Writer {
        w.u32(self.rank as u32)
            .str(&self.node)
            .str(&self.addr.to_string())
            .u32(self.pid)
            .str(&self.machine)
            .u8(self.shares.into())
    }

    pub fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            rank: r.u32()? as usize,
            node: r.str()?,
            addr: r.str()?.parse().ok()?,
            pid: r.u32()?,
            machine: r.str()?,
            shares: r.u8()? == 1,
        })
    }

    /// Whether two ranks may use the same memory.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        self.shares && other.shares && self.node == other.node && self.machine == other.machine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(rank: usize, node: &str) -> Peer {
        let mut config = Config::new(rank, 9, ("127.0.0.1".into(), 1));
        config.node = node.into();
        Peer::here(&config, "127.0.0.1:99".parse().unwrap())
    }

    #[test]
    fn a_peer_survives_the_wire() {
        let p = peer(3, "n1");
        assert_eq!(Peer::read(&mut Reader(&p.write(Writer::default()).0)), Some(p));
    }

    #[test]
    fn memory_is_shared_inside_a_node_that_allows_it() {
        let (a, mut b) = (peer(0, "n1"), peer(1, "n1"));
        assert!(a.shares_memory_with(&b));
        b.shares = false;
        assert!(!a.shares_memory_with(&b));
        assert!(!a.shares_memory_with(&peer(2, "n2")), "two simulated nodes of one machine");
    }
}
