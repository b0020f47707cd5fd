//! One line of the table as a setup. Rules for what a publication leaves out are here, and nowhere else.

use thiserror::Error;

use super::table::Row;
use crate::catalogue;
use crate::words::thousands;
use crate::{
    Arch, Cluster, Latent, Layout, Moe, Precision, Recompute, Setup, Sharding, Stack, Task,
    Workload, memory, names, step_time, usable_gb,
};

/// Why a line has no figures.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum RowError {
    #[error("{column} is empty and the model '{model}' is not known")]
    Unknown { column: &'static str, model: String },
    #[error("{column} is empty, and no model is named that it could be taken from")]
    Nameless { column: &'static str },
    #[error("{column} is '{value}', which is no word for it; write {known}")]
    Word { column: &'static str, value: String, known: &'static str },
    #[error("{column} is empty")]
    Missing { column: &'static str },
    #[error("{column} is '{value}'; it must be a whole number from 1 to {}", thousands(*.most))]
    Number { column: &'static str, value: String, most: u64 },
    #[error("the accelerator '{0}' is not known")]
    Accelerator(String),
    #[error("the precision '{0}' is not known")]
    Precision(String),
    #[error("{gpus} GPUs are not tp {tp} × pp {pp} × cp {cp} × dp")]
    Gpus { gpus: u64, tp: u64, pp: u64, cp: u64 },
    #[error("the model is part Mamba, which is not modelled")]
    Hybrid,
}

pub(super) struct Run {
    arch: Arch,
    workload: Workload,
    cluster: Cluster,
    layout: Layout,
    stack: Stack,
}

impl Run {
    pub(super) fn setup(&self) -> Setup<'_> {
        Setup {
            arch: &self.arch,
            workload: &self.workload,
            cluster: &self.cluster,
            layout: &self.layout,
            stack: self.stack,
        }
    }

    fn fits(&self) -> bool {
        memory(&self.setup()).total() <= usable_gb(&self.cluster.gpu)
    }
}

const MOST: u64 = 1 << 24;

/// A whole number, if the cell is not empty.
fn number(row: Row, column: &'static str) -> Result<Option<u64>, RowError> {
    let cell = row.get(column);
    if cell.is_empty() {
        return Ok(None);
    }
    match cell.parse::<f64>() {
        Ok(n) if n.fract() == 0.0 && (1.0..=MOST as f64).contains(&n) => Ok(Some(n as u64)),
        _ => Err(RowError::Number { column, value: cell.to_owned(), most: MOST }),
    }
}

fn needed(row: Row, column: &'static str) -> Result<u64, RowError> {
    number(row, column)?.ok_or(RowError::Missing { column })
}

/// Yes or no, if the cell is not empty.
fn flag(row: Row, column: &'static str) -> Result<Option<bool>, RowError> {
    match row.get(column).to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "1" | "true" | "yes" => Ok(Some(true)),
        "0" | "false" | "no" => Ok(Some(false)),
        _ => Err(no_word(row, column, "0 or 1")),
    }
}

fn no_word(row: Row, column: &'static str, known: &'static str) -> RowError {
    RowError::Word { column, value: row.get(column).to_owned(), known }
}

pub(super) fn run(row: Row) -> Result<Run, RowError> {
    let arch = arch(row)?;
    let cluster = cluster(row)?;
    let stack = stack(row);
    let layout = layout(row, arch.layers)?;
    let batch = match number(row, "global_batch")? {
        Some(batch) => batch,
        None => match (number(row, "micro_batch")?, number(row, "grad_accum")?) {
            (Some(micro), Some(times)) => {
                micro.saturating_mul(times).saturating_mul(u64::from(layout.dp))
            }
            _ => return Err(RowError::Missing { column: "global_batch" }),
        },
    };
    let workload = Workload {
        task: task(row)?,
        precision: precision(row)?,
        seq: needed(row, "seq_len")?,
        global_batch: batch,
        tokens: None,
    };
    let run = Run { arch, workload, cluster, layout, stack };
    unstated(row, run)
}

/// Micro-batch and recomputation where the publication does not say them: what somebody would choose who wants it fast
/// and must make it fit. A torchtitan pipeline has as many micro-batches as stages, which is its default.
fn unstated(row: Row, mut run: Run) -> Result<Run, RowError> {
    let micro = number(row, "micro_batch")?;
    let recompute = recompute(row)?;
    let share = run.workload.global_batch / u64::from(run.layout.dp);
    let torchtitan = row.get("framework").contains("torchtitan");
    let micros: Vec<u64> = match micro {
        Some(micro) => vec![micro],
        None if torchtitan && run.layout.pp > 1 => vec![(share / u64::from(run.layout.pp)).max(1)],
        None => (0..7).map(|n| 1 << n).filter(|m| share.is_multiple_of(*m)).collect(),
    };
    let recomputes = match recompute {
        Some(recompute) => vec![recompute],
        None => vec![Recompute::None, Recompute::Selective, Recompute::Full],
    };
    let mut best: Option<(f64, Layout)> = None;
    for micro_batch in micros.iter().copied() {
        for recompute in recomputes.iter().copied() {
            run.layout = Layout { micro_batch, recompute, ..run.layout };
            let seconds = step_time(&run.setup()).total();
            if run.fits() && best.is_none_or(|(least, _)| seconds < least) {
                best = Some((seconds, run.layout));
            }
        }
    }
    let none_fits = Layout {
        micro_batch: micros.first().copied().unwrap_or(1),
        recompute: recomputes[recomputes.len() - 1],
        ..run.layout
    };
    run.layout = best.map_or(none_fits, |(_, layout)| layout);
    Ok(run)
}

/// What the row says of the model; where it has no layers, what is known of it by its name.
fn arch(row: Row) -> Result<Arch, RowError> {
    if row.get("kind").starts_with("hybrid") {
        return Err(RowError::Hybrid);
    }
    let model = row.get("model");
    let known = names::find(model).ok();
    if number(row, "layers")?.is_none()
        && let Some(known) = known
    {
        return Ok(known);
    }
    let size = |column: &'static str| {
        number(row, column)?.ok_or_else(|| match model {
            "" => RowError::Nameless { column },
            _ => RowError::Unknown { column, model: model.to_owned() },
        })
    };
    let (layers, hidden, heads) = (size("layers")?, size("hidden")?, size("heads")?);
    let (ffn, vocab) = (size("ffn")?, size("vocab")?);
    let gated = flag(row, "gated_mlp")?.or(known.as_ref().map(|arch| arch.gated));
    let mut arch = Arch {
        name: model.to_owned(),
        layers: small("layers", layers)?,
        hidden,
        heads: small("heads", heads)?,
        kv_heads: small("kv_heads", number(row, "kv_heads")?.unwrap_or(heads))?,
        head_dim: number(row, "head_dim")?.unwrap_or((hidden / heads).max(1)),
        ffn,
        gated: gated.ok_or(RowError::Missing { column: "gated_mlp" })?,
        vocab,
        tied: flag(row, "tied_emb")?.unwrap_or(false),
        moe: None,
        latent: None,
        window: None,
        extra: 0.0,
    };
    if let Some(experts) = number(row, "experts")? {
        let topk = small("topk", needed(row, "topk")?)?;
        let experts = small("experts", experts)?;
        arch.moe = Some(Moe { experts, topk, ffn, shared: 0, dense_layers: 0 });
    }
    latent(&mut arch);
    Ok(arch)
}

