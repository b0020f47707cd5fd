//! The world around the engine while a trace runs: clients that submit, agents that obey at once,
//! nodes that fail, and a clock that jumps to what is due next.

mod books;

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::{Actor, Command, Effect, Engine, Settings, Step, goodput_at};
use tutti_model::{
    Attempt, Demand, ExitStatus, Greeting, JobId, JobSpec, LeaseId, NodeFacts, NodeId, Order,
    PartReport, Rank, RankExit, ReportedPhase, Retry, Role, Span, TaskId, Time,
};

use super::clock::{Agenda, Due, Misfortune};
use super::patience::{Setbacks, enough_up, idle_failures_max};
use super::racks::Racks;
use super::{Fate, JobRun, Options, ReplayError, Restart, Run, Sample, Thrown};
use crate::cluster::Cluster;
use crate::trace::{Trace, TraceJob};

/// Longer than any trace.
const NEVER: Span = Span(1 << 60);
/// Passes in one moment; far more than placements_max could ask for.
const PASSES_MAX: u32 = 10_000;
const SIGTERM: i32 = 15;

pub(super) struct World<'a> {
    engine: Engine,
    /// When the trace starts. The engine lives in real dates, for the sake of reservations.
    start: Time,
    now: Time,
    trace: &'a Trace,
    options: &'a Options,
    agenda: Agenda,
    misfortune: Misfortune,
    racks: Racks,
    sessions: BTreeMap<NodeId, u64>,
    next_session: u64,
    next_arrival: usize,
    /// From the engine's id to the place in the trace.
    ids: BTreeMap<JobId, usize>,
    work: Vec<Work>,
    jobs: Vec<JobRun>,
    over: u64,
    held: u64,
    /// Jobs that are to be given up.
    hopeless: Vec<TaskId>,
    /// Failures of nodes since a job was last placed.
    idle_failures: u64,
    out: Run,
}

/// How far a job is.
#[derive(Clone, Debug, Default)]
struct Work {
    /// Milliseconds of its run time that are done and safe.
    safe: f64,
    now: Option<Stretch>,
    /// It has GPUs.
    holds: bool,
    setbacks: Setbacks,
    given_up: bool,
}

/// The attempt that runs.
#[derive(Clone, Debug)]
struct Stretch {
    lease: LeaseId,
    since: Time,
    speed: f64,
    finish: Time,
    saved_at: Time,
    /// A node under it is gone: it gets no further.
    halted_at: Option<Time>,
    milli: u64,
}

fn operator() -> Actor {
    Actor { user: "sim".to_owned(), role: Role::Admin }
}

