//! Why a model is split at all, in one line.

use tutti_planner::words::{axes, gb, sharding};
use tutti_planner::{Answer, Candidate, Layout, Recompute, Sharding};

/// Simpler layouts that are named.
const MOST: usize = 2;

/// What does not fit although it would be simpler, the simplest first. None: nothing was split for want of memory.
pub fn because(answer: &Answer, usable_gb: f64) -> Option<String> {
    let best = &answer.best.layout;
    let simpler = fewer_parts(answer);
    let said: Vec<String> = if simpler.is_empty() {
        vec![less_sharded(answer)?]
    } else {
        let words = simpler.iter().take(MOST).enumerate();
        words.map(|(n, c)| alone(c, best, n == 0)).collect()
    };
    Some(format!("{}; {} can be used", said.join(", "), gb(usable_gb)))
}

/// GPUs that hold a copy of the weights between them.
fn parts(l: &Layout) -> u64 {
    u64::from(l.tp) * u64::from(l.pp)
}

/// One for each number of parts below the plan's that is too few.
fn fewer_parts(answer: &Answer) -> Vec<&Candidate> {
    // Where fewer parts fit by the same means, the plan has more because that is faster, and memory is not the reason.
    let means = answer.best.layout.sharding;
    let fitting =
        answer.runners_up.iter().filter(|r| r.fits && r.candidate.layout.sharding <= means);
    let enough = fitting.map(|r| parts(&r.candidate.layout)).min().unwrap_or(u64::MAX);
    let most = enough.min(parts(&answer.best.layout));
    let mut found: Vec<&Candidate> = answer
        .runners_up
        .iter()
        .filter(|r| !r.fits && parts(&r.candidate.layout) < most)
        .map(|r| &r.candidate)
        .collect();
    let memory = |c: &Candidate| c.estimate.memory.total();
    found.sort_by(|a, b| {
        let by = parts(&a.layout).cmp(&parts(&b.layout));
        by.then(memory(a).total_cmp(&memory(b)))
    });
    found.dedup_by_key(|c| parts(&c.layout));
    found
}

/// `one GPU would need 141 GB even with full recomputation`, `2 GPUs 130 GB each at micro-batch 4`.
fn alone(c: &Candidate, best: &Layout, first: bool) -> String {
    let l = &c.layout;
    let (would, each) = match (first, parts(l)) {
        (true, 1) => (" would need", ""),
        (true, _) => (" would need", " each"),
        (false, _) => ("", " each"),
    };
    // ZeRO-3 spreads the weights besides, so no few GPUs hold them.
    let who = match (l.sharding, parts(l)) {
        (Sharding::Zero3, _) => format!("{} with ZeRO-3", axes(l)),
        (_, 1) => "one GPU".to_owned(),
        (_, n) => format!("{n} GPUs"),
    };
    let how = if l.recompute == Recompute::Full && best.recompute != Recompute::Full {
        " even with full recomputation".to_owned()
    } else {
        format!(" at micro-batch {}", l.micro_batch)
    };
    format!("{who}{would} {}{each}{how}", gb(c.estimate.memory.total()))
}

/// The same layout, with a stage of ZeRO less.
fn less_sharded(answer: &Answer) -> Option<String> {
    let best = &answer.best.layout;
    let lighter = |l: &Layout| {
        best.sharding == Sharding::Zero3 && *l == Layout { sharding: l.sharding, ..*best }
    };
    let found = answer.runners_up.iter().find(|r| !r.fits && lighter(&r.candidate.layout))?;
    let (stage, needs) = (found.candidate.layout.sharding, found.candidate.estimate.memory.total());
    Some(format!("the same with {} would need {} on each GPU", sharding(stage), gb(needs)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_planner::{
        Goal, Pins, Precision, Question, Stack, Task, Workload, catalogue, names, search, usable_gb,
    };

    fn why(model: &str, on: &str, batch: u64, task: Task, pins: Pins) -> Option<String> {
        let (arch, cluster) = (names::find(model).unwrap(), catalogue::find(on).unwrap());
        let precision = Precision::Bf16;
        let workload = Workload { task, precision, seq: 2048, global_batch: batch, tokens: None };
        let question = Question {
            arch: &arch,
            workload: &workload,
            cluster: &cluster,
            pins,
            goal: Goal::Time,
            stack: Stack::Current,
            fewer: false,
        };
        because(&search(&question).unwrap(), usable_gb(&cluster.gpu))
    }

    #[test]
    fn what_is_too_large_for_one_gpu_is_said_to_be() {
        let lora =
            why("llama-3.1-70b", "8xa100", 16, Task::Lora { rank: 16 }, Pins::default()).unwrap();
        for want in ["one GPU would need 1", "GB even with full recomputation, ", "can be used"] {
            assert!(lora.contains(want), "{want} in {lora}");
        }
        assert_eq!(why("qwen2.5-0.5b", "8xa100", 16, Task::Pretrain, Pins::default()), None);
    }

    #[test]
    fn what_zero_3_is_needed_for_is_said_too() {
        let pins =
            Pins { tp: Some(1), pp: Some(1), sharding: Some(Sharding::Zero3), ..Pins::default() };
        let said = why("llama-3.1-70b", "32xa100", 32, Task::Pretrain, pins).unwrap();
        assert!(said.starts_with("the same with ZeRO-2 would need "), "{said}");
    }
}
