//! Measures the links and ranks of a group, as operators do before they trust new nodes.
//!
//! Every rank takes part and gets the whole result; [`judge`] says what is slow in it.

mod judge;

use std::time::Instant;

use crate::element::Op;
use crate::error::Result;
use crate::group::Group;

pub use judge::{Domain, Figures, Judgement, Place, Slow, What, judge, median};

/// One pair of ranks, measured in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub a: usize,
    pub b: usize,
    /// Seconds for a small message, one way.
    pub latency: f64,
    /// Bytes per second of a large one, each way.
    pub bandwidth: f64,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes, and the median of the slowest rank's seconds.
    pub all_reduce: Vec<(usize, f64)>,
    pub pairs: Vec<Pair>,
    /// Bytes per second that each rank copies in its own memory.
    pub copy: Vec<f64>,
}

/// How much to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Bytes of each all-reduce.
    pub sizes: Vec<usize>,
    /// Bytes of the large message between two ranks.
    pub message: usize,
    pub rounds: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { sizes: vec![1 << 10, 64 << 10, 1 << 20, 16 << 20], message: 4 << 20, rounds: 5 }
    }
}

/// Measures the group. All members call it with the same effort.
pub fn run(group: &Group, effort: &Effort) -> Result<Measured> {
    let n = group.size();
    let mut mine = vec![0.0; 1 + 2 * n];
    mine[0] = copy_speed(effort.message);
    for round in 0..n.next_multiple_of(2).saturating_sub(1) {
        group.barrier()?;
        if let Some(peer) = partner(n, group.rank(), round) {
            let (latency, bandwidth) = meet(group, peer, effort)?;
            mine[1 + 2 * peer] = latency;
            mine[2 + 2 * peer] = bandwidth;
        }
    }
    let all_reduce = effort
        .sizes
        .iter()
        .map(|bytes| Ok((*bytes, time_all_reduce(group, *bytes, effort.rounds)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut all = vec![0.0; n * mine.len()];
    group.all_gather(&mine, &mut all)?;
    let of = |rank: usize| &all[rank * mine.len()..(rank + 1) * mine.len()];
    let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).map(|(a, b)| Pair {
        a,
        b,
        latency: f64::midpoint(of(a)[1 + 2 * b], of(b)[1 + 2 * a]),
        bandwidth: of(a)[2 + 2 * b].min(of(b)[2 + 2 * a]),
    });
    Ok(Measured { all_reduce, pairs: pairs.collect(), copy: (0..n).map(|r| of(r)[0]).collect() })
}

/// Whom a member meets in a round, so that after all rounds each has met each once: one stays in
/// its seat, the others move round it. With an odd number somebody pauses.
fn partner(n: usize, me: usize, round: usize) -> Option<usize> {
    let seats = n.next_multiple_of(2);
    let ring = seats - 1;
    let peer = if me == ring {
        // The one that sits still meets whoever would meet itself.
        (0..ring).find(|m| (2 * m) % ring == round % ring)?
    } else {
        match (round + ring - me % ring) % ring {
            p if p == me => ring,
            p => p,
        }
    };
    (peer < n).then_some(peer)
}

const LATENCY: u64 = 0;
const BANDWIDTH: u64 = 1;

fn meet(group: &Group, peer: usize, effort: &Effort) -> Result<(f64, f64)> {
    let first = group.rank() < peer;
    let mut note = [0u8; 8];
    let mut latency = f64::INFINITY;
    for _ in 0..effort.rounds * 4 {
        let start = Instant::now();
        if first {
            group.send(&note, peer, LATENCY)?;
            group.recv(&mut note, peer, LATENCY)?;
        } else {
            group.recv(&mut note, peer, LATENCY)?;
            group.send(&note, peer, LATENCY)?;
        }
        latency = latency.min(start.elapsed().as_secs_f64() / 2.0);
    }
    let (mut out, mut into) = (vec![1u8; effort.message], vec![0u8; effort.message]);
    let mut best = f64::INFINITY;
    for _ in 0..effort.rounds {
        let start = Instant::now();
        let sent = group.start_send(out, peer, BANDWIDTH);
        group.recv(&mut into, peer, BANDWIDTH)?;
        out = sent.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((latency, effort.message as f64 / best))
}

fn time_all_reduce(group: &Group, bytes: usize, rounds: usize) -> Result<f64> {
    let mut x = vec![1f32; bytes.div_ceil(4)];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..=rounds {
        group.barrier()?;
        let start = Instant::now();
        group.all_reduce(&mut x, Op::Mean)?;
        let mut seconds = [start.elapsed().as_secs_f64()];
        group.all_reduce(&mut seconds, Op::Max)?;
        times.push(seconds[0]);
    }
    // The first one connects.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn copy_speed(bytes: usize) -> f64 {
    let (from, mut into) = (vec![1u8; bytes], vec![0u8; bytes]);
    let time = || {
        let start = Instant::now();
        into.copy_from_slice(&from);
        std::hint::black_box(&into);
        start.elapsed().as_secs_f64()
    };
    let best = std::iter::repeat_with(time).take(8).fold(f64::INFINITY, f64::min);
    bytes as f64 / best
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everybody_meets_everybody_once() {
        for n in 2..=9usize {
            let mut met = BTreeSet::new();
            for round in 0..n.next_multiple_of(2) - 1 {
                for me in 0..n {
                    let Some(peer) = partner(n, me, round) else { continue };
                    assert_ne!(peer, me);
                    assert_eq!(partner(n, peer, round), Some(me), "n={n} round={round}");
                    if me < peer {
                        assert!(met.insert((me, peer)), "n={n}: {me} meets {peer} twice");
                    }
                }
            }
            assert_eq!(met.len(), n * (n - 1) / 2, "n={n}");
        }
    }
}
