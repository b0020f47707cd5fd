//! What a change of the cluster or of the work would do.

use serde::Serialize;

use crate::near::count;
use crate::search::best;
use crate::words::{axes, more, precision, thousands};
use crate::{Answer, Candidate, Cluster, Goal, Precision, Question, Workload, candidate, legal};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// `one more node (17)`.
    pub change: String,
    pub step_s: f64,
    /// Time for each token over that of the plan: below 1 is faster.
    pub ratio: f64,
    /// Price of each token over that of the plan, where the price of a GPU stays what it is.
    pub cost_ratio: Option<f64>,
    /// What it means, in a sentence.
    pub note: String,
}

/// What is changed.
enum Change {
    Cluster(Cluster),
    Workload(Workload),
}

/// The changes that are worth asking for, each searched anew.
pub fn what_if(question: &Question, answer: &Answer) -> Vec<WhatIf> {
    let changes = changes(question);
    changes
        .into_iter()
        .filter_map(|(words, change)| ask(question, answer, words, &change))
        .collect()
}

fn changes(q: &Question) -> Vec<(String, Change)> {
    let nodes = q.cluster.nodes;
    let sized = |nodes: u32| Change::Cluster(Cluster { nodes, ..q.cluster.clone() });
    let mut all =
        vec![(format!("one more node ({})", thousands(u64::from(nodes) + 1)), sized(nodes + 1))];
    if nodes > 1 {
        all.push((
            format!("twice the nodes ({})", thousands(u64::from(nodes) * 2)),
            sized(nodes * 2),
        ));
        let mut wide = q.cluster.clone();
        wide.nic_gbps *= 2.0;
        wide.nic_busbw = wide.nic_busbw.map(|b| b * 2.0);
        all.push((format!("twice the network ({} Gbit/s)", wide.nic_gbps), Change::Cluster(wide)));
    }
    let mut roomy = q.cluster.clone();
    roomy.gpu.memory_gb *= 2.0;
    all.push((format!("twice the memory ({} GB)", roomy.gpu.memory_gb), Change::Cluster(roomy)));
    let w = q.workload;
    all.push((
        format!("twice the batch ({})", thousands(w.global_batch * 2)),
        Change::Workload(Workload { global_batch: w.global_batch * 2, ..*w }),
    ));
    if let Some(narrow) = narrower(q) {
        let to = Workload { precision: narrow, ..*w };
        all.push((precision(narrow).to_owned(), Change::Workload(to)));
    }
    all
}

/// The next precision that the GPU is faster in.
fn narrower(q: &Question) -> Option<Precision> {
    let gpu = &q.cluster.gpu;
    gpu.fp8_tflops?;
    match q.workload.precision {
        Precision::Fp16 | Precision::Bf16 if gpu.fp4_tflops.is_some() => Some(Precision::Mxfp8),
        Precision::Fp16 | Precision::Bf16 => Some(Precision::Fp8),
        Precision::Fp8 | Precision::Mxfp8 if gpu.fp4_tflops.is_some() => Some(Precision::Nvfp4),
        _ => None,
    }
}

fn ask(q: &Question, answer: &Answer, change: String, to: &Change) -> Option<WhatIf> {
    let mut changed = *q;
    match to {
        Change::Cluster(cluster) => changed.cluster = cluster,
        Change::Workload(workload) => changed.workload = workload,
    }
    let now = &answer.best;
    let then = best(&changed).map(|layout| candidate(&changed, &layout));
    let then = then.or_else(|| with_some_idle(&changed, now))?;
    let ratio = now.tokens_per_s / then.tokens_per_s;
    let share = f64::from(then.gpus) / f64::from(now.gpus);
    let cost_ratio = now.cost_per_step.map(|_| ratio * share);
    let note = note(&changed, now, &then, ratio);
    Some(WhatIf { change, step_s: then.estimate.time.total(), ratio, cost_ratio, note })
}

/// Where not all can be used: more than before, if that is better, else what there is.
fn with_some_idle(changed: &Question, now: &Candidate) -> Option<Candidate> {
    let Question { arch, workload, cluster, .. } = *changed;
    let same = legal(arch, workload, cluster, &now.layout).is_ok();
    let same = same.then(|| candidate(changed, &now.layout));
    let some = Question { fewer: true, ..*changed };
    let more = best(&some).map(|layout| candidate(changed, &layout)).filter(|c| c.gpus > now.gpus);
    let speed = |c: &Candidate| c.tokens_per_s;
    more.into_iter().chain(same).max_by(|a, b| speed(a).total_cmp(&speed(b)))
}

