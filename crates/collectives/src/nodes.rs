//! How the members of a group lie on nodes.

use crate::peer::Peer;

/// Members by node. Members that may not share memory are a node each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// In the order of their first members; members ascending.
    all: Vec<Vec<usize>>,
    mine: usize,
}

impl Nodes {
    /// `sharing` says of every rank of the world whether it could open its node's memory.
    pub fn of(members: &[usize], me: usize, peers: &[Peer], sharing: &[bool]) -> Self {
        let mut all: Vec<Vec<usize>> = Vec::new();
        for (id, rank) in members.iter().enumerate() {
            let peer = &peers[*rank];
            let same = |node: &&mut Vec<usize>| {
                let first = members[node[0]];
                sharing[first] && sharing[*rank] && peers[first].shares_memory_with(peer)
            };
            match all.iter_mut().find(same) {
                Some(node) => node.push(id),
                None => all.push(vec![id]),
            }
        }
        let mine = all.iter().position(|n| n.contains(&me)).expect("every member is somewhere");
        Self { all, mine }
    }

    /// The members on this rank's node.
    pub fn mine(&self) -> &[usize] {
        &self.all[self.mine]
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// As many members as every node has: so many can talk between nodes at the same time.
    pub fn rails(&self) -> usize {
        self.all.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The `rail`th member of every node.
    pub fn rail(&self, rail: usize) -> Vec<usize> {
        self.all.iter().map(|n| n[rail]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn peers(nodes: &[&str]) -> Vec<Peer> {
        let make = |(rank, node): (usize, &&str)| {
            let mut c = Config::new(rank, nodes.len(), ("127.0.0.1".into(), 1));
            c.node = (*node).to_owned();
            Peer::here(&c, "127.0.0.1:1".parse().unwrap())
        };
        nodes.iter().enumerate().map(make).collect()
    }

    #[test]
    fn members_are_grouped_by_node_and_rails_go_across() {
        let peers = peers(&["a", "a", "b", "b", "b"]);
        let nodes = Nodes::of(&[4, 0, 2, 1], 3, &peers, &[true; 5]);
        assert_eq!(nodes.mine(), [1, 3], "ranks 0 and 1 are on a");
        assert_eq!((nodes.count(), nodes.rails()), (2, 2));
        assert_eq!(nodes.rail(0), [0, 1]);
        assert_eq!(nodes.rail(1), [2, 3]);
    }

    #[test]
    fn without_shared_memory_every_member_is_a_node() {
        let mut peers = peers(&["a", "a"]);
        assert_eq!(Nodes::of(&[0, 1], 0, &peers, &[true, true]).count(), 1);
        assert_eq!(Nodes::of(&[0, 1], 0, &peers, &[true, false]).count(), 2);
        peers[1].shares = false;
        assert_eq!(Nodes::of(&[0, 1], 0, &peers, &[true, true]).count(), 2);
    }
}
