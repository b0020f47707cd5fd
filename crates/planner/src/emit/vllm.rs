//! Options of `vllm serve`.

use super::{Emitted, lines};
use crate::Precision;
use crate::serving::USABLE;

/// One replica of a server.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// What vLLM is to load: a name of the hub, or a directory.
    pub model: &'a str,
    pub precision: Precision,
    pub tp: u32,
    pub pp: u32,
    /// Experts are spread over the GPUs of a replica.
    pub experts: bool,
    /// Requests at once.
    pub concurrency: u64,
    /// Tokens of prompt and output together.
    pub context: u64,
    pub replicas: u32,
}

pub fn vllm(server: &Server<'_>) -> Emitted {
    let mut options = vec![
        format!("--tensor-parallel-size {}", server.tp),
        format!("--pipeline-parallel-size {}", server.pp),
        format!("--max-model-len {}", server.context),
        format!("--max-num-seqs {}", server.concurrency),
        // What the plan's room for requests was counted with.
        format!("--gpu-memory-utilization {USABLE}"),
    ];
    match server.precision {
        Precision::Bf16 => options.push("--dtype bfloat16".to_owned()),
        Precision::Fp16 => options.push("--dtype float16".to_owned()),
        Precision::Fp8 => options.push("--quantization fp8".to_owned()),
        // Such weights say it themselves, in their own config.
        Precision::Mxfp8 | Precision::Nvfp4 => {}
    }
    if server.experts && server.tp > 1 {
        options.push("--enable-expert-parallel".to_owned());
    }
    let mut notes = Vec::new();
    if !server.model.contains('/') {
        notes.push(format!(
            "vLLM loads a name of the hub or a directory: put it for {}",
            server.model
        ));
    }
    if server.replicas > 1 {
        notes.push(format!("start {} of them behind a load balancer", server.replicas));
    }
    if matches!(server.precision, Precision::Mxfp8 | Precision::Nvfp4) {
        notes.push(
            "the weights must be stored in this precision: vLLM reads it from them".to_owned(),
        );
    }
    Emitted { text: lines(&format!("vllm serve {}", shell(server.model)), &options), notes }
}

/// As a word of a shell.
fn shell(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
