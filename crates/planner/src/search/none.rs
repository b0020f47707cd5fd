//! Why there is no plan.

use super::layouts::{self, Found};
use super::{Pins, Question, batch, best, precision as hardware};
use crate::catalogue::{MOST_GPUS, larger};
use crate::near::count;
use crate::numbers::{self, BadNumbers};
use crate::words::{axes, gb, precision, recompute, seconds, sharding, thousands};
use crate::{Cluster, Illegal, Layout, Precision, Recompute, Sharding, Task, Workload, legal};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoPlan {
    #[error(transparent)]
    Model(#[from] BadNumbers),
    #[error("{what} is {value}; it must be {must}")]
    Workload { what: &'static str, value: String, must: &'static str },
    #[error("{gpu} has no {}; use {}", word(*.asked), word(*.instead))]
    Precision { gpu: String, asked: Precision, instead: Precision },
    #[error(transparent)]
    Illegal(#[from] Illegal),
    #[error("{words} does not divide {}; use what does, or --fewer to leave some idle", count(u64::from(*.gpus), "GPU"))]
    Pinned { words: String, gpus: u32 },
    #[error(
        "no layout uses all {} GPUs: a batch of {} does not divide among them; {}",
        thousands(u64::from(*.gpus)), thousands(*.batch), instead(*.better, *.some)
    )]
    Spread {
        gpus: u32,
        batch: u64,
        /// A batch close by that does.
        better: Option<u64>,
        /// GPUs that can be used with the batch as it is.
        some: Option<u32>,
    },
    #[error(
        "does not fit: {} needs {} on each GPU, and {gpu} has room for {}; {}",
        means(.layout), gb(*.needs_gb), gb(*.room_gb), way_out(.without.as_deref(), *.would)
    )]
    TooLarge {
        layout: Layout,
        needs_gb: f64,
        gpu: String,
        room_gb: f64,
        /// Nodes and GPUs that it would fit on.
        would: Option<(u32, u32)>,
        /// Flags that keep it from fitting.
        without: Option<String>,
    },
    #[error(
        "does not fit: {} of weights, and {}; {}",
        gb(*.weights_gb), there(*.gpus, *.room_gb), way_out(.without.as_deref(), *.would)
    )]
    Weights {
        weights_gb: f64,
        gpus: u32,
        room_gb: f64,
        would: Option<(u32, u32)>,
        without: Option<String>,
    },
    #[error(
        "does not fit: one request of {} tokens keeps {} beside {} of weights, and {}; {}",
        thousands(*.tokens), gb(*.request_gb), gb(*.weights_gb), there(*.gpus, *.room_gb),
        way_out(.without.as_deref(), *.would)
    )]
    Request {
        tokens: u64,
        request_gb: f64,
        weights_gb: f64,
        gpus: u32,
        room_gb: f64,
        would: Option<(u32, u32)>,
        without: Option<String>,
    },
    #[error("no layout {what} within {}: the best is {} with {with}", seconds(*.asked), seconds(*.best))]
    TooSlow { what: &'static str, asked: f64, best: f64, with: String },
    #[error(
        "no cluster of the catalogue does it: the best, {name}, takes {takes} where {asked} were given"
    )]
    OutOfReach { name: String, takes: String, asked: String },
}

/// As it is asked for.
fn word(p: Precision) -> String {
    precision(p).to_lowercase()
}

fn instead(better: Option<u64>, some: Option<u32>) -> String {
    let better = better.map(|b| format!("use a batch of {}", thousands(b)));
    let fewer = some.map(|n| format!("--fewer, which uses {}", thousands(n.into())));
    match (better, fewer) {
        (Some(better), Some(fewer)) => format!("{better}, or {fewer}"),
        (Some(way), None) | (None, Some(way)) => way,
        (None, None) => "use another number of GPUs".to_owned(),
    }
}

fn there(gpus: u32, room_gb: f64) -> String {
    let each = if gpus == 1 { "" } else { " each" };
    format!("{} with room for {}{each}", count(u64::from(gpus), "GPU"), gb(room_gb))
}

