//! What is trained, and how: sizes of the model, the batch, the optimiser. Checked once, here.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Tokens are bytes.
pub const VOCAB: usize = 256;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("--{name} must be at least 1")]
    Zero { name: &'static str },
    #[error("--{divisor_name} {divisor} does not divide --{name} {value}: choose a multiple")]
    DoesNotDivide { name: &'static str, value: usize, divisor_name: &'static str, divisor: usize },
    #[error(
        "--dim {dim} over --heads {heads} gives heads of {head} numbers; rotary positions turn pairs, so the size must be even"
    )]
    OddHead { dim: usize, heads: usize, head: usize },
    #[error("--device {device} has no bf16 arithmetic: use --dtype f32, or another device")]
    NoBf16 { device: &'static str },
    #[error(
        "this binary was built without CUDA: build it with `--features cuda`, or use --device cpu"
    )]
    NoCuda,
}

/// Precision of the matrices in the forward and backward pass. Weights, moments and the residual
/// stream are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    F32,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    Cpu,
    Cuda,
}

/// The transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    pub layers: usize,
    pub dim: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub ffn: usize,
    /// The head is the embedding, transposed.
    pub tied: bool,
}

impl ModelConfig {
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads
    }

    /// Numbers to learn, without padding.
    pub fn parameters(&self) -> usize {
        let attention = 2 * self.dim * self.dim + 2 * self.dim * self.kv_heads * self.head_dim();
        let layer = attention + 3 * self.dim * self.ffn + 2 * self.dim;
        let ends = if self.tied { 1 } else { 2 };
        self.layers * layer + ends * VOCAB * self.dim + self.dim
    }

    pub fn check(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("layers", self.layers),
            ("dim", self.dim),
            ("heads", self.heads),
            ("kv-heads", self.kv_heads),
            ("ffn", self.ffn),
        ];
        for (name, value) in sizes {
            at_least_one(name, value)?;
        }
        divides(("dim", self.dim), ("heads", self.heads))?;
        divides(("heads", self.heads), ("kv-heads", self.kv_heads))?;
        if !self.head_dim().is_multiple_of(2) {
            return Err(ConfigError::OddHead {
                dim: self.dim,
                heads: self.heads,
                head: self.head_dim(),
            });
        }
        Ok(())
    }
}

/// AdamW, its schedule, and clipping.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimConfig {
    pub lr: f64,
    /// The cosine ends at this part of `lr`.
    pub lr_floor: f64,
    pub warmup: u64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Largest norm of all gradients together; 0 is no clipping.
    pub clip: f64,
}

impl Default for OptimConfig {
    fn default() -> Self {
        OptimConfig {
            lr: 3e-3,
            lr_floor: 0.1,
            warmup: 10,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    pub model: ModelConfig,
    pub optim: OptimConfig,
    pub steps: u64,
    /// Sequences in one step, over all ranks.
    pub batch: usize,
    /// Sequences that one rank holds at a time.
    pub micro_batch: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    pub seed: u64,
    pub precision: Precision,
    /// Keep only the input of each layer and run it again for its gradients.
    pub recompute: bool,
    /// Gradients are exchanged in pieces of about this many bytes.
    pub bucket_bytes: usize,
}

impl TrainConfig {
    pub fn check(&self) -> Result<(), ConfigError> {
        self.model.check()?;
        at_least_one("batch", self.batch)?;
        at_least_one("micro-batch", self.micro_batch)?;
        at_least_one("seq", self.seq)
    }

    pub fn tokens_per_step(&self) -> u64 {
        (self.batch * self.seq) as u64
    }
}

pub(crate) fn divides(
    (name, value): (&'static str, usize),
    (divisor_name, divisor): (&'static str, usize),
) -> Result<(), ConfigError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ConfigError::DoesNotDivide { name, value, divisor_name, divisor })
}

fn at_least_one(name: &'static str, value: usize) -> Result<(), ConfigError> {
    if value == 0 { Err(ConfigError::Zero { name }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelConfig {
        ModelConfig { layers: 2, dim: 64, heads: 4, kv_heads: 2, ffn: 128, tied: true }
    }

    #[test]
    fn the_error_says_which_number_does_not_divide_which() {
        let error = ModelConfig { heads: 5, ..model() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--heads 5 does not divide --dim 64: choose a multiple");
        let error = ModelConfig { kv_heads: 3, ..model() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--kv-heads 3 does not divide --heads 4: choose a multiple");
        let error = ModelConfig { dim: 12, ..model() }.check().unwrap_err();
        assert!(error.to_string().contains("heads of 3 numbers"), "{error}");
        let error = ModelConfig { ffn: 0, ..model() }.check().unwrap_err();
        assert_eq!(error.to_string(), "--ffn must be at least 1");
    }

    #[test]
    fn parameters_are_counted_once_when_the_head_is_tied() {
        let tied = model().parameters();
        let untied = ModelConfig { tied: false, ..model() }.parameters();
        assert_eq!(untied - tied, VOCAB * 64);
    }
}
