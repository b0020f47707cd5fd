//! The best of all layouts, and why the others are not.

mod batch;
mod explain;
mod layouts;
mod none;
mod pinned;
pub(crate) mod precision;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde::Serialize;

use crate::efficiency::peak_tflops;
use crate::{
    Arch, Cluster, Estimate, Layout, Recompute, Setup, Sharding, Stack, Task, Workload, estimate,
    memory, step_time, usable_gb,
};

pub use batch::usual_batch;
pub use explain::RunnerUp;
use layouts::Found;
pub use none::NoPlan;
pub use precision::usual_precision;

/// What of a layout is not to be searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    pub tp: Option<u32>,
    pub pp: Option<u32>,
    pub vp: Option<u32>,
    pub cp: Option<u32>,
    pub ep: Option<u32>,
    pub dp: Option<u32>,
    pub micro_batch: Option<u64>,
    pub sharding: Option<Sharding>,
    pub recompute: Option<Recompute>,
    pub sequence_parallel: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The shortest step.
    #[default]
    Time,
    /// The fewest GPU-seconds for a step.
    Money,
}

#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub arch: &'a Arch,
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    pub pins: Pins,
    pub goal: Goal,
    pub stack: Stack,
    /// GPUs may be left idle.
    pub fewer: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    pub layout: Layout,
    pub estimate: Estimate,
    pub gpus: u32,
    pub tokens_per_s: f64,
    /// FLOPs that the model asks for (what is masked is not counted, nor what is computed twice) over the data sheet's
    /// peak in the workload's precision.
    pub mfu: f64,
    pub cost_per_step: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub best: Candidate,
    pub runners_up: Vec<RunnerUp>,
    /// Layouts that can be run, and those of them that fit.
    pub considered: u64,
    pub fitting: u64,
    /// GPUs and seconds of a step of the best layout that leaves some idle, where all are asked for and fewer are faster.
    pub faster_with_fewer: Option<(u32, f64)>,
}

/// How much better a layout must be for each axis that it splits along besides the data.
const AXIS: f64 = 1.01;

/// Memory that is better left free, for what no estimate knows, and what it may cost in time.
const SPARE: f64 = 0.03;
const NEAR: f64 = 1.01;

/// The best layout. The same question has the same answer always.
pub fn search(question: &Question) -> Result<Answer, NoPlan> {
    none::check(question)?;
    let found = layouts::all(question);
    let Some(best) = choose(question, &found) else {
        return Err(none::why(question, &found));
    };
    let best = candidate(question, &best);
    let runners_up = explain::runners_up(question, &best, &found);
    let Found { considered, fitting, .. } = found;
    let faster_with_fewer = faster_with_fewer(question, &best);
    Ok(Answer { best, runners_up, considered, fitting, faster_with_fewer })
}

fn faster_with_fewer(question: &Question, all: &Candidate) -> Option<(u32, f64)> {
    if question.fewer {
        return None;
    }
    let some = Question { fewer: true, goal: Goal::Time, ..*question };
    let layout = best(&some)?;
    let seconds = some.seconds(&layout);
    let faster = layout.gpus() < all.gpus && seconds * NEAR < all.estimate.time.total();
    faster.then(|| (layout.gpus(), seconds))
}

/// The best layout alone, where there is one: a fraction of the work where nobody asks why.
pub(crate) fn best(question: &Question) -> Option<Layout> {
    none::check(question).ok()?;
    choose(question, &layouts::all(question))
}

/// The best, simpler ones and those that do not fill the memory being preferred where they are about as good.
fn choose(question: &Question, found: &Found) -> Option<Layout> {
    let weighed = |(seconds, layout): &(f64, Layout)| question.goal.weighed(*seconds, layout);
    let order = |a: &&(f64, Layout), b: &&(f64, Layout)| {
        let by = weighed(a).total_cmp(&weighed(b));
        by.then_with(|| means(&a.1).cmp(&means(&b.1))).then_with(|| a.1.cmp(&b.1))
    };
    let least = found.timed.iter().min_by(order)?;
    let near = weighed(least) * NEAR;
    let near = found.timed.iter().filter(|t| weighed(t) <= near && question.roomy(&t.1));
    Some(near.min_by(order).unwrap_or(least).1)
}

