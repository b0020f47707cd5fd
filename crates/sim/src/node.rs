//! A simulated server: what an agent does with orders, without processes.

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tutti_model::{
    Blame, Bytes, ExitStatus, Fault, Finding, Generation, Gpu, GpuIndex, Greeting, HealthAction,
    Launch, LeaseId, NodeFacts, Order, PartError, PartProgress, PartReport, PortOwner, Rank,
    RankExit, RankProgress, ReportedPhase, SavedPoint, Span, Time,
};

use crate::workload::Fate;

mod sleep;

pub(crate) use sleep::NOT_WOKEN;
use sleep::Sleep;

pub struct Node {
    pub facts: NodeFacts,
    /// On disk: survives an agent restart; processes survive it too.
    parts: BTreeMap<LeaseId, Part>,
    /// Leases that must never start here.
    refused: BTreeSet<LeaseId>,
    gpu_generation: BTreeMap<GpuIndex, Generation>,
    /// Every lease whose ranks were started here, to prove that none was started twice.
    pub launched: BTreeMap<LeaseId, u32>,
    pub down_until: Option<Time>,
    /// So many of the next suspensions are refused, and so many parts can't wake.
    pub refuses: u32,
    pub fails_to_wake: u32,
    /// What is wrong with it, on disk as well.
    pub findings: Vec<Finding>,
}

struct Part {
    launch: Box<Launch>,
    phase: PartPhase,
    /// When its ranks started, and when they stopped to make steps.
    since: Time,
    hung: Option<Time>,
    said: Option<Box<PartProgress>>,
    sleep: Sleep,
}

impl Part {
    fn new(launch: Box<Launch>, phase: PartPhase) -> Part {
        Part { launch, phase, since: Time(0), hung: None, said: None, sleep: Sleep::Awake }
    }

    /// Its ranks say that this one is dead or hangs, and leave.
    fn accuse(&mut self, rank: Rank, until: Time) {
        let fault = Some(Fault { rank, op: "all_reduce".into(), why: "storm".into() });
        let said = self.said.take().map_or_else(PartProgress::default, |said| *said);
        self.said = Some(Box::new(PartProgress { fault, ..said }));
        self.phase = PartPhase::Running { until, fate: ExitStatus::Code(1) };
    }

    /// A step each second, a checkpoint every five.
    fn speak(&mut self, now: Time) {
        if !Fate::of(&self.launch.spec).reports {
            return;
        }
        let moved = self.hung.unwrap_or(now).since(self.since).0;
        let (step, age) = (moved / 1000, moved % 1000 + now.0 - self.hung.unwrap_or(now).0);
        let rank = |i| RankProgress {
            rank: Rank(self.launch.first_rank.0 + i),
            step,
            loss: None,
            tokens: None,
            age: Span(age),
            pace: (step >= 5).then_some(Span::secs(1)),
        };
        let ranks = (0..self.launch.ranks).map(rank).collect();
        let point =
            SavedPoint { step: step / 5 * 5, at: None, path: None, save_ms: None, node: None };
        let fault = self.said.take().and_then(|s| s.fault);
        let saved = (point.step > 0).then_some(point);
        self.said = Some(Box::new(PartProgress { ranks, saved, fault, ..Default::default() }));
    }
}

enum PartPhase {
    Prepared { port: u16 },
    Running { until: Time, fate: ExitStatus },
    Stopping { until: Time },
    Done { exits: Vec<RankExit>, error: Option<PartError> },
}

