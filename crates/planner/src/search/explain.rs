//! Why another layout is not the one.

use serde::Serialize;

use super::layouts::{self, Found};
use super::{Candidate, Goal, Question, best, by_score, candidate};
use crate::near::count;
use crate::words::{self, gb, more, seconds, thousands};
use crate::{Cluster, Layout, Part, Recompute, Sharding, legal};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunnerUp {
    pub candidate: Candidate,
    pub fits: bool,
    /// One sentence.
    pub loses: String,
}

const MOST: usize = 6;

/// A way to differ from the best.
struct Axis {
    /// Its value in a layout, as something to compare and as words.
    value: fn(&Layout) -> u64,
    words: fn(&Layout) -> String,
}

#[rustfmt::skip]
const AXES: [Axis; 9] = [
    Axis { value: |l| l.tp.into(), words: |l| format!("tp {}", l.tp) },
    Axis { value: |l| l.pp.into(), words: |l| format!("pp {}", l.pp) },
    Axis { value: |l| l.cp.into(), words: |l| format!("cp {}", l.cp) },
    Axis { value: |l| l.ep.into(), words: |l| format!("ep {}", l.ep) },
    Axis { value: |l| l.sharding as u64, words: |l| words::sharding(l.sharding).into() },
    Axis { value: |l| l.recompute as u64, words: |l| words::recompute(l.recompute).into() },
    Axis { value: |l| l.micro_batch, words: |l| format!("micro-batch {}", l.micro_batch) },
    Axis { value: |l| l.vp.into(), words: |l| format!("vp {}", l.vp) },
    Axis { value: |l| l.gpus().into(), words: |l| count(l.gpus().into(), "GPU") },
];

