//! Which peers keep a node's copies: outside of what may fail together with it.

use serde::{Deserialize, Serialize};

/// A node as far as failures are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Nodes of one rack lose power or network together.
    pub rack: Option<String>,
}

/// The nodes, by index, that keep copies for `node`: `copies` of them, or as many as there are. Each
/// node keeps for as many others as it has kept for it, and racks are left wherever the
/// shape of the cluster allows it.
pub fn peers_of(node: usize, nodes: &[Place], copies: usize) -> Vec<usize> {
    let count = nodes.len();
    if node >= count {
        return Vec::new();
    }
    // Nodes of a rack stand together, so that one step of the right width leads out of all of them.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| (&nodes[a].rack, a).cmp(&(&nodes[b].rack, b)));
    let apart = |a: usize, b: usize| match (&nodes[a].rack, &nodes[b].rack) {
        (Some(a), Some(b)) => a != b,
        // A node whose rack nobody knows is outside of the others' as far as anybody knows.
        _ => true,
    };
    let mut widths: Vec<(usize, usize)> = (1..count)
        .map(|width| {
            let together =
                (0..count).filter(|&at| !apart(order[at], order[(at + width) % count])).count();
            (together, width)
        })
        .collect();
    widths.sort_unstable();
    let at = order.iter().position(|&n| n == node).expect("every node has its place");
    widths.iter().take(copies).map(|&(_, width)| order[(at + width) % count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cluster(racks: &[usize]) -> Vec<Place> {
        let racks = racks.iter().enumerate();
        racks.flat_map(|(r, &n)| vec![Place { rack: Some(format!("r{r}")) }; n]).collect()
    }

    #[test]
    fn another_rack_where_there_is_one() {
        let nodes = cluster(&[2, 2]);
        let peers: Vec<usize> = (0..4).map(|n| peers_of(n, &nodes, 1)[0]).collect();
        assert_eq!(peers, [2, 3, 0, 1]);
        assert_eq!(peers_of(0, &cluster(&[1]), 1), Vec::<usize>::new());
        assert_eq!(peers_of(1, &cluster(&[3]), 9).len(), 2);
        assert_eq!(peers_of(5, &nodes, 1), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn every_node_keeps_as_much_as_it_gives(
            racks in proptest::collection::vec(1usize..6, 1..6),
            copies in 1usize..3,
        ) {
            let nodes = cluster(&racks);
            let mut kept = vec![0; nodes.len()];
            for node in 0..nodes.len() {
                let peers = peers_of(node, &nodes, copies);
                prop_assert_eq!(peers.len(), copies.min(nodes.len() - 1));
                for (n, &peer) in peers.iter().enumerate() {
                    prop_assert!(peer != node && !peers[..n].contains(&peer));
                    kept[peer] += 1;
                }
                // No rack holds more than half: each first copy leaves it.
                if racks.iter().max().unwrap() * 2 <= nodes.len() {
                    prop_assert_ne!(&nodes[node].rack, &nodes[peers[0]].rack);
                }
            }
            prop_assert!(kept.iter().all(|&k| k == kept[0]));
        }
    }
}
