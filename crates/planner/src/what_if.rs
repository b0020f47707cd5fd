//! What a change of the cluster or of the work would do.

use serde::Serialize;

use crate::near::count;
use crate::search::best;
use crate::words::{axes, more, precision};
use crate::{Answer, Candidate, Cluster, Precision, Question, Workload, candidate};

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
    let mut all = vec![(format!("one more node ({})", nodes + 1), sized(nodes + 1))];
    if nodes > 1 {
        all.push((format!("twice the nodes ({})", nodes * 2), sized(nodes * 2)));
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
        format!("twice the batch ({})", w.global_batch * 2),
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
    let mut changed = Question { fewer: true, ..*q };
    match to {
        Change::Cluster(cluster) => changed.cluster = cluster,
        Change::Workload(workload) => changed.workload = workload,
    }
    let then = candidate(&changed, &best(&changed)?);
    let now = &answer.best;
    let ratio = now.tokens_per_s / then.tokens_per_s;
    let share = f64::from(then.gpus) / f64::from(now.gpus);
    let cost_ratio = now.cost_per_step.map(|_| ratio * share);
    let note = note(&changed, now, &then, ratio);
    Some(WhatIf { change, step_s: then.estimate.time.total(), ratio, cost_ratio, note })
}

fn note(changed: &Question, now: &Candidate, then: &Candidate, ratio: f64) -> String {
    let verdict = match ratio {
        r if r < 0.995 => format!("{} faster", more(1.0 / r)),
        r if r > 1.005 => format!("{} slower", more(r)),
        _ => "no difference".to_owned(),
    };
    let idle = changed.cluster.gpus() - then.gpus;
    let layout = match (axes(&now.layout), axes(&then.layout)) {
        (a, b) if a != b => format!(" with {b}"),
        _ => String::new(),
    };
    let idle = match idle {
        0 => String::new(),
        n => format!(
            "; {} left idle, the batch does not divide among all",
            count(u64::from(n), "GPU")
        ),
    };
    format!("{verdict}{layout}{idle}")
}

#[cfg(test)]
mod tests {
    use crate::testing::{ask, work};
    use crate::{Task, catalogue, names, search};

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
