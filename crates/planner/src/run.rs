//! A whole run: how long, what it costs, and what failures and checkpoints take of it.

use serde::Serialize;

use crate::{Candidate, Question, Task};

/// Failures of a GPU and its share of the node, for each day. Llama 3's run on 16,384 H100s saw 419 in 54 days; others
/// report from half to twice as many.
const FAILURES_PER_GPU_DAY: f64 = 5e-4;
/// Bytes that a checkpoint has of each weight: bf16, the fp32 master and two moments.
const BYTES_PER_WEIGHT: f64 = 14.0;
/// GB/s that a node writes to shared storage, and the most that the storage takes from all.
const NODE_GBPS: f64 = 2.0;
const STORE_GBPS: f64 = 500.0;
/// Seconds from a failure until all ranks run again, reading the checkpoint not counted.
const RESTART_S: f64 = 300.0;
const DAY_S: f64 = 86_400.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub steps: u64,
    pub tokens: f64,
    /// Without failures.
    pub seconds: f64,
    /// With checkpoints, failures, and what is done again after them.
    pub effective_seconds: f64,
    pub gpu_hours: f64,
    pub price: Option<f64>,
    /// 10⁹ bytes, as storage is sold; memory of GPUs is counted in 2³⁰.
    pub checkpoint_gb: f64,
    /// To write one. Training waits for it.
    pub checkpoint_s: f64,
    pub checkpoint_every_s: f64,
    /// Mean time between failures on so many GPUs.
    pub mttf_s: f64,
    pub failures: f64,
    /// Share of the time that goes into progress.
    pub effective: f64,
}

/// What the run takes, where it is known how many tokens it has.
pub fn run(question: &Question, candidate: &Candidate) -> Option<Run> {
    let per_step = question.tokens();
    let steps = (question.workload.tokens? / per_step).ceil().max(1.0);
    let seconds = steps * candidate.estimate.time.total();
    let gpus = f64::from(candidate.gpus);
    let mttf_s = DAY_S / (gpus * FAILURES_PER_GPU_DAY);
    let checkpoint_gb = checkpoint_gb(question);
    let nodes = (gpus / f64::from(question.cluster.gpus_per_node)).ceil();
    let checkpoint_s = checkpoint_gb / (nodes * NODE_GBPS).min(STORE_GBPS);
    let checkpoint_every_s = interval(checkpoint_s, mttf_s);
    let effective = effective(checkpoint_s, checkpoint_every_s, mttf_s);
    let effective_seconds = seconds / effective;
    let gpu_hours = effective_seconds * gpus / 3600.0;
    Some(Run {
        steps: steps as u64,
        tokens: steps * per_step,
        seconds,
        effective_seconds,
        gpu_hours,
        price: question.cluster.price_per_gpu_hour.map(|p| p * gpu_hours),
        checkpoint_gb,
        checkpoint_s,
        checkpoint_every_s,
        mttf_s,
        failures: effective_seconds / mttf_s,
        effective,
    })
}

fn checkpoint_gb(q: &Question) -> f64 {
    let arch = q.arch;
    let weights = match q.workload.task {
        Task::Lora { rank } => f64::from(arch.layers) * arch.adapter_params(rank),
        Task::Pretrain | Task::Finetune => arch.params(),
    };
    BYTES_PER_WEIGHT * weights / 1e9
}

/// Daly's first order, and never more often than it takes to write one.
fn interval(write: f64, mttf: f64) -> f64 {
    ((2.0 * write * mttf).sqrt() - write).max(write)
}

/// Share of the time that makes progress: half an interval is done again after each failure.
fn effective(write: f64, every: f64, mttf: f64) -> f64 {
    let lost = (RESTART_S + write + every / 2.0) / mttf;
    ((1.0 - lost) / (1.0 + write / every)).clamp(0.01, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ask, work};
    use crate::{Workload, catalogue, names, search};

    fn planned(model: &str, cluster: &str, batch: u64, tokens: f64) -> Run {
        let arch = names::find(model).unwrap();
        let cluster = catalogue::find(cluster).unwrap();
        let workload = Workload { tokens: Some(tokens), ..work(Task::Pretrain, 8192, batch) };
        let q = ask(&arch, &workload, &cluster);
        run(&q, &search(&q).unwrap().best).unwrap()
    }

    #[test]
    fn the_largest_published_run_fails_as_often_as_it_did() {
        let r = planned("llama-3.1-405b", "16384xh100", 2048, 15.6e12);
        assert!((r.mttf_s / 3600.0 - 3.0).abs() < 0.3, "{r:?}");
        assert!(r.effective > 0.9 && r.effective < 0.99, "{r:?}");
        // 54 days of 16,384 GPUs were a part of 30.84 million GPU-hours.
        assert!((0.6..1.4).contains(&(r.gpu_hours / 30.84e6)), "{r:?}");
        assert!((r.checkpoint_gb / 5682.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn numbers_of_a_run_belong_together() {
        let r = planned("llama-3.1-8b", "16xdgx-h100", 512, 1e12);
        assert_eq!(r.steps, (1e12_f64 / (8192.0 * 512.0)).ceil() as u64);
        assert!(r.tokens >= 1e12 && r.effective_seconds > r.seconds);
        assert!((r.price.unwrap() / (r.gpu_hours * 2.99) - 1.0).abs() < 1e-9);
        assert!((r.seconds / r.effective_seconds - r.effective).abs() < 1e-9);
    }

    #[test]
    fn more_gpus_fail_more_often() {
        let few = planned("llama-3.1-8b", "16xdgx-h100", 1024, 1e12);
        let many = planned("llama-3.1-8b", "128xdgx-h100", 1024, 1e12);
        assert!(many.mttf_s < few.mttf_s && many.effective < few.effective);
        assert!(many.effective_seconds < few.effective_seconds);
    }
}
