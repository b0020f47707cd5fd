//! Serving a model: how it is split, how fast it answers, how many replicas a load needs.
//!
//! One replica is tp × pp GPUs. It reads a prompt at the speed of its arithmetic (prefill), then writes token after token
//! for many requests at once at the speed of its memory (decode). New requests are read in between, which everybody who
//! is being written to waits for.

mod engine;

use serde::Serialize;

use crate::catalogue::larger;
use crate::memory::GB;
use crate::near::count;
use crate::numbers;
use crate::search::precision;
use crate::words::{gb, more, seconds, thousands};
use crate::{Arch, Cluster, Illegal, NoPlan, Precision};

pub(crate) use engine::USABLE;
use engine::{Engine, Speed};

#[derive(Clone, Copy, Debug)]
pub struct Serving<'a> {
    pub arch: &'a Arch,
    pub cluster: &'a Cluster,
    /// Of the weights. What is kept of a request is in 16 bits.
    pub precision: Precision,
    /// Tokens that come with a request, and that are written for it.
    pub prompt: u64,
    pub output: u64,
    /// Until the first token, and between tokens, at most.
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    /// The load that is to be carried.
    pub requests_per_s: Option<f64>,
    pub tp: Option<u32>,
    pub pp: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServingPlan {
    pub tp: u32,
    pub pp: u32,
    /// GPUs of one replica.
    pub gpus_per_replica: u32,
    /// On the cluster: all that it has room for, or as many as the load needs.
    pub replicas: u32,
    pub gpus: u32,
    /// Of one replica, in GB of 2³⁰ bytes as GPUs are sold, as the following two.
    pub weights_gb: f64,
    pub kv_gb_per_request: f64,
    /// Room for requests beside the weights, of one replica.
    pub kv_room_gb: f64,
    /// Requests at once, of one replica.
    pub concurrency: u64,
    pub prefill_s: f64,
    /// One step of decoding, nobody being read in between.
    pub decode_s: f64,
    /// As a user sees them: until the first token where no queue is, and between tokens.
    pub ttft_s: f64,
    /// None where a single token is written.
    pub tpot_s: Option<f64>,
    /// Tokens written, of one replica and of all.
    pub replica_tokens_per_s: f64,
    pub tokens_per_s: f64,
    pub requests_per_s: f64,
    /// For the load that was asked for.
    pub replicas_needed: Option<u32>,
    pub gpus_needed: Option<u32>,
    pub price_per_million_tokens: Option<f64>,
    /// Other ways to split it, and why they lose.
    pub others: Vec<String>,
}

/// Stages of pipelines that are looked at where none is needed, and how much better one must be to be told of.
const STAGES: [u32; 4] = [2, 4, 8, 16];
const WORTH: f64 = 1.005;

/// Of what a replica can do, how much a load may ask of it: beyond, queues grow.
const BUSY: f64 = 0.85;

/// The split that carries the most, or the load with the fewest GPUs.
pub fn serve(serving: &Serving) -> Result<ServingPlan, NoPlan> {
    check(serving)?;
    let engines = engines(serving)?;
    let mut speeds: Vec<(&Engine, Speed)> = Vec::new();
    let mut slow: Vec<(&Engine, Speed)> = Vec::new();
    for engine in &engines {
        match engine.best(serving) {
            Ok(speed) => speeds.push((engine, speed)),
            Err(speed) => slow.push((engine, speed)),
        }
    }
    let rank = |s: &(&Engine, Speed)| plan(serving, s.0, &s.1).cost(serving);
    speeds.sort_by(|a, b| rank(a).total_cmp(&rank(b)).then(a.0.gpus().cmp(&b.0.gpus())));
    let Some((best, speed)) = speeds.first() else {
        return Err(too_slow(serving, &slow));
    };
    let mut best = plan(serving, best, speed);
    best.others = others(serving, &best, &speeds, &slow);
    Ok(best)
}

