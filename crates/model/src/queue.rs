//! What waits, in the order in which it is tried, grouped by what it needs.
//!
//! Tasks with the same [`Demand`] are alike to the scheduler: if one does not fit, the others
//! behind it do not either. A pass therefore costs what it places plus the number of *kinds* of
//! waiting work, not the length of the queue.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Job, JobId, JobSpec, Launcher, Milli, Policy, Priority, QueueOrder, Task, Topology,
};

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
    /// Of each GPU. Less than a whole only with one GPU per node.
    pub share: Milli,
    /// Least memory of each GPU.
    pub gpu_mem: Bytes,
    pub labels: Vec<LabelRule>,
    /// Nobody else on the same nodes.
    pub exclusive: bool,
    /// The widest domain that it may span.
    pub within: Topology,
    /// An elastic job starts with this many nodes or more, up to what `spread` says.
    pub least_nodes: Option<u32>,
}

/// A label that a node must have, or must not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LabelRule {
    pub key: String,
    /// `a|b` is either.
    pub value: String,
    pub wanted: bool,
}

impl LabelRule {
    pub fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let has =
            labels.get(&self.key).is_some_and(|v| self.value.split('|').any(|want| want == v));
        has == self.wanted
    }
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
        let share = spec.gpu_share.map_or(Milli::WHOLE, Milli::from_part);
        let spread = match (spec.gpus, spec.nodes) {
            (Some(total), None) if total > 0 => Spread::Gpus { total },
            (_, nodes) => Spread::Nodes {
                nodes: spec.elastic.as_ref().map_or(nodes.unwrap_or(1), |e| e.max_nodes),
                gpus_each: per_node.map_or(u32::from(spec.gpu_share.is_some()), |g| g.count),
            },
        };
        let ranks = match (spec.ranks_per_node, spec.launcher) {
            (_, launcher) if launcher.makes_processes() => RankRule::PerNode(1),
            (Some(n), _) => RankRule::PerNode(n),
            (None, Launcher::Torch | Launcher::Deepspeed) => RankRule::PerGpu,
            (None, _) => RankRule::PerNode(1),
        };
        let cpus_per_gpu = spec.cpus_per_gpu.unwrap_or(0);
        let without_gpus = matches!(spread, Spread::Nodes { gpus_each: 0, .. });
        // A job that says nothing of CPUs still needs one to run on.
        let least_cpus = u32::from(cpus_per_gpu == 0 || without_gpus);
        Demand {
            gpu_model: per_node.and_then(|g| g.model.clone()),
            spread,
            cpus_per_node: spec.cpus_per_node.unwrap_or(least_cpus),
            cpus_per_gpu,
            mem_per_node: spec.mem_per_node.unwrap_or_default(),
            mem_per_gpu: spec.mem_per_gpu.unwrap_or_default(),
            ranks,
            share,
            gpu_mem: spec.gpu_mem.unwrap_or_default(),
            labels: label_rules(spec),
            exclusive: spec.exclusive,
            within: spec.topology.unwrap_or_default(),
            least_nodes: spec.elastic.as_ref().map(|e| e.min_nodes),
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
    /// Nodes and GPUs as they are asked for; 0 nodes where the scheduler chooses how many.
    pub fn asked(&self) -> (u32, u32) {
        let gpus = self.total_gpus().min(u32::MAX.into()) as u32;
        match self.spread {
            Spread::Nodes { nodes, .. } => (nodes, gpus),
            Spread::Gpus { .. } => (0, gpus),
        }
    }
    pub fn total_gpus(&self) -> u64 {
        match self.spread {
            Spread::Nodes { nodes, gpus_each } => u64::from(nodes) * u64::from(gpus_each),
            Spread::Gpus { total } => total.into(),
        }
    }
}

/// Labels that an agent gives its node where something that jobs may ask for can't be had there.
pub const IMAGES_LABEL: &str = "tutti.images";
pub const SHARES_LABEL: &str = "tutti.shares";
/// Their value.
pub const UNABLE: &str = "no";

fn label_rules(spec: &JobSpec) -> Vec<LabelRule> {
    let rule = |wanted| {
        move |(key, value): (&String, &String)| LabelRule {
            key: key.clone(),
            value: value.clone(),
            wanted,
        }
    };
    let wanted = spec.labels.iter().map(rule(true));
    let able = [(spec.image.is_some(), IMAGES_LABEL), (spec.gpu_share.is_some(), SHARES_LABEL)];
    let able = able.into_iter().filter(|(asked, _)| *asked).map(|(_, key)| LabelRule {
        key: key.to_owned(),
        value: UNABLE.to_owned(),
        wanted: false,
    });
    wanted.chain(spec.avoid_labels.iter().map(rule(false))).chain(able).collect()
}

/// Tasks that are alike to the scheduler but for their age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    pub class: String,
    pub team: String,
    pub user: String,
    pub demand: Demand,
}

impl Lane {
    pub fn of(job: &Job) -> Lane {
        Lane {
            class: job.class().to_owned(),
            team: job.team.clone(),
            user: job.user.clone(),
            demand: Demand::of(&job.spec),
        }
    }
}

/// Place in a lane: higher priority first, then smaller rank, then older, then tasks that had
/// started before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey {
    pub priority: std::cmp::Reverse<Priority>,
    /// What [`Policy::order`] makes of what the task has had, or still needs.
    pub rank: u64,
    pub job: JobId,
    /// A task that had started before; `None` is a single job or the untouched rest of an array.
    pub index: Option<u32>,
}

impl Ord for QueueKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // A task that lost its node goes before the thousands that never had one.
        let place = |k: &QueueKey| (k.priority, k.rank, k.job, k.index.is_none(), k.index);
        place(self).cmp(&place(other))
    }
}

impl QueueKey {
    /// `task` is none for the untouched rest of an array.
    pub fn of(policy: &Policy, job: &Job, index: Option<u32>, task: Option<&Task>) -> QueueKey {
        let gpus = || Demand::of(&job.spec).total_gpus().max(1);
        let left = || {
            let served = task.map_or(0, |t| t.served);
            let limit = job.spec.time.map_or(u64::MAX / 1024, |t| t.0);
            limit.saturating_sub(served / gpus())
        };
        let rank = match policy.order {
            QueueOrder::Fifo => 0,
            QueueOrder::Fair => job.rank,
            QueueOrder::Srtf => left(),
            QueueOrder::Srsf | QueueOrder::FairKnown => left().saturating_mul(gpus()),
        };
        QueueKey { priority: std::cmp::Reverse(job.priority), rank, job: job.id, index }
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
    lanes: BTreeMap<Lane, BTreeSet<QueueKey>>,
    len: usize,
}

impl Queue {
    pub fn insert(&mut self, lane: Lane, key: QueueKey) {
        if self.lanes.entry(lane).or_default().insert(key) {
            self.len += 1;
        }
    }
    pub fn remove(&mut self, lane: &Lane, key: &QueueKey) -> bool {
        let Some(keys) = self.lanes.get_mut(lane) else { return false };
        let had = keys.remove(key);
        self.len -= usize::from(had);
        if keys.is_empty() {
            self.lanes.remove(lane);
        }
        had
    }
    pub fn iter(&self) -> impl Iterator<Item = (&Lane, &BTreeSet<QueueKey>)> {
        self.lanes.iter()
    }
    pub fn contains(&self, lane: &Lane, key: &QueueKey) -> bool {
        self.lanes.get(lane).is_some_and(|keys| keys.contains(key))
    }
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
    /// Entries, an array's untouched rest counting once.
    pub fn len(&self) -> usize {
        self.len
    }
}