impl Node {
    pub fn new(name: &str, gpus: u16) -> Node {
        let gpu = |i| Gpu {
            index: GpuIndex(i),
            model: "sim".into(),
            uuid: format!("SIM-{name}-{i}"),
            mem: Bytes::gib(80),
            island: Some(i / 2),
        };
        Node {
            facts: NodeFacts {
                name: name.to_owned(),
                address: format!("127.0.1.{}", name.trim_start_matches('n')),
                cpus: 64,
                mem: Bytes::gib(512),
                gpus: (0..gpus).map(gpu).collect(),
                simulated: true,
                isolation: "none".into(),
                agent_version: "sim".into(),
                labels: labels(name),
                can_suspend: true,
                can_move: true,
                ..NodeFacts::default()
            },
            parts: BTreeMap::new(),
            refused: BTreeSet::new(),
            gpu_generation: BTreeMap::new(),
            launched: BTreeMap::new(),
            down_until: None,
            refuses: 0,
            fails_to_wake: 0,
            findings: Vec::new(),
        }
    }

    pub fn greeting(&self) -> Box<Greeting> {
        let findings = self.findings.clone();
        Box::new(Greeting { findings, ..Greeting::new(self.facts.clone(), self.reports()) })
    }

    pub fn reports(&self) -> Vec<PartReport> {
        self.parts.iter().map(|(&lease, p)| report(lease, p)).collect()
    }

    /// Power loss: every process is gone; what was on disk says that it was there.
    pub fn crash(&mut self, until: Time) {
        self.down_until = Some(until);
        for part in self.parts.values_mut() {
            if !matches!(part.phase, PartPhase::Done { .. }) {
                part.phase = PartPhase::Done {
                    exits: Vec::new(),
                    error: Some(PartError { message: "node restarted".into(), blame: Blame::Node }),
                };
            }
        }
    }

    /// Reinstalled: nothing is left, on disk or in memory.
    pub fn wipe(&mut self, until: Time) {
        self.down_until = Some(until);
        self.parts.clear();
        self.refused.clear();
        self.gpu_generation.clear();
        self.findings.clear();
        // Without its memory it can't know what it has already started, and all of it is dead.
        self.launched.values_mut().for_each(|times| *times = 0);
    }

    pub fn obey(&mut self, order: Order, now: Time) -> Vec<PartReport> {
        let lease = order.lease();
        match order {
            Order::Start(launch) => self.start(launch, now),
            Order::Go { .. } => self.go(lease, now),
            Order::Stop { grace, .. } => self.stop(lease, grace, now),
            Order::Suspend { .. } => {
                if let Some(part) = self.parts.get_mut(&lease).filter(|p| p.is_awake()) {
                    part.suspend(self.refuses > 0, now);
                    self.refuses = self.refuses.saturating_sub(1);
                }
            }
            Order::Wake { gpus, .. } => {
                if let Some(part) = self.parts.get_mut(&lease) {
                    part.wake(gpus, self.fails_to_wake > 0, now);
                    self.fails_to_wake = self.fails_to_wake.saturating_sub(1);
                }
            }
            Order::Limit { .. } => return Vec::new(),
            Order::Forget { .. } => {
                if matches!(
                    self.parts.get(&lease),
                    Some(Part { phase: PartPhase::Done { .. }, .. })
                ) {
                    self.parts.remove(&lease);
                    self.refused.insert(lease);
                }
                return Vec::new();
            }
        }
        self.parts.get(&lease).map(|p| report(lease, p)).into_iter().collect()
    }

    fn start(&mut self, launch: Box<Launch>, now: Time) {
        let lease = launch.lease;
        if self.parts.contains_key(&lease) || self.refused.contains(&lease) {
            return;
        }
        // Shares of a GPU do not replace each other, so their order says nothing.
        let older = |g: &GpuIndex| {
            let newest = self.gpu_generation.get(g);
            share(&launch) == 1000 && newest.is_some_and(|newest| *newest > lease.generation)
        };
        let newer_task =
            self.parts.keys().any(|l| l.task == lease.task && l.generation > lease.generation);
        if newer_task || launch.gpus.iter().any(older) {
            let error = PartError { message: "lease is old".into(), blame: Blame::Node };
            let phase = PartPhase::Done { exits: Vec::new(), error: Some(error) };
            self.parts.insert(lease, Part::new(launch, phase));
            return;
        }
        for &gpu in &launch.gpus {
            let newest = self.gpu_generation.entry(gpu).or_default();
            *newest = (*newest).max(lease.generation);
        }
        let waits = launch.wait_for_go;
        let phase = PartPhase::Prepared { port: 20_000 };
        self.parts.insert(lease, Part::new(launch, phase));
        if !waits {
            self.go(lease, now);
        }
    }

