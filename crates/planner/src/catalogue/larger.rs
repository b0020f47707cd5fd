//! More of the same.

use super::{MOST_GPUS, kind};
use crate::Cluster;

/// So many times as many nodes are looked at.
const TIMES: u64 = 256;

/// Larger clusters of the same GPUs, each larger than the one before. A single node that is not as large as usual is
/// filled first.
pub(crate) fn larger(cluster: &Cluster) -> impl Iterator<Item = Cluster> {
    let kind = kind(&cluster.gpu.name, Some(cluster.gpu.memory_gb));
    let full = match kind {
        Some(kind) if cluster.nodes == 1 => kind.gpus_per_node.max(cluster.gpus_per_node),
        _ => cluster.gpus_per_node,
    };
    let first = u64::from(cluster.nodes);
    let step = |nodes: &u64| Some(nodes + (nodes / 32).max(1));
    let many = std::iter::successors(step(&first), step)
        .take_while(move |n| *n <= first * TIMES && n * u64::from(full) <= MOST_GPUS)
        .map(move |nodes| (nodes as u32, full));
    let one = (cluster.gpus_per_node + 1..=full).map(|gpus| (1, gpus));
    // An island that is the whole cluster grows with it, as far as such islands go.
    let grows = kind.filter(|_| cluster.island >= cluster.gpus()).map(|kind| kind.island);
    one.chain(many).map(move |(nodes, gpus_per_node)| {
        let island = grows.map_or(cluster.island, |most| most.min(nodes * gpus_per_node));
        Cluster { nodes, gpus_per_node, island, ..cluster.clone() }
    })
}

#[cfg(test)]
mod tests {
    use crate::catalogue::find;

    #[test]
    fn the_usual_node_is_filled_before_another_is_added() {
        let shapes = |on: &str, n: usize| -> Vec<(u32, u32, u32)> {
            let cluster = find(on).unwrap();
            let all = super::larger(&cluster).map(|c| (c.nodes, c.gpus_per_node, c.island));
            all.take(n).collect()
        };
        assert_eq!(shapes("6xa100", 3), [(1, 7, 7), (1, 8, 8), (2, 8, 8)]);
        assert_eq!(shapes("2xdgx-h100", 2), [(3, 8, 8), (4, 8, 8)]);
        assert_eq!(shapes("4xgb200", 2), [(2, 4, 8), (3, 4, 12)]);
        assert!(super::larger(&find("1xh100").unwrap()).count() < 500);
    }
}
