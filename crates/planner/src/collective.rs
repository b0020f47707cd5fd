//! Collective operations over a network of two levels: islands of fast links, and NICs between nodes.

use crate::Cluster;
use crate::efficiency::{Profile, profile};

/// Of a ring's rate, what all-to-alls reach: their messages are small, and many meet at one port.
const EXCHANGE: f64 = 0.7;

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

    /// Nodes, or islands that span some, that a group touches, and its members in each.
    fn spots(&self, group: Group) -> (f64, f64) {
        let members = group.within(self.island.max(self.node));
        ((group.ranks / members).ceil(), members)
    }

    /// Seconds for a message to pass every rank in turn: gathers and scatters have no shorter way.
    fn ring_latency(&self, group: Group) -> f64 {
        let (spots, members) = self.spots(group);
        let profile = &self.profile;
        let far = if spots > 1.0 { spots * profile.far_hop } else { 0.0 };
        profile.start + spots * (members - 1.0) * profile.hop + far
    }

    /// Reductions go over trees where rings are long, and exchanges straight to each member.
    fn tree_latency(&self, group: Group) -> f64 {
        let (spots, members) = self.spots(group);
        let profile = &self.profile;
        profile.start + (members - 1.0) * profile.hop + 2.0 * spots.log2() * profile.far_hop
    }

    /// All-gather or reduce-scatter of `bytes` in all.
    pub(crate) fn gather(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        self.ring_latency(group) + self.around(bytes, group)
    }

    fn around(&self, bytes: f64, group: Group) -> f64 {
        (group.ranks - 1.0) / group.ranks * bytes / self.ring_rate(group)
    }

    pub(crate) fn all_reduce(&self, bytes: f64, group: Group) -> f64 {
        if group.ranks <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        2.0 * (self.ring_latency(group).min(self.tree_latency(group)) + self.around(bytes, group))
    }

    /// Every rank sends each of its tokens, of `bytes` in all, to `copies` members, chosen evenly. A token goes to another
    /// node once, and is copied there.
    pub(crate) fn dispatch(&self, bytes: f64, copies: f64, group: Group) -> f64 {
        if group.ranks <= 1.0 || bytes <= 0.0 {
            return 0.0;
        }
        let (spots, members) = self.spots(group);
        let visited = spots * (1.0 - (1.0 - 1.0 / spots).powf(copies));
        let far = bytes * visited * (spots - 1.0) / spots / (self.nic_rate * EXCHANGE);
        let near = group.within(self.island);
        let apart = members - near;
        let rate = if apart > 0.0 { self.pcie_rate } else { self.island_rate };
        let inside = bytes * copies * (members - 1.0) / members / (rate * EXCHANGE);
        self.tree_latency(group) + far.max(inside)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::kind;

    const MIB: f64 = 1024.0 * 1024.0;

    fn network(name: &str) -> Network {
        Network::new(&kind(name, None).unwrap().cluster(16))
    }

    #[test]
    fn eight_a100s_reduce_as_fast_as_was_measured() {
        // nccl-tests, bus bandwidth in GB/s: 203 at 64 MiB, 229 at 1 GiB. In a training step they do a little better at
        // the large end, where nothing waits for launches.
        let n = network("A100-SXM4-80GB");
        let group = Group::new(8.0, 1.0);
        for (mib, measured) in [(64.0, 203.0), (1024.0, 229.0)] {
            let rate = 1.75 * mib * MIB / n.all_reduce(mib * MIB, group) / 1e9;
            assert!((0.8..1.2).contains(&(rate / measured)), "{mib} MiB: {rate}");
        }
    }

    #[test]
    fn groups_are_as_fast_as_their_slowest_stretch() {
        let n = network("H100-SXM5-80GB");
        let bytes = 1e9;
        let inside = n.gather(bytes, Group::new(8.0, 1.0));
        let one_per_node = n.gather(bytes, Group::new(8.0, 8.0));
        let four_per_node = n.gather(bytes, Group::new(8.0, 2.0));
        assert!(inside < four_per_node && four_per_node < one_per_node);
        assert_eq!(n.gather(bytes, Group::new(1.0, 1.0)), 0.0);
        // An NVL72 is one island over many nodes.
        let rack = network("GB200-NVL72");
        assert!(rack.gather(bytes, Group::new(64.0, 1.0)) < 0.2 * one_per_node);
    }

    #[test]
    fn tokens_go_to_another_node_once() {
        let n = network("H100-SXM5-80GB");
        let group = Group::new(64.0, 1.0);
        let few = n.dispatch(1e8, 1.0, group);
        let many = n.dispatch(1e8, 8.0, group);
        assert!(many > 2.0 * few && many < 7.0 * few, "{few} {many}");
    }
}
