//! An attempt has the nodes, GPUs and ranks that its spec asks for (an elastic one a number of
//! nodes in its range), ranks numbered without a gap, no node twice.

use std::collections::BTreeSet;

use tutti_model::{Demand, Spread, State};

pub(super) fn check(state: &State) -> Result<(), String> {
    for (id, job, attempt) in super::attempts(state) {
        let demand = Demand::of(&job.spec);
        let nodes: BTreeSet<_> = attempt.parts.iter().map(|p| p.node).collect();
        if nodes.len() != attempt.parts.len() || nodes.is_empty() {
            return Err(format!("{id}: nodes {:?}", attempt.parts));
        }
        let gpus = attempt.gpu_count();
        let right = match demand.spread {
            Spread::Nodes { nodes, gpus_each } => {
                let least = demand.least_nodes.unwrap_or(nodes);
                (least as usize..=nodes as usize).contains(&attempt.parts.len())
                    && attempt.parts.iter().all(|p| p.home_gpus().len() == gpus_each as usize)
            }
            Spread::Gpus { total } => gpus == total,
        };
        if !right {
            return Err(format!("{id}: {gpus} GPUs on {} nodes for {demand:?}", nodes.len()));
        }
        let mut next = 0;
        for part in &attempt.parts {
            if part.first_rank.0 != next || part.ranks == 0 {
                return Err(format!("{id}: rank {next} is missing in {:?}", attempt.parts));
            }
            next += part.ranks;
        }
    }
    Ok(())
}
