//! What the cluster has learned from its own jobs: what kinds of work come, and how long they take.
//! Kept by `apply`, so that a replay knows as much as the cluster did.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Demand, Job, Milli, Span, Spread};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    pub mix: Mix,
    /// Newest run times of a user's jobs of one name and size, newest last.
    pub runs: BTreeMap<RunKey, Vec<Span>>,
    /// How much service jobs took in all, by size: what the order of the queue is learned from.
    pub service: Service,
}

/// What one node gives to a job of this kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shape {
    pub model: Option<String>,
    pub gpus: u32,
    pub share: Milli,
    pub cpus: u32,
    pub mem: Bytes,
}

impl Shape {
    /// A total of GPUs counts as one node full of eight, or what is asked for if that is less.
    pub fn of(demand: &Demand) -> Shape {
        let gpus = match demand.spread {
            Spread::Nodes { gpus_each, .. } => gpus_each,
            Spread::Gpus { total } => total.min(8),
        };
        Shape {
            model: demand.gpu_model.clone(),
            gpus,
            share: demand.share,
            cpus: demand.cpus_for(gpus),
            mem: demand.mem_for(gpus),
        }
    }
}

/// How often each kind of work was submitted of late. Old counts fade: when the total reaches
/// [`Mix::FULL`], all are halved and the rarest fall out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mix {
    pub kinds: BTreeMap<Shape, u64>,
    pub total: u64,
    /// All ever counted; tells readers when what they derived from the mix is old.
    pub seen: u64,
}

impl Mix {
    pub const FULL: u64 = 20_000;

    pub fn note(&mut self, shape: Shape) {
        *self.kinds.entry(shape).or_default() += 1;
        self.total += 1;
        self.seen += 1;
        if self.total >= Mix::FULL {
            self.kinds.values_mut().for_each(|n| *n /= 2);
            self.kinds.retain(|_, n| *n > 0);
            self.total = self.kinds.values().sum();
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    pub user: String,
    pub name: String,
    pub gpus: u64,
}

impl RunKey {
    pub fn of(job: &Job) -> RunKey {
        RunKey {
            user: job.user.clone(),
            name: job.spec.display_name().to_owned(),
            gpus: Demand::of(&job.spec).total_gpus(),
        }
    }
}

/// Runs remembered per kind of job.
const RUNS_KEPT: usize = 16;
/// Kinds of jobs remembered; a guard against a name per job.
const RUN_KEYS_MAX: usize = 10_000;

impl Learned {
    pub fn note_run(&mut self, key: RunKey, took: Span) {
        if self.runs.len() >= RUN_KEYS_MAX && !self.runs.contains_key(&key) {
            self.runs.pop_first();
        }
        let runs = self.runs.entry(key).or_default();
        if runs.len() >= RUNS_KEPT {
            runs.remove(0);
        }
        runs.push(took);
    }

    /// The longest of the newest runs, if there were enough to go by.
    pub fn longest_run(&self, job: &Job) -> Option<Span> {
        let runs = self.runs.get(&RunKey::of(job))?;
        (runs.len() >= 3).then(|| runs.iter().max().copied())?
    }

    pub fn median_run(&self, job: &Job) -> Option<Span> {
        let mut runs = self.runs.get(&RunKey::of(job))?.clone();
        runs.sort();
        (runs.len() >= 3).then(|| runs[runs.len() / 2])
    }
}

/// Jobs that ended, counted by how many GPUs they had and how much service (GPU-seconds) they took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// (log2 of GPUs, log2 of GPU-seconds) to a count.
    pub ended: BTreeMap<(u8, u8), u64>,
}

impl Service {
    pub fn note(&mut self, gpus: u64, gpu_ms: u64) {
        let key = (log2(gpus), log2(gpu_ms / 1000));
        *self.ended.entry(key).or_default() += 1;
    }
}

/// 0 for 0 and 1, 1 for 2 and 3, and so on.
pub fn log2(n: u64) -> u8 {
    n.max(1).ilog2() as u8
}
