//! What is due, and in which order within one moment.

use std::collections::BTreeSet;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tutti_model::{LeaseId, NodeId, Span, Time};

/// Ends come first, so that what they free is there for those who arrive in the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Finish(LeaseId),
    Repaired(NodeId),
    Saved(LeaseId),
    Fails(NodeId),
    /// By its place in the options.
    Incident(usize),
    Heartbeat,
    /// The controller looks who is missing.
    Look,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    due: BTreeSet<(Time, Due)>,
}

impl Agenda {
    pub fn add(&mut self, at: Time, due: Due) {
        self.due.insert((at, due));
    }
    pub fn remove(&mut self, at: Time, due: Due) {
        self.due.remove(&(at, due));
    }
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }
    /// Nothing will happen but that agents speak up.
    pub fn is_quiet(&self) -> bool {
        self.due.iter().all(|(_, due)| *due == Due::Heartbeat)
    }
    pub fn pop(&mut self, now: Time) -> Option<Due> {
        if self.next()? > now { None } else { self.due.pop_first().map(|(_, due)| due) }
    }
}

/// When nodes fail. Each has a stream of its own, so that a node more changes nothing for others.
pub(super) struct Chance {
    streams: Vec<ChaCha8Rng>,
    mean_ms: f64,
}

const DAY_MS: f64 = 86_400_000.0;

impl Chance {
    pub fn new(seed: u64, nodes: usize, per_1000_node_days: f64) -> Chance {
        let stream = |n| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(n);
            rng
        };
        let streams = (0..nodes as u64).map(stream).collect();
        Chance { streams, mean_ms: 1000.0 * DAY_MS / per_1000_node_days }
    }

    /// How long this node lasts from now.
    pub fn next(&mut self, node: NodeId) -> Option<Span> {
        let rng = self.streams.get_mut(node.0.checked_sub(1)? as usize)?;
        let unit: f64 = rng.random();
        let ms = -(1.0 - unit).ln() * self.mean_ms;
        (self.mean_ms.is_finite() && ms < 1e15).then(|| Span(ms as u64 + 1))
    }
}
