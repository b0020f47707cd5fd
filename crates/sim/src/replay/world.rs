//! The world around the engine while a trace runs: clients that submit, agents that obey at once,
//! nodes that fail, and a clock that jumps to what is due next.

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::{Actor, Command, Effect, Engine, Event, Record, RetryCause, Settings, Step};
use tutti_model::{
    Attempt, AttemptPhase, Demand, ExitStatus, Greeting, JobId, JobSpec, LeaseId, NodeId, Order,
    Outcome, PartReport, Rank, RankExit, ReportedPhase, Retry, Role, Span, TaskId, Time,
};

use super::clock::{Agenda, Due, Misfortune};
use super::racks::Racks;
use super::{Fate, JobRun, Options, ReplayError, Restart, Run, Sample, Stint};
use crate::cluster::Cluster;
use crate::trace::{Trace, TraceJob};

/// Longer than any trace.
const NEVER: Span = Span(1 << 60);
/// Passes in one moment; far more than placements_max could ask for.
const PASSES_MAX: u32 = 10_000;
const SIGTERM: i32 = 15;

pub(super) struct World<'a> {
    engine: Engine,
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
        let mut world = World {
            engine: Engine::new(settings),
            now: Time(0),
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
            let greeting = Box::new(Greeting { facts: facts.clone(), parts: Vec::new() });
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
        for job in self.jobs.iter_mut().filter(|j| j.end.is_none() && j.fate == Fate::Completed) {
            job.fate = Fate::Stuck;
        }
        self.out.jobs = self.jobs;
        Ok(self.out)
    }

    fn next_moment(&self) -> Option<Time> {
        let arrival = self.trace.jobs.get(self.next_arrival).map(|j| j.submit);
        let wakeup = self.engine.next_wakeup().filter(|at| *at > self.now);
        [arrival, self.agenda.next(), wakeup].into_iter().flatten().min()
    }

    /// Nothing runs, nothing comes, no node is being repaired, and still somebody waits.
    fn is_stuck(&self) -> bool {
        let idle = self.engine.state().index.active.is_empty();
        let all_up = self.engine.state().nodes.values().all(|n| n.drain.is_none());
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

    fn arrive(&mut self) -> Result<(), ReplayError> {
        let trace = self.trace;
        while let Some(job) = trace.jobs.get(self.next_arrival).filter(|j| j.submit <= self.now) {
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
            spec.time = Some(Span((job.run.0 as f64 / slowest) as u64 + 1000));
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
                return Err(ReplayError::Plan { at: self.now, source });
            }
            self.obey(step)?;
        }
        Err(ReplayError::NoProgress { at: self.now })
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
        let report = PartReport { lease, phase };
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
        self.command(Command::Drain { actor: operator(), node: name, reason }, "to drain")?;
        self.hello(Box::new(Greeting { facts, parts: Vec::new() }))?;
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
        let sample = Sample { at: self.now, held: self.held, waiting };
        match self.out.samples.last_mut() {
            Some(last) if (last.held, last.waiting) == (sample.held, sample.waiting) => {}
            Some(last) if last.at == sample.at => *last = sample,
            _ => self.out.samples.push(sample),
        }
    }

    /// Keeps the books.
    fn note(&mut self, records: &[Record]) {
        self.out.events += records.len() as u64;
        for record in records {
            match &record.event {
                Event::Placed { task, .. } => self.placed(*task),
                Event::PartRunning { lease, .. } => self.begun(*lease),
                Event::Requeued { lease, cause, .. } => self.stopped(*lease, *cause),
                Event::TaskEnded { task, ended } => self.over(*task, ended.outcome),
                _ => {}
            }
        }
    }

    fn placed(&mut self, task: TaskId) {
        let Some(&index) = self.ids.get(&task.job) else { return };
        let job = self.engine.state().job(task.job);
        let Some(attempt) = job.and_then(|j| j.task(task.index)?.attempt()) else { return };
        let nodes: Vec<NodeId> = attempt.parts.iter().map(|p| p.node).collect();
        let milli =
            attempt.parts.iter().map(|p| p.gpus.len() as u64 * u64::from(p.share.0)).sum::<u64>();
        let needed = job.map(|j| self.racks.needed(&Demand::of(&j.spec)));
        let spanned = self.racks.spanned(nodes.iter().copied());
        let row = &mut self.jobs[index];
        row.attempts += 1;
        row.racks = needed.map(|n| (spanned, n.racks));
        row.stints.push(Stint { from: self.now, until: self.now, nodes, milli });
        self.work[index].holds = true;
        self.held += milli;
    }

    /// Every part runs: the work goes on from what is safe.
    fn begun(&mut self, lease: LeaseId) {
        let Some(&index) = self.ids.get(&lease.task.job) else { return };
        let running = self.attempt(lease).map(|a| matches!(a.phase, AttemptPhase::Running { .. }));
        if running != Some(true) || self.work[index].now.is_some() {
            return;
        }
        let speed = self.speed(lease, index);
        let left = (self.trace.jobs[index].run.0 as f64 - self.work[index].safe).max(0.0);
        let finish = self.now.plus(Span((left / speed).ceil() as u64));
        let milli = self.jobs[index].stints.last().map_or(0, |s| s.milli);
        self.jobs[index].start.get_or_insert(self.now);
        self.agenda.add(finish, Due::Finish(lease));
        if let Restart::Checkpoint(every) = self.options.restart {
            self.agenda.add(self.now.plus(every), Due::Saved(lease));
        }
        let (since, saved_at) = (self.now, self.now);
        let stretch = Stretch { lease, since, speed, finish, saved_at, halted_at: None, milli };
        self.work[index].now = Some(stretch);
    }

    /// Against running on all that it asked for, near together.
    fn speed(&mut self, lease: LeaseId, index: usize) -> f64 {
        let Some(job) = self.engine.state().job(lease.task.job) else { return 1.0 };
        let demand = Demand::of(&job.spec);
        let Some(attempt) = self.attempt(lease) else { return 1.0 };
        let (gpus, nodes) = (attempt.gpu_count(), attempt.parts.len() as u32);
        let asked = demand.total_gpus().max(1) as f64;
        let elastic = job.spec.elastic.is_some() && gpus > 0;
        let size = if elastic { f64::from(gpus) / asked } else { 1.0 };
        let needed = self.racks.needed(&demand);
        let wide = self.jobs[index].racks.is_some_and(|(spanned, least)| spanned > least);
        let spread = wide || nodes > needed.nodes;
        let spreading = self.options.spreading.as_ref().filter(|_| spread);
        size * spreading.map_or(1.0, |s| s.speed(gpus))
    }

    /// The attempt is over and the job waits again. What is not safe is lost.
    fn stopped(&mut self, lease: LeaseId, cause: RetryCause) {
        let Some(&index) = self.ids.get(&lease.task.job) else { return };
        let row = &mut self.jobs[index];
        match cause {
            RetryCause::Preemption => row.preemptions += 1,
            RetryCause::NodeFailure => row.node_failures += 1,
            _ => {}
        }
        let restart = match cause {
            RetryCause::Resize => Restart::Served,
            _ => self.options.restart,
        };
        self.release(index);
        let Some(stretch) = self.work[index].now.take() else { return };
        self.agenda.remove(stretch.finish, Due::Finish(lease));
        let end = stretch.halted_at.unwrap_or(self.now);
        let done = |until: Time| until.since(stretch.since).0 as f64 * stretch.speed;
        let (all, before) = (done(end), self.work[index].safe);
        self.work[index].safe = match restart {
            Restart::Scratch => 0.0,
            Restart::Served => before + all,
            Restart::Checkpoint(_) => before + done(stretch.saved_at),
        };
        let lost = (before + all - self.work[index].safe) / stretch.speed;
        self.jobs[index].lost += (lost * stretch.milli as f64 / 1000.0) as u64;
    }

    fn over(&mut self, task: TaskId, outcome: Outcome) {
        let Some(index) = self.ids.remove(&task.job) else { return };
        if let Some(stretch) = self.work[index].now.take() {
            self.agenda.remove(stretch.finish, Due::Finish(stretch.lease));
        }
        self.release(index);
        let row = &mut self.jobs[index];
        row.end = Some(self.now);
        row.fate = if outcome == Outcome::Completed { Fate::Completed } else { Fate::Failed };
        self.over += 1;
    }

    /// The GPUs of its last attempt are free.
    fn release(&mut self, index: usize) {
        let holds = std::mem::take(&mut self.work[index].holds);
        if let Some(stint) = self.jobs[index].stints.last_mut().filter(|_| holds) {
            stint.until = self.now;
            self.held -= stint.milli;
        }
    }
}