fn small(column: &'static str, n: u64) -> Result<u32, RowError> {
    let most = 1 << 20;
    let fits = u32::try_from(n).ok().filter(|_| n <= most);
    fits.ok_or(RowError::Number { column, value: n.to_string(), most })
}

/// The columns have no room for latent attention, shared experts and leading dense layers. DeepSeek-V3 and Kimi-K2, which
/// is built alike, have them.
fn latent(arch: &mut Arch) {
    let name = arch.name.to_ascii_lowercase();
    let dense_layers = match () {
        () if name.starts_with("deepseek-v3") => 3,
        () if name.starts_with("kimi-k2") => 1,
        () => return,
    };
    arch.latent =
        Some(Latent { q_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128 });
    arch.ffn = 18432;
    arch.head_dim = 128;
    arch.moe = arch.moe.map(|m| Moe { shared: 1, dense_layers, ..m });
}

fn cluster(row: Row) -> Result<Cluster, RowError> {
    let name = row.get("accelerator");
    let memory = row.get("gpu_mem_gb").parse().ok();
    let kind =
        catalogue::kind(name, memory).ok_or_else(|| RowError::Accelerator(name.to_owned()))?;
    let gpus = small("gpus", needed(row, "gpus")?)?;
    let mut cluster = kind.cluster(1);
    if let Some(per_node) = number(row, "gpus_per_node")? {
        cluster.gpus_per_node = small("gpus_per_node", per_node)?;
        // An island of one node is as large as the node.
        if kind.island == kind.gpus_per_node {
            cluster.island = cluster.gpus_per_node;
        }
    }
    cluster.nodes = gpus.div_ceil(cluster.gpus_per_node);
    if let Ok(gbps) = row.get("net_gbps_per_gpu").parse::<f64>()
        && gbps.is_finite()
        && gbps > 0.0
    {
        cluster.nic_gbps = gbps;
    }
    Ok(cluster)
}

