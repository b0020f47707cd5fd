//! Every layout that is worth a look.
//!
//! Pruned on the way: a shape that does not fit even with all state sharded and all activations recomputed is left at
//! once, and of each shape only the least recomputation that makes it fit is timed.

use super::{Pins, Question};
use crate::{Illegal, Layout, Recompute, Sharding, Task, legal};

/// Sequences longer than this may be spread over several ranks.
const LONG: u64 = 8192;
/// Tokens that a context-parallel rank has at least.
const CONTEXT: u64 = 4096;
const MICRO_BATCHES: [u64; 6] = [1, 2, 4, 8, 16, 32];
const MOST_CHUNKS: u32 = 16;
const SHARDINGS: [Sharding; 4] =
    [Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3];
const RECOMPUTES: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

#[derive(Default)]
pub(super) struct Found {
    /// Seconds of those that fit.
    pub timed: Vec<(f64, Layout)>,
    /// Layouts that can be run.
    pub considered: u64,
    pub fitting: u64,
    /// The one that needs the least memory, and how much.
    pub leanest: Option<(f64, Layout)>,
    pub illegal: Option<Illegal>,
}

fn timed(question: &Question, whole: bool) -> Found {
    let mut found = Found::default();
    shapes(question, |shape, found| deepen(question, shape, whole, found), &mut found);
    found
}

/// Without what is preferred for a task.
pub(super) fn whatever(question: &Question) -> Found {
    timed(question, false)
}

pub(super) fn all(question: &Question) -> Found {
    if let Task::Lora { .. } = question.workload.task {
        // Trainers of adapters keep frozen weights whole and have no pipeline: all else is for where that does not fit.
        let pins = Pins { pp: question.pins.pp.or(Some(1)), ..question.pins };
        let plain = timed(&Question { pins, ..*question }, true);
        if !plain.timed.is_empty() {
            return plain;
        }
    }
    whatever(question)
}

/// The most GPUs that any layout uses.
pub(super) fn most_gpus(question: &Question) -> Option<u32> {
    let mut most = None;
    let count = |shape: Layout, found: &mut Found| {
        let runs = allowed(question, &shape, found);
        if runs {
            most = most.max(Some(shape.gpus()));
        }
        runs
    };
    shapes(question, count, &mut Found::default());
    most
}

/// The leanest layout alone, without times.
pub(super) fn leanest(question: &Question) -> Option<(f64, Layout)> {
    let mut found = Found::default();
    let weigh = |shape: Layout, found: &mut Found| {
        let lean = lean(question, shape);
        let runs = allowed(question, &lean, found);
        if runs {
            found.note_lean(question.memory_gb(&lean), lean);
        }
        runs
    };
    shapes(question, weigh, &mut found);
    found.leanest
}

impl Found {
    fn note_lean(&mut self, gb: f64, layout: Layout) {
        if self.leanest.is_none_or(|(least, _)| gb < least) {
            self.leanest = Some((gb, layout));
        }
    }
}

