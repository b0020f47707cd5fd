//! Which part of the work each rank has: DP x TP x PP.
//!
//! ```text
//! rank = (pipeline * dp + data) * tp + tensor       tensor ranks are neighbours, inside a node
//! ```

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{ConfigError, TrainConfig, divides};

#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    #[error(
        "--dp {dp} x --tp {tp} x --pp {pp} is {product} ranks, but the gang has {world}: the product must be {world}"
    )]
    NotTheWorld { dp: usize, tp: usize, pp: usize, product: usize, world: usize },
    #[error("--tp {tp} x --pp {pp} does not divide the {world} ranks of the gang")]
    NoRoomForData { tp: usize, pp: usize, world: usize },
    #[error("--pp {pp} is more stages than --layers {layers}: each stage needs a layer")]
    TooManyStages { pp: usize, layers: usize },
    #[error("--stages {stages} names {given} stages, but --pp is {pp}")]
    StageCount { stages: String, given: usize, pp: usize },
    #[error("--stages {stages} adds up to {sum} layers, but --layers is {layers}")]
    StageSum { stages: String, sum: usize, layers: usize },
    #[error("--stages {stages}: each stage needs a layer")]
    EmptyStage { stages: String },
    #[error(
        "--kv-heads {kv_heads} and --tp {tp}: one must divide the other, so that each rank has whole heads"
    )]
    KvHeads { kv_heads: usize, tp: usize },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// How the ranks divide the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub dp: usize,
    pub tp: usize,
    pub pp: usize,
    /// ZeRO-1: each data rank keeps the optimiser's state of its part alone.
    pub zero: bool,
    /// Layers of each stage.
    pub stages: Vec<usize>,
}

/// Where one rank is in the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub data: usize,
    pub tensor: usize,
    pub pipe: usize,
}

impl Layout {
    /// `dp` is what is left of the world when it is not given; `stages` is even when not given.
    pub fn new(
        world: usize,
        (dp, tp, pp): (Option<usize>, usize, usize),
        zero: bool,
        stages: Option<Vec<usize>>,
        config: &TrainConfig,
    ) -> Result<Self, LayoutError> {
        for (name, value) in [("dp", dp.unwrap_or(1)), ("tp", tp), ("pp", pp)] {
            if value == 0 {
                return Err(ConfigError::Zero { name }.into());
            }
        }
        let dp = match dp {
            Some(dp) => dp,
            None if world.is_multiple_of(tp * pp) => world / (tp * pp),
            None => return Err(LayoutError::NoRoomForData { tp, pp, world }),
        };
        let product = dp * tp * pp;
        if product != world {
            return Err(LayoutError::NotTheWorld { dp, tp, pp, product, world });
        }
        let stages = stages_of(config.model.layers, pp, stages)?;
        let layout = Layout { dp, tp, pp, zero, stages };
        layout.fits(config)?;
        Ok(layout)
    }

    fn fits(&self, config: &TrainConfig) -> Result<(), LayoutError> {
        let (tp, model) = (self.tp, &config.model);
        divides(("heads", model.heads), ("tp", tp))?;
        divides(("ffn", model.ffn), ("tp", tp))?;
        if !model.kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(model.kv_heads) {
            return Err(LayoutError::KvHeads { kv_heads: model.kv_heads, tp });
        }
        divides(("batch", config.batch), ("dp", self.dp))?;
        divides(("batch", config.batch / self.dp), ("micro-batch", config.micro_batch))?;
        Ok(())
    }

    pub fn world(&self) -> usize {
        self.dp * self.tp * self.pp
    }

    pub fn place(&self, rank: usize) -> Place {
        Place {
            tensor: rank % self.tp,
            data: rank / self.tp % self.dp,
            pipe: rank / (self.tp * self.dp),
        }
    }

    pub fn rank(&self, place: Place) -> usize {
        (place.pipe * self.dp + place.data) * self.tp + place.tensor
    }

    /// Layers of stage `pipe`.
    pub fn layers(&self, pipe: usize) -> Range<usize> {
        let start = self.stages[..pipe].iter().sum();
        start..start + self.stages[pipe]
    }

    pub fn micro_batches(&self, config: &TrainConfig) -> usize {
        config.batch / self.dp / config.micro_batch
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zero = if self.zero { ", ZeRO-1" } else { "" };
        write!(f, "DP {} x TP {} x PP {}{zero}", self.dp, self.tp, self.pp)
    }
}

fn stages_of(
    layers: usize,
    pp: usize,
    given: Option<Vec<usize>>,
) -> Result<Vec<usize>, LayoutError> {
    let Some(given) = given else {
        if pp > layers {
            return Err(LayoutError::TooManyStages { pp, layers });
        }
        // The last stage also has the head, the first the embedding: the middle takes what is left.
        let mut stages = vec![layers / pp; pp];
        for extra in 0..layers % pp {
            stages[(pp / 2 + extra) % pp] += 1;
        }
        return Ok(stages);
    };
    let stages = given.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if given.len() != pp {
        return Err(LayoutError::StageCount { stages, given: given.len(), pp });
    }
    if given.contains(&0) {
        return Err(LayoutError::EmptyStage { stages });
    }
    let sum = given.iter().sum();
    if sum != layers {
        return Err(LayoutError::StageSum { stages, sum, layers });
    }
    Ok(given)
}

#[cfg(test)]
mod tests;
