//! A day and a night of one endpoint on a cluster that trains: by day the endpoint grows and training
//! gives way, by night training has the GPUs back. Beside it the same on two clusters of the same size
//! together, one that serves and one that trains.
//!
//! ```text
//!  load curve ─► routers ─► Engine ─► orders ─► machines ─► what runs ─┐
//!                   ▲                                                  │
//!                   └────────────── replicas that are ready ◄──────────┘
//! ```
//!
//! Requests are not played one by one: so many are under way at a time, and each replica that is ready
//! has its part of them. A replica is ready when its model is loaded.

mod machines;

use std::collections::BTreeMap;

use tutti_engine::{Actor, Command, Effect, Engine, Settings, route_table};
use tutti_model::{
    Bytes, EndpointLoad, GpuMicros, GpuRequest, JobId, JobSpec, Policy, Preempt, PreemptMode,
    ReplicaLoad, Replicas, Role, ServiceSpec, Span, Time, TimeClass,
};

use machines::Machines;

const ENDPOINT: &str = "chat";
const HOUR: u64 = 3600;

/// What is served and trained, and on what.
#[derive(Clone, Debug)]
pub struct Shared {
    pub nodes: u32,
    pub gpus_per_node: u16,
    pub hours: u64,
    /// Requests under way at the quietest and the busiest time of the day.
    pub night: u32,
    pub noon: u32,
    /// Requests at a time that autoscaling aims at, and that a replica answers within its bound.
    pub target: u32,
    pub bound: u32,
    /// How long a replica loads its model.
    pub loads_for: Span,
    /// GPUs of each training, which is suspended when others need them.
    pub training_gpus: u32,
    /// What its GPUs hold.
    pub training_state: Bytes,
    pub step: Span,
}

