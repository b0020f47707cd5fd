//! Why there is no plan.

use super::layouts::{self, Found};
use super::{Pins, Question};
use crate::catalogue::MOST_GPUS;
use crate::near::count;
use crate::numbers::{self, BadNumbers};
use crate::words::{axes, gb, recompute, seconds, sharding};
use crate::{Illegal, Layout, Recompute, Sharding, Task, legal};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoPlan {
    #[error(transparent)]
    Model(#[from] BadNumbers),
    #[error("{what} is {value}; it must be {must}")]
    Workload { what: &'static str, value: String, must: &'static str },
    #[error(transparent)]
    Illegal(#[from] Illegal),
    #[error(
        "no layout uses all {gpus} GPUs: a batch of {batch} does not divide among them; use a batch that is a multiple of \
         {multiple}{}", but_some(*.some)
    )]
    Spread { gpus: u32, batch: u64, multiple: u64, some: Option<u32> },
    #[error(
        "does not fit: {} needs {} on each GPU, and {gpu} has room for {}; {}",
        means(.layout), gb(*.needs_gb), gb(*.room_gb), enough(*.would)
    )]
    TooLarge {
        layout: Layout,
        needs_gb: f64,
        gpu: String,
        room_gb: f64,
        /// Nodes and GPUs that it would fit on.
        would: Option<(u32, u32)>,
    },
    #[error(
        "does not fit: {} of weights, and {} with room for {} each; {}",
        gb(*.weights_gb), count(u64::from(*.gpus), "GPU"), gb(*.room_gb), enough(*.would)
    )]
    Weights { weights_gb: f64, gpus: u32, room_gb: f64, would: Option<(u32, u32)> },
    #[error("no layout {what} within {}: the best is {} with {with}", seconds(*.asked), seconds(*.best))]
    TooSlow { what: &'static str, asked: f64, best: f64, with: String },
    #[error(
        "no cluster of the catalogue does it: the best, {name}, takes {takes} where {asked} were given"
    )]
    OutOfReach { name: String, takes: String, asked: String },
}

fn but_some(some: Option<u32>) -> String {
    some.map(|n| format!(", or leave some idle: {n} can be used")).unwrap_or_default()
}

fn means(l: &Layout) -> String {
    let mut words = vec![axes(l)];
    if l.sharding != Sharding::None {
        words.push(sharding(l.sharding).to_owned());
    }
    if l.recompute != Recompute::None {
        words.push(recompute(l.recompute).to_owned());
    }
    format!("the leanest layout ({})", words.join(", "))
}

fn enough(would: Option<(u32, u32)>) -> String {
    match would {
        Some((nodes, gpus)) => {
            let nodes = count(u64::from(nodes), "node");
            format!("{} ({nodes}) would do", count(u64::from(gpus), "GPU"))
        }
        None => "more of them would not help; use GPUs with more memory".to_owned(),
    }
}

const MOST_SEQ: u64 = 100_000_000;
const MOST_BATCH: u64 = 100_000_000;
const MOST_RANK: u32 = 65_536;

/// Whether the question makes sense at all.
pub(super) fn check(q: &Question) -> Result<(), NoPlan> {
    numbers::check(q.arch)?;
    let w = q.workload;
    let bad = |what, value: String, must| Err(NoPlan::Workload { what, value, must });
    if !(1..=MOST_SEQ).contains(&w.seq) {
        return bad("the sequence length", w.seq.to_string(), "from 1 to 100,000,000 tokens");
    }
    if !(1..=MOST_BATCH).contains(&w.global_batch) {
        return bad("the batch", w.global_batch.to_string(), "from 1 to 100,000,000 sequences");
    }
    if let Some(tokens) = w.tokens.filter(|t| !(1.0..=1e18).contains(t)) {
        return bad("the number of tokens", tokens.to_string(), "from 1 to 1e18");
    }
    if let Task::Lora { rank } = w.task
        && !(1..=MOST_RANK).contains(&rank)
    {
        return bad("the rank of the adapters", rank.to_string(), "from 1 to 65,536");
    }
    let gpus = u64::from(q.cluster.nodes) * u64::from(q.cluster.gpus_per_node);
    if !(1..=MOST_GPUS).contains(&gpus) {
        return bad("the number of GPUs", gpus.to_string(), "from 1 to 10,000,000");
    }
    Ok(())
}

/// What is missing, after a search that found nothing.
pub(super) fn why(q: &Question, found: &Found) -> NoPlan {
    if let Some((needs_gb, layout)) = found.leanest {
        return NoPlan::TooLarge {
            layout,
            needs_gb,
            gpu: q.cluster.gpu.name.clone(),
            room_gb: q.room(),
            would: would(q),
        };
    }
    let pinned = pinned(&q.pins);
    if let Err(illegal) = legal(q.arch, q.workload, q.cluster, &pinned) {
        return illegal.into();
    }
    match (&found.illegal, q.fewer) {
        (Some(illegal), _) => illegal.clone().into(),
        (None, _) => spread(q),
    }
}

/// The pins alone. An axis whose rule depends on one that is not pinned is left out.
fn pinned(p: &Pins) -> Layout {
    Layout {
        tp: p.tp.unwrap_or(1),
        pp: p.pp.unwrap_or(1),
        vp: p.pp.and(p.vp).unwrap_or(1),
        cp: p.cp.unwrap_or(1),
        ep: p.dp.and(p.ep).unwrap_or(1),
        dp: p.dp.unwrap_or(1),
        micro_batch: p.micro_batch.unwrap_or(1),
        sharding: Sharding::None,
        sequence_parallel: p.sequence_parallel.unwrap_or(false),
        recompute: Recompute::None,
    }
}

fn spread(q: &Question) -> NoPlan {
    let gpus = q.cluster.gpus();
    let ranks = layouts::ranks(q);
    let multiple = ranks.filter(|r| gpus.is_multiple_of(*r)).max().map_or(gpus, |r| gpus / r);
    NoPlan::Spread {
        gpus,
        batch: q.workload.global_batch,
        multiple: u64::from(multiple),
        some: layouts::most_gpus(&Question { fewer: true, ..*q }),
    }
}

/// The least number of nodes, and their GPUs, on which the model fits.
fn would(q: &Question) -> Option<(u32, u32)> {
    let mut cluster = q.cluster.clone();
    let pins = Pins { dp: None, ..q.pins };
    let first = u64::from(cluster.nodes);
    let mut nodes = first;
    loop {
        nodes += (nodes / 32).max(1);
        if nodes > first * 256 || nodes * u64::from(cluster.gpus_per_node) > MOST_GPUS {
            return None;
        }
        cluster.nodes = nodes as u32;
        let more = Question { cluster: &cluster, pins, fewer: true, ..*q };
        if layouts::leanest(&more).is_some_and(|(gb, _)| gb <= q.room()) {
            return Some((cluster.nodes, cluster.gpus()));
        }
    }
}
