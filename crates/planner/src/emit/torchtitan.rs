//! A configuration of torchtitan 0.2.

use super::software::Software;
use super::{CanNot, Emit, Emitted, job, quoted};
use crate::{Arch, Pins, Precision, Recompute, Sharding, Stack, Task, names};

const NAME: &str = "torchtitan";

/// PyTorch with `torch.compile`.
const SOFTWARE: Software = Software {
    program: NAME,
    stack: Stack::Compiled,
    pins: Pins {
        tp: None,
        pp: None,
        vp: None,
        cp: None,
        ep: None,
        dp: None,
        micro_batch: None,
        sharding: None,
        recompute: None,
        sequence_parallel: None,
    },
    shardings: &[Sharding::None, Sharding::Zero2, Sharding::Zero3],
    recomputes: &[Recompute::None, Recompute::Selective, Recompute::Full],
    refuse,
};

/// Model, flavor, the name of the model that has its numbers, and that of its repository on the hub.
const FLAVORS: [(&str, &str, &str, &str); 14] = [
    ("llama3", "8B", "llama-3.1-8b", "Llama-3.1-8B"),
    ("llama3", "70B", "llama-3.1-70b", "Llama-3.1-70B"),
    ("llama3", "405B", "llama-3.1-405b", "Llama-3.1-405B"),
    ("qwen3", "0.6B", "qwen3-0.6b", "Qwen3-0.6B"),
    ("qwen3", "1.7B", "qwen3-1.7b", "Qwen3-1.7B"),
    ("qwen3", "4B", "qwen3-4b", "Qwen3-4B"),
    ("qwen3", "8B", "qwen3-8b", "Qwen3-8B"),
    ("qwen3", "14B", "qwen3-14b", "Qwen3-14B"),
    ("qwen3", "32B", "qwen3-32b", "Qwen3-32B"),
    ("qwen3", "30B-A3B", "qwen3-30b-a3b", "Qwen3-30B-A3B"),
    ("qwen3", "235B-A22B", "qwen3-235b-a22b", "Qwen3-235B-A22B"),
    ("deepseek_v3", "16B", "deepseek-v2-lite", "DeepSeek-V2-Lite"),
    ("deepseek_v3", "236B", "deepseek-v2", "DeepSeek-V2"),
    ("deepseek_v3", "671B", "deepseek-v3", "DeepSeek-V3"),
];

pub fn torchtitan(emit: &Emit<'_>) -> Result<Emitted, CanNot> {
    refuse(emit)?;
    let (model, flavor) = flavor(emit.arch)?;
    let takes = SOFTWARE.check(emit)?;
    let mut out = String::from("# torchtitan 0.2: ./run_train.sh with CONFIG_FILE=this file\n");
    let mut section = |name: &str, keys: Vec<(&str, String)>| {
        out.push_str(&format!("\n[{name}]\n"));
        for (key, value) in keys {
            out.push_str(&format!("{key} = {value}\n"));
        }
    };
    section("job", vec![("description", quoted(&format!("{} planned by tutti", emit.arch.name)))]);
    let assets = assets(emit);
    let mut of_model = vec![("name", quoted(model)), ("flavor", quoted(flavor))];
    of_model.extend(assets.iter().map(|path| ("hf_assets_path", quoted(path))));
    of_model.extend(converters(emit).map(|list| ("converters", list)));
    section("model", of_model);
    section("training", training(emit));
    section("parallelism", parallelism(emit));
    section("activation_checkpoint", recomputing(emit.layout.recompute));
    section(
        "compile",
        vec![("enable", "true".into()), ("components", r#"["model", "loss"]"#.into())],
    );
    if emit.workload.task == Task::Finetune {
        let on = |key| (key, "true".to_owned());
        section("checkpoint", vec![on("enable"), on("initial_load_in_hf")]);
    }
    let tokenizer = match assets {
        Some(path) => format!("{path} must hold the tokenizer"),
        None => format!(
            "hf_assets_path of [model] is yours to set: the directory with the tokenizer of {}",
            emit.arch.name
        ),
    };
    let note = format!("the dataset is torchtitan's default, and {tokenizer}");
    Ok(Emitted { text: out, notes: [vec![note], takes].concat() })
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
    let same = |f: &&(&str, &str, &str, &str)| names::find(f.2).is_ok_and(|of| alike(arch, &of));
    match FLAVORS.iter().find(same) {
        Some((model, flavor, ..)) => Ok((model, flavor)),
        None => {
            let what =
                format!("{}, which is not among its llama3, qwen3 and deepseek_v3", arch.name);
            Err(CanNot::new(NAME, what, "--write megatron takes any numbers"))
        }
    }
}

/// The same matrices. Models of different families may agree in depth and width.
fn alike(a: &Arch, b: &Arch) -> bool {
    let attention = |m: &Arch| (m.heads, m.kv_heads, m.head_dim, m.latent, m.window);
    // Where all layers have experts, some configurations tell of an MLP that there is none of.
    let mlp = |m: &Arch| (m.gated, m.moe, (m.dense_layers() > 0).then_some(m.ffn));
    let size = |m: &Arch| (m.layers, m.hidden, m.vocab, m.tied);
    size(a) == size(b) && attention(a) == attention(b) && mlp(a) == mlp(b)
}

/// Where the tokenizer is and, for training on, the weights: the directory of the config.json that was planned from, or
/// what torchtitan's download makes of a repository of the hub. Another model of the same numbers has a name there that
/// is not known here.
fn assets(emit: &Emit<'_>) -> Option<String> {
    if let Some(directory) = emit.model.strip_suffix("/config.json") {
        return Some(directory.to_owned());
    }
    let named = FLAVORS.iter().find(|f| f.2.eq_ignore_ascii_case(&emit.arch.name))?;
    Some(format!("./assets/hf/{}", named.3))
}

/// Of its two ways to choose, the one by operations is what was measured.
fn recomputing(recompute: Recompute) -> Vec<(&'static str, String)> {
    let mut keys = vec![("mode", quoted(job::recompute(recompute)))];
    if recompute == Recompute::Selective {
        keys.push(("selective_ac_option", quoted("op")));
    }
    keys
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