impl Goal {
    fn score(self, seconds: f64, layout: &Layout) -> f64 {
        match self {
            Goal::Time => seconds,
            Goal::Money => seconds * f64::from(layout.gpus()),
        }
    }

    /// What has to be set up and can go wrong counts too.
    fn weighed(self, seconds: f64, l: &Layout) -> f64 {
        let axes = [l.tp > 1, l.pp > 1, l.vp > 1, l.cp > 1, l.ep > 1];
        let split = axes.into_iter().filter(|split| *split).count();
        self.score(seconds, l) * AXIS.powi(split as i32)
    }
}

/// Where two are equally good, the one that does less to fit.
fn means(l: &Layout) -> (Recompute, Sharding) {
    (l.recompute, l.sharding)
}

impl<'a> Question<'a> {
    fn setup(&self, layout: &'a Layout) -> Setup<'a> {
        let Question { arch, workload, cluster, stack, .. } = *self;
        Setup { arch, workload, cluster, layout, stack }
    }

    fn room(&self) -> f64 {
        usable_gb(&self.cluster.gpu)
    }

    /// Leaves something free.
    fn roomy(&self, layout: &Layout) -> bool {
        self.memory_gb(layout) <= self.room() * (1.0 - SPARE)
    }

    fn memory_gb(&self, layout: &Layout) -> f64 {
        memory(&Question { ..*self }.setup(layout)).total()
    }

    fn seconds(&self, layout: &Layout) -> f64 {
        step_time(&Question { ..*self }.setup(layout)).total()
    }

    /// Tokens of one step.
    pub fn tokens(&self) -> f64 {
        self.workload.seq as f64 * self.workload.global_batch as f64
    }
}

/// A layout with all that is known of it.
pub fn candidate(question: &Question, layout: &Layout) -> Candidate {
    let estimate = estimate(&question.setup(layout));
    let seconds = estimate.time.total();
    let gpus = layout.gpus();
    let peak = peak_tflops(&question.cluster.gpu, question.workload.precision) * 1e12;
    let price = question.cluster.price_per_gpu_hour;
    Candidate {
        layout: *layout,
        estimate,
        gpus,
        tokens_per_s: question.tokens() / seconds,
        mfu: flops(question) / (seconds * f64::from(gpus) * peak),
        cost_per_step: price.map(|p| p * f64::from(gpus) * seconds / 3600.0),
    }
}

/// A step on all GPUs at the data sheet's peak: nothing is faster.
pub(crate) fn ideal_seconds(question: &Question) -> f64 {
    let peak = peak_tflops(&question.cluster.gpu, question.workload.precision) * 1e12;
    flops(question) / (f64::from(question.cluster.gpus()) * peak)
}

/// FLOPs that the model asks for in a step. Frozen weights have no gradients.
fn flops(question: &Question) -> f64 {
    let arch = question.arch;
    let attention = arch.attention_flops(arch.keys_seen(question.workload.seq));
    let products = 2.0 * arch.matmul_params();
    let per_token = match question.workload.task {
        Task::Lora { .. } => 2.0 * products + 3.0 * attention,
        Task::Pretrain | Task::Finetune => 3.0 * (products + attention),
    };
    per_token * question.tokens()
}

/// For sorting by how good something is, with its layout to break ties.
fn by_score(question: &Question, a: &(f64, Layout), b: &(f64, Layout)) -> Ordering {
    let score = |t: &(f64, Layout)| question.goal.score(t.0, &t.1);
    score(a).total_cmp(&score(b)).then(a.1.cmp(&b.1))
}
