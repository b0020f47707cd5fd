//! What is done with the model.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    Pretrain,
    /// All weights are trained on.
    Finetune,
    /// Weights are frozen; small adapters of this rank are trained.
    Lora {
        rank: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Fp16,
    Bf16,
    /// One scale per tensor.
    Fp8,
    /// One scale per 32 values.
    Mxfp8,
    Nvfp4,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    pub task: Task,
    pub precision: Precision,
    /// Tokens of one sequence.
    pub seq: u64,
    /// Sequences of one step, all GPUs together.
    pub global_batch: u64,
    /// Of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<f64>,
}
