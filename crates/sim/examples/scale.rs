//! Times scheduling passes on large clusters with the Philly mix.
//!
//! `cargo run --release -p tutti-sim --example scale -- PHILLY.csv [--json] [NODES...]`
//!
//! The state is made by the engine's own `apply`, so it is what a controller would have. The trace
//! names no users: once all jobs are one user's, and once they are dealt out to 300 users in 14
//! teams, as many teams as Philly had. Jobs that differ in user or size wait in different lanes.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tutti_engine::{Event, Record, apply};
use tutti_model::*;
use tutti_sched::Scheduler;
use tutti_sim::shape::Lot;
use tutti_sim::trace::{TraceJob, read_philly};

const JOBS: usize = 100_000;
const USERS: [usize; 2] = [1, 300];
const TEAMS: usize = 14;
const REPEATS: usize = 41;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().any(|a| a == "--json");
    args.retain(|a| a != "--json");
    let path = args.first().ok_or("which trace? scale PHILLY.csv [--json] [NODES...]")?;
    let trace = read_philly(&std::fs::read_to_string(path)?)?;
    let sizes: Vec<u32> = args[1..].iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { vec![1_000, 10_000, 100_000] } else { sizes };
    for (nodes, users) in sizes.into_iter().flat_map(|n| USERS.map(|users| (n, users))) {
        let figures = measure(nodes, users, &trace.jobs)?;
        println!("{}", if json { figures.json() } else { figures.words() });
    }
    Ok(())
}

struct Figures {
    nodes: u32,
    users: usize,
    lanes: usize,
    /// A pass from scratch that fills the empty cluster.
    fill: Duration,
    placed: usize,
    /// A pass from scratch over the full cluster.
    full: Duration,
    arrival: Duration,
    arrival_worst: Duration,
    departure: Duration,
    departure_worst: Duration,
    /// An arrival of a higher class: a search for the cheapest victims. None if nobody need go.
    urgent: Option<Duration>,
    /// All that `tutti why` says of the last job in line. None if nothing waits.
    why: Option<Duration>,
}

impl Figures {
    fn rate(&self) -> f64 {
        self.placed as f64 / self.fill.as_secs_f64()
    }

    fn words(&self) -> String {
        format!(
            "{} nodes, {JOBS} jobs of {} users in {} lanes: {} placed in {:.1} ms ({:.0} per second); full cluster {:.1} ms; \
             one more arrival {:.3} ms (worst {:.3}), one departure {:.3} ms (worst {:.3}); \
             one for whom others are stopped {} ms; why {} ms",
            self.nodes,
            self.users,
            self.lanes,
            self.placed,
            ms(self.fill),
            self.rate(),
            ms(self.full),
            ms(self.arrival),
            ms(self.arrival_worst),
            ms(self.departure),
            ms(self.departure_worst),
            maybe_ms(self.urgent, "-"),
            maybe_ms(self.why, "-"),
        )
    }

    fn json(&self) -> String {
        format!(
            "{{\"nodes\": {}, \"users\": {}, \"jobs\": {JOBS}, \"lanes\": {}, \"placed\": {}, \"fill_ms\": {:.3}, \"full_ms\": {:.3}, \
             \"arrival_ms\": {:.4}, \"arrival_worst_ms\": {:.4}, \"departure_ms\": {:.4}, \"departure_worst_ms\": {:.4}, \
             \"urgent_ms\": {}, \"why_ms\": {}, \"placements_per_s\": {:.0}}}",
            self.nodes,
            self.users,
            self.lanes,
            self.placed,
            ms(self.fill),
            ms(self.full),
            ms(self.arrival),
            ms(self.arrival_worst),
            ms(self.departure),
            ms(self.departure_worst),
            maybe_ms(self.urgent, "null"),
            maybe_ms(self.why, "null"),
            self.rate(),
        )
    }
}

