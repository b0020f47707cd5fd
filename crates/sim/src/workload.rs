//! Random jobs, and what becomes of each when it runs.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tutti_model::{
    Checkpoint, Command, DependOn, Dependency, DurationRule, Elastic, ExitStatus, GpuQuota,
    GpuRequest, JobId, JobSpec, JobUpdate, Launcher, PlacementRule, Policy, Preempt, PreemptMode,
    PreemptionRule, Priority, QueueOrder, Reservation, Retry, Span, Stall, StallAction, Team,
    Topology,
};

use crate::run::START;

pub const USERS: [&str; 3] = ["ada", "bob", "eve"];

/// How a job behaves, written into its command so that any node can tell.
pub struct Fate {
    pub runs_for: Span,
    fails: u32,
    pub ignores_term: bool,
    /// Says how far it is.
    pub reports: bool,
    /// Its first rank accuses the second one every time.
    pub accuses: bool,
}

impl Fate {
    pub fn of(spec: &JobSpec) -> Fate {
        let Command::Argv(words) = &*spec.run else {
            return Fate {
                runs_for: Span(0),
                fails: 0,
                ignores_term: false,
                reports: false,
                accuses: false,
            };
        };
        let number = |i: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(0);
        Fate {
            runs_for: Span(number(1)),
            fails: number(2) as u32,
            ignores_term: number(3) == 1,
            reports: number(4) == 1,
            accuses: number(5) == 1,
        }
    }

    /// The first `fails` attempts fail.
    pub fn exit(&self, attempt: u32) -> ExitStatus {
        if attempt <= self.fails { ExitStatus::Code(3) } else { ExitStatus::Code(0) }
    }
}

/// A job that the simulated cluster could run, perhaps waiting for an older one.
pub fn random_spec(rng: &mut ChaCha8Rng, known: &[JobId], nodes: u32) -> JobSpec {
    let runs_for = rng.random_range(0..40_000u64);
    let fails = if rng.random_range(0..4) == 0 { rng.random_range(1..3u32) } else { 0 };
    let deaf = u32::from(rng.random_range(0..8) == 0);
    let reports = u32::from(rng.random_range(0..2) == 0);
    let accuses = u32::from(rng.random_range(0..12) == 0);
    let numbers = [runs_for, fails.into(), deaf.into(), reports.into(), accuses.into()];
    let words = std::iter::once("sim".to_owned()).chain(numbers.map(|n| n.to_string()));
    let mut spec = JobSpec::new(Command::Argv(words.collect()));
    if reports == 1 && rng.random_range(0..2) == 0 {
        let after = Some(Span::secs(rng.random_range(3..10)));
        spec.stall = Some(Stall { after, action: StallAction::Restart });
    }
    match rng.random_range(0..6) {
        0 => spec.gpus = Some(rng.random_range(1..=6)),
        1 => {}
        _ => {
            spec.nodes = Some(rng.random_range(1..=nodes.min(3)));
            let count = rng.random_range(0..=4);
            spec.gpus_per_node = Some(GpuRequest { model: None, count });
        }
    }
    if rng.random_range(0..3) == 0 {
        spec.launcher = Launcher::Torch;
    }
    if rng.random_range(0..5) == 0 {
        let last = rng.random_range(0..6);
        spec.array = format!("0-{last}%{}", rng.random_range(1..4)).parse().ok();
    }
    if rng.random_range(0..4) == 0 {
        spec.time = Some(Span::secs(rng.random_range(1..30)));
    }
    fit_rules(rng, &mut spec);
    spec.priority = Priority(rng.random_range(-1..=1));
    spec.hold = rng.random_range(0..12) == 0;
    spec.retry = Retry {
        node_failure: [0, 1, 3, 1000][rng.random_range(0..4usize)],
        preemption: 10,
        job_failure: rng.random_range(0..3),
    };
    spec.after = random_after(rng, known);
    spec
}

fn random_after(rng: &mut ChaCha8Rng, known: &[JobId]) -> Vec<Dependency> {
    let mut after = Vec::new();
    for _ in 0..rng.random_range(0..3usize) * usize::from(!known.is_empty()) {
        let job = known[rng.random_range(0..known.len())];
        let on = [DependOn::Ok, DependOn::Failed, DependOn::Any][rng.random_range(0..3usize)];
        after.push(Dependency { job, on });
    }
    after
}

/// Somebody thinks again: one thing or several, such as the cluster could always give.
pub fn random_update(rng: &mut ChaCha8Rng, known: &[JobId]) -> JobUpdate {
    let mut update = JobUpdate::default();
    for _ in 0..rng.random_range(1..4) {
        match rng.random_range(0..12) {
            0 => update.name = Some(format!("renamed-{}", rng.random_range(0..10))),
            1 | 2 => update.priority = Some(Priority(rng.random_range(-2..=2))),
            3 => update.time = Some(Span::secs(rng.random_range(1..30))),
            4 => update.no_time = true,
            5 => update.hold = Some(rng.random_bool(0.5)),
            6 => {
                let teams = ["lab", "vision", "speech", "guests"];
                update.team = Some(teams[rng.random_range(0..teams.len())].to_owned());
            }
            7 => {
                let classes = ["standard", "scavenger", "urgent"];
                update.class = Some(classes[rng.random_range(0..classes.len())].to_owned());
            }
            8 => update.after = Some(random_after(rng, known)),
            9 => update.nodes = Some(rng.random_range(1..=2)),
            10 => update.gpus = Some(rng.random_range(1..=4)),
            _ => {
                let count = rng.random_range(0..=4);
                update.gpus_per_node = Some(GpuRequest { model: None, count });
            }
        }
    }
    // One or the other: no limit, or this one.
    if update.time.is_some() {
        update.no_time = false;
    }
    update
}

