//! When a simulation gives up: a job that nodes fail under again and again would run for ever.
//!
//! A gang of 64 nodes that starts from scratch after every failure and needs 30 days ends about
//! never if a node fails every day. Nobody would let it try a thousand years, and no simulation can.

use tutti_model::{Demand, Node, Spread};

/// A job is given up once failures of nodes cost it so many times its own run time,
const LOST_MAX: f64 = 100.0;
/// or so many failures in a row brought it nothing,
const IN_VAIN_MAX: u32 = 1000;
/// or it had so many in all.
const FAILURES_MAX: u32 = 10_000;

/// What failures of nodes did to a job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Setbacks {
    lost_ms: f64,
    failures: u32,
    in_vain: u32,
}

impl Setbacks {
    /// One more. `gained`: the job has more work behind it, safely, than before the attempt.
    pub fn note(&mut self, lost_ms: f64, gained: bool) {
        self.lost_ms += lost_ms;
        self.failures += 1;
        self.in_vain = if gained { 0 } else { self.in_vain + 1 };
    }

    pub fn hopeless(&self, run_ms: f64) -> bool {
        self.in_vain >= IN_VAIN_MAX
            || self.failures >= FAILURES_MAX
            || self.lost_ms > LOST_MAX * run_ms.max(1.0)
    }
}

/// So many failures without a single start, while nothing runs and nothing comes, show that what
/// waits does not wait for a repair, or never sees enough nodes at once.
pub(super) fn idle_failures_max(nodes: usize) -> u64 {
    1000 + 20 * nodes as u64
}

/// Whether the nodes that are up are as many and as large as this needs.
pub(super) fn enough_up<'n>(demand: &Demand, nodes: impl Iterator<Item = &'n Node>) -> bool {
    let up = nodes.filter(|n| n.drain.is_none()).map(|n| n.facts.gpus.len() as u64);
    match demand.spread {
        Spread::Nodes { nodes, gpus_each } => {
            let wanted = demand.least_nodes.unwrap_or(nodes) as usize;
            up.filter(|gpus| *gpus >= u64::from(gpus_each)).count() >= wanted
        }
        Spread::Gpus { total } => up.sum::<u64>() >= u64::from(total),
    }
}
