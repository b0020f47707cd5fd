//! `tutti bench-gpu-rank`: one node of a measurement. Writes the result down, in lines that a log holds.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tutti_gpu::cuda::CudaError;
use tutti_gpu::speed::{self, Speed};
use tutti_model::Vendor;

use super::super::lines;
use crate::fail::{Fail, chain};
use crate::terminal;

/// What was measured on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub node: String,
    pub gpus: Vec<Speed>,
    /// Why nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Ends well even if nothing can be measured here: other nodes' figures still count.
pub fn run() -> Result<ExitCode, Fail> {
    let node = std::env::var("TUTTI_NODE")
        .map_err(|_| Fail::usage("this is a part of tutti bench gpu, which starts it by a job"))?;
    let simulated = std::env::var("TUTTI_SIMULATED").is_ok_and(|is| is == "1");
    let done = match simulated {
        true => Err(format!("{node} {}", super::choose::SIMULATED)),
        false => here(&node),
    };
    let found = done.unwrap_or_else(|why| Found { node, gpus: Vec::new(), problem: Some(why) });
    let lines =
        lines::write(&found).map_err(|e| Fail::new(format!("can't write the result: {e}")))?;
    lines.iter().for_each(|line| terminal::say(line));
    Ok(ExitCode::SUCCESS)
}

/// All GPUs that this process sees. An error is a sentence.
pub fn here(node: &str) -> Result<Found, String> {
    let say = |gpu: usize, what: &str| terminal::complain(&format!("tutti: GPU {gpu}: {what}"));
    match speed::measure(&say) {
        Ok(gpus) if gpus.is_empty() => Err(format!("{node}: CUDA sees no GPU")),
        Ok(gpus) => Ok(Found { node: node.to_owned(), gpus, problem: None }),
        Err(error @ CudaError::NoLibrary(_)) if has_others() => {
            Err(format!("{node}: only NVIDIA's GPUs can be measured: {}", chain(&error)))
        }
        Err(error) => Err(format!("{node}: {}", chain(&error))),
    }
}

fn has_others() -> bool {
    let found = tutti_gpu::discover();
    found.hardware.gpus.iter().any(|gpu| matches!(gpu.vendor, Vendor::Amd | Vendor::Intel))
}
