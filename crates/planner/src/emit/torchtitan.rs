//! A configuration of torchtitan 0.2.

use super::{CanNot, Emit, Emitted, quoted};
use crate::{Arch, Precision, Recompute, Sharding, Task};

const NAME: &str = "torchtitan";

/// Model, flavor, layers, width, heads.
const FLAVORS: [(&str, &str, u32, u64, u32); 14] = [
    ("llama3", "8B", 32, 4096, 32),
    ("llama3", "70B", 80, 8192, 64),
    ("llama3", "405B", 126, 16384, 128),
    ("qwen3", "0.6B", 28, 1024, 16),
    ("qwen3", "1.7B", 28, 2048, 16),
    ("qwen3", "4B", 36, 2560, 32),
    ("qwen3", "8B", 36, 4096, 32),
    ("qwen3", "14B", 40, 5120, 40),
    ("qwen3", "32B", 64, 5120, 64),
    ("qwen3", "30B-A3B", 48, 2048, 32),
    ("qwen3", "235B-A22B", 94, 4096, 64),
    ("deepseek_v3", "16B", 27, 2048, 16),
    ("deepseek_v3", "236B", 60, 5120, 128),
    ("deepseek_v3", "671B", 61, 7168, 128),
];

pub fn torchtitan(emit: &Emit<'_>) -> Result<Emitted, CanNot> {
    refuse(emit)?;
    let (model, flavor) = flavor(emit.arch)?;
    let mut out = String::from("# torchtitan 0.2: ./run_train.sh with CONFIG_FILE=this file\n");
    let mut section = |name: &str, keys: Vec<(&str, String)>| {
        out.push_str(&format!("\n[{name}]\n"));
        for (key, value) in keys {
            out.push_str(&format!("{key} = {value}\n"));
        }
    };
    section("job", vec![("description", quoted(&format!("{} planned by tutti", emit.arch.name)))]);
    let assets = format!("./assets/hf/{}", emit.arch.name);
    let mut of_model = vec![
        ("name", quoted(model)),
        ("flavor", quoted(flavor)),
        ("hf_assets_path", quoted(&assets)),
    ];
    of_model.extend(converters(emit).map(|list| ("converters", list)));
    section("model", of_model);
    section("training", training(emit));
    section("parallelism", parallelism(emit));
    let mode = if emit.layout.recompute == Recompute::Full { "full" } else { "none" };
    section("activation_checkpoint", vec![("mode", quoted(mode))]);
    section(
        "compile",
        vec![("enable", "true".into()), ("components", r#"["model", "loss"]"#.into())],
    );
    if emit.workload.task == Task::Finetune {
        let on = |key| (key, "true".to_owned());
        section("checkpoint", vec![on("enable"), on("initial_load_in_hf")]);
    }
    let note = format!("the dataset is torchtitan's default, and {assets} must hold the tokenizer");
    Ok(Emitted { text: out, notes: vec![note] })
}

fn refuse(emit: &Emit<'_>) -> Result<(), CanNot> {
    let (work, l) = (emit.workload, emit.layout);
    let other_work = match (work.task, work.precision) {
        (Task::Lora { .. }, _) => Some(("LoRA", "--write deepspeed, and adapters in your program")),
        (_, Precision::Fp16) => Some(("fp16", "plan with --precision bf16")),
        (_, Precision::Nvfp4) => {
            Some(("nvfp4", "plan with --precision mxfp8, or --write megatron"))
        }
        _ => None,
    };
    if let Some((what, instead)) = other_work {
        return Err(CanNot::new(NAME, what, instead));
    }
    if l.dp > 1 && l.sharding == Sharding::Zero1 {
        return Err(CanNot::new(NAME, "ZeRO-1", "pin --zero 2 or --zero 3"));
    }
    if l.dp > 1 && l.sharding == Sharding::None && l.gpus() > l.dp {
        let what = "plain data parallelism beside another kind";
        return Err(CanNot::new(NAME, what, "pin --zero 3"));
    }
    if l.tp > 1 && !l.sequence_parallel {
        let what = "tensor parallelism without sequence parallelism";
        return Err(CanNot::new(NAME, what, "pin --sequence-parallel true"));
    }
    Ok(())
}

fn flavor(arch: &Arch) -> Result<(&'static str, &'static str), CanNot> {
    let same = |f: &&(&str, &str, u32, u64, u32)| {
        (f.2, f.3, f.4) == (arch.layers, arch.hidden, arch.heads) && is_like(arch, f.0, f.1)
    };
    match FLAVORS.iter().find(same) {
        Some((model, flavor, ..)) => Ok((model, flavor)),
        None => {
            let what =
                format!("{}, which is not among its llama3, qwen3 and deepseek_v3", arch.name);
            Err(CanNot::new(NAME, what, "--write megatron takes any numbers"))
        }
    }
}

/// Sizes of different families may agree in depth and width.
fn is_like(arch: &Arch, model: &str, flavor: &str) -> bool {
    let sparse = model == "deepseek_v3" || flavor.contains("-A");
    sparse == arch.moe.is_some() && (model == "deepseek_v3") == arch.latent.is_some()
}

fn converters(emit: &Emit<'_>) -> Option<String> {
    let kind = match emit.workload.precision {
        Precision::Fp8 => "float8",
        Precision::Mxfp8 => "mx",
        Precision::Fp16 | Precision::Bf16 | Precision::Nvfp4 => return None,
    };
    let experts = emit.arch.moe.map(|_| format!(", \"quantize.grouped_mm.{kind}\""));
    Some(format!("[\"quantize.linear.{kind}\"{}]", experts.unwrap_or_default()))
}

fn training(emit: &Emit<'_>) -> Vec<(&'static str, String)> {
    let (work, l) = (emit.workload, emit.layout);
    // A pipeline cuts its own batch up; without one, gradients are summed up over several.
    let local = match l.pp {
        1 => l.micro_batch,
        _ => l.micro_batch * l.micro_batches(work.global_batch),
    };
    let mut keys = vec![
        ("local_batch_size", local.to_string()),
        ("global_batch_size", work.global_batch.to_string()),
        ("seq_len", work.seq.to_string()),
    ];
    keys.extend(emit.steps().map(|n| ("steps", n.to_string())));
    keys
}

fn parallelism(emit: &Emit<'_>) -> Vec<(&'static str, String)> {
    let l = emit.layout;
    let (replicate, shard) = if l.sharding == Sharding::None { (l.dp, 1) } else { (1, l.dp) };
    let mut keys = vec![
        ("data_parallel_replicate_degree", replicate.to_string()),
        ("data_parallel_shard_degree", shard.to_string()),
        ("tensor_parallel_degree", l.tp.to_string()),
        ("pipeline_parallel_degree", l.pp.to_string()),
        ("context_parallel_degree", l.cp.to_string()),
    ];
    if l.sharding != Sharding::None {
        let when = if l.sharding == Sharding::Zero3 { "always" } else { "never" };
        keys.push(("fsdp_reshard_after_forward", quoted(when)));
    }
    if l.pp > 1 {
        let schedule = if l.vp > 1 { "Interleaved1F1B" } else { "1F1B" };
        let per_stage = emit.arch.layers.div_ceil(l.pp * l.vp);
        keys.extend([
            ("pipeline_parallel_schedule", quoted(schedule)),
            ("pipeline_parallel_microbatch_size", l.micro_batch.to_string()),
            ("pipeline_parallel_layers_per_stage", per_stage.to_string()),
            ("pipeline_parallel_first_stage_less_layers", "0".to_owned()),
            ("pipeline_parallel_last_stage_less_layers", "0".to_owned()),
        ]);
    }
    if emit.arch.moe.is_some() {
        keys.push(("expert_parallel_degree", l.ep.to_string()));
        let whole = if l.ep > 1 { 1 } else { l.tp };
        keys.push(("expert_tensor_parallel_degree", whole.to_string()));
    }
    keys
}