impl ServingPlan {
    /// What is least for the best: GPUs for the load, or how little all GPUs write.
    fn cost(&self, serving: &Serving) -> f64 {
        match (serving.requests_per_s, self.gpus_needed) {
            // Of equals the one that writes more.
            (Some(_), Some(gpus)) => f64::from(gpus) + 1.0 / (1.0 + self.replica_tokens_per_s),
            _ => -self.tokens_per_s,
        }
    }

    fn split(&self) -> String {
        split(self.tp, self.pp)
    }
}

fn split(tp: u32, pp: u32) -> String {
    if pp > 1 { format!("tp {tp} × pp {pp}") } else { format!("tp {tp}") }
}

fn plan(s: &Serving, engine: &Engine, speed: &Speed) -> ServingPlan {
    let gpus = engine.gpus();
    let room = room(s.cluster, engine).max(1);
    let each = speed.tokens_per_s;
    let output = s.output as f64;
    let needed = s.requests_per_s.map(|r| (r * output / (each * BUSY)).ceil().max(1.0) as u32);
    let replicas = needed.map_or(room, |n| n.min(room));
    let price = s.cluster.price_per_gpu_hour;
    ServingPlan {
        tp: engine.tp,
        pp: engine.pp,
        gpus_per_replica: gpus,
        replicas,
        gpus: replicas * gpus,
        weights_gb: engine.weights / GB,
        kv_gb_per_request: engine.kv_per_request / GB,
        kv_room_gb: engine.room() / GB,
        concurrency: speed.concurrency,
        prefill_s: speed.prefill,
        decode_s: speed.decode,
        ttft_s: speed.ttft,
        tpot_s: (s.output > 1).then_some(speed.tpot),
        replica_tokens_per_s: each,
        tokens_per_s: each * f64::from(replicas),
        requests_per_s: each * f64::from(replicas) / output,
        replicas_needed: needed,
        gpus_needed: needed.map(|n| n.saturating_mul(gpus)),
        price_per_million_tokens: price.map(|p| p * f64::from(gpus) / 3600.0 / each * 1e6),
        others: Vec::new(),
    }
}

/// Replicas that the cluster has room for. One that is no pipeline stays inside of an island.
fn room(cluster: &Cluster, engine: &Engine) -> u32 {
    let near = cluster.gpus_per_node.max(cluster.island);
    let (all, one) = (cluster.gpus(), engine.gpus());
    if engine.pp > 1 {
        return all / one;
    }
    all / near * (near / one) + all % near / one
}

fn check(s: &Serving) -> Result<(), NoPlan> {
    numbers::check(s.arch)?;
    // Narrower weights are kept as they are and computed in what there is, so that any GPU can serve them.
    if s.precision == Precision::Bf16 {
        precision::check(&s.cluster.gpu, s.precision)?;
    }
    let bad = |what, value: String, must| Err(NoPlan::Workload { what, value, must });
    for (what, tokens) in [("the prompt", s.prompt), ("the output", s.output)] {
        if !(1..=100_000_000).contains(&tokens) {
            return bad(what, tokens.to_string(), "from 1 to 100,000,000 tokens");
        }
    }
    for (what, ms) in
        [("the time to the first token", s.ttft_ms), ("the time between tokens", s.tpot_ms)]
    {
        if let Some(ms) = ms.filter(|ms| !(1e-3..=1e9).contains(ms)) {
            return bad(what, ms.to_string(), "from 0.001 to 1e9 milliseconds");
        }
    }
    if let Some(rate) = s.requests_per_s.filter(|r| !(1e-6..=1e9).contains(r)) {
        return bad("the number of requests per second", rate.to_string(), "from 1e-6 to 1e9");
    }
    Ok(())
}

