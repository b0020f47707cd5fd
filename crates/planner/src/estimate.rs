//! What a layout costs: memory of the fullest rank, time of a step.

use serde::Serialize;

use crate::{Arch, Cluster, Layout, Stack, Workload, memory, step_time};

/// Everything that an estimate depends on.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub arch: &'a Arch,
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    pub layout: &'a Layout,
    pub stack: Stack,
}

/// Of the fullest rank, in GB of 2³⁰ bytes, as the memory of GPUs is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    pub weights: f64,
    pub gradients: f64,
    pub optimizer: f64,
    pub activations: f64,
    pub logits: f64,
    /// CUDA context, NCCL, workspaces, layers that are gathered.
    pub buffers: f64,
    pub fragmentation: f64,
}

impl Memory {
    pub fn total(&self) -> f64 {
        self.parts().iter().map(|(_, gb)| gb).sum()
    }

    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("buffers", self.buffers),
            ("fragmentation", self.fragmentation),
        ]
    }
}

/// Where the time of a step goes. What is hidden behind other work is in none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Matrix products of attention projections and MLPs.
    Gemm,
    /// Core attention.
    Attention,
    /// Embedding, vocabulary head and loss.
    Head,
    /// What is bound by memory: norms, activations, residuals, dropout.
    Elementwise,
    /// Done again in the backward pass.
    Recompute,
    TensorParallel,
    ContextParallel,
    ExpertParallel,
    PipelineTransfers,
    /// Waiting for the first and the last micro-batch.
    Bubble,
    /// Gradients and sharded weights that no computation hides.
    DataParallel,
    Optimizer,
    /// Launches, the host, data, stragglers.
    Overhead,
}

/// Seconds of one step. The parts add up to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    pub parts: Vec<(Part, f64)>,
}

impl StepTime {
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|(_, s)| s).sum()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub memory: Memory,
    pub time: StepTime,
}

/// What a layout costs, whether it fits or not.
pub fn estimate(setup: &Setup) -> Estimate {
    Estimate { memory: memory(setup), time: step_time(setup) }
}
