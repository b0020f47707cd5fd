//! A month of failures and preemption: the ledger adds up to the cluster, and what it calls lost is
//! what the simulation knows it has thrown away.

use std::collections::BTreeMap;

use tutti_model::{GpuMicros, Policy, RowKey, Span, TimeClass};
use tutti_sim::cluster::Cluster;
use tutti_sim::replay::{Fate, Options, Restart, Run, run};
use tutti_sim::shape::parse_lots;
use tutti_sim::trace::read_csv;

const USERS: [&str; 4] = ["ada", "bob", "cyd", "eve"];
const MONTH_S: u64 = 30 * 86_400;

/// Small numbers from a seed, the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Trainings for days below, short work of a higher class above, parts of GPUs between.
fn month(seed: u64) -> String {
    let mut dice = Dice(seed);
    let mut text = "submit_s,duration_s,nodes,gpus_per_node,gpu_share,user,class\n".to_owned();
    for n in 0..700 {
        let (at, user) = (dice.roll(MONTH_S), USERS[dice.roll(4) as usize]);
        text += &match n % 7 {
            0 => format!(
                "{at},{},{},8,,{user},scavenger\n",
                3600 + dice.roll(200_000),
                1 + dice.roll(6)
            ),
            1 => format!("{at},{},,,0.3,{user},standard\n", 60 + dice.roll(40_000)),
            2 => format!("{at},{},2,8,,{user},urgent\n", 60 + dice.roll(20_000)),
            _ => {
                format!("{at},{},1,{},,{user},standard\n", 60 + dice.roll(30_000), 1 + dice.roll(8))
            }
        };
    }
    text
}

fn simulate(seed: u64, restart: Restart) -> Run {
    let cluster = Cluster { nodes: parse_lots("6xh100:8,4xa100:8", "").unwrap() };
    let options = Options {
        policy: Policy::default(),
        seed,
        failures: 150.0,
        repair: Span::secs(5 * 3600),
        restart,
        ..Options::default()
    };
    run(&cluster, &read_csv(&month(seed)).unwrap(), &options, &mut |_| {}).unwrap()
}

fn sum(run: &Run, want: impl Fn(&RowKey, TimeClass) -> bool) -> GpuMicros {
    let rows = run.goodput.days.values().flat_map(|rows| rows.iter());
    let all = rows.flat_map(|(key, amounts)| amounts.0.iter().map(move |(c, n)| (key, *c, *n)));
    all.filter(|(key, class, _)| want(key, *class)).map(|(.., n)| n).sum()
}

fn adds_up(run: &Run) {
    assert!(run.failures > 20, "only {} failures", run.failures);
    assert!(run.jobs.iter().map(|j| j.preemptions).sum::<u32>() > 20, "too few preemptions");
    assert!(run.lasted.0 > MONTH_S * 900, "only {} long", run.lasted);
    // All jobs are over, so nothing is undecided.
    assert!(run.jobs.iter().all(|j| j.fate == Fate::Completed), "not all ended");
    assert_eq!(run.goodput.undecided().count(), 0);
    assert_eq!(sum(run, |_, _| true), run.gpus * 1000 * run.lasted.0, "to the millisecond");
    for model in ["h100", "a100"] {
        let gpus = if model == "h100" { 48 } else { 32 };
        assert_eq!(sum(run, |key, _| key.model == model), gpus * 1000 * run.lasted.0, "{model}");
    }
    let mut thrown: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for job in &run.jobs {
        let of_user = thrown.entry(job.user.as_str()).or_default();
        of_user.0 += job.thrown.by_failure;
        of_user.1 += job.thrown.by_preemption;
    }
    for (user, (by_failure, by_preemption)) in thrown {
        let lost = |class| sum(run, |key, c| key.user == user && c == class);
        assert_eq!(lost(TimeClass::LostToFailure), by_failure, "{user} by failures");
        assert_eq!(lost(TimeClass::LostToPreemption), by_preemption, "{user} by preemption");
        assert!(by_failure > 0 && by_preemption > 0, "{user} lost nothing: this shows nothing");
    }
}

#[test]
fn a_month_with_checkpoints_adds_up() {
    adds_up(&simulate(1, Restart::Checkpoint(Span::secs(1801))));
}

#[test]
fn a_month_without_checkpoints_adds_up() {
    adds_up(&simulate(2, Restart::Scratch));
}