    fn go(&mut self, lease: LeaseId, now: Time) {
        let Some(part) = self.parts.get_mut(&lease) else { return };
        if !matches!(part.phase, PartPhase::Prepared { .. }) {
            return;
        }
        *self.launched.entry(lease).or_default() += 1;
        let fate = Fate::of(&part.launch.spec);
        part.since = now;
        part.phase = PartPhase::Running {
            until: now.plus(fate.runs_for),
            fate: fate.exit(part.launch.attempt),
        };
        if fate.accuses && part.launch.first_rank == Rank(0) && part.launch.world_size > 1 {
            part.accuse(Rank(1), now.plus(Span(200)));
        }
    }

    fn stop(&mut self, lease: LeaseId, grace: Span, now: Time) {
        let Some(part) = self.parts.get_mut(&lease) else {
            self.refused.insert(lease);
            return;
        };
        match &part.phase {
            PartPhase::Prepared { .. } => {
                part.phase = PartPhase::Done { exits: Vec::new(), error: None };
            }
            PartPhase::Running { until, .. } => {
                // What stands still can't save anything, and is killed as it is.
                let ends = if !part.is_awake() {
                    Time(now.0 + 50)
                } else if Fate::of(&part.launch.spec).ignores_term {
                    now.plus(grace)
                } else {
                    Time(now.0 + 50)
                };
                part.phase = PartPhase::Stopping { until: ends.min(*until).max(now) };
            }
            PartPhase::Stopping { .. } | PartPhase::Done { .. } => {}
        }
    }

    /// The ranks of some gang find that another one is dead or hangs, say so and leave. Perhaps at
    /// once, so that both are heard together.
    pub fn accuse(&mut self, rng: &mut ChaCha8Rng, now: Time) {
        let gang = |p: &&mut Part| {
            let running = matches!(p.phase, PartPhase::Running { .. }) && p.is_awake();
            running && p.launch.world_size > 1
        };
        let Some(part) = self.parts.values_mut().find(gang) else { return };
        let rank = Rank(rng.random_range(0..part.launch.world_size));
        part.accuse(rank, now.plus(Span(rng.random_range(0..300))));
    }

    /// Something breaks, or something that was broken is resolved.
    pub fn fall_ill(&mut self, rng: &mut ChaCha8Rng, now: Time) {
        if !self.findings.is_empty() && rng.random_bool(0.5) {
            self.findings.remove(0);
            return;
        }
        let gpus = self.facts.gpus.len() as u16;
        let gpu = rng.random_bool(0.8).then(|| GpuIndex(rng.random_range(0..gpus)));
        let action = HealthAction::ALL[rng.random_range(0..HealthAction::ALL.len())];
        let key = gpu.map_or_else(|| "storm".to_owned(), |gpu| format!("storm/gpu{gpu}"));
        self.findings.retain(|f| f.key != key);
        self.findings.push(Finding {
            text: format!("{key}: {}", action.as_str()),
            key,
            check: "storm".into(),
            gpu,
            action,
            since: now,
            drill: false,
            by_job: rng.random_bool(0.2),
        });
    }

    /// The ranks of a part that would be found out make no more steps, and never end by themselves.
    pub fn hang(&mut self, now: Time) {
        let found_out = |p: &&mut Part| {
            let running = matches!(p.phase, PartPhase::Running { .. }) && p.is_awake();
            running
                && p.hung.is_none()
                && p.launch.spec.stall.is_some()
                && now.since(p.since) >= Span::secs(5)
        };
        let Some(part) = self.parts.values_mut().find(found_out) else { return };
        part.hung = Some(now);
        let never = Time(u64::MAX / 2);
        part.phase = PartPhase::Running { until: never, fate: ExitStatus::Code(0) };
    }

