//! A plan in the words of programs that run it: a job file, or the options of a trainer or server.
//!
//! Options are those of torchtitan 0.2 (the releases that read TOML), of Megatron-LM and DeepSpeed as of 2026, and of
//! `vllm serve`. What a program has no option for is refused, because a layout that is nearly the planned one
//! has another time and another memory.

mod deepspeed;
mod job;
mod megatron;
mod software;
#[cfg(test)]
mod tests;
mod torchtitan;
mod vllm;

pub use deepspeed::deepspeed;
pub use job::job;
pub use megatron::megatron;
pub use torchtitan::torchtitan;
pub use vllm::{Server, vllm};

use crate::{Arch, Cluster, Layout, Workload};

/// What is to be written down.
#[derive(Clone, Copy, Debug)]
pub struct Emit<'a> {
    /// A name that [`crate::names`] knows, or the path of a config.json.
    pub model: &'a str,
    pub arch: &'a Arch,
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    pub layout: &'a Layout,
    /// What job files call the GPU: `h100`.
    pub gpu: &'a str,
    pub step_time_s: f64,
    /// Of the fullest GPU, in GB of 2³⁰ bytes.
    pub memory_gb: f64,
}

impl Emit<'_> {
    /// Steps of the whole run, if it is known how long that is.
    fn steps(&self) -> Option<u64> {
        let per_step = self.workload.seq as f64 * self.workload.global_batch as f64;
        self.workload.tokens.map(|tokens| (tokens / per_step).ceil() as u64)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    pub text: String,
    /// What the text can't say and its reader must do, a sentence each.
    pub notes: Vec<String>,
}

/// A plan that a program has no words for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} can't do {what}: {instead}")]
pub struct CanNot {
    pub program: &'static str,
    pub what: String,
    pub instead: String,
}

impl CanNot {
    fn new(program: &'static str, what: impl Into<String>, instead: impl Into<String>) -> CanNot {
        CanNot { program, what: what.into(), instead: instead.into() }
    }
}

/// Quoted for TOML and JSON alike.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A line for a shell, one option each.
fn lines(first: &str, options: &[String]) -> String {
    let mut out = first.to_owned();
    for option in options {
        out.push_str(" \\\n  ");
        out.push_str(option);
    }
    out.push('\n');
    out
}
