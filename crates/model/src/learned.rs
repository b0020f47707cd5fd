//! What the cluster has learned from its own jobs: what kinds of work come, and how long they take.
//! Kept by `apply`, so that a replay knows as much as the cluster did.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Demand, Job, Milli, Service, Span, Spread};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    pub mix: Mix,
    /// Newest run times of a user's jobs of one name and size, newest last.
    pub runs: BTreeMap<RunKey, Vec<Span>>,
    /// How soon jobs are expected to end: what the order of the queue is learned from.
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

/// Jobs of one kind: alike in GPUs, and in CPUs to about a fifth.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kind {
    pub model: Option<String>,
    pub gpus: u32,
    pub share: Milli,
    /// Four steps per doubling.
    pub cpus: u8,
}

impl Kind {
    fn of(shape: &Shape) -> Kind {
        let cpus = u64::from(shape.cpus) << 2;
        let octave = log2(cpus.max(4));
        let quarter = ((cpus.max(4) >> (octave - 2)) & 3) as u8;
        let Shape { model, gpus, share, .. } = shape;
        Kind { model: model.clone(), gpus: *gpus, share: *share, cpus: octave * 4 + quarter }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub count: u64,
    /// Sums over all that were counted.
    pub cpus: u64,
    pub mem: u64,
}

/// What kinds of GPU work were submitted of late. Old counts fade: when there are
/// [`Mix::FULL`], all are halved and the rarest fall out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mix {
    kinds: BTreeMap<Kind, Seen>,
    count: u64,
    /// All ever counted, work without GPUs too.
    seen: u64,
    /// The mix as it was at the last refresh. Schedulers use this: it changes seldom, so that
    /// what they derive from it stays good for long.
    frozen: Arc<BTreeMap<Kind, Seen>>,
    frozen_at: u64,
}

impl Mix {
    const FULL: u64 = 20_000;
    /// Refreshed after so many, then whenever half as many again have been seen.
    const FIRST: u64 = 16;
    /// ... and at least this often.
    const LONGEST: u64 = 10_000;

    pub fn note(&mut self, shape: &Shape) {
        self.seen += 1;
        if shape.gpus > 0 {
            let seen = self.kinds.entry(Kind::of(shape)).or_default();
            seen.count += 1;
            seen.cpus += u64::from(shape.cpus);
            seen.mem = seen.mem.saturating_add(shape.mem.0);
            self.count += 1;
        }
        if self.count >= Mix::FULL {
            self.fade();
        }
        let more = (self.frozen_at / 2).clamp(Mix::FIRST, Mix::LONGEST);
        if self.seen >= self.frozen_at + more {
            self.frozen = Arc::new(self.kinds.clone());
            self.frozen_at = self.seen;
        }
    }

    fn fade(&mut self) {
        for seen in self.kinds.values_mut() {
            *seen = Seen { count: seen.count / 2, cpus: seen.cpus / 2, mem: seen.mem / 2 };
        }
        self.kinds.retain(|_, seen| seen.count > 0);
        self.count = self.kinds.values().map(|seen| seen.count).sum();
    }

    /// What is expected, and a number that changes when it does.
    pub fn expected(&self) -> (&BTreeMap<Kind, Seen>, u64) {
        (&self.frozen, self.frozen_at)
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

/// 0 for 0 and 1, 1 for 2 and 3, and so on.
pub fn log2(n: u64) -> u8 {
    n.max(1).ilog2() as u8
}
