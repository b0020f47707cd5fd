//! A job file of tutti, with what was planned under `[plan]`.

use super::{Emit, Emitted, quoted};
use crate::words::gb;
use crate::{Precision, Recompute, Sharding, Task, usable_gb};

/// Kinds that were sold with different memory: without `gpu_mem` the scheduler may give the smaller.
const SEVERAL_SIZES: [&str; 3] = ["a100", "h100", "v100"];
/// Drivers report a few percent less than the name says: what is asked for at most.
const SURELY: f64 = 0.9;

pub fn job(emit: &Emit<'_>) -> Emitted {
    let mut out = format!("name = {}\n{}", quoted(&name(emit)), demand(emit));
    out.push_str("launcher = \"torch\"\n");
    out.push_str("run = \"python train.py\"    # your program, with the layout below\n");
    out.push_str("\n[plan]\n");
    for (key, value) in plan(emit) {
        out.push_str(&format!("{key} = {value}\n"));
    }
    let note = "set `run` to your program: a job file does not bring one".to_owned();
    Emitted { text: out, notes: vec![note] }
}

fn name(emit: &Emit<'_>) -> String {
    let word = match emit.workload.task {
        Task::Pretrain => "pretrain",
        Task::Finetune => "finetune",
        Task::Lora { .. } => "lora",
    };
    format!("{word}-{}", emit.arch.name.to_lowercase())
}

/// Whole nodes where the layout fills them; else so many GPUs wherever they are.
fn demand(emit: &Emit<'_>) -> String {
    let (gpus, per_node) = (emit.layout.gpus(), emit.cluster.gpus_per_node.max(1));
    let on = |nodes: u32, each: u32| {
        format!("nodes = {nodes}\ngpus_per_node = {}\n", quoted(&format!("{}:{each}", emit.gpu)))
    };
    let mut out = if gpus <= per_node {
        on(1, gpus)
    } else if gpus.is_multiple_of(per_node) {
        on(gpus / per_node, per_node)
    } else {
        format!("gpus = {gpus}\n")
    };
    if SEVERAL_SIZES.contains(&emit.gpu) {
        let why = format!("the plan fills {} of a GPU", gb(emit.memory_gb));
        out.push_str(&format!("gpu_mem = \"{}GiB\"    # {why}\n", least_gib(emit)));
    }
    out
}

/// Memory of a GPU that the plan fits, with the part that a trainer can't use.
fn least_gib(emit: &Emit<'_>) -> u64 {
    let gpu = &emit.cluster.gpu;
    let needs = (emit.memory_gb * gpu.memory_gb / usable_gb(gpu)).ceil();
    needs.min((gpu.memory_gb * SURELY).floor()).max(1.0) as u64
}

fn plan(emit: &Emit<'_>) -> Vec<(&'static str, String)> {
    let (work, l) = (emit.workload, emit.layout);
    let task = match work.task {
        Task::Pretrain => "pretrain",
        Task::Finetune => "finetune",
        Task::Lora { .. } => "lora",
    };
    let mut keys = vec![("model", quoted(emit.model)), ("task", quoted(task))];
    if let Task::Lora { rank } = work.task {
        keys.push(("lora_rank", rank.to_string()));
    }
    keys.extend([
        ("precision", quoted(precision(work.precision))),
        ("seq", work.seq.to_string()),
        ("global_batch", work.global_batch.to_string()),
    ]);
    let degrees =
        [("tp", l.tp), ("pp", l.pp), ("vp", l.vp), ("cp", l.cp), ("ep", l.ep), ("dp", l.dp)];
    keys.extend(degrees.map(|(key, n)| (key, n.to_string())));
    keys.extend([
        ("micro_batch", l.micro_batch.to_string()),
        ("zero", zero(l.sharding).to_string()),
        ("recompute", quoted(recompute(l.recompute))),
        ("sequence_parallel", l.sequence_parallel.to_string()),
        ("step_time_s", format!("{:.4}", emit.step_time_s)),
        ("memory_gb", format!("{:.2}", emit.memory_gb)),
    ]);
    keys
}

fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp16 => "fp16",
        Precision::Bf16 => "bf16",
        Precision::Fp8 => "fp8",
        Precision::Mxfp8 => "mxfp8",
        Precision::Nvfp4 => "nvfp4",
    }
}

/// The stage of ZeRO.
pub(super) fn zero(sharding: Sharding) -> u8 {
    match sharding {
        Sharding::None => 0,
        Sharding::Zero1 => 1,
        Sharding::Zero2 => 2,
        Sharding::Zero3 => 3,
    }
}

pub(super) fn recompute(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full => "full",
    }
}
