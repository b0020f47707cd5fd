//! Which algorithm to use: a model of what each costs on the links there are.

use std::fmt;
use std::str::FromStr;

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Every rank passes parts on to its right. The least traffic; many steps.
    Ring,
    /// Halve the vector with ever nearer partners, then put it together again. Few steps; short
    /// vectors are exchanged whole. Any number of ranks.
    Halving,
    /// Up a binomial tree to rank 0 and down again. The fewest messages.
    Tree,
    /// Reduce inside each node, exchange between nodes, spread inside.
    Hierarchical,
    /// Through shared memory: every rank reduces its part of everybody's buffer. One node only.
    Direct,
}

impl Algorithm {
    pub const ALL: [Self; 5] =
        [Self::Ring, Self::Halving, Self::Tree, Self::Hierarchical, Self::Direct];
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Halving => "halving",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
            Self::Direct => "direct",
        })
    }
}

/// The name is none of the algorithms'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no algorithm {0:?}: ring, halving, tree, hierarchical or direct")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(s: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL
            .into_iter()
            .find(|a| a.to_string() == s)
            .ok_or_else(|| UnknownAlgorithm(s.to_owned()))
    }
}

/// How the algorithm of an operation is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The cheapest on the links as they were measured when the world was connected. Two runs may
    /// choose differently, and the last bits of their sums differ then.
    Measured,
    /// The cheapest on usual links: a function of the size and of how the ranks lie on nodes, so
    /// that every run of the same layout gives the same bits.
    Fixed,
    /// Always this one.
    Only(Algorithm),
}

impl Choice {
    pub(crate) fn only(self) -> Option<Algorithm> {
        match self {
            Self::Only(algorithm) => Some(algorithm),
            Self::Measured | Self::Fixed => None,
        }
    }

    /// What the cost model reckons with.
    pub(crate) fn links(self, measured: Links) -> Links {
        match self {
            Self::Fixed => Links::default(),
            Self::Measured | Self::Only(_) => measured,
        }
    }
}

impl FromStr for Choice {
    type Err = UnknownAlgorithm;

    fn from_str(s: &str) -> Result<Self, UnknownAlgorithm> {
        match s {
            "auto" => Ok(Self::Measured),
            "fixed" => Ok(Self::Fixed),
            name => name.parse().map(Self::Only),
        }
    }
}

/// What one message between two ranks costs: `latency + bytes * per_byte`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    pub latency: f64,
    pub per_byte: f64,
}

/// The links of a world, as measured when it was connected: the slowest of each kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Through shared memory.
    pub local: LinkCost,
    /// Over TCP.
    pub remote: LinkCost,
}

impl Default for Links {
    /// Usual figures, for a world that has no links to measure, and for [`Choice::Fixed`]: they
    /// must stay as they are, or a run goes on with other last bits after an upgrade.
    fn default() -> Self {
        Self {
            local: LinkCost { latency: 1e-6, per_byte: 1.0 / 8e9 },
            remote: LinkCost { latency: 20e-6, per_byte: 1.0 / 2e9 },
        }
    }
}

/// How the members of a group lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub members: usize,
    pub nodes: usize,
    /// Members of the smallest node.
    pub rails: usize,
}

/// The cheapest way to an all-reduce. All members have the same figures, so all choose alike.
pub(crate) fn choose(layout: Layout, bytes: usize, links: Links) -> Algorithm {
    if layout.members == 1 {
        return Algorithm::Ring;
    }
    if layout.nodes == 1 {
        // Nothing else comes near: it reads and writes the memory once.
        return Algorithm::Direct;
    }
    let cost = |a: Algorithm| cost(a, layout, bytes, links);
    let mut best = Algorithm::Ring;
    for other in [Algorithm::Halving, Algorithm::Tree, Algorithm::Hierarchical] {
        let sensible = other != Algorithm::Hierarchical || layout.members > layout.nodes;
        if sensible && cost(other) < cost(best) {
            best = other;
        }
    }
    best
}

/// Seconds that an all-reduce over several nodes is expected to take.
fn cost(algorithm: Algorithm, layout: Layout, bytes: usize, links: Links) -> f64 {
    let Layout { members, nodes, rails } = layout;
    // Members of one node that talk to others at the same time share its way out.
    let crowd = members.div_ceil(nodes) as f64;
    match algorithm {
        // Neighbours in the ring are mostly on one node: one flow out of each.
        Algorithm::Ring => ring(members, bytes as f64, links.remote, 1.0),
        Algorithm::Halving => halving(members, bytes as f64, links.remote, crowd),
        Algorithm::Tree => {
            let levels = f64::from(members.next_power_of_two().ilog2());
            2.0 * levels * (links.remote.latency + bytes as f64 * links.remote.per_byte)
        }
        Algorithm::Hierarchical => {
            let inside = 4.0 * links.local.latency + 2.0 * bytes as f64 * links.local.per_byte;
            let part = bytes as f64 / rails as f64;
            let flows = rails as f64;
            let across = ring(nodes, part, links.remote, flows).min(halving(
                nodes,
                part,
                links.remote,
                flows,
            ));
            inside + across
        }
        Algorithm::Direct => f64::INFINITY,
    }
}

fn ring(n: usize, bytes: f64, link: LinkCost, flows: f64) -> f64 {
    let steps = 2.0 * (n - 1) as f64;
    steps * link.latency + steps / n as f64 * bytes * link.per_byte * flows
}

fn halving(n: usize, bytes: f64, link: LinkCost, flows: f64) -> f64 {
    let levels = f64::from(n.ilog2());
    let team = f64::from(1u32 << n.ilog2());
    let per_byte = link.per_byte * flows;
    let fold = if n.is_power_of_two() { 0.0 } else { 2.0 * (link.latency + bytes * link.per_byte) };
    let whole = levels * (link.latency + bytes * per_byte);
    let halves = 2.0 * levels * link.latency + 2.0 * (team - 1.0) / team * bytes * per_byte;
    fold + if bytes <= crate::algo::halving::WHOLE as f64 { whole } else { halves }
}

#[cfg(test)]
mod tests;