fn way_out(without: Option<&str>, would: Option<(u32, u32)>) -> String {
    without.map_or_else(|| enough(would), |flags| format!("without {flags} it fits"))
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
    hardware::check(&q.cluster.gpu, w.precision)
}

/// What is missing, after a search that found nothing.
pub(super) fn why(q: &Question, found: &Found) -> NoPlan {
    if let Some((needs_gb, layout)) = found.leanest {
        let without = without(q);
        return NoPlan::TooLarge {
            layout,
            needs_gb,
            gpu: q.cluster.gpu.name.clone(),
            room_gb: q.room(),
            would: if without.is_none() { would(q) } else { None },
            without,
        };
    }
    if let Err(illegal) = legal(q.arch, q.workload, q.cluster, &q.pins.layout()) {
        return illegal.into();
    }
    if let Some(words) = does_not_divide(q) {
        return NoPlan::Pinned { words, gpus: q.cluster.gpus() };
    }
    match (spread(q), &found.illegal) {
        (Some(batch), _) => batch,
        (None, Some(illegal)) => illegal.clone().into(),
        (None, None) => uses(q, None),
    }
}

/// The pin, or the pins together, that all GPUs do not divide by.
fn does_not_divide(q: &Question) -> Option<String> {
    // Whoever says how many ranks there are says how many GPUs.
    if q.fewer || q.pins.dp.is_some() {
        return None;
    }
    let Pins { tp, pp, cp, .. } = q.pins;
    let axes = [("tp", tp), ("pp", pp), ("cp", cp)];
    let pinned: Vec<(String, u32)> =
        axes.into_iter().filter_map(|(axis, n)| Some((format!("{axis} {}", n?), n?))).collect();
    let gpus = q.cluster.gpus();
    let alone = pinned.iter().find(|(_, n)| !gpus.is_multiple_of(*n));
    let together = || {
        let all = pinned.iter().fold(1_u32, |all, (_, n)| all.saturating_mul(*n));
        let words: Vec<&str> = pinned.iter().map(|(words, _)| words.as_str()).collect();
        (!gpus.is_multiple_of(all)).then(|| words.join(" × "))
    };
    alone.map(|(words, _)| words.clone()).or_else(together)
}

/// A batch close by that all GPUs can be used with, where that is what is wrong.
fn spread(q: &Question) -> Option<NoPlan> {
    if q.fewer || q.pins.dp.is_some() {
        return None;
    }
    let Layout { tp, pp, cp, micro_batch, .. } = q.pins.layout();
    let gpus = q.cluster.gpus();
    let ranks = u64::from(gpus / (tp * pp * cp)) * micro_batch;
    let better = batch::dividing(q.workload.global_batch, ranks);
    let workload = Workload { global_batch: better, ..*q.workload };
    let most = layouts::most_gpus(&Question { workload: &workload, ..*q });
    (most == Some(gpus)).then(|| uses(q, Some(better)))
}

fn uses(q: &Question, better: Option<u64>) -> NoPlan {
    let some = layouts::most_gpus(&Question { fewer: true, ..*q });
    NoPlan::Spread { gpus: q.cluster.gpus(), batch: q.workload.global_batch, better, some }
}

/// The pin that keeps it from fitting, as its flag.
fn without(q: &Question) -> Option<String> {
    let fits = |pins: Pins| best(&Question { pins, ..*q }).is_some();
    let pins = q.pins.each();
    let one = pins.iter().find(|(_, without)| fits(*without)).map(|(flag, _)| flag.clone());
    let all = || {
        let flags: Vec<&str> = pins.iter().map(|(flag, _)| flag.as_str()).collect();
        (flags.len() > 1 && fits(Pins::default())).then(|| flags.join(" "))
    };
    one.or_else(all)
}

/// The least number of nodes, and their GPUs, on which the model fits.
fn would(q: &Question) -> Option<(u32, u32)> {
    let pins = Pins { dp: None, ..q.pins };
    let fits = |cluster: &Cluster| {
        let more = Question { cluster, pins, fewer: true, ..*q };
        layouts::leanest(&more).is_some_and(|(gb, _)| gb <= q.room())
    };
    larger(q.cluster).find(fits).map(|c| (c.nodes, c.gpus()))
}
