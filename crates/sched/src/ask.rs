//! A demand made ready for searching: its GPU models taken apart, its needs per node as numbers.

use tutti_model::{Bytes, Demand, Milli, Spread, Topology};

/// What one node must have free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub gpus: u32,
    /// Of each GPU.
    pub share: Milli,
    pub cpus: u32,
    pub mem: Bytes,
}

impl Need {
    pub fn milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.share.0)
    }
}

/// What a node has, free or in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub gpus: u32,
    pub cpus: u32,
    pub mem: Bytes,
}

impl Room {
    pub fn holds(&self, need: &Need) -> bool {
        self.gpus >= need.gpus && self.cpus >= need.cpus && self.mem >= need.mem
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub demand: Demand,
    /// None takes any GPU.
    models: Option<Vec<String>>,
    pub spread: Spread,
}

impl Ask {
    pub fn new(demand: &Demand) -> Ask {
        let split = |m: &str| m.split('|').map(str::to_owned).collect();
        let models = demand.gpu_model.as_deref().map(split);
        // A gang has at least one part: "no nodes" and "no GPUs, anywhere" mean one node.
        let spread = match demand.spread {
            Spread::Gpus { total: 0 } => Spread::Nodes { nodes: 1, gpus_each: 0 },
            Spread::Nodes { nodes: 0, gpus_each } => Spread::Nodes { nodes: 1, gpus_each },
            spread => spread,
        };
        Ask { demand: demand.clone(), models, spread }
    }

    pub fn need(&self, gpus: u32) -> Need {
        let d = &self.demand;
        Need { gpus, share: d.share, cpus: d.cpus_for(gpus), mem: d.mem_for(gpus) }
    }

    /// The least that a node must have to take part at all.
    pub fn least(&self) -> Need {
        match self.spread {
            Spread::Nodes { gpus_each, .. } => self.need(gpus_each),
            Spread::Gpus { .. } => self.need(1),
        }
    }

    /// The most and the fewest nodes it takes; none where only GPUs count.
    pub fn node_counts(&self) -> Option<(u32, u32)> {
        let Spread::Nodes { nodes, .. } = self.spread else { return None };
        let least = self.demand.least_nodes.unwrap_or(nodes).clamp(1, nodes);
        // One that may not leave a node does not grow beyond it.
        let most = if least == 1 && self.within() <= Topology::Node { 1 } else { nodes };
        Some((most, least))
    }

    /// The fewest GPUs it can start with.
    pub fn least_gpus(&self) -> u64 {
        match self.spread {
            Spread::Nodes { gpus_each, .. } => {
                let (_, least) = self.node_counts().unwrap_or((1, 1));
                u64::from(least) * u64::from(gpus_each)
            }
            Spread::Gpus { total } => total.into(),
        }
    }

    /// The widest domain that it may span. One node is never more than a node.
    pub fn within(&self) -> Topology {
        self.demand.within
    }

    pub fn on_one_island(&self) -> bool {
        self.demand.within == Topology::Island
    }

    pub fn wants_model(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|m| m == model))
    }

    pub fn names_models(&self) -> bool {
        self.models.is_some()
    }

    /// How many GPUs a node with this room can give, with the CPUs and memory that go with them.
    /// GPUs of the least that it needs, in thousandths.
    pub fn least_milli(&self) -> u64 {
        self.least_gpus() * u64::from(self.demand.share.0)
    }

    pub fn share_of(&self, room: &Room) -> u32 {
        let d = &self.demand;
        let by_cpus = parts(room.cpus.into(), d.cpus_per_node.into(), d.cpus_per_gpu.into());
        let by_mem = parts(room.mem.0, d.mem_per_node.0, d.mem_per_gpu.0);
        room.gpus.min(by_cpus).min(by_mem)
    }
}

/// How many times `each` fits into what is left of `have` after `base`.
fn parts(have: u64, base: u64, each: u64) -> u32 {
    match (have.checked_sub(base), each) {
        (None, _) => 0,
        (Some(_), 0) => u32::MAX,
        (Some(left), each) => u32::try_from(left / each).unwrap_or(u32::MAX),
    }
}