/// Every tp × cp × pp × dp × ep, with micro-batches from small to large until `visit` says that one is too much.
fn shapes(q: &Question, mut visit: impl FnMut(Layout, &mut Found) -> bool, found: &mut Found) {
    for tp in tensor(q) {
        for cp in context(q) {
            for pp in pipeline(q) {
                let rank = u64::from(tp).saturating_mul(cp.into()).saturating_mul(pp.into());
                for dp in data(q, rank) {
                    for ep in experts(q, u64::from(dp) * u64::from(cp)) {
                        for micro_batch in micro_batches(q, dp) {
                            let shape = plain(q, [tp, pp, cp, ep, dp], micro_batch);
                            if visit(shape, found) {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
}

fn plain(q: &Question, [tp, pp, cp, ep, dp]: [u32; 5], micro_batch: u64) -> Layout {
    let divides = q.workload.seq.is_multiple_of(u64::from(tp) * u64::from(cp));
    Layout {
        tp,
        pp,
        vp: q.pins.vp.unwrap_or(1),
        cp,
        ep,
        dp,
        micro_batch,
        sharding: Sharding::None,
        sequence_parallel: q.pins.sequence_parallel.unwrap_or(tp > 1 && divides),
        recompute: Recompute::None,
    }
}

/// All state spread, all activations made again.
fn lean(q: &Question, shape: Layout) -> Layout {
    let alone = shape.dp == 1 && shape.cp == 1;
    let most = if alone { Sharding::None } else { Sharding::Zero3 };
    Layout {
        sharding: q.pins.sharding.unwrap_or(most),
        recompute: q.pins.recompute.unwrap_or(Recompute::Full),
        ..shape
    }
}

fn allowed(q: &Question, layout: &Layout, found: &mut Found) -> bool {
    match legal(q.arch, q.workload, q.cluster, layout) {
        Ok(()) => true,
        Err(illegal) => {
            found.illegal = Some(illegal);
            false
        }
    }
}

/// Times what fits of a shape. True where it is too large: larger micro-batches are too.
fn deepen(q: &Question, shape: Layout, whole: bool, found: &mut Found) -> bool {
    let lean = lean(q, shape);
    if !allowed(q, &lean, found) {
        return false;
    }
    let gb = q.memory_gb(&lean);
    found.note_lean(gb, lean);
    // What keeps the least of one layout may not be what keeps the least of another: gathered layers count.
    if gb > q.room() && !SHARDINGS.iter().any(|s| fits(q, &Layout { sharding: *s, ..lean })) {
        return true;
    }
    for vp in chunks(q, shape.pp) {
        let chunked = Layout { vp, ..shape };
        if vp == shape.vp || allowed(q, &chunked, found) {
            means(q, chunked, whole, found);
        }
    }
    false
}

fn fits(q: &Question, layout: &Layout) -> bool {
    q.memory_gb(layout) <= q.room()
}

/// Under each sharding the lightest recomputation that makes the layout fit. `whole`: weights are not sharded.
fn means(q: &Question, shape: Layout, whole: bool, found: &mut Found) {
    let alone = shape.dp == 1 && shape.cp == 1;
    let shardings = SHARDINGS.into_iter().filter(|s| match q.pins.sharding {
        Some(pinned) => pinned == *s,
        None if alone => *s == Sharding::None,
        None if whole => *s == Sharding::Zero1,
        None => *s != Sharding::None,
    });
    let pinned = q.pins.recompute;
    for sharding in shardings {
        for recompute in RECOMPUTES.into_iter().filter(|r| pinned.is_none_or(|p| p == *r)) {
            let layout = Layout { sharding, recompute, ..shape };
            found.considered += 1;
            if fits(q, &layout) {
                found.fitting += 1;
                found.timed.push((q.seconds(&layout), layout));
                break;
            }
        }
    }
}

fn divisors(n: u64) -> impl Iterator<Item = u64> {
    let small = (1..=n.isqrt()).filter(move |d| n.is_multiple_of(*d));
    let large = (1..=n.isqrt()).rev().filter(move |d| n.is_multiple_of(*d) && d * d != n);
    small.chain(large.map(move |d| n / d))
}

/// Over the heads, and inside of a node or an island: beyond them it is too slow to be worth a look.
fn tensor(q: &Question) -> Vec<u32> {
    if let Some(tp) = q.pins.tp {
        return vec![tp];
    }
    let near = q.cluster.gpus_per_node.max(q.cluster.island).min(q.cluster.gpus());
    divisors(u64::from(q.arch.heads)).map(|d| d as u32).filter(|d| *d <= near).collect()
}

fn context(q: &Question) -> Vec<u32> {
    if let Some(cp) = q.pins.cp {
        return vec![cp];
    }
    let most = if q.workload.seq > LONG { q.workload.seq / CONTEXT } else { 1 };
    let most = most.min(u64::from(q.cluster.gpus())).min(1 << 16) as u32;
    (0..=16).map(|i| 1 << i).filter(|c| *c <= most).collect()
}

/// Stages of equal depth, with the embedding or the head in the place of a layer if need be.
fn pipeline(q: &Question) -> Vec<u32> {
    if let Some(pp) = q.pins.pp {
        return vec![pp];
    }
    let most = q.arch.layers.min(q.cluster.gpus());
    (1..=most).filter(|pp| even(q.arch.layers, *pp)).collect()
}

fn even(layers: u32, parts: u32) -> bool {
    (0..=2).any(|places| (layers + places).is_multiple_of(parts))
}

fn chunks(q: &Question, pp: u32) -> Vec<u32> {
    match q.pins.vp {
        Some(vp) => vec![vp],
        None if pp == 1 => vec![1],
        None => {
            let most = (q.arch.layers / pp).min(MOST_CHUNKS);
            (1..=most.max(1)).filter(|vp| *vp == 1 || even(q.arch.layers, pp * vp)).collect()
        }
    }
}

/// What is left of the GPUs, all of them or, where some may idle, as many as the batch divides over.
fn data(q: &Question, rank: u64) -> Vec<u32> {
    let gpus = u64::from(q.cluster.gpus());
    match q.pins.dp {
        Some(dp) => return vec![dp],
        // A pin of 0, which the rules name.
        None if rank == 0 => return vec![1],
        None if rank > gpus => return Vec::new(),
        None => {}
    }
    let most = gpus / rank;
    if !q.fewer {
        let all = gpus.is_multiple_of(rank) && q.workload.global_batch.is_multiple_of(most);
        return if all { vec![most as u32] } else { Vec::new() };
    }
    let mut some: Vec<u32> =
        divisors(q.workload.global_batch).filter(|d| *d <= most).map(|d| d as u32).collect();
    if q.goal == super::Goal::Time {
        // More ranks are faster; the last few differ in how they fill nodes.
        some.drain(..some.len().saturating_sub(3));
    }
    some
}

fn experts(q: &Question, ranks: u64) -> Vec<u32> {
    match (q.pins.ep, q.arch.moe) {
        (Some(ep), _) => vec![ep],
        (None, None) => vec![1],
        (None, Some(moe)) => divisors(u64::from(moe.experts))
            .filter(|ep| ranks.is_multiple_of(*ep))
            .map(|ep| ep as u32)
            .collect(),
    }
}

fn micro_batches(q: &Question, dp: u32) -> Vec<u64> {
    let each = q.workload.global_batch / u64::from(dp.max(1));
    match q.pins.micro_batch {
        Some(pinned) => vec![pinned],
        None => {
            MICRO_BATCHES.into_iter().filter(|b| each.is_multiple_of(*b) && *b <= each).collect()
        }
    }
}