impl<'a> World<'a> {
    pub fn new(
        cluster: &Cluster,
        trace: &'a Trace,
        options: &'a Options,
    ) -> Result<World<'a>, ReplayError> {
        let settings = Settings {
            // Agents here do not send heartbeats: a node fails when the agenda says so.
            node_timeout: NEVER,
            keep_jobs_for: Span::secs(3600),
            ..Settings::default()
        };
        let start = trace.epoch.unwrap_or_default();
        let mut world = World {
            engine: Engine::new(settings),
            start,
            now: start,
            trace,
            options,
            agenda: Agenda::default(),
            misfortune: Misfortune::new(options.seed, cluster.nodes.len(), options.failures),
            racks: Racks::new(&options.policy, &tutti_model::State::default()),
            sessions: BTreeMap::new(),
            next_session: 1,
            next_arrival: 0,
            ids: BTreeMap::new(),
            work: vec![Work::default(); trace.jobs.len()],
            jobs: Vec::new(),
            over: 0,
            held: 0,
            hopeless: Vec::new(),
            idle_failures: 0,
            out: Run { gpus: cluster.gpus(), ..Run::default() },
        };
        world.set_up(cluster)?;
        Ok(world)
    }

    fn set_up(&mut self, cluster: &Cluster) -> Result<(), ReplayError> {
        self.command(Command::Start, "to start")?;
        let policy = Box::new(self.options.policy.clone());
        self.command(Command::SetPolicy { actor: operator(), policy }, "the policy")?;
        for facts in &cluster.nodes {
            // A trace does not say what jobs have on their GPUs: nobody is suspended here.
            let facts = NodeFacts { can_suspend: false, ..facts.clone() };
            let greeting = Box::new(Greeting::new(facts, Vec::new()));
            self.hello(greeting)?;
        }
        self.out.nodes =
            cluster.nodes.iter().map(|n| (n.name.clone(), n.gpus.len() as u32)).collect();
        self.racks = Racks::new(&self.options.policy, self.engine.state());
        let nodes: Vec<NodeId> = self.sessions.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.plan_failure(node));
        Ok(())
    }

    pub fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<Run, ReplayError> {
        while let Some(now) = self.next_moment() {
            self.now = now;
            while let Some(due) = self.agenda.pop(now) {
                self.happen(due)?;
            }
            self.give_up()?;
            self.arrive()?;
            if self.engine.next_wakeup().is_some_and(|at| at <= now) {
                self.command(Command::Tick, "a tick")?;
            }
            self.schedule()?;
            self.sample();
            progress(self.over);
            if self.over == self.trace.jobs.len() as u64 || self.is_stuck() {
                break;
            }
        }
        self.settle_the_rest();
        self.out.lasted = Span(self.on_trace().0);
        self.out.goodput = goodput_at(self.engine.state(), self.now);
        self.out.jobs = self.jobs;
        Ok(self.out)
    }

    /// What waits at the end for more nodes than are up waited in vain for the failures to stop.
    fn settle_the_rest(&mut self) {
        let unfinished = |j: &JobRun| j.end.is_none() && j.fate == Fate::Completed;
        for (job, row) in self.trace.jobs.iter().zip(&mut self.jobs).filter(|(_, j)| unfinished(j))
        {
            let demand = Demand::of(&job.spec);
            let enough = enough_up(&demand, self.engine.state().nodes.values());
            row.fate = if enough { Fate::Stuck } else { Fate::Hopeless };
        }
    }

    /// On the clock of the trace.
    fn on_trace(&self) -> Time {
        Time(self.now.since(self.start).0)
    }

    fn next_moment(&self) -> Option<Time> {
        let arrival = self.trace.jobs.get(self.next_arrival).map(|j| self.submitted(j));
        let wakeup = self.engine.next_wakeup().filter(|at| *at > self.now);
        [arrival, self.agenda.next(), wakeup].into_iter().flatten().min()
    }

    fn submitted(&self, job: &TraceJob) -> Time {
        self.start.plus(Span(job.submit.0))
    }

    /// Nothing runs, nothing comes, no repair helps, and still somebody waits.
    fn is_stuck(&self) -> bool {
        let state = self.engine.state();
        let idle = state.index.active.is_empty();
        let all_up = state.nodes.values().all(|n| n.drain.is_none())
            || self.idle_failures > idle_failures_max(state.nodes.len());
        let none_comes = self.next_arrival >= self.trace.jobs.len();
        let none_due = self.engine.next_wakeup().is_none_or(|at| at <= self.now);
        idle && all_up && none_comes && none_due
    }

    fn happen(&mut self, due: Due) -> Result<(), ReplayError> {
        match due {
            Due::Finish(lease) => self.finish(lease),
            Due::Saved(lease) => self.save(lease),
            Due::Fails(node) => self.fail(node),
            Due::Repaired(node) => {
                let node_name = self.engine.state().node_name(node);
                self.command(
                    Command::Resume { actor: operator(), node: node_name },
                    "to resume a node",
                )?;
                self.plan_failure(node);
                Ok(())
            }
        }
    }

    /// Takes jobs back that failures would keep from their end for ever.
    fn give_up(&mut self) -> Result<(), ReplayError> {
        for target in std::mem::take(&mut self.hopeless) {
            let Some(&index) = self.ids.get(&target.job) else { continue };
            self.work[index].given_up = true;
            self.command(Command::Cancel { actor: operator(), target }, "to give a job up")?;
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), ReplayError> {
        let trace = self.trace;
        while let Some(job) = trace.jobs.get(self.next_arrival) {
            if self.submitted(job) > self.now {
                break;
            }
            self.next_arrival += 1;
            let spec = Box::new(self.spec_of(job));
            let demand = Demand::of(&spec);
            let mut row = JobRun {
                name: job.name.clone(),
                user: job.user.clone(),
                team: String::new(),
                milli: demand.total_gpus() * u64::from(demand.share.0),
                submit: job.submit,
                start: None,
                end: None,
                fate: Fate::Completed,
                attempts: 0,
                preemptions: 0,
                node_failures: 0,
                lost: 0,
                thrown: Thrown::default(),
                racks: None,
                stints: Vec::new(),
            };
            let user = Some(job.user.clone());
            let command = Command::Submit { actor: operator(), spec, user, key: None };
            let step = self.engine.step(command, self.now);
            match &step.reply {
                Ok(tutti_engine::Reply::Submitted { job: id, .. }) => {
                    row.team =
                        self.engine.state().job(*id).map(|j| j.team.clone()).unwrap_or_default();
                    self.ids.insert(*id, self.jobs.len());
                }
                Ok(_) => {}
                Err(refused) => {
                    row.fate = Fate::Refused(refused.to_string());
                    self.over += 1;
                }
            }
            self.jobs.push(row);
            self.obey(step)?;
        }
        Ok(())
    }

    /// As the trace has it, but with no end of patience for failures that are not its own.
    fn spec_of(&self, job: &TraceJob) -> JobSpec {
        let mut spec = job.spec.clone();
        spec.retry = Retry { node_failure: u32::MAX, preemption: u32::MAX, job_failure: 0 };
        if self.options.know_durations && spec.time.is_none() {
            let slowest = self.options.spreading.as_ref().map_or(1.0, |s| s.slowest());
            // It may run on as few nodes as it allows, and so much longer.
            let smallest = spec
                .elastic
                .as_ref()
                .map_or(1.0, |e| f64::from(e.min_nodes.max(1)) / f64::from(e.max_nodes.max(1)));
            spec.time = Some(Span((job.run.0 as f64 / slowest / smallest) as u64 + 1000));
        }
        spec
    }

    fn schedule(&mut self) -> Result<(), ReplayError> {
        for _ in 0..PASSES_MAX {
            if !self.engine.wants_schedule() {
                return Ok(());
            }
            let step = self.engine.schedule(self.now);
            if let Err(source) = step.reply {
                return Err(ReplayError::Plan { at: self.on_trace(), source });
            }
            self.obey(step)?;
        }
        Err(ReplayError::NoProgress { at: self.on_trace() })
    }

    fn command(&mut self, command: Command, what: &'static str) -> Result<(), ReplayError> {
        let step = self.engine.step(command, self.now);
        if let Err(source) = step.reply {
            return Err(ReplayError::Refused { what, source });
        }
        self.obey(step)
    }

    fn hello(&mut self, greeting: Box<Greeting>) -> Result<(), ReplayError> {
        let session = self.next_session;
        self.next_session += 1;
        let step = self.engine.step(Command::Hello { greeting, session }, self.now);
        match step.reply {
            Ok(tutti_engine::Reply::Welcome { node }) => {
                self.sessions.insert(node, session);
            }
            Ok(_) => {}
            Err(source) => return Err(ReplayError::Refused { what: "a node", source }),
        }
        self.obey(step)
    }

    /// Agents do as they are told, at once, and say so.
    fn obey(&mut self, step: Step) -> Result<(), ReplayError> {
        let mut effects = VecDeque::from(step.effects);
        self.note(&step.records);
        while let Some(Effect::Tell { node, order }) = effects.pop_front() {
            let lease = order.lease();
            let phase = match order {
                Order::Start(launch) if launch.wait_for_go => ReportedPhase::Prepared { port: 1 },
                Order::Start(_) | Order::Go { .. } => ReportedPhase::Running { exits: Vec::new() },
                Order::Stop { .. } => self.ended(lease, node, ExitStatus::Signal(SIGTERM)),
                _ => continue,
            };
            let step = self.report(node, lease, phase)?;
            effects.extend(step.effects);
            self.note(&step.records);
        }
        Ok(())
    }

    fn report(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        phase: ReportedPhase,
    ) -> Result<Step, ReplayError> {
        let session = self.sessions.get(&node).copied().unwrap_or_default();
        let report = PartReport::new(lease, phase);
        let step = self.engine.step(Command::Report { node, session, report }, self.now);
        match step.reply {
            Ok(_) => Ok(step),
            Err(source) => Err(ReplayError::Refused { what: "a report", source }),
        }
    }

    /// What a node says when all ranks of a part ended in this way.
    fn ended(&self, lease: LeaseId, node: NodeId, status: ExitStatus) -> ReportedPhase {
        let part = self.attempt(lease).and_then(|a| a.part_on(node));
        let ranks = part.map_or(0..0, |p| p.first_rank.0..p.first_rank.0 + p.ranks);
        let exit = |rank| RankExit { rank: Rank(rank), status, at: self.now };
        ReportedPhase::Done { exits: ranks.map(exit).collect(), error: None }
    }

    fn attempt(&self, lease: LeaseId) -> Option<&Attempt> {
        let job = self.engine.state().job(lease.task.job)?;
        job.task(lease.task.index)?.attempt().filter(|a| a.generation == lease.generation)
    }

    fn finish(&mut self, lease: LeaseId) -> Result<(), ReplayError> {
        let nodes: Vec<NodeId> =
            self.attempt(lease).into_iter().flat_map(|a| a.parts.iter().map(|p| p.node)).collect();
        for node in nodes {
            let phase = self.ended(lease, node, ExitStatus::Code(0));
            let step = self.report(node, lease, phase)?;
            self.obey(step)?;
        }
        Ok(())
    }

    fn save(&mut self, lease: LeaseId) -> Result<(), ReplayError> {
        let Restart::Checkpoint(every) = self.options.restart else { return Ok(()) };
        let now = self.now;
        let stretch = self.stretch(lease).filter(|s| s.halted_at.is_none());
        let Some(stretch) = stretch else { return Ok(()) };
        stretch.saved_at = now;
        self.agenda.add(now.plus(every), Due::Saved(lease));
        self.command(Command::Saved { actor: operator(), task: lease.task }, "a checkpoint")
    }

    fn stretch(&mut self, lease: LeaseId) -> Option<&mut Stretch> {
        let job = *self.ids.get(&lease.task.job)?;
        self.work[job].now.as_mut().filter(|s| s.lease == lease)
    }

    /// The node forgets what it ran, and is out of order until it is repaired.
    fn fail(&mut self, node: NodeId) -> Result<(), ReplayError> {
        self.out.failures += 1;
        self.idle_failures += 1;
        let Some(known) = self.engine.state().node(node) else { return Ok(()) };
        let leases: Vec<LeaseId> = known.used.leases.iter().copied().collect();
        let facts = known.facts.clone();
        let now = self.now;
        for lease in leases {
            let finish = self.stretch(lease).map(|stretch| {
                stretch.halted_at = Some(now);
                stretch.finish
            });
            finish.into_iter().for_each(|at| self.agenda.remove(at, Due::Finish(lease)));
        }
        let (name, reason) = (facts.name.clone(), "failed".to_owned());
        self.command(
            Command::Drain { actor: operator(), node: name, reason, evict: false },
            "to drain",
        )?;
        self.hello(Box::new(Greeting::new(facts, Vec::new())))?;
        self.agenda.add(now.plus(self.options.repair), Due::Repaired(node));
        Ok(())
    }

    fn plan_failure(&mut self, node: NodeId) {
        if self.options.failures > 0.0
            && let Some(after) = self.misfortune.next(node)
        {
            self.agenda.add(self.now.plus(after), Due::Fails(node));
        }
    }

    fn sample(&mut self) {
        let waiting = self.engine.state().index.queue.len() as u64;
        let sample = Sample { at: self.on_trace(), held: self.held, waiting };
        match self.out.samples.last_mut() {
            Some(last) if (last.held, last.waiting) == (sample.held, sample.waiting) => {}
            Some(last) if last.at == sample.at => *last = sample,
            _ => self.out.samples.push(sample),
        }
    }
}