/// Shares, labels, topology, elastic sizes, classes: only such as some node can always give.
fn fit_rules(rng: &mut ChaCha8Rng, spec: &mut JobSpec) {
    match rng.random_range(0..12) {
        0 | 1 => {
            (spec.nodes, spec.gpus, spec.gpus_per_node) = (None, None, None);
            spec.gpu_share = Some([0.2, 0.25, 0.5, 0.7][rng.random_range(0..4usize)]);
        }
        2 | 3 => {
            let count = rng.random_range(1..=4);
            (spec.nodes, spec.gpus) = (None, None);
            spec.gpus_per_node = Some(GpuRequest { model: None, count });
            let max_nodes = rng.random_range(2..=3);
            spec.elastic = Some(Elastic { min_nodes: rng.random_range(1..=2), max_nodes });
        }
        _ => {}
    }
    let small = spec.elastic.is_none() && spec.gpus.is_none() && spec.nodes.unwrap_or(1) <= 2;
    match rng.random_range(0..10) {
        0 if small => drop(spec.labels.insert("zone".into(), "a".into())),
        1 if small => drop(spec.avoid_labels.insert("zone".into(), "a".into())),
        2 | 3 if small => spec.topology = Some(Topology::Rack),
        4 if small && spec.nodes.unwrap_or(1) == 1 => spec.topology = Some(Topology::Node),
        5 => spec.exclusive = true,
        _ => {}
    }
    if rng.random_range(0..3) == 0 {
        spec.class = Some(["scavenger", "urgent"][rng.random_range(0..2usize)].to_owned());
    }
    if rng.random_range(0..6) == 0 {
        let signal = Some("USR1".to_owned());
        spec.checkpoint =
            Some(Checkpoint { dir: "/ckpt".into(), signal, grace: Some(Span::secs(2)) });
    }
    match rng.random_range(0..10) {
        0 => spec.preempt = Some(Preempt { mode: PreemptMode::Never }),
        1..=5 => spec.preempt = Some(Preempt { mode: PreemptMode::Suspend }),
        _ => {}
    }
}

/// Teams that can all run the largest job, with times that fit into a storm.
pub fn random_policy(rng: &mut ChaCha8Rng) -> Policy {
    let orders = [QueueOrder::Fair, QueueOrder::FairKnown, QueueOrder::Fifo, QueueOrder::Srsf];
    let rules = [PlacementRule::Fragments, PlacementRule::BestFit, PlacementRule::FirstFit];
    let mut policy = Policy {
        order: orders[rng.random_range(0..orders.len())],
        placement: rules[rng.random_range(0..rules.len())],
        patience: Span::secs(rng.random_range(5..60)),
        starve_after: Span::secs(rng.random_range(60..300)),
        reserved_heads: rng.random_range(0..3),
        half_life: Span::secs(60),
        preemption: PreemptionRule {
            enabled: rng.random_range(0..8) != 0,
            not_again_within: Span::secs(rng.random_range(0..30)),
            victims_max: rng.random_range(1..6),
            ..PreemptionRule::default()
        },
        durations: DurationRule {
            learn: rng.random_range(0..2) == 0,
            assumed: Span::secs(40),
            ..DurationRule::default()
        },
        resize_every: Span::secs(rng.random_range(5..60)),
        ..Policy::default()
    };
    if rng.random_range(0..3) == 0 {
        let from = START.plus(Span(rng.random_range(0..60_000)));
        policy.reservations.push(Reservation {
            name: "upgrade".into(),
            nodes: ["n2".to_owned()].into(),
            from,
            until: from.plus(Span::secs(rng.random_range(1..40))),
            team: [None, Some("lab".to_owned())][rng.random_range(0..2usize)].clone(),
        });
    }
    policy.teams = random_teams(rng);
    policy
}

/// The jobs of a user whose team is gone stay in it, without a quota.
fn random_teams(rng: &mut ChaCha8Rng) -> std::collections::BTreeMap<String, Team> {
    let mut team = |parent: Option<&str>, member: &str, guarantee: u32| Team {
        parent: parent.map(str::to_owned),
        guarantee: GpuQuota { any: guarantee, ..GpuQuota::default() },
        limit: (rng.random_range(0..4) == 0).then(|| GpuQuota { any: 12, ..GpuQuota::default() }),
        weight: rng.random_range(500..2000),
        members: [member.to_owned()].into(),
        budget: None,
        default_time: (rng.random_range(0..4) == 0).then(|| Span::secs(rng.random_range(20..60))),
    };
    let lab = team(None, "*", 8);
    let vision = team(Some("lab"), "ada", 4);
    let speech = team(Some("lab"), "bob", 2);
    let guests = team(None, "eve", 4);
    let all = [("lab", lab), ("vision", vision), ("speech", speech), ("guests", guests)];
    all.map(|(name, team)| (name.to_owned(), team)).into()
}
