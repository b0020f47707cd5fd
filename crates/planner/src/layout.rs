//! How the work is split.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// Every data-parallel rank has everything.
    None,
    /// Optimiser states are spread.
    Zero1,
    /// And gradients.
    Zero2,
    /// And weights (FSDP).
    Zero3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    None,
    /// What is large beside the time that it takes to make it again. Which parts that are differs by trainer.
    Selective,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Layout {
    pub tp: u32,
    pub pp: u32,
    /// Model chunks on each pipeline rank (interleaved 1F1B); 1: plain 1F1B.
    pub vp: u32,
    pub cp: u32,
    /// Divides `tp × cp × dp`: experts are spread, each of them whole, over ranks that share the rest.
    pub ep: u32,
    pub dp: u32,
    /// Sequences.
    pub micro_batch: u64,
    pub sharding: Sharding,
    pub sequence_parallel: bool,
    pub recompute: Recompute,
}

impl Layout {
    /// GPUs that it needs. No cluster has more than a `u32` counts, so a larger number is as good as the largest.
    pub fn gpus(&self) -> u32 {
        u32::try_from(self.ranks()).unwrap_or(u32::MAX)
    }

    /// The same of layouts that nobody could run.
    pub fn ranks(&self) -> u64 {
        [self.tp, self.pp, self.cp, self.dp]
            .iter()
            .fold(1, |all: u64, n| all.saturating_mul(u64::from(*n)))
    }

    /// Micro-batches that pass each pipeline in a step.
    pub fn micro_batches(&self, global_batch: u64) -> u64 {
        let group = u64::from(self.dp).saturating_mul(self.micro_batch).max(1);
        (global_batch / group).max(1)
    }
}
