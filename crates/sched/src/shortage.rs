//! Why a demand does not fit, counted over nodes.

use tutti_model::{Shortage, Spread, Verdict};

use crate::ask::Ask;
use crate::cluster::{Cluster, Slot, Standing};

/// The verdict on a demand that does not fit: waiting may help, or nodes must come back first.
pub(crate) fn verdict_of(cluster: &Cluster<'_>, ask: &Ask<'_>) -> Verdict {
    let mut count = Count::default();
    for slot in &cluster.slots {
        count.add(cluster, ask, slot);
    }
    let (nodes_wanted, enough) = match ask.spread {
        Spread::Nodes { nodes, .. } => (nodes, count.open_nodes >= nodes),
        Spread::Gpus { total } => (0, count.open_gpus >= total.into()),
    };
    let shortage = Shortage {
        nodes_wanted,
        gpus_wanted: u32::try_from(ask.demand.total_gpus()).unwrap_or(u32::MAX),
        nodes_total: cluster.slots.len() as u32,
        ..count.shortage
    };
    if enough { Verdict::Busy(shortage) } else { Verdict::NodesUnavailable(shortage) }
}

#[derive(Default)]
struct Count {
    shortage: Shortage,
    /// Open nodes that could take a part if they were empty, and the GPUs they would give.
    open_nodes: u32,
    open_gpus: u64,
}

impl Count {
    fn add(&mut self, cluster: &Cluster<'_>, ask: &Ask<'_>, slot: &Slot<'_>) {
        let empty = cluster.usable_when_empty(slot, ask);
        let open = slot.standing == Standing::Open;
        let free = cluster.usable(slot, ask);
        if open {
            self.shortage.gpus_free += free.gpus;
        }
        let least = ask.least();
        let suitable = cluster.has_model(slot, ask) && empty.holds(&least);
        if suitable && open {
            self.open_nodes += 1;
            self.open_gpus += u64::from(ask.share_of(&empty));
        }
        let blocked = &mut self.shortage.blocked;
        let reason = match slot.standing {
            _ if !suitable => &mut blocked.unsuitable,
            Standing::Away => &mut blocked.away,
            Standing::Draining => &mut blocked.draining,
            Standing::Open if free.gpus < least.gpus => &mut blocked.gpus_busy,
            Standing::Open if free.cpus < least.cpus => &mut blocked.cpus_busy,
            Standing::Open if free.mem < least.mem => &mut blocked.mem_busy,
            Standing::Open => &mut self.shortage.nodes_fitting,
        };
        *reason += 1;
    }
}

#[cfg(test)]
mod tests;
