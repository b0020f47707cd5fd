//! A demand made ready for searching: its GPU models taken apart, its needs per node as numbers.

use tutti_model::{Bytes, Demand, Gpu, Spread};

/// What one node must have free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub gpus: u32,
    pub cpus: u32,
    pub mem: Bytes,
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
pub(crate) struct Ask<'d> {
    pub demand: &'d Demand,
    /// None takes any GPU.
    pub models: Option<Vec<&'d str>>,
    pub spread: Spread,
}

impl<'d> Ask<'d> {
    pub fn new(demand: &'d Demand) -> Ask<'d> {
        let models = demand.gpu_model.as_deref().map(|m| m.split('|').collect());
        // A gang has at least one part: "no nodes" and "no GPUs, anywhere" mean one node.
        let spread = match demand.spread {
            Spread::Gpus { total: 0 } => Spread::Nodes { nodes: 1, gpus_each: 0 },
            Spread::Nodes { nodes: 0, gpus_each } => Spread::Nodes { nodes: 1, gpus_each },
            spread => spread,
        };
        Ask { demand, models, spread }
    }

    pub fn need(&self, gpus: u32) -> Need {
        Need { gpus, cpus: self.demand.cpus_for(gpus), mem: self.demand.mem_for(gpus) }
    }

    /// The least that a node must have to take part at all.
    pub fn least(&self) -> Need {
        match self.spread {
            Spread::Nodes { gpus_each, .. } => self.need(gpus_each),
            Spread::Gpus { .. } => self.need(1),
        }
    }

    pub fn wants_model(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.contains(&model))
    }

    pub fn wants(&self, gpu: &Gpu) -> bool {
        self.wants_model(&gpu.model)
    }

    /// How many GPUs a node with this room can give, with the CPUs and memory that go with them.
    pub fn share_of(&self, room: &Room) -> u32 {
        let d = self.demand;
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
