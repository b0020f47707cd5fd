//! A configuration of DeepSpeed.

use serde_json::{Map, Value, json};

use super::software::Software;
use super::{CanNot, Emit, Emitted, job};
use crate::{Pins, Precision, Recompute, Sharding, Stack, Task};

const NAME: &str = "DeepSpeed";

/// Eager PyTorch. A pipeline is code of the user's, and not what is proposed.
const SOFTWARE: Software = Software {
    program: NAME,
    stack: Stack::Fsdp,
    pins: Pins {
        tp: None,
        pp: Some(1),
        vp: Some(1),
        cp: Some(1),
        ep: Some(1),
        dp: None,
        micro_batch: None,
        sharding: None,
        recompute: None,
        sequence_parallel: Some(false),
    },
    shardings: &[Sharding::None, Sharding::Zero1, Sharding::Zero2, Sharding::Zero3],
    recomputes: &[Recompute::None, Recompute::Full],
    refuse,
};

pub fn deepspeed(emit: &Emit<'_>) -> Result<Emitted, CanNot> {
    refuse(emit)?;
    let takes = SOFTWARE.check(emit)?;
    let mut text = format!("{:#}", Value::Object(config(emit)));
    text.push('\n');
    Ok(Emitted { text, notes: [notes(emit), takes].concat() })
}

fn refuse(emit: &Emit<'_>) -> Result<(), CanNot> {
    let l = emit.layout;
    let stages = l.pp > 1 && matches!(l.sharding, Sharding::Zero2 | Sharding::Zero3);
    let found = [
        (l.vp > 1, format!("interleaved pipeline stages (vp {})", l.vp), "pin --vp 1"),
        (l.cp > 1, format!("ring context parallelism (cp {})", l.cp), "pin --cp 1"),
        (l.ep > 1, format!("expert parallelism by options (ep {})", l.ep), "pin --ep 1"),
        (stages, format!("{:?} with a pipeline", l.sharding), "pin --zero 1, or --pp 1"),
        (
            l.recompute == Recompute::Selective,
            "selective recomputation".to_owned(),
            "pin --recompute full, or --recompute none",
        ),
        (
            !matches!(emit.workload.precision, Precision::Bf16 | Precision::Fp16),
            format!("{:?}", emit.workload.precision).to_lowercase(),
            "plan with --precision bf16",
        ),
    ];
    match found.into_iter().find(|(bad, ..)| *bad) {
        Some((_, what, instead)) => Err(CanNot::new(NAME, what, instead)),
        None => Ok(()),
    }
}

fn config(emit: &Emit<'_>) -> Map<String, Value> {
    let (work, l) = (emit.workload, emit.layout);
    let stage = job::zero(l.sharding);
    let half = if work.precision == Precision::Fp16 { "fp16" } else { "bf16" };
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    set("train_batch_size", json!(work.global_batch));
    set("train_micro_batch_size_per_gpu", json!(l.micro_batch));
    set("gradient_accumulation_steps", json!(l.micro_batches(work.global_batch)));
    set(half, json!({ "enabled": true }));
    set(
        "zero_optimization",
        json!({ "stage": stage, "overlap_comm": true, "contiguous_gradients": true }),
    );
    set("gradient_clipping", json!(1.0));
    if l.tp > 1 {
        set("tensor_parallel", json!({ "autotp_size": l.tp }));
    }
    config
}

fn notes(emit: &Emit<'_>) -> Vec<String> {
    let l = emit.layout;
    let mut notes = Vec::new();
    if l.pp > 1 {
        notes.push(format!(
            "the pipeline is made in your code: PipelineModule(num_stages={})",
            l.pp
        ));
    }
    if l.recompute == Recompute::Full {
        notes
            .push("turn recomputing on in your code: model.gradient_checkpointing_enable()".into());
    }
    if let Task::Lora { rank } = emit.workload.task {
        notes.push(format!("adapters are made in your code, with rank {rank}"));
    }
    if l.tp > 1 && l.sequence_parallel {
        notes.push(
            "DeepSpeed's tensor parallelism keeps whole sequences: this is counted in".into(),
        );
    }
    notes.push(format!("sequences of {} tokens are cut by your program", emit.workload.seq));
    notes
}
