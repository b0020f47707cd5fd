//! Collective operations over a network of two levels: islands of fast links, and NICs between nodes.

use crate::Cluster;
use crate::efficiency::{Profile, profile};

/// Ranks `stride` apart that work together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    pub ranks: f64,
    pub stride: f64,
}

impl Group {
    pub(crate) fn new(ranks: f64, stride: f64) -> Group {
        Group { ranks: ranks.max(1.0), stride: stride.max(1.0) }
    }

    /// Members among `span` neighbouring GPUs.
    fn within(&self, span: f64) -> f64 {
        (span / self.stride).floor().clamp(1.0, self.ranks)
    }
}

/// Bandwidths in bytes per second, per GPU and direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    island: f64,
    node: f64,
    island_rate: f64,
    pcie_rate: f64,
    nic_rate: f64,
    profile: Profile,
}

impl Network {
    pub(crate) fn new(cluster: &Cluster) -> Network {
        let profile = profile(&cluster.gpu);
        let (island, node) =
            (f64::from(cluster.island.max(1)), f64::from(cluster.gpus_per_node.max(1)));
        Network {
            island,
            node,
            island_rate: cluster.island_busbw.unwrap_or(cluster.island_gbps * profile.island) * 1e9,
            pcie_rate: cluster.pcie_gbps * profile.nic * 1e9,
            // What is measured between nodes is that of a whole node's ring.
            nic_rate: cluster.nic_busbw.map_or(cluster.nic_gbps / 8.0 * profile.nic, |b| b / node)
                * 1e9,
            profile,
        }
    }

    fn crosses_nodes(&self, group: Group) -> bool {
        group.within(self.island.max(self.node)) < group.ranks
    }

    /// Bytes per second of a ring through the group: its slowest stretch. Members in one node leave it through a NIC each.
    fn ring_rate(&self, group: Group) -> f64 {
        let mut rate = f64::INFINITY;
        let near = group.within(self.island);
        if near > 1.0 {
            rate = rate.min(self.island_rate);
        }
        if near < group.within(self.node) {
            rate = rate.min(self.pcie_rate);
        }
        if self.crosses_nodes(group) {
            let members = group.within(self.island.max(self.node));
            rate = rate.min(self.nic_rate * members);
        }
        rate
    }

    /// Seconds before the bytes of a gather or a reduction have gone round.
    fn latency(&self, group: Group) -> f64 {
        if group.ranks <= 1.0 {
            return 0.0;
        }
        let near = group.within(self.island.max(self.node));
        let far = (group.ranks / near).ceil() - 1.0;
        // Beyond a few nodes trees are used, which are as deep as the logarithm.
        let far = far.min(4.0 * (1.0 + far).log2());
        self.profile.start + self.profile.hop * (near - 1.0) + self.profile.far_hop * far
    }

    /// All-gather or reduce-scatter of `bytes` in all.
    pub(crate) fn gather(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        self.latency(group) + (group.ranks - 1.0) / group.ranks * bytes / self.ring_rate(group)
    }

    pub(crate) fn all_reduce(&self, bytes: f64, group: Group) -> f64 {
        2.0 * self.gather(bytes, group)
    }

    /// Every rank sends `bytes`, an equal share to each member.
    pub(crate) fn all_to_all(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        let near = group.within(self.island);
        let node = group.within(self.island.max(self.node));
        let share = |members: f64| bytes * members / group.ranks;
        let fast = share(near - 1.0) / self.island_rate;
        let middle = share(node - near) / self.pcie_rate;
        let far = share(group.ranks - node) / self.nic_rate;
        self.latency(group) + fast.max(middle).max(far)
    }

    /// From one rank to the one `stride` further.
    pub(crate) fn send(&self, bytes: f64, stride: f64) -> f64 {
        let rate = if stride < self.island {
            self.island_rate
        } else if stride < self.node {
            self.pcie_rate
        } else {
            self.nic_rate
        };
        self.profile.start + bytes / rate
    }
}