/// Why GPUs are left idle.
fn idle(changed: &Question, then: &Candidate) -> String {
    let n = u64::from(changed.cluster.gpus() - then.gpus);
    if n == 0 {
        return String::new();
    }
    let all = best(&Question { fewer: false, ..*changed });
    let why = match (all, changed.pins.dp, changed.goal) {
        (_, Some(_), _) => "dp is given",
        (None, ..) => "the batch does not divide among all",
        (Some(_), _, Goal::Time) => "fewer are faster",
        (Some(_), _, Goal::Money) => "fewer are cheaper",
    };
    format!("; {} left idle, {why}", count(n, "GPU"))
}

fn note(changed: &Question, now: &Candidate, then: &Candidate, ratio: f64) -> String {
    let verdict = match ratio {
        r if r < 0.995 => format!("{} faster", more(1.0 / r)),
        r if r > 1.005 => format!("{} slower", more(r)),
        _ => "no difference".to_owned(),
    };
    let layout = match (axes(&now.layout), axes(&then.layout)) {
        (a, b) if a != b => format!(" with {b}"),
        _ => String::new(),
    };
    format!("{verdict}{layout}{}", idle(changed, then))
}

#[cfg(test)]
mod tests {
    use crate::testing::{ask, work};
    use crate::{Question, Task, catalogue, names, search};

    #[test]
    fn more_of_anything_is_never_slower_and_fp8_pays() {
        let arch = names::find("llama-3.1-70b").unwrap();
        let cluster = catalogue::find("16xdgx-h100").unwrap();
        let workload = work(Task::Pretrain, 8192, 512);
        let q = ask(&arch, &workload, &cluster);
        let all = super::what_if(&q, &search(&q).unwrap());
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|w| w.ratio < 1.02), "{all:#?}");
        let find = |word: &str| all.iter().find(|w| w.change.contains(word)).unwrap();
        assert!(find("FP8").ratio < 0.9);
        assert!(find("one more node (17)").note.contains("8 GPUs left idle"));
        assert!(find("twice the nodes (32)").ratio < 0.6);
    }

    /// 16 micro-batches on 16 stages: fewer GPUs would wait less, network or not.
    #[test]
    fn like_is_compared_with_like() {
        let arch = names::find("llama-3.1-405b").unwrap();
        let cluster = catalogue::find("16384xh100").unwrap();
        let workload = work(Task::Pretrain, 4096, 1024);
        let q = ask(&arch, &workload, &cluster);
        let answer = search(&q).unwrap();
        let all = super::what_if(&q, &answer);
        let find = |word: &str| all.iter().find(|w| w.change.contains(word)).unwrap();
        for what in ["twice the network", "twice the memory", "twice the batch", "FP8"] {
            assert!(!find(what).note.contains("idle"), "{all:#?}");
        }
        let more = find("one more node");
        assert!(more.note.ends_with("8 GPUs left idle, the batch does not divide among all"));
        assert!((more.ratio - 1.0).abs() < 1e-6, "{more:?}");
        let (gpus, step_s) = answer.faster_with_fewer.unwrap();
        let some = search(&Question { fewer: true, ..q }).unwrap();
        assert_eq!((gpus, step_s), (some.best.gpus, some.best.estimate.time.total()));
        assert!(gpus < 16_384 && step_s < answer.best.estimate.time.total());
        let base = Question { fewer: true, ..q };
        let all = super::what_if(&base, &some);
        let idle = all.iter().filter(|w| w.note.contains("idle"));
        assert!(idle.clone().count() > 0);
        assert!(idle.into_iter().all(|w| {
            w.note.contains("fewer are faster") || w.change.starts_with("one more node")
        }));
    }

    #[test]
    fn one_node_has_no_network_to_double() {
        let arch = names::find("llama-3.1-8b").unwrap();
        let cluster = catalogue::find("dgx-a100").unwrap();
        let workload = work(Task::Lora { rank: 16 }, 4096, 32);
        let q = ask(&arch, &workload, &cluster);
        let all = super::what_if(&q, &search(&q).unwrap());
        assert!(all.iter().all(|w| !w.change.contains("network") && !w.change.contains("FP8")));
    }
}