impl Default for Shared {
    fn default() -> Self {
        Shared {
            nodes: 8,
            gpus_per_node: 8,
            hours: 24,
            night: 20,
            noon: 380,
            target: 10,
            bound: 16,
            loads_for: Span::secs(60),
            training_gpus: 4,
            training_state: Bytes::gib(200),
            step: Span::secs(5),
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Part of all request time that was within the bound, 0 to 1.
    pub within_bound: f64,
    /// Replicas that were ready at most, and at least after the first hour.
    pub most_ready: u32,
    pub least_ready: u32,
    /// GPU-hours that trained, and that trained in vain.
    pub trained: f64,
    pub lost: f64,
    /// GPU-hours of replicas.
    pub served: f64,
    pub suspensions: u32,
    pub woken: u32,
    pub stopped: u32,
    /// Part of all GPU time that somebody used, 0 to 1.
    pub used: f64,
}

impl Shared {
    /// Replicas that the busiest time needs.
    pub fn peak(&self) -> u32 {
        self.noon.div_ceil(self.target)
    }

    /// Requests under way at this time of the day: quiet until six, busy from ten to four.
    pub fn load(&self, at: Span) -> u32 {
        let hour = (at.0 % (24 * HOUR * 1000)) as f64 / (HOUR * 1000) as f64;
        let part = match hour {
            h if h < 6.0 => 0.0,
            h if h < 10.0 => (h - 6.0) / 4.0,
            h if h < 16.0 => 1.0,
            h if h < 22.0 => (22.0 - h) / 6.0,
            _ => 0.0,
        };
        self.night + (f64::from(self.noon - self.night) * part).round() as u32
    }

    /// On one cluster.
    pub fn together(&self) -> Outcome {
        Day::new(self, self.nodes, true).play()
    }

    /// The part that trains of two clusters: the other one is large enough for the busiest time, and
    /// serves all day with as many replicas.
    pub fn training_alone(&self) -> Outcome {
        let serving = self.peak().div_ceil(self.gpus_per_node.into());
        Day::new(self, self.nodes.saturating_sub(serving), false).play()
    }
}

struct Day<'a> {
    of: &'a Shared,
    engine: Engine,
    machines: Machines,
    began: Time,
    now: Time,
    serves: bool,
    /// Request time within the bound, and all of it.
    within: (f64, f64),
    ready: (u32, u32),
    counts: (u32, u32, u32),
    since_ready: BTreeMap<(JobId, u64), Time>,
}

impl<'a> Day<'a> {
    fn new(of: &'a Shared, nodes: u32, serves: bool) -> Day<'a> {
        let policy = Policy::default();
        // Nobody is lost on this day, so nobody needs to be heard every second.
        let settings =
            Settings { node_timeout: Span::secs(1 << 30), policy, ..Settings::default() };
        let began = Time(20_000 * 24 * HOUR * 1000);
        let mut day = Day {
            of,
            engine: Engine::new(settings),
            machines: Machines::new(of.training_state),
            began,
            now: began,
            serves,
            within: (0.0, 0.0),
            ready: (0, u32::MAX),
            counts: (0, 0, 0),
            since_ready: BTreeMap::new(),
        };
        day.command(Command::Start);
        for n in 1..=nodes {
            let greeting = Box::new(machines::greeting(n, of.gpus_per_node));
            day.command(Command::Hello { greeting, session: u64::from(n), key: None });
        }
        if serves {
            day.serve();
        }
        let jobs = nodes * u32::from(of.gpus_per_node) / of.training_gpus;
        (0..jobs).for_each(|_| day.train());
        day
    }

    /// More than a day of work.
    fn train(&mut self) {
        let mut spec = JobSpec::shell("train");
        spec.gpus_per_node = Some(GpuRequest { model: None, count: self.of.training_gpus });
        spec.preempt = Some(Preempt { mode: PreemptMode::Suspend });
        let actor = Actor { user: "ada".into(), role: Role::User };
        self.command(Command::Submit { actor, spec: Box::new(spec), user: None, key: None });
    }

    fn serve(&mut self) {
        let mut spec = JobSpec::shell("serve");
        spec.name = Some(ENDPOINT.into());
        spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
        let service = ServiceSpec {
            replicas: Replicas { min: 1, max: self.of.peak() + 2 },
            target_in_flight: self.of.target,
            up_after: Span::secs(30),
            down_after: Span::secs(600),
            warm_up: Span(self.of.loads_for.0 * 5),
            ..ServiceSpec::default()
        };
        spec.service = Some(Box::new(service));
        let actor = Actor { user: "bob".into(), role: Role::User };
        self.command(Command::Serve { actor, spec: Box::new(spec), user: None, key: None });
    }

    fn play(mut self) -> Outcome {
        let end = self.began.plus(Span::secs(self.of.hours * HOUR));
        while self.now < end {
            self.now = self.now.plus(self.of.step);
            for (node, report) in self.machines.due(self.now) {
                let session = u64::from(node.0);
                self.command(Command::Report { node, session, report });
            }
            self.command(Command::Tick);
            if self.serves {
                self.routers();
            }
        }
        self.outcome()
    }

    fn command(&mut self, command: Command) {
        let step = self.engine.step(command, self.now);
        debug_assert!(step.reply.is_ok(), "{:?}", step.reply);
        self.carry_out(step);
        while self.engine.wants_schedule() {
            let pass = self.engine.schedule(self.now);
            debug_assert!(pass.reply.is_ok(), "{:?}", pass.reply);
            self.carry_out(pass);
        }
    }

    fn carry_out(&mut self, step: tutti_engine::Step) {
        use tutti_engine::Event;
        for record in &step.records {
            match &record.event {
                Event::Suspending { .. } => self.counts.0 += 1,
                Event::Waking { .. } => self.counts.1 += 1,
                Event::Stopping { why: tutti_model::StopCause::Preempted { .. }, .. } => {
                    self.counts.2 += 1;
                }
                _ => {}
            }
        }
        for Effect::Tell { node, order } in step.effects {
            self.machines.obey(node, order, self.now);
        }
    }

    /// What they see, and how well it is served.
    fn routers(&mut self) {
        let load = self.of.load(self.now.since(self.began));
        let table = route_table(self.engine.state());
        let routes = table.endpoints.iter().flat_map(|e| &e.replicas);
        let mut replicas = BTreeMap::new();
        for route in routes {
            let key = (route.job, route.generation.0);
            let since = *self.since_ready.entry(key).or_insert(self.now);
            let replica = ReplicaLoad {
                generation: route.generation,
                ready: self.now.since(since) >= self.of.loads_for,
                in_flight: 0,
                all_know_draining: route.draining,
                why: None,
            };
            replicas.insert(route.job, replica);
        }
        let ready = self.engine.state().endpoints.get(ENDPOINT).map_or(0, |e| e.ready().count());
        self.note(load, ready as u32);
        let said = EndpointLoad {
            routers: 1,
            in_flight: load.min(ready as u32 * self.of.bound),
            queued: load.saturating_sub(ready as u32 * self.of.bound),
            peak: load,
            replicas,
            revisions: BTreeMap::new(),
        };
        self.command(Command::Load { loads: [(ENDPOINT.to_owned(), said)].into() });
    }

    fn note(&mut self, load: u32, ready: u32) {
        let time = f64::from(load) * self.of.step.0 as f64;
        self.within.0 += if load <= ready * self.of.bound { time } else { 0.0 };
        self.within.1 += time;
        self.ready.0 = self.ready.0.max(ready);
        if self.now.since(self.began) >= Span::secs(HOUR) {
            self.ready.1 = self.ready.1.min(ready);
        }
    }

    fn outcome(&self) -> Outcome {
        let state = self.engine.state();
        let books = tutti_engine::goodput_at(state, self.now);
        let hours = |micros: GpuMicros| micros as f64 / 1e6 / HOUR as f64;
        let (mut trained, mut lost, mut served) = (0, 0, 0);
        for (job, book) in &books.jobs {
            let replica = state.job(*job).is_some_and(|j| j.replica_of.is_some());
            for amounts in book.values() {
                if replica {
                    served += amounts.held();
                    continue;
                }
                trained += amounts.of(TimeClass::Productive);
                lost += amounts.of(TimeClass::LostToPreemption);
                lost += amounts.of(TimeClass::LostToFailure);
            }
        }
        // What is not judged yet goes on.
        for (lease, run) in &books.runs {
            let replica = state.job(lease.task.job).is_some_and(|j| j.replica_of.is_some());
            let open = run.slices.iter().flat_map(|slice| &slice.open);
            let work: GpuMicros = open.map(|work| work.amount).sum();
            match replica {
                true => served += work,
                false => trained += work,
            }
        }
        let all = state.nodes.values().map(|n| n.facts.gpus.len()).sum::<usize>() as f64;
        let capacity = all * self.of.hours as f64;
        Outcome {
            within_bound: if self.within.1 > 0.0 { self.within.0 / self.within.1 } else { 1.0 },
            most_ready: self.ready.0,
            least_ready: if self.serves { self.ready.1 } else { 0 },
            trained: hours(trained),
            lost: hours(lost),
            served: hours(served),
            suspensions: self.counts.0,
            woken: self.counts.1,
            stopped: self.counts.2,
            used: (hours(trained) + hours(served)) / capacity.max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_low_at_night_and_high_at_noon() {
        let of = Shared::default();
        let at = |hour: u64| of.load(Span::secs(hour * HOUR));
        assert_eq!((at(3), at(12), at(23)), (20, 380, 20));
        assert_eq!(at(8), 200);
        assert_eq!(of.peak(), 38);
    }

    /// Training gives way by day, loses nothing, and has the GPUs back at night.
    #[test]
    fn one_cluster_serves_and_trains_more_than_two() {
        let of = Shared { nodes: 4, noon: 140, night: 10, ..Shared::default() };
        let (together, alone) = (of.together(), of.training_alone());
        assert!(together.within_bound > 0.99, "{together:?}");
        assert!(together.most_ready >= of.peak(), "{together:?}");
        assert!(together.least_ready <= 3, "{together:?}");
        assert_eq!((together.stopped, together.lost), (0, 0.0), "nothing is thrown away");
        assert!(together.suspensions > 0 && together.woken > 0, "{together:?}");
        assert!(together.trained > alone.trained * 1.1, "{together:?} {alone:?}");
    }
}