/// Every split that the weights and one request fit into.
fn engines(s: &Serving) -> Result<Vec<Engine>, NoPlan> {
    let (all, wrong) = splits(s);
    match wrong {
        Some(illegal) if all.is_empty() && (s.tp.is_some() || s.pp.is_some()) => {
            return Err(illegal.into());
        }
        _ => {}
    }
    if all.iter().all(|engine| engine.requests() == 0) {
        return Err(too_large(s, &all));
    }
    Ok(all.into_iter().filter(|engine| engine.requests() >= 1).collect())
}

/// Every split, whether it fits or not, and why another is none. A pipeline no longer than it must be.
fn splits(s: &Serving) -> (Vec<Engine>, Option<Illegal>) {
    let gpus = s.cluster.gpus();
    let near = s.cluster.gpus_per_node.max(s.cluster.island).min(gpus);
    let tps: Vec<u32> = match s.tp {
        Some(tp) => vec![tp],
        None => (1..=near).filter(|tp| s.arch.heads.is_multiple_of(*tp)).collect(),
    };
    let widest = tps.iter().copied().max().unwrap_or(1);
    let mut engines = Vec::new();
    let mut wrong = None;
    for tp in tps {
        // A pipeline only where one island is too small.
        let pps = match s.pp {
            Some(pp) => vec![pp],
            None if tp == widest => (1..=(gpus / widest).clamp(1, s.arch.layers)).collect(),
            None => vec![1],
        };
        for pp in pps {
            match Engine::new(s, tp, pp) {
                Ok(engine) => {
                    let fits = engine.requests() >= 1;
                    engines.push(engine);
                    if fits {
                        break;
                    }
                }
                Err(illegal) => wrong = Some(illegal),
            }
        }
    }
    (engines, wrong)
}

fn too_large(s: &Serving, found: &[Engine]) -> NoPlan {
    let fits = |cluster: &Cluster| {
        let more = Serving { cluster, tp: None, pp: None, ..*s };
        splits(&more).0.iter().any(|engine| engine.requests() >= 1)
    };
    let pinned = [s.tp.map(|tp| format!("--tp {tp}")), s.pp.map(|pp| format!("--pp {pp}"))];
    let pinned: Vec<String> = pinned.into_iter().flatten().collect();
    let without = (!pinned.is_empty() && fits(s.cluster)).then(|| pinned.join(" "));
    let would = larger(s.cluster).find(fits).filter(|_| without.is_none());
    let would = would.map(|c| (c.nodes, c.gpus()));
    let (weights_gb, gpus) = (engine::weights(s), s.cluster.gpus());
    let room_gb = engine::usable(s) / GB;
    let widest = found.iter().max_by(|a, b| a.room().total_cmp(&b.room()));
    match widest.filter(|engine| engine.room() > 0.0) {
        None => NoPlan::Weights { weights_gb, gpus, room_gb, would, without },
        Some(engine) => NoPlan::Request {
            tokens: s.prompt + s.output,
            request_gb: engine.kv_per_request / GB,
            weights_gb,
            gpus,
            room_gb,
            would,
            without,
        },
    }
}

fn too_slow(s: &Serving, slow: &[(&Engine, Speed)]) -> NoPlan {
    let asked = |ms: Option<f64>| ms.map_or(f64::INFINITY, |ms| ms / 1e3);
    let (ttft, tpot) = (asked(s.ttft_ms), asked(s.tpot_ms));
    let reads = slow.iter().min_by(|a, b| a.1.ttft.total_cmp(&b.1.ttft));
    let writes = slow.iter().min_by(|a, b| a.1.tpot.total_cmp(&b.1.tpot));
    let (what, asked, best, with) = match (reads, writes) {
        (Some((e, speed)), _) if speed.ttft > ttft => ("answers", ttft, speed.ttft, e),
        (_, Some((e, speed))) => ("writes a token", tpot, speed.tpot, e),
        _ => unreachable!("there is an engine, or the weights did not fit"),
    };
    NoPlan::TooSlow { what, asked, best, with: split(with.tp, with.pp) }
}

