//! No GPU is given out more than once over: the shares of its leases are at most a whole GPU, and a
//! lease with a whole GPU has it alone. A node's `used` is the sum of its leases.

use std::collections::BTreeMap;

use tutti_model::{NodeId, State, Used};

pub(super) fn check(state: &State) -> Result<(), String> {
    let mut counted: BTreeMap<NodeId, Used> = BTreeMap::new();
    for (id, _, attempt) in super::attempts(state) {
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let used = counted.entry(part.node).or_default();
            let lease = attempt.lease(id);
            for &gpu in &part.gpus {
                let holders = used.gpus.entry(gpu).or_default();
                holders.leases.insert(lease, part.share);
                if holders.milli() > 1000 {
                    return Err(format!("GPU {gpu} of node {} has {holders:?}", part.node));
                }
            }
            used.cpus += part.cpus;
            used.mem.0 += part.mem.0;
            used.leases.insert(lease);
        }
    }
    for node in state.nodes.values() {
        let counted = counted.remove(&node.id).unwrap_or_default();
        if counted != node.used {
            return Err(format!("node {}: kept {:?}, counted {counted:?}", node.id, node.used));
        }
    }
    match counted.pop_first() {
        Some((node, _)) => Err(format!("a lease on node {node}, which does not exist")),
        None => Ok(()),
    }
}