fn layout(row: Row, layers: u32) -> Result<Layout, RowError> {
    let count = |column: &'static str| -> Result<u32, RowError> {
        small(column, number(row, column)?.unwrap_or(1))
    };
    let (tp, pp, cp, ep) = (count("tp")?, count("pp")?, count("cp")?, count("ep")?);
    let gpus = needed(row, "gpus")?;
    let [t, p, c] = [tp, pp, cp].map(u64::from);
    let dp = number(row, "dp")?.unwrap_or(gpus / (t * p * c));
    if (t * p * c).checked_mul(dp) != Some(gpus) {
        return Err(RowError::Gpus { gpus, tp: t, pp: p, cp: c });
    }
    // Where a pipeline's chunks are not said: torchtitan makes two, NeMo and its heirs cut down to single layers, and
    // Megatron does not interleave unless it is told to.
    let framework = row.get("framework");
    let vp = match number(row, "vp")? {
        Some(vp) => small("vp", vp)?,
        None if framework.contains("torchtitan") => 2,
        None if framework.contains("NeMo") && layers.is_multiple_of(pp) => layers / pp,
        None => 1,
    };
    Ok(Layout {
        tp,
        pp,
        vp: if pp > 1 { vp } else { 1 },
        cp,
        ep,
        dp: small("dp", dp)?,
        micro_batch: 1,
        sharding: sharding(row)?,
        sequence_parallel: tp > 1 && flag(row, "seq_parallel")?.unwrap_or(false),
        recompute: Recompute::None,
    })
}

fn sharding(row: Row) -> Result<Sharding, RowError> {
    match row.get("sharding") {
        text if text.contains("zero2") => Ok(Sharding::Zero2),
        text if text.contains("zero3") || text.contains("fsdp") => Ok(Sharding::Zero3),
        text if text.contains("zero1") || text.contains("distributed_optimizer") => {
            Ok(Sharding::Zero1)
        }
        text if text.is_empty() || text.starts_with("ddp") || text.starts_with("none") => {
            Ok(Sharding::None)
        }
        _ => Err(no_word(row, "sharding", "none, zero1, zero2 or zero3")),
    }
}

/// None where the publication does not say it, or says two.
fn recompute(row: Row) -> Result<Option<Recompute>, RowError> {
    match row.get("recompute") {
        "none" => Ok(Some(Recompute::None)),
        "full" => Ok(Some(Recompute::Full)),
        "" | "not stated" | "unknown" => Ok(None),
        text if text.starts_with("selective") => Ok(Some(Recompute::Selective)),
        text if text.starts_with("none/selective") || text.starts_with("see ") => Ok(None),
        _ => Err(no_word(row, "recompute", "none, selective or full, or leave it empty")),
    }
}

fn task(row: Row) -> Result<Task, RowError> {
    match row.get("task") {
        "lora" => Ok(Task::Lora { rank: 16 }),
        "sft" | "finetune" => Ok(Task::Finetune),
        "" | "pretrain" => Ok(Task::Pretrain),
        _ => Err(no_word(row, "task", "pretrain, finetune or lora")),
    }
}

fn precision(row: Row) -> Result<Precision, RowError> {
    match row.get("precision") {
        text if text.starts_with("bf16") || text.is_empty() => Ok(Precision::Bf16),
        text if text.starts_with("fp16") => Ok(Precision::Fp16),
        text if text.starts_with("mxfp8") => Ok(Precision::Mxfp8),
        text if text.starts_with("fp8") => Ok(Precision::Fp8),
        text if text.starts_with("nvfp4") => Ok(Precision::Nvfp4),
        text => Err(RowError::Precision(text.to_owned())),
    }
}

/// Which software, by the framework and when it was published.
fn stack(row: Row) -> Stack {
    let framework = row.get("framework").to_ascii_lowercase();
    if framework.contains("torchtitan") {
        // A run that is said to be FSDP and nothing else was not compiled.
        return match published(row) {
            _ if row.get("notes") == "FSDP" => Stack::Fsdp,
            (..=2025, _) => Stack::Compiled2024,
            _ => Stack::Compiled,
        };
    }
    if framework.contains("fsdp") || framework.contains("composer") {
        return Stack::Fsdp;
    }
    // Megatron-DeepSpeed never left the kernels of 2021 behind.
    match published(row) {
        _ if framework.contains("deepspeed") => Stack::Unfused,
        (..=2022, _) => Stack::Unfused,
        (2023..=2024, _) => Stack::Fused,
        (2025, _) | (2026, ..=3) => Stack::Recent,
        _ => Stack::Current,
    }
}

/// Year and month, of `2024-04` or of `26.04.01`; today where it is not said.
fn published(row: Row) -> (u32, u32) {
    let mut numbers = row.get("published").split(['-', '.']).map_while(|n| n.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(year), month) if year < 100 => (2000 + year, month.unwrap_or(12)),
        (Some(year), month) => (year, month.unwrap_or(12)),
        _ => (u32::MAX, 12),
    }
}