fn others(
    s: &Serving,
    best: &ServingPlan,
    speeds: &[(&Engine, Speed)],
    slow: &[(&Engine, Speed)],
) -> Vec<String> {
    let lost = speeds.iter().skip(1).map(|(e, speed)| {
        let other = plan(s, e, speed);
        let verdict = match (other.gpus_needed, best.gpus_needed) {
            (Some(a), Some(b)) if a > b => {
                format!("needs {} instead of {}", count(a.into(), "GPU"), thousands(b.into()))
            }
            (Some(_), Some(_)) => "needs as many GPUs".to_owned(),
            _ => {
                let fewer = 1.0 - other.tokens_per_s / best.tokens_per_s;
                format!("{:.1} % fewer tokens a second", fewer * 100.0)
            }
        };
        told(&other, &verdict)
    });
    let late = slow.iter().map(|(e, speed)| {
        let then = match s.output {
            1 => String::new(),
            _ => format!(" and {} between tokens", seconds(speed.tpot)),
        };
        let first = seconds(speed.ttft);
        format!("{}: too slow, {first} to the first token{then}", split(e.tp, e.pp))
    });
    piped(s, best).into_iter().chain(lost).chain(late).chain(small(s, best)).collect()
}

fn told(other: &ServingPlan, verdict: &str) -> String {
    let at = format!("{} at once", count(other.concurrency, "request"));
    let between =
        other.tpot_s.map_or(String::new(), |s| format!(", {} between tokens", seconds(s)));
    let replicas = count(u64::from(other.replicas), "replica");
    format!("{} × {replicas}: {verdict}; {at}{between}", other.split())
}

/// The best pipeline, where it does better than what was chosen: that is simpler.
fn piped(s: &Serving, best: &ServingPlan) -> Option<String> {
    if s.tp.is_some() || s.pp.is_some() {
        return None;
    }
    let gpus = s.cluster.gpus();
    let near = s.cluster.gpus_per_node.max(s.cluster.island).min(gpus);
    let tps = (1..=near).filter(|tp| s.arch.heads.is_multiple_of(*tp));
    let splits = tps.flat_map(|tp| STAGES.into_iter().map(move |pp| (tp, pp)));
    let plans = splits.filter(|(tp, pp)| tp * pp <= gpus).filter_map(|(tp, pp)| {
        let engine = Engine::new(s, tp, pp).ok().filter(|e| e.requests() >= 1)?;
        Some(plan(s, &engine, &engine.best(s).ok()?))
    });
    let other = plans.min_by(|a, b| a.cost(s).total_cmp(&b.cost(s)))?;
    let verdict = match (other.gpus_needed, best.gpus_needed) {
        (Some(a), Some(b)) if a < b => {
            format!("needs {} instead of {}", count(a.into(), "GPU"), thousands(b.into()))
        }
        (None, None) if other.tokens_per_s > WORTH * best.tokens_per_s => {
            format!("{} more tokens a second", more(other.tokens_per_s / best.tokens_per_s))
        }
        _ => return None,
    };
    (other.pp != best.pp).then(|| told(&other, &format!("{verdict}, but a pipeline")))
}

/// The largest split inside of an island that is still too small.
fn small(s: &Serving, best: &ServingPlan) -> Option<String> {
    let near = s.cluster.gpus_per_node.max(s.cluster.island);
    let smaller = (1..=best.tp.min(near)).rev();
    let engines = smaller.filter_map(|tp| Engine::new(s, tp, 1).ok());
    let engine = engines.into_iter().find(|e| e.requests() == 0)?;
    let room = gb(engine::usable(s) / GB);
    let each = gb(engine.weights / f64::from(engine.tp) / GB);
    Some(format!(
        "tp {}: does not fit, {each} of weights on a GPU that has room for {room} with requests",
        engine.tp
    ))
}

#[cfg(test)]
mod tests;
