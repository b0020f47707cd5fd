//! Options of Megatron-LM's `pretrain_gpt.py`.

use super::{CanNot, Emit, Emitted, lines};
use crate::split::Modules;
use crate::{Arch, Precision, Recompute, Sharding, Task};

const NAME: &str = "Megatron-LM";

pub fn megatron(emit: &Emit<'_>) -> Result<Emitted, CanNot> {
    if let Task::Lora { .. } = emit.workload.task {
        return Err(CanNot::new(NAME, "LoRA", "--write deepspeed, and adapters in your program"));
    }
    let stages = stages(emit)?;
    let options = [model(emit.arch), work(emit), layout(emit), stages, precision(emit)].concat();
    let mut notes =
        vec!["data, tokenizer, learning rate and checkpoints are yours to add".to_owned()];
    if emit.workload.task == Task::Finetune {
        notes.push("--load and --finetune say which weights it starts from".to_owned());
    }
    Ok(Emitted { text: lines("python pretrain_gpt.py", &options), notes })
}

fn option(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name} {value}")
}

fn flag(name: &str) -> String {
    format!("--{name}")
}

fn model(arch: &Arch) -> Vec<String> {
    let mut out = vec![
        option("num-layers", arch.layers),
        option("hidden-size", arch.hidden),
        option("ffn-hidden-size", arch.ffn),
        option("num-attention-heads", arch.heads),
        option("kv-channels", arch.head_dim),
        option("vocab-size", arch.vocab),
    ];
    if arch.kv_heads < arch.heads && arch.latent.is_none() {
        out.extend([flag("group-query-attention"), option("num-query-groups", arch.kv_heads)]);
    }
    if arch.gated {
        out.extend([
            flag("swiglu"),
            flag("disable-bias-linear"),
            option("normalization", "RMSNorm"),
        ]);
        out.push(option("position-embedding-type", "rope"));
    }
    if !arch.tied {
        out.push(flag("untie-embeddings-and-output-weights"));
    }
    out.extend(latent(arch));
    out.extend(experts(arch));
    out
}

fn latent(arch: &Arch) -> Vec<String> {
    let Some(m) = arch.latent else { return Vec::new() };
    let mut out = vec![flag("multi-latent-attention")];
    if m.q_rank > 0 {
        out.push(option("q-lora-rank", m.q_rank));
    }
    out.extend([
        option("kv-lora-rank", m.kv_rank),
        option("qk-head-dim", m.nope_dim),
        option("qk-pos-emb-head-dim", m.rope_dim),
        option("v-head-dim", m.value_dim),
    ]);
    out
}

fn experts(arch: &Arch) -> Vec<String> {
    let Some(m) = arch.moe else { return Vec::new() };
    let mut out = vec![
        option("num-experts", m.experts),
        option("moe-router-topk", m.topk),
        option("moe-ffn-hidden-size", m.ffn),
        flag("moe-grouped-gemm"),
        option("moe-token-dispatcher-type", "alltoall"),
    ];
    if m.shared > 0 {
        out.push(option("moe-shared-expert-intermediate-size", u64::from(m.shared) * m.ffn));
    }
    if m.dense_layers > 0 {
        let sparse = arch.layers.saturating_sub(m.dense_layers);
        out.push(option("moe-layer-freq", format!("'([0]*{}+[1]*{sparse})'", m.dense_layers)));
    }
    out
}

fn work(emit: &Emit<'_>) -> Vec<String> {
    let w = emit.workload;
    let mut out = vec![
        option("seq-length", w.seq),
        option("max-position-embeddings", w.seq),
        option("micro-batch-size", emit.layout.micro_batch),
        option("global-batch-size", w.global_batch),
    ];
    out.extend(emit.steps().map(|n| option("train-iters", n)));
    out
}

/// Stages have equally many layers, embedding and head counted as one each where that makes them equal.
fn stages(emit: &Emit<'_>) -> Result<Vec<String>, CanNot> {
    let (layers, l) = (emit.arch.layers, emit.layout);
    let chunks = l.pp * l.vp;
    if layers.is_multiple_of(chunks) {
        return Ok(Vec::new());
    }
    if (layers + 2).is_multiple_of(chunks) {
        let counted = ["embedding", "loss"]
            .map(|what| flag(&format!("account-for-{what}-in-pipeline-split")));
        return Ok(counted.to_vec());
    }
    let what = format!("{layers} layers in {chunks} equal parts");
    Err(CanNot::new(NAME, what, "pin a --pp and --vp that divide them"))
}

fn layout(emit: &Emit<'_>) -> Vec<String> {
    let l = emit.layout;
    let mut out = vec![
        option("tensor-model-parallel-size", l.tp),
        option("pipeline-model-parallel-size", l.pp),
        option("context-parallel-size", l.cp),
    ];
    if l.vp > 1 {
        out.push(option("num-virtual-stages-per-pipeline-rank", l.vp));
    }
    if emit.arch.moe.is_some() {
        out.push(option("expert-model-parallel-size", l.ep));
        // Experts that are spread are whole; Megatron would cut them as it cuts the rest.
        let cut = if l.ep > 1 { 1 } else { l.tp };
        out.push(option("expert-tensor-parallel-size", cut));
    }
    if l.sequence_parallel && l.tp > 1 {
        out.push(flag("sequence-parallel"));
    }
    out.extend(sharding(l.sharding));
    match l.recompute {
        Recompute::None => {}
        Recompute::Selective => out.extend([
            option("recompute-granularity", "selective"),
            option("recompute-modules", Modules::of(emit.arch).names().join(" ")),
        ]),
        Recompute::Full => out.extend([
            option("recompute-granularity", "full"),
            option("recompute-method", "uniform"),
            option("recompute-num-layers", 1),
        ]),
    }
    out
}

fn sharding(sharding: Sharding) -> Vec<String> {
    let overlapped = [flag("overlap-grad-reduce"), flag("overlap-param-gather")];
    let fsdp = |what: &str| {
        let own = [
            flag("use-megatron-fsdp"),
            option("data-parallel-sharding-strategy", what),
            option("ckpt-format", "fsdp_dtensor"),
        ];
        [own.as_slice(), overlapped.as_slice()].concat()
    };
    match sharding {
        Sharding::None => vec![flag("overlap-grad-reduce")],
        Sharding::Zero1 => [&[flag("use-distributed-optimizer")], overlapped.as_slice()].concat(),
        Sharding::Zero2 => fsdp("optim_grads"),
        Sharding::Zero3 => fsdp("optim_grads_params"),
    }
}

fn precision(emit: &Emit<'_>) -> Vec<String> {
    match emit.workload.precision {
        Precision::Fp16 => vec![flag("fp16")],
        Precision::Bf16 => vec![flag("bf16")],
        Precision::Fp8 => {
            vec![flag("bf16"), option("fp8-format", "hybrid"), option("fp8-recipe", "tensorwise")]
        }
        Precision::Mxfp8 => {
            vec![flag("bf16"), option("fp8-format", "e4m3"), option("fp8-recipe", "mxfp8")]
        }
        Precision::Nvfp4 => vec![flag("bf16"), option("fp4-format", "e2m1")],
    }
}
