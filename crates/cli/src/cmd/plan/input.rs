//! Model and workload, as the flags say them.

use std::path::Path;

use tutti_model::Span;
use tutti_planner::{
    Arch, Cluster, Numbers, Precision, Sharding, Task, Workload, from_config, names, usual_batch,
    usual_precision,
};

use super::{PlanArgs, TaskArg};
use crate::fail::Fail;
use crate::file;

/// What flags check already says that there is one.
pub fn arch(args: &PlanArgs) -> Result<Arch, Fail> {
    match &args.model {
        Some(model) => named(model),
        None => numbers(args),
    }
}

/// A name, or a file; a name is never looked for on disk, so that what is planned does not depend on where.
pub fn named(model: &str) -> Result<Arch, Fail> {
    if is_path(model) {
        let path = Path::new(model);
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let found = from_config(&file::read_text(&path, "config.json")?);
        return found.map_err(|e| Fail::usage(format!("{}: {e}", path.display())));
    }
    names::find(model).map_err(|e| {
        Fail::usage(e.to_string())
            .hint("tutti plan --list models; or give the path of its config.json")
    })
}

/// Owners of models stand before a slash too, so one in the middle makes no path of it.
pub fn is_path(model: &str) -> bool {
    let ends = model.ends_with('/') || model.ends_with(".json");
    ends || model.starts_with(['.', '/', '~']) || model.contains('\\')
}

fn numbers(args: &PlanArgs) -> Result<Arch, Fail> {
    let n = &args.numbers;
    let (Some(layers), Some(hidden)) = (n.layers, n.hidden) else {
        return Err(Fail::usage("a model by its numbers needs at least --layers and --hidden"));
    };
    let numbers = Numbers {
        layers,
        hidden,
        heads: n.heads,
        kv_heads: n.kv_heads,
        head_dim: n.head_dim,
        ffn: n.ffn,
        vocab: n.vocab,
    };
    numbers.arch().map_err(|e| Fail::usage(e.to_string()))
}

/// Where nobody says otherwise.
const SEQ: u64 = 4096;
pub const LORA_RANK: u32 = 16;

/// Whatever is not said is as is usual there; without a cluster, as is usual anywhere.
pub fn workload(args: &PlanArgs, cluster: Option<&Cluster>) -> Workload {
    let task = match args.task {
        Some(TaskArg::Finetune) => Task::Finetune,
        Some(TaskArg::Lora) => Task::Lora { rank: args.lora_rank.unwrap_or(LORA_RANK) },
        Some(TaskArg::Pretrain | TaskArg::Inference) | None => Task::Pretrain,
    };
    let seq = args.seq.unwrap_or(SEQ);
    Workload {
        task,
        precision: args.precision.unwrap_or_else(|| {
            cluster.map_or(Precision::Bf16, |cluster| usual_precision(&cluster.gpu))
        }),
        seq,
        global_batch: args.batch.unwrap_or_else(|| usual_batch(task, seq, cluster)),
        tokens: args.tokens,
    }
}

/// `2T`, `300B`, `1.5e12`.
pub fn amount(text: &str) -> Result<f64, String> {
    let wrong = || "write a number such as 300B, 2T or 1.5e12".to_owned();
    let unit = text.chars().next_back().and_then(|c| match c.to_ascii_lowercase() {
        'k' => Some(1e3),
        'm' => Some(1e6),
        'b' | 'g' => Some(1e9),
        't' => Some(1e12),
        _ => None,
    });
    let digits = if unit.is_some() { &text[..text.len() - 1] } else { text };
    let number: f64 = digits.trim().parse().map_err(|_| wrong())?;
    let amount = number * unit.unwrap_or(1.0);
    if (1.0..=1e18).contains(&amount) { Ok(amount) } else { Err(wrong()) }
}

/// Beyond it nothing is meant seriously, and nothing overflows below.
const MOST: u64 = 1 << 30;

/// Clap's own words for what is below 0 are not for people.
pub fn whole(text: &str) -> Result<u64, String> {
    let number = text.parse::<u64>().ok().filter(|n| (1..=MOST).contains(n));
    number.ok_or_else(|| format!("write a whole number from 1 to {MOST}"))
}

pub fn degree(text: &str) -> Result<u32, String> {
    whole(text).and_then(|n| u32::try_from(n).map_err(|e| e.to_string()))
}

pub fn money(text: &str) -> Result<f64, String> {
    let ok = |n: &f64| *n > 0.0 && *n <= 1e15;
    text.parse().ok().filter(ok).ok_or_else(|| "write a number above 0".to_owned())
}

pub fn budget(text: &str) -> Result<f64, String> {
    let sum = money(text).ok().filter(|sum| *sum >= 1.0);
    sum.ok_or_else(|| "write a sum of money of at least 1, such as 50000".to_owned())
}

pub fn wait(text: &str) -> Result<Span, String> {
    with_unit(text).ok_or_else(|| "write a time with its unit, such as 500ms or 2s".to_owned())
}

/// In milliseconds: what the planner takes for a deadline.
const SECOND: u64 = 1_000;
const LATEST: u64 = 100_000 * 86_400_000;

pub fn deadline(text: &str) -> Result<Span, String> {
    let span = with_unit(text).filter(|span| (SECOND..=LATEST).contains(&span.0));
    span.ok_or_else(|| {
        "write a time with its unit, from 1s to 100000d, such as 12h or 7d".to_owned()
    })
}

/// A bare number would be minutes, which nobody means here.
fn with_unit(text: &str) -> Option<Span> {
    let bare = text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<Span>().ok().filter(|span| !bare && span.0 > 0)
}

pub fn zero(text: &str) -> Result<Sharding, String> {
    match text {
        "0" => Ok(Sharding::None),
        "1" => Ok(Sharding::Zero1),
        "2" => Ok(Sharding::Zero2),
        "3" => Ok(Sharding::Zero3),
        _ => Err("write 0, 1, 2 or 3".to_owned()),
    }
}
