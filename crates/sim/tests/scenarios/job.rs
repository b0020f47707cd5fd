//! What stands after `submit 1:`, as a job spec and what the job will do when it runs.

use tutti_model::{
    Bytes, Checkpoint, Elastic, GpuRequest, JobSpec, Launcher, Preempt, PreemptMode, Span, Stall,
    StallAction,
};

use crate::policy::level_of;
use crate::words::{Read, bytes, number, span, split};

#[derive(Clone, Debug)]
pub struct JobText {
    pub spec: JobSpec,
    pub user: String,
    /// An admin submits it for the user.
    pub by_admin: bool,
    pub fate: Fate,
}

/// What a job does when it is left alone, and when it is told to stop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fate {
    /// None: until its time limit, or for ever.
    pub runs: Option<Span>,
    pub fails_after: Option<Span>,
    /// It saves its work when it is told to stop, which takes this long.
    pub saves_in: Option<Span>,
    pub ignores_stop: bool,
    /// It reports a step after each such time, and so many of them become a checkpoint.
    pub step: Option<Span>,
    pub saves_every: Option<u64>,
    /// What it has on the GPUs of each node, as its agents say.
    pub holds: Option<Bytes>,
}

pub fn job(attributes: &[&str]) -> Read<JobText> {
    let mut job = JobText {
        spec: JobSpec::shell("train"),
        user: "ada".to_owned(),
        by_admin: false,
        fate: Fate::default(),
    };
    for attribute in attributes {
        let words = split(attribute);
        let known = who(&mut job, &words)?
            || size(&mut job.spec, &words)?
            || place(&mut job.spec, &words)?
            || life(&mut job, &words)?;
        if !known {
            return Err(format!("'{attribute}' says nothing about a job"));
        }
    }
    Ok(job)
}

fn who(job: &mut JobText, words: &[&str]) -> Read<bool> {
    let spec = &mut job.spec;
    match words {
        ["user", user] => job.user = (*user).to_owned(),
        ["by", "admin"] => job.by_admin = true,
        ["team", team] => spec.team = Some((*team).to_owned()),
        ["class", class] => spec.class = Some((*class).to_owned()),
        ["priority", p] => spec.priority = p.parse().map_err(|e| format!("{e}"))?,
        ["name", name] => spec.name = Some((*name).to_owned()),
        _ => return Ok(false),
    }
    Ok(true)
}

fn size(spec: &mut JobSpec, words: &[&str]) -> Read<bool> {
    let each = |model: Option<&str>, n: &str| -> Read<Option<GpuRequest>> {
        Ok(Some(GpuRequest { model: model.map(str::to_owned), count: number(n)? }))
    };
    match words {
        [n, "node" | "nodes"] => spec.nodes = Some(number(n)?),
        ["no", "gpus"] => spec.gpus_per_node = None,
        [n, "gpu" | "gpus"] => spec.gpus_per_node = each(None, n)?,
        [n, "gpu" | "gpus", "each"] => spec.gpus_per_node = each(None, n)?,
        [n, "gpus", "in", "all"] => spec.gpus = Some(number(n)?),
        [part, "of", "a", "gpu"] => spec.gpu_share = Some(number(part)?),
        [part, "of", "a", model] => {
            spec.gpu_share = Some(number(part)?);
            spec.gpus_per_node = each(Some(model), "1")?;
        }
        [n, "cpus"] | [n, "cpus", "each"] => spec.cpus_per_node = Some(number(n)?),
        [n, "cpus", "per", "gpu"] => spec.cpus_per_gpu = Some(number(n)?),
        [n, unit @ ("GiB" | "TiB")] | [n, unit @ ("GiB" | "TiB"), "each"] => {
            spec.mem_per_node = Some(bytes(n, unit)?);
        }
        ["a", "rank", "per", "gpu"] => spec.launcher = Launcher::Torch,
        [n, unit, "per", "gpu"] => spec.mem_per_gpu = Some(bytes(n, unit)?),
        ["gpus", "with", n, unit] => spec.gpu_mem = Some(bytes(n, unit)?),
        ["elastic", min, "to", max, "nodes"] => {
            spec.elastic = Some(Elastic { min_nodes: number(min)?, max_nodes: number(max)? });
        }
        ["array", array] => spec.array = Some(array.parse().map_err(|e| format!("{e}"))?),
        [n, model] if n.parse::<u32>().is_ok() => spec.gpus_per_node = each(Some(model), n)?,
        [n, model, "each"] => spec.gpus_per_node = each(Some(model), n)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn place(spec: &mut JobSpec, words: &[&str]) -> Read<bool> {
    let label = |pair: &str| -> Read<(String, String)> {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}' has no '='"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    match words {
        ["within", "one", level] => spec.topology = Some(level_of(level)?),
        ["label", pair] => spec.labels.extend([label(pair)?]),
        ["not", "label", pair] => spec.avoid_labels.extend([label(pair)?]),
        ["exclusive"] => spec.exclusive = true,
        _ => return Ok(false),
    }
    Ok(true)
}

fn life(job: &mut JobText, words: &[&str]) -> Read<bool> {
    let (spec, fate) = (&mut job.spec, &mut job.fate);
    match words {
        ["time", t] => spec.time = Some(span(t)?),
        ["runs", t] => fate.runs = Some(span(t)?),
        ["fails", "after", t] => fate.fails_after = Some(span(t)?),
        ["saves", "in", t] => fate.saves_in = Some(span(t)?),
        ["steps", "of", t] => fate.step = Some(span(t)?),
        ["saves", "every", n, "steps"] => fate.saves_every = Some(number(n)?),
        ["stall", "off"] => spec.stall = Some(Stall { after: None, action: StallAction::Off }),
        ["stall", "after", t] => {
            spec.stall = Some(Stall { after: Some(span(t)?), action: StallAction::Auto });
        }
        ["restarts", "when", "stalled", "for", t] => {
            spec.stall = Some(Stall { after: Some(span(t)?), action: StallAction::Restart });
        }
        ["holds", n, unit] => fate.holds = Some(bytes(n, unit)?),
        ["ignores", "stop"] => fate.ignores_stop = true,
        ["grace", t] => spec.grace = Some(span(t)?),
        ["checkpoint", rest @ ..] => {
            let (mut signal, mut grace) = (None, None);
            match rest {
                [] => {}
                ["on", s] => signal = Some((*s).to_owned()),
                ["on", s, "within", t] => (signal, grace) = (Some((*s).to_owned()), Some(span(t)?)),
                _ => return Ok(false),
            }
            spec.checkpoint = Some(Checkpoint { dir: "/ckpt".to_owned(), signal, grace });
        }
        ["preempt", mode] => spec.preempt = Some(Preempt { mode: mode_of(mode)? }),
        ["after", on] => spec.after.push(on.parse().map_err(|e| format!("{e}"))?),
        ["held"] => spec.hold = true,
        ["retries", n, "node", "failures"] => spec.retry.node_failure = number(n)?,
        ["retries", n, "preemptions"] => spec.retry.preemption = number(n)?,
        ["retries", n, "failures"] => spec.retry.job_failure = number(n)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn mode_of(word: &str) -> Read<PreemptMode> {
    Ok(match word {
        "auto" => PreemptMode::Auto,
        "suspend" => PreemptMode::Suspend,
        "checkpoint" => PreemptMode::Checkpoint,
        "requeue" => PreemptMode::Requeue,
        "never" => PreemptMode::Never,
        _ => return Err(format!("'{word}' is no way to be preempted")),
    })
}
