//! What waits, in the order in which it is tried, grouped by what it needs.
//!
//! Tasks with the same [`Demand`] are alike to the scheduler: if one does not fit, the others
//! behind it do not either. A pass therefore costs what it places plus the number of *kinds* of
//! waiting work, not the length of the queue.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Bytes, JobId, JobSpec, Launcher, Priority};

/// What a task needs, worked out from its spec once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    pub gpu_model: Option<String>,
    pub spread: Spread,
    /// Per node, on top of what follows from the GPUs.
    pub cpus_per_node: u32,
    pub cpus_per_gpu: u32,
    pub mem_per_node: Bytes,
    pub mem_per_gpu: Bytes,
    pub ranks: RankRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Spread {
    Nodes {
        nodes: u32,
        gpus_each: u32,
    },
    /// This many GPUs on as few nodes as possible.
    Gpus {
        total: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RankRule {
    PerNode(u32),
    PerGpu,
}

impl Demand {
    pub fn of(spec: &JobSpec) -> Demand {
        let per_node = spec.gpus_per_node.as_ref();
        let spread = match (spec.gpus, spec.nodes) {
            (Some(total), None) if total > 0 => Spread::Gpus { total },
            (_, nodes) => Spread::Nodes {
                nodes: nodes.unwrap_or(1),
                gpus_each: per_node.map_or(0, |g| g.count),
            },
        };
        let ranks = match (spec.ranks_per_node, spec.launcher) {
            (Some(n), _) => RankRule::PerNode(n),
            (None, Launcher::Torch) => RankRule::PerGpu,
            (None, _) => RankRule::PerNode(1),
        };
        let cpus_per_gpu = spec.cpus_per_gpu.unwrap_or(0);
        Demand {
            gpu_model: per_node.and_then(|g| g.model.clone()),
            spread,
            // A job that says nothing of CPUs still needs one to run on.
            cpus_per_node: spec.cpus_per_node.unwrap_or(if cpus_per_gpu == 0 { 1 } else { 0 }),
            cpus_per_gpu,
            mem_per_node: spec.mem_per_node.unwrap_or_default(),
            mem_per_gpu: spec.mem_per_gpu.unwrap_or_default(),
            ranks,
        }
    }

    pub fn cpus_for(&self, gpus: u32) -> u32 {
        self.cpus_per_node.saturating_add(self.cpus_per_gpu.saturating_mul(gpus))
    }
    pub fn mem_for(&self, gpus: u32) -> Bytes {
        Bytes(self.mem_per_node.0.saturating_add(self.mem_per_gpu.0.saturating_mul(gpus.into())))
    }
    pub fn ranks_for(&self, gpus: u32) -> u32 {
        match self.ranks {
            RankRule::PerNode(n) => n.max(1),
            RankRule::PerGpu => gpus.max(1),
        }
    }
    pub fn total_gpus(&self) -> u64 {
        match self.spread {
            Spread::Nodes { nodes, gpus_each } => u64::from(nodes) * u64::from(gpus_each),
            Spread::Gpus { total } => total.into(),
        }
    }
}

/// Place in the queue: higher priority first, then older, then tasks that had started before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    pub priority: std::cmp::Reverse<Priority>,
    pub job: JobId,
    /// A task that had started before; `None` is a single job or the untouched rest of an array.
    pub index: Option<u32>,
}

impl Ord for QueueKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // A task that lost its node goes before the thousands that never had one.
        let place = |k: &QueueKey| (k.priority, k.job, k.index.is_none(), k.index);
        place(self).cmp(&place(other))
    }
}

impl PartialOrd for QueueKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The waiting tasks that could start if there were room: not held, dependencies met.
/// Derived from the jobs; kept by `apply`, rebuilt on load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    by_demand: BTreeMap<Demand, BTreeSet<QueueKey>>,
}

impl Queue {
    pub fn insert(&mut self, demand: Demand, key: QueueKey) {
        self.by_demand.entry(demand).or_default().insert(key);
    }
    pub fn remove(&mut self, demand: &Demand, key: &QueueKey) -> bool {
        let Some(keys) = self.by_demand.get_mut(demand) else { return false };
        let had = keys.remove(key);
        if keys.is_empty() {
            self.by_demand.remove(demand);
        }
        had
    }
    pub fn iter(&self) -> impl Iterator<Item = (&Demand, &BTreeSet<QueueKey>)> {
        self.by_demand.iter()
    }
    pub fn contains(&self, demand: &Demand, key: &QueueKey) -> bool {
        self.by_demand.get(demand).is_some_and(|keys| keys.contains(key))
    }
    pub fn is_empty(&self) -> bool {
        self.by_demand.is_empty()
    }
    /// Entries, an array's untouched rest counting once.
    pub fn len(&self) -> usize {
        self.by_demand.values().map(BTreeSet::len).sum()
    }
}