fn maybe_ms(took: Option<Duration>, none: &str) -> String {
    took.map_or_else(|| none.to_owned(), |took| format!("{:.3}", ms(took)))
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

struct Bench {
    state: State,
    scheduler: Scheduler,
    now: Time,
    users: usize,
    submitted: usize,
}

fn measure(nodes: u32, users: usize, trace: &[TraceJob]) -> Result<Figures, Box<dyn Error>> {
    let mut bench = Bench::new(nodes, users)?;
    (0..JOBS).for_each(|_| bench.submit(trace));
    let lanes = bench.state.index.queue.iter().count();
    let start = Instant::now();
    let plan = bench.scheduler.plan(&bench.state, bench.now);
    let fill = start.elapsed();
    let placed = plan.placements.len();
    bench.place(plan);
    // What the limits of one pass left over.
    loop {
        let plan = bench.scheduler.plan(&bench.state, bench.now);
        if plan.placements.is_empty() {
            break;
        }
        bench.place(plan);
    }
    let start = Instant::now();
    let plan = Scheduler::default().plan(&bench.state, bench.now);
    let full = start.elapsed();
    bench.place(plan);
    let mut arrivals = Vec::new();
    let mut departures = Vec::new();
    for _ in 0..REPEATS {
        bench.submit(trace);
        arrivals.push(bench.pass());
        bench.depart();
        departures.push(bench.pass());
    }
    let why = bench.why();
    let urgent = bench.urgent();
    arrivals.sort();
    departures.sort();
    Ok(Figures {
        nodes,
        users,
        lanes,
        fill,
        placed,
        full,
        arrival: arrivals[REPEATS / 2],
        arrival_worst: arrivals[REPEATS - 1],
        departure: departures[REPEATS / 2],
        departure_worst: departures[REPEATS - 1],
        urgent,
        why,
    })
}

impl Bench {
    fn new(nodes: u32, users: usize) -> Result<Bench, Box<dyn Error>> {
        let mut bench = Bench {
            state: State::default(),
            scheduler: Scheduler::default(),
            now: Time(1_000_000_000),
            users,
            submitted: 0,
        };
        // A full pass is one that places all it can.
        let policy = Policy { placements_max: usize::MAX, ..Policy::default() };
        bench.apply(Event::PolicyChanged { policy: Arc::new(policy), by: "bench".to_owned() });
        let lot = Lot { count: nodes, ..Lot::kind("dgx-h100")? };
        for (n, mut facts) in (1..).zip(lot.nodes("n")) {
            facts.labels.insert("rack".to_owned(), format!("r{}", n / 16));
            // Real machines differ by a little.
            facts.mem = Bytes(facts.mem.0 + u64::from(n % 997) * 4096);
            let (node, facts) = (NodeId(n), Box::new(facts));
            bench.apply(Event::NodeJoined { node, facts: facts.clone() });
            bench.apply(Event::NodeUp { node, facts, stale: Vec::new() });
        }
        Ok(bench)
    }

    fn apply(&mut self, event: Event) {
        let seq = Seq(self.state.seq.0 + 1);
        apply(&mut self.state, &Record { seq, at: self.now, event });
    }

    fn submit(&mut self, trace: &[TraceJob]) {
        let n = self.submitted;
        self.submitted += 1;
        let spec = trace[n % trace.len()].spec.clone();
        // A stride that is prime to both: every user has jobs of every kind.
        let user = format!("u{}", n * 7 % self.users);
        let team = Some(format!("t{}", n * 7 % self.users % TEAMS));
        let job = JobId(self.state.next_job.max(1));
        self.apply(Event::JobSubmitted {
            job,
            user,
            spec: Arc::new(spec),
            key: None,
            team,
            replica_of: None,
            texts: Default::default(),
        });
    }

    fn why(&mut self) -> Option<Duration> {
        let plan = self.scheduler.plan(&self.state, self.now);
        let (_, task) = *self.state.index.waiting.last()?;
        let policy = self.state.policy.clone();
        let start = Instant::now();
        tutti_sched::explain(&self.state, &plan, &policy, task, self.now)?;
        Some(start.elapsed())
    }

    /// A job of a higher class for a whole node, on a cluster that may be full.
    fn urgent(&mut self) -> Option<Duration> {
        let spec = JobSpec {
            class: Some("urgent".to_owned()),
            nodes: Some(1),
            gpus_per_node: Some(GpuRequest { model: None, count: 8 }),
            ..JobSpec::shell("true")
        };
        let job = JobId(self.state.next_job.max(1));
        let (user, spec) = ("root".to_owned(), Arc::new(spec));
        self.apply(Event::JobSubmitted {
            job,
            user,
            spec,
            key: None,
            team: None,
            replica_of: None,
            texts: Default::default(),
        });
        self.now = self.now.plus(Span(100));
        let start = Instant::now();
        let plan = self.scheduler.plan(&self.state, self.now);
        let took = start.elapsed();
        let claimed = plan.claims.iter().any(|c| c.task.job == job && !c.victims.is_empty());
        claimed.then_some(took)
    }

    fn pass(&mut self) -> Duration {
        self.now = self.now.plus(Span(100));
        let start = Instant::now();
        let plan = self.scheduler.plan(&self.state, self.now);
        let took = start.elapsed();
        self.place(plan);
        took
    }

    fn place(&mut self, plan: Plan) {
        for placement in plan.placements {
            let generation = Generation(self.state.next_generation.max(1));
            let lease = LeaseId { task: placement.task, generation };
            let nodes: Vec<NodeId> = placement.parts.iter().map(|p| p.node).collect();
            self.apply(Event::Placed { task: placement.task, generation, parts: placement.parts });
            for node in nodes {
                self.scheduler.touch(node);
                self.apply(Event::PartRunning { lease, node, exits: Vec::new() });
            }
        }
    }

    /// The oldest running job ends.
    fn depart(&mut self) {
        let Some(&task) = self.state.index.active.first() else { return };
        let attempt = self.state.job(task.job).and_then(|j| j.task(task.index)?.attempt());
        let Some(attempt) = attempt.cloned() else { return };
        let lease = attempt.lease(task);
        for part in &attempt.parts {
            self.scheduler.touch(part.node);
            let exits = Vec::new();
            self.apply(Event::PartDone { lease, node: part.node, exits, error: None });
        }
        let ended = Ended {
            outcome: Outcome::Completed,
            exit_code: Some(0),
            reason: EndReason::Finished,
            started_at: Some(attempt.placed_at),
            ended_at: self.now,
            attempts: 1,
            restarts: Restarts::default(),
            nodes: attempt.parts.iter().map(|p| p.node).collect(),
            gpus: attempt.gpu_count(),
            last_ran: None,
            between: Span(0),
            away: Span(0),
            output_dropped: 0,
        };
        self.apply(Event::TaskEnded { task, ended });
    }
}