/// The best of each kind of difference, and near ones that would be simpler but do not fit.
pub(super) fn runners_up(q: &Question, best: &Candidate, found: &Found) -> Vec<RunnerUp> {
    let mut picked: Vec<(f64, Layout)> = Vec::new();
    for axis in AXES {
        let differs = |t: &&(f64, Layout)| (axis.value)(&t.1) != (axis.value)(&best.layout);
        let next = found.timed.iter().filter(differs).min_by(|a, b| by_score(q, a, b));
        picked.extend(next.filter(|n| !picked.iter().any(|p| p.1 == n.1)));
    }
    picked.sort_by(|a, b| by_score(q, a, b));
    let mut layouts: Vec<Layout> = picked.iter().take(MOST).map(|(_, layout)| *layout).collect();
    let fast = on_fast_links(q).filter(|l| *l != best.layout);
    for layout in [piped(q, &best.layout, found), fast].into_iter().flatten() {
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    let mut all: Vec<RunnerUp> = layouts.iter().map(|layout| slower(q, best, layout)).collect();
    if let Some(of_fast) = all.iter_mut().find(|r| Some(r.candidate.layout) == fast) {
        of_fast.loses.push_str(&links(q, &of_fast.candidate));
    }
    all.extend(too_large(q, &best.layout));
    all
}

/// The best with a pipeline where the best of all has none, and without one where it has.
fn piped(q: &Question, best: &Layout, found: &Found) -> Option<Layout> {
    let other = |found: &Found| {
        let unlike = found.timed.iter().filter(|t| (t.1.pp > 1) != (best.pp > 1));
        unlike.min_by(|a, b| by_score(q, a, b)).map(|(_, layout)| *layout)
    };
    // What is preferred for adapters was looked at alone.
    other(found).or_else(|| other(&layouts::whatever(q)))
}

/// The same with links between nodes as fast as inside of them, where there are nodes and such links.
fn even(q: &Question) -> Option<Cluster> {
    let Cluster { island_gbps, island_busbw, .. } = *q.cluster;
    let slow = q.cluster.gpus() > q.cluster.island.max(q.cluster.gpus_per_node)
        && q.cluster.nic_gbps < 8.0 * island_gbps;
    slow.then(|| Cluster {
        nic_gbps: 8.0 * island_gbps,
        nic_busbw: island_busbw,
        ..q.cluster.clone()
    })
}

/// What would be chosen with such links.
fn on_fast_links(q: &Question) -> Option<Layout> {
    let cluster = even(q)?;
    best(&Question { cluster: &cluster, ..*q })
}

/// The exchange that slow links make longest.
fn links(q: &Question, slow: &Candidate) -> String {
    let Some(cluster) = even(q) else { return String::new() };
    let fast = candidate(&Question { cluster: &cluster, ..*q }, &slow.layout);
    let (part, here, there) = longest(&fast, slow);
    format!(
        "; chosen on links between nodes that are as fast as inside of them, but on these {} {} instead of {}",
        words::part(part),
        seconds(here),
        seconds(there)
    )
}

fn differences(a: &Layout, b: &Layout) -> (String, String) {
    let axes = || AXES.iter().take(8).filter(|x| (x.value)(a) != (x.value)(b));
    let words = |l: &Layout| match axes().count() {
        0 => format!("dp {}", l.dp),
        _ => axes().map(|x| (x.words)(l)).collect::<Vec<_>>().join(", "),
    };
    (words(a), words(b))
}

fn slower(q: &Question, best: &Candidate, layout: &Layout) -> RunnerUp {
    let other = candidate(q, layout);
    let (theirs, ours) = differences(layout, &best.layout);
    let (verdict, worse) = verdict(q, best, &other);
    let why = if worse { parts(best, &other) } else { String::new() };
    let idle = match (best.gpus, other.gpus) {
        (b, o) if b != o => {
            format!(" on {} instead of {}", count(o.into(), "GPU"), thousands(b.into()))
        }
        _ => String::new(),
    };
    let loses = format!("{theirs} instead of {ours}{idle}: {verdict}{why}");
    RunnerUp { candidate: other, fits: true, loses }
}

/// In words, and whether it is worse at all.
fn verdict(q: &Question, best: &Candidate, other: &Candidate) -> (String, bool) {
    let (word, unlike, ratio) = match q.goal {
        Goal::Time => {
            ("slower", "faster", other.estimate.time.total() / best.estimate.time.total())
        }
        Goal::Money => {
            let spent = |c: &Candidate| c.estimate.time.total() * f64::from(c.gpus);
            ("dearer", "cheaper", spent(other) / spent(best))
        }
    };
    let filled = other.estimate.memory.total() / q.room();
    let but = match q.roomy(&other.layout) {
        true => "but less simple".to_owned(),
        false => format!("but fills {:.1} % of the memory", 100.0 * filled),
    };
    match ratio {
        r if r > 1.0005 => (format!("{} {word}", more(r)), true),
        r if r < 0.9995 => (format!("{} {unlike}, {but}", more(1.0 / r)), false),
        _ => (format!("as good, {but}"), false),
    }
}

/// The part that it loses the most with.
fn parts(best: &Candidate, other: &Candidate) -> String {
    match longest(best, other) {
        (part, theirs, ours) if theirs - ours > 0.002 * best.estimate.time.total() => {
            format!("; {} {} instead of {}", words::part(part), seconds(theirs), seconds(ours))
        }
        _ => String::new(),
    }
}

/// The part that takes the most longer in the second, with its seconds there and in the first.
fn longest(than: &Candidate, c: &Candidate) -> (Part, f64, f64) {
    let of = |c: &Candidate, part| {
        let parts = c.estimate.time.parts.iter();
        parts.filter(|(p, _)| *p == part).map(|(_, s)| s).sum::<f64>()
    };
    let lost = c.estimate.time.parts.iter().map(|(p, s)| (*p, *s, of(than, *p)));
    let worst = lost.max_by(|a, b| (a.1 - a.2).total_cmp(&(b.1 - b.2)));
    worst.unwrap_or((Part::Overhead, 0.0, 0.0))
}

/// One step simpler in one way, where that is more than the memory takes.
fn too_large(q: &Question, best: &Layout) -> Vec<RunnerUp> {
    let lighter = match best.sharding {
        Sharding::Zero3 => Some(Sharding::Zero2),
        Sharding::Zero2 => Some(Sharding::Zero1),
        Sharding::Zero1 | Sharding::None => None,
    };
    let less = match best.recompute {
        Recompute::Full => Some(Recompute::Selective),
        Recompute::Selective => Some(Recompute::None),
        Recompute::None => None,
    };
    let half =
        best.tp.is_multiple_of(2).then(|| Layout { tp: best.tp / 2, dp: best.dp * 2, ..*best });
    let single = best.pp.is_multiple_of(2).then(|| Layout {
        pp: best.pp / 2,
        dp: best.dp * 2,
        vp: 1,
        ..*best
    });
    // Not even with all that makes it smaller: the reason for splitting at all.
    let whole = (best.tp > 1).then(|| Layout {
        tp: 1,
        dp: best.dp * best.tp,
        micro_batch: 1,
        recompute: Recompute::Full,
        sequence_parallel: false,
        ..*best
    });
    let simpler = [
        lighter.map(|sharding| Layout { sharding, ..*best }),
        less.map(|recompute| Layout { recompute, ..*best }),
        half,
        single,
        whole,
    ];
    let runs = |l: &Layout| legal(q.arch, q.workload, q.cluster, l).is_ok();
    simpler
        .into_iter()
        .flatten()
        .filter(|l| runs(l) && q.memory_gb(l) > q.room())
        .map(|layout| {
            let other = candidate(q, &layout);
            let (theirs, ours) = differences(&layout, best);
            let needs = gb(other.estimate.memory.total());
            let room = gb(q.room());
            let loses =
                format!("{theirs} instead of {ours}: does not fit, {needs} on a GPU that has room for {room}");
            RunnerUp { candidate: other, fits: false, loses }
        })
        .collect()
}
