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