    /// Time passes: ranks make steps and end.
    pub fn tick(&mut self, now: Time) -> Vec<PartReport> {
        let mut out = Vec::new();
        for (&lease, part) in &mut self.parts {
            if matches!(part.phase, PartPhase::Running { .. }) && part.turn_over(now) {
                out.push(report(lease, part));
            }
            if matches!(part.phase, PartPhase::Running { .. }) && part.is_awake() {
                part.speak(now);
            }
            let status = match part.phase {
                PartPhase::Running { .. } if !part.is_awake() => continue,
                PartPhase::Running { until, fate } if until <= now => fate,
                PartPhase::Stopping { until } if until <= now => ExitStatus::Signal(15),
                _ => continue,
            };
            let exits = (0..part.launch.ranks)
                .map(|i| RankExit { rank: Rank(part.launch.first_rank.0 + i), status, at: now })
                .collect();
            part.phase = PartPhase::Done { exits, error: None };
            out.push(report(lease, part));
        }
        out
    }

    /// Leases whose processes are alive on each GPU, and how much of it each has: there must never
    /// be more than a whole GPU.
    pub fn busy_gpus(&self) -> BTreeMap<GpuIndex, Vec<(LeaseId, u32)>> {
        let mut busy: BTreeMap<GpuIndex, Vec<(LeaseId, u32)>> = BTreeMap::new();
        for (lease, part) in &self.parts {
            let alive =
                matches!(part.phase, PartPhase::Running { .. } | PartPhase::Stopping { .. });
            if alive && part.is_on_gpus() {
                let of = (*lease, share(&part.launch));
                part.launch.gpus.iter().for_each(|&g| busy.entry(g).or_default().push(of));
            }
        }
        busy
    }

    /// For `Stop` of something unknown, the controller must still hear that it is not there.
    pub fn answer_unknown(&self, lease: LeaseId) -> Option<PartReport> {
        let unknown = !self.parts.contains_key(&lease);
        let phase = ReportedPhase::Done { exits: Vec::new(), error: None };
        unknown.then_some(PartReport::new(lease, phase))
    }
}

/// Thousandths of each of its GPUs.
fn share(launch: &Launch) -> u32 {
    launch.spec.gpu_share.map_or(1000, |part| u32::from(tutti_model::Milli::from_part(part).0))
}

/// Odd nodes are in zone a, even ones in zone b; two neighbours share a rack.
fn labels(name: &str) -> BTreeMap<String, String> {
    let number: u32 = name.trim_start_matches('n').parse().unwrap_or(0);
    let zone = if number % 2 == 1 { "a" } else { "b" };
    let rack = format!("r{}", number.div_ceil(2));
    [("zone".to_owned(), zone.to_owned()), ("rack".to_owned(), rack)].into()
}

fn report(lease: LeaseId, part: &Part) -> PartReport {
    let phase = match &part.phase {
        PartPhase::Prepared { port } => ReportedPhase::Prepared { port: *port },
        PartPhase::Running { .. } | PartPhase::Stopping { .. } => {
            ReportedPhase::Running { exits: Vec::new() }
        }
        PartPhase::Done { exits, error } => {
            ReportedPhase::Done { exits: exits.clone(), error: error.clone() }
        }
    };
    let alive = matches!(part.phase, PartPhase::Running { .. });
    let (suspension, gpu_mem) = (part.suspension(), Some(part.held()));
    let (suspension, gpu_mem) = if alive { (suspension, gpu_mem) } else { (None, None) };
    let (progress, port_owner) = (part.said.clone(), alive.then_some(PortOwner::Part));
    PartReport { progress, suspension, gpu_mem, port_owner, ..PartReport::new(lease, phase) }
}
