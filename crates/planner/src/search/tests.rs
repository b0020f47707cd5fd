use proptest::prelude::*;

use super::*;
use crate::testing::{ask, work};
use crate::{Part, catalogue, names};

fn model(name: &str) -> Arch {
    names::find(name).unwrap()
}

fn part(c: &Candidate, part: Part) -> f64 {
    c.estimate.time.parts.iter().filter(|(p, _)| *p == part).map(|(_, s)| s).sum()
}

fn seconds(a: &Answer) -> f64 {
    a.best.estimate.time.total()
}

fn weighed(a: &Answer) -> f64 {
    Goal::Time.weighed(seconds(a), &a.best.layout)
}

/// The textbook's: 140 GB of weights fit no card of 80 GB.
#[test]
fn adapters_for_seventy_billion_weights_on_eight_cards_are_four_by_two() {
    let (arch, cluster) = (model("llama-3.1-70b"), catalogue::find("8xa100").unwrap());
    let workload = work(Task::Lora { rank: 16 }, 4096, 32);
    let answer = search(&ask(&arch, &workload, &cluster)).unwrap();
    let Layout { tp, pp, dp, .. } = answer.best.layout;
    assert_eq!((tp, pp, dp), (4, 1, 2), "{answer:#?}");
    let memory = answer.best.estimate.memory;
    assert!(
        (memory.weights * 1.0737 - 141.1 / 4.0).abs() < 1.0 && memory.total() < 76.0,
        "{memory:?}"
    );
    let says =
        |start: &str| answer.runners_up.iter().any(|r| !r.fits && r.loses.starts_with(start));
    assert!(says("tp 2 instead of tp 4: does not fit, "), "{answer:#?}");
    assert!(says("tp 1, full recomputation "), "{answer:#?}");
}

#[test]
fn all_of_its_weights_need_more_cards_and_it_says_how_many() {
    let (arch, workload) = (model("llama-3.1-70b"), work(Task::Finetune, 4096, 48));
    let on = |nodes: u32| {
        let cluster = catalogue::find(&format!("{nodes}xdgx-a100")).unwrap();
        search(&Question { fewer: true, ..ask(&arch, &workload, &cluster) })
    };
    let no = on(1).unwrap_err();
    let NoPlan::TooLarge { needs_gb, would: Some((nodes, gpus)), .. } = no else { panic!("{no}") };
    assert!(needs_gb > 76.0 && gpus == nodes * 8);
    assert!(
        no.to_string().contains("on each GPU, and A100-SXM4-80GB has room for 76.0 GB; "),
        "{no}"
    );
    assert!(no.to_string().ends_with(&format!("{gpus} GPUs ({nodes} nodes) would do")), "{no}");
    assert!(on(nodes - 1).is_err());
    assert!(on(nodes).is_ok());
}

#[test]
fn sixteen_nodes_of_h100_have_a_plan_a_time_and_a_price() {
    let (arch, cluster) = (model("llama-3.1-70b"), catalogue::find("16xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 8192, 512);
    let best = search(&ask(&arch, &workload, &cluster)).unwrap().best;
    assert_eq!((best.gpus, best.layout.gpus()), (128, 128));
    assert!((0.35..0.65).contains(&best.mfu), "{}", best.mfu);
    let step = best.estimate.time.total();
    assert!((best.tokens_per_s * step / (8192.0 * 512.0) - 1.0).abs() < 1e-9);
    assert!((best.cost_per_step.unwrap() / (2.99 * 128.0 * step / 3600.0) - 1.0).abs() < 1e-9);
}

#[test]
fn slow_links_between_nodes_change_the_choice() {
    let (arch, workload) = (model("llama-3.1-70b"), work(Task::Pretrain, 8192, 512));
    let fast = catalogue::find("16xdgx-h100").unwrap();
    let slow = Cluster { nic_gbps: fast.nic_gbps / 10.0, ..fast.clone() };
    let at = |cluster| search(&ask(&arch, &workload, cluster)).unwrap();
    let (quick, lame) = (at(&fast), at(&slow));
    assert_ne!(quick.best.layout, lame.best.layout);
    assert!(seconds(&lame) > seconds(&quick));
    // The old choice on the slow links: what it would wait for is the exchange between nodes.
    let before = candidate(&ask(&arch, &workload, &slow), &quick.best.layout);
    let between = |c: &Candidate| part(c, Part::DataParallel) + part(c, Part::PipelineTransfers);
    assert!(between(&before) > 2.0 * between(&quick.best));
    assert!(between(&before) > between(&lame.best));
    assert!(before.estimate.time.total() > seconds(&lame));
}

#[test]
fn slow_links_are_told_by_the_exchange_that_waits_for_them() {
    let (arch, workload) = (model("llama-3.1-70b"), work(Task::Pretrain, 4096, 1024));
    for nic_gbps in [360.0, 36.0] {
        let cluster = Cluster { nic_gbps, ..catalogue::find("16xdgx-h100").unwrap() };
        let answer = search(&ask(&arch, &workload, &cluster)).unwrap();
        let piped = answer.best.layout.pp > 1;
        let others = || answer.runners_up.iter();
        assert!(
            others().any(|r| r.fits && (r.candidate.layout.pp > 1) != piped),
            "{nic_gbps}: {:#?}",
            others().map(|r| &r.loses).collect::<Vec<_>>()
        );
        let fast = Cluster { nic_gbps: 8.0 * 450.0, ..cluster.clone() };
        let there = best(&ask(&arch, &workload, &fast)).unwrap();
        assert_ne!(there, answer.best.layout);
        let told = others().find(|r| r.candidate.layout == there).unwrap();
        assert!(told.loses.contains("chosen on links between nodes that are as fast"), "{told:?}");
        let exchange = told.loses.rsplit("but on these ").next().unwrap();
        assert!(exchange.starts_with("data-parallel exchange "), "{exchange}");
    }
    let one = catalogue::find("8xa100").unwrap();
    let workload = work(Task::Lora { rank: 16 }, 4096, 32);
    let answer = search(&ask(&arch, &workload, &one)).unwrap();
    assert!(answer.runners_up.iter().any(|r| r.candidate.layout.pp > 1), "{answer:#?}");
    assert!(!answer.runners_up.iter().any(|r| r.loses.contains("as fast as")));
}

#[test]
fn the_largest_published_run_is_laid_out_nearly_as_it_was() {
    let (arch, cluster) = (model("llama-3.1-405b"), catalogue::find("16384xh100").unwrap());
    let workload = work(Task::Pretrain, 8192, 2048);
    let answer = search(&ask(&arch, &workload, &cluster)).unwrap();
    let Layout { tp, pp, dp, .. } = answer.best.layout;
    assert_eq!((tp, pp, dp), (8, 8, 256));
    assert!(answer.runners_up.len() >= 4);
    // Its own trainer kept all activations of tp 8 × pp 16, for which the memory is counted 14 % too high. Megatron-Core
    // has nothing cheaper to make again than whole MLPs, and fewer stages then have the shorter bubble.
    let published = |r: &&RunnerUp| r.candidate.layout.pp == 16 && r.candidate.layout.tp == 8;
    let published = answer.runners_up.iter().find(published).unwrap();
    assert!(published.candidate.estimate.time.total() < 1.1 * seconds(&answer));
    // A hundred thousand would still be seconds.
    assert!((100..100_000).contains(&answer.considered), "{}", answer.considered);
}

#[test]
fn a_hundred_thousand_gpus_are_searched() {
    let (arch, cluster) = (model("deepseek-v3"), catalogue::find("12500xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 4096, 62_500);
    let question = Question { fewer: true, ..ask(&arch, &workload, &cluster) };
    let answer = search(&question).unwrap();
    assert!(answer.best.gpus > 50_000 && answer.considered < 200_000, "{answer:?}");
}

#[test]
fn a_batch_that_does_not_divide_is_told() {
    let (arch, cluster) = (model("llama-3.1-8b"), catalogue::find("3xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 4096, 1000);
    let question = ask(&arch, &workload, &cluster);
    assert_eq!(
        search(&Question { pins: Pins { pp: Some(1), ..Pins::default() }, ..question })
            .unwrap_err()
            .to_string(),
        "no layout uses all 24 GPUs: a batch of 1,000 does not divide among them; use a batch of 1,152, or --fewer, \
         which uses 20"
    );
    let some = search(&Question { fewer: true, ..question }).unwrap();
    assert!(some.best.gpus <= 24 && some.best.gpus >= 20);
}

#[test]
fn nonsense_is_one_sentence() {
    let (arch, cluster) = (model("llama-3.1-8b"), catalogue::find("dgx-h100").unwrap());
    let good = work(Task::Pretrain, 4096, 64);
    let says = |w: Workload, pins: Pins| {
        search(&Question { pins, ..ask(&arch, &w, &cluster) }).unwrap_err().to_string()
    };
    let free = Pins::default();
    assert_eq!(
        says(Workload { global_batch: 0, ..good }, free),
        "the batch is 0; it must be from 1 to 100,000,000 sequences"
    );
    assert!(
        says(Workload { seq: u64::MAX, ..good }, free).starts_with("the sequence length is 18")
    );
    assert!(says(Workload { tokens: Some(f64::NAN), ..good }, free).contains("is NaN"));
    assert!(
        says(Workload { task: Task::Lora { rank: 0 }, ..good }, free).contains("adapters is 0")
    );
    assert_eq!(
        says(good, Pins { tp: Some(7), ..free }),
        "32 attention heads do not divide by tp 7; use a tp that divides them"
    );
    assert!(says(good, Pins { tp: Some(0), ..free }).starts_with("tp is 0"));
    assert!(says(good, Pins { pp: Some(64), ..free }).contains("32 layers"));
    assert!(says(good, Pins { ep: Some(2), ..free }).contains("the model has none"));
    assert!(says(good, Pins { tp: Some(8), dp: Some(2), ..free }).contains("the cluster has 8"));
    assert!(says(good, Pins { dp: Some(3), ..free }).contains("does not divide by dp 3"));
    assert!(says(good, Pins { micro_batch: Some(0), ..free }).contains("micro-batch is 0"));
    let huge = Pins { tp: Some(u32::MAX), pp: Some(u32::MAX), dp: Some(u32::MAX), ..free };
    assert!(!says(good, huge).is_empty());
}

#[test]
fn a_pin_that_does_not_divide_the_gpus_is_named() {
    let (arch, cluster) = (model("llama-3.1-8b"), catalogue::find("8xh100").unwrap());
    let workload = work(Task::Pretrain, 4096, 1024);
    let says = |pins: Pins| {
        search(&Question { pins, ..ask(&arch, &workload, &cluster) }).unwrap_err().to_string()
    };
    let free = Pins::default();
    assert_eq!(
        says(Pins { pp: Some(5), ..free }),
        "pp 5 does not divide 8 GPUs; use what does, or --fewer to leave some idle"
    );
    assert!(says(Pins { tp: Some(4), pp: Some(4), ..free }).contains("needs 16 GPUs"));
    let cluster = catalogue::find("3xdgx-h100").unwrap();
    let pins = Pins { tp: Some(4), pp: Some(4), ..free };
    let e = search(&Question { pins, ..ask(&arch, &workload, &cluster) }).unwrap_err();
    assert!(e.to_string().starts_with("tp 4 × pp 4 does not divide 24 GPUs"), "{e}");
}

#[test]
fn the_pin_that_keeps_it_from_fitting_is_named() {
    let (arch, cluster) = (model("llama-3.1-8b"), catalogue::find("8xh100").unwrap());
    let workload = work(Task::Pretrain, 4096, 64);
    let says = |pins: Pins| {
        search(&Question { pins, ..ask(&arch, &workload, &cluster) }).unwrap_err().to_string()
    };
    let one = Pins { tp: Some(1), micro_batch: Some(4), ..Pins::default() };
    let e = says(Pins { recompute: Some(Recompute::None), ..one });
    assert!(e.ends_with("; without --recompute none it fits"), "{e}");
    let both = Pins { dp: Some(8), sharding: Some(Sharding::None), ..one };
    let e = says(both);
    assert!(e.ends_with("; without --zero 0 it fits"), "{e}");
}

#[test]
fn the_usual_node_is_filled_first() {
    let (arch, cluster) = (model("llama-3.1-70b"), catalogue::find("1xa100").unwrap());
    let workload = work(Task::Lora { rank: 16 }, 2048, 16);
    let e = search(&ask(&arch, &workload, &cluster)).unwrap_err().to_string();
    assert!(e.ends_with("; 2 GPUs (1 node) would do"), "{e}");
}

#[test]
fn pins_are_kept() {
    let (arch, cluster) = (model("mixtral-8x7b"), catalogue::find("4xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 4096, 256);
    let pins = Pins {
        tp: Some(2),
        ep: Some(4),
        recompute: Some(Recompute::Full),
        sharding: Some(Sharding::Zero1),
        ..Pins::default()
    };
    let best = search(&Question { pins, ..ask(&arch, &workload, &cluster) }).unwrap().best.layout;
    assert_eq!((best.tp, best.ep), (2, 4));
    assert_eq!((best.recompute, best.sharding), (Recompute::Full, Sharding::Zero1));
}

#[test]
fn money_takes_fewer_gpu_seconds_than_time() {
    let (arch, cluster) = (model("llama-3.1-8b"), catalogue::find("64xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 8192, 512);
    let at =
        |goal| search(&Question { goal, fewer: true, ..ask(&arch, &workload, &cluster) }).unwrap();
    let (time, money) = (at(Goal::Time), at(Goal::Money));
    assert!(money.best.cost_per_step < time.best.cost_per_step);
    assert!(seconds(&money) > seconds(&time) && money.best.gpus < time.best.gpus);
}

fn questions() -> impl Strategy<Value = (Arch, Workload, Cluster)> {
    let models =
        ["llama-3.2-1b", "llama-3.1-8b", "qwen3-14b", "mixtral-8x7b", "gpt-3-13b", "qwen3-30b-a3b"];
    let kinds = ["dgx-a100", "dgx-h100", "p4d", "a3-mega", "gb200-nvl72"];
    let tasks = [Task::Pretrain, Task::Finetune, Task::Lora { rank: 16 }];
    let pick = proptest::sample::select::<&'static str>;
    (
        pick(models.to_vec()),
        pick(kinds.to_vec()),
        0..4_u32,
        proptest::sample::select(tasks.to_vec()),
        0..3_u32,
        0..3_u32,
    )
        .prop_map(|(name, kind, nodes, task, seq, batch)| {
            let mut cluster = catalogue::find(kind).unwrap();
            cluster.nodes = 1 << nodes;
            cluster.island = cluster.island.min(cluster.gpus());
            (model(name), work(task, 2048 << seq, 64 << batch), cluster)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn more_memory_never_fits_less((arch, workload, cluster) in questions(), more in 1.0..4.0_f64) {
        let mut roomy = cluster.clone();
        roomy.gpu.memory_gb *= more;
        let (before, after) = (search(&ask(&arch, &workload, &cluster)), search(&ask(&arch, &workload, &roomy)));
        if let Ok(before) = before {
            prop_assert!(weighed(&after.unwrap()) <= weighed(&before) * NEAR * 1.000_001);
        }
    }

    #[test]
    fn faster_links_are_never_slower((arch, workload, cluster) in questions(), more in 1.0..10.0_f64) {
        let nics = Cluster { nic_gbps: cluster.nic_gbps * more, ..cluster.clone() };
        let islands = Cluster { island_gbps: cluster.island_gbps * more, ..cluster.clone() };
        if let Ok(before) = search(&ask(&arch, &workload, &cluster)) {
            for faster in [nics, islands] {
                let after = search(&ask(&arch, &workload, &faster)).unwrap();
                prop_assert!(weighed(&after) <= weighed(&before) * NEAR * 1.000_001);
            }
        }
    }

    #[test]
    fn parts_add_up_and_every_answer_can_be_run((arch, workload, cluster) in questions()) {
        let question = Question { fewer: true, ..ask(&arch, &workload, &cluster) };
        if let Ok(answer) = search(&question) {
            let others = answer.runners_up.iter().map(|r| (&r.candidate, r.fits));
            for (c, fits) in others.chain([(&answer.best, true)]) {
                let parts: f64 = c.estimate.time.parts.iter().map(|(_, s)| s).sum();
                prop_assert!((parts / c.estimate.time.total() - 1.0).abs() < 1e-12);
                prop_assert!(c.estimate.time.parts.iter().all(|(_, s)| s.is_finite() && *s >= 0.0));
                let memory: f64 = c.estimate.memory.parts().iter().map(|(_, gb)| gb).sum();
                prop_assert!((memory / c.estimate.memory.total() - 1.0).abs() < 1e-12);
                prop_assert_eq!(fits, memory <= usable_gb(&cluster.gpu));
                prop_assert!(crate::legal(&arch, &workload, &cluster, &c.layout).is_ok());
                prop_assert!(c.mfu > 0.0 && c.mfu < 1.0);
            }
            prop_assert_eq!(Ok(answer), search(&question));
        }
    }
}

#[test]
fn some_memory_is_left_free_where_that_costs_next_to_nothing() {
    let (arch, mut cluster) = (model("llama-3.1-8b"), catalogue::find("2xdgx-h100").unwrap());
    let workload = work(Task::Pretrain, 4096, 128);
    let (mut spared, mut full) = (0, 0);
    for tenths in 400..1000 {
        cluster.gpu.memory_gb = f64::from(tenths) / 10.0;
        let question = ask(&arch, &workload, &cluster);
        let found = layouts::all(&question);
        let (Some(best), room) = (choose(&question, &found), question.room()) else { continue };
        let weigh = |t: &(f64, Layout)| Goal::Time.weighed(t.0, &t.1);
        let least = found.timed.iter().map(weigh).min_by(f64::total_cmp).unwrap();
        let seconds = question.seconds(&best);
        assert!(weigh(&(seconds, best)) <= least * NEAR);
        let roomy = |l: &Layout| question.memory_gb(l) <= 0.97 * room;
        spared += u32::from(roomy(&best) && weigh(&(seconds, best)) > least);
        full += u32::from(!roomy(&best));
        let could = found.timed.iter().any(|t| weigh(t) <= least * NEAR && roomy(&t.1));
        assert_eq!(could, roomy(&best));
    }
    assert!(spared > 0 && full > 0, "{spared} {full}");
}

#[test]
fn one_gpu_is_a_cluster() {
    let (arch, cluster) = (model("llama-3.2-1b"), catalogue::find("1xa100").unwrap());
    let workload = work(Task::Finetune, 2048, 8);
    let answer = search(&ask(&arch, &workload, &cluster)).unwrap();
    assert_eq!((answer.best.gpus, answer.best.layout.sharding), (1, Sharding::None));
}
