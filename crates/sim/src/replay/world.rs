//! The world around the engine while a trace runs: clients that submit, agents that obey at once,
//! nodes that fail, and a clock that jumps to what is due next.

mod agents;
mod books;

use std::collections::{BTreeMap, BTreeSet};

use tutti_engine::{Actor, Command, Reply, Settings, goodput_at};
use tutti_model::{
    Demand, Greeting, JobId, JobSpec, LeaseId, NodeFacts, NodeId, Retry, Role, Span, State, TaskId,
    Time,
};

use super::clock::{Agenda, Chance, Due};
use super::patience::{Setbacks, enough_up, idle_failures_max};
use super::racks::Racks;
use super::{Fate, Host, JobRun, Options, ReplayError, Run, Sample, Thrown};
use crate::cluster::Cluster;
use crate::noise;
use crate::trace::{Trace, TraceJob};

/// Longer than any trace.
const NEVER: Span = Span(1 << 60);
/// Passes in one moment; far more than placements_max could ask for.
const PASSES_MAX: u32 = 10_000;
/// Ended jobs are known for so long, unless the options say otherwise.
pub(super) const KEEP: Span = Span::secs(3600);
/// Twice the pauses between two words of a node after which it is too quiet, though connected.
const SILENCES: u64 = 5;

/// What the engine of a replay has to be made with.
pub fn settings(options: &Options) -> Settings {
    // Where agents do not send heartbeats, a node fails when the agenda says so.
    let node_timeout = options.heartbeat.map_or(NEVER, |every| Span(every.0 * SILENCES / 2));
    let usual = Settings::default();
    let gone_timeout = options.heartbeat.map(|_| usual.node_timeout);
    Settings { node_timeout, gone_timeout, keep_jobs_for: options.keep, ..usual }
}

pub struct World<'a, H> {
    host: H,
    /// When the trace starts. The engine lives in real dates, for the sake of reservations.
    start: Time,
    now: Time,
    trace: &'a Trace,
    options: &'a Options,
    agenda: Agenda,
    misfortune: Chance,
    racks: Racks,
    sessions: BTreeMap<NodeId, u64>,
    next_session: u64,
    next_arrival: usize,
    /// From the engine's id to the first of its tasks in `work` and `jobs`.
    ids: BTreeMap<JobId, usize>,
    work: Vec<Work>,
    jobs: Vec<JobRun>,
    over: u64,
    held: u64,
    /// Jobs that are to be given up.
    hopeless: Vec<TaskId>,
    /// Failures of nodes since a job was last placed.
    idle_failures: u64,
    /// Nodes that are silent until they are repaired.
    gone: BTreeSet<NodeId>,
    /// It is time to look who is missing.
    look: bool,
    /// How often agents speak up; they may be asked to do so more often later.
    heartbeat: Option<Span>,
    out: Run,
}

/// How far a task is.
#[derive(Clone, Debug, Default)]
struct Work {
    /// Its job, by the place in the trace.
    job: usize,
    /// How long it runs when nothing disturbs it.
    run: Span,
    over: bool,
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

impl<'a, H: Host> World<'a, H> {
    /// The engine of the host is new, and has [`settings`].
    pub fn new(
        host: H,
        cluster: &Cluster,
        trace: &'a Trace,
        options: &'a Options,
    ) -> Result<World<'a, H>, ReplayError> {
        let start = trace.epoch.unwrap_or_default();
        let mut world = World {
            host,
            start,
            now: start,
            trace,
            options,
            agenda: Agenda::default(),
            misfortune: Chance::new(options.seed, cluster.nodes.len(), options.failures),
            racks: Racks::new(&options.policy, &tutti_model::State::default()),
            sessions: BTreeMap::new(),
            next_session: 1,
            next_arrival: 0,
            ids: BTreeMap::new(),
            work: Vec::new(),
            jobs: Vec::new(),
            over: 0,
            held: 0,
            hopeless: Vec::new(),
            idle_failures: 0,
            gone: BTreeSet::new(),
            look: false,
            heartbeat: options.heartbeat,
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
        self.racks = Racks::new(&self.options.policy, self.state());
        let nodes: Vec<NodeId> = self.sessions.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.plan_failure(node));
        for (place, incident) in self.options.incidents.iter().enumerate() {
            self.agenda.add(self.start.plus(incident.after), Due::Incident(place));
        }
        if let Some(every) = self.heartbeat {
            self.agenda.add(self.now.plus(every), Due::Heartbeat);
        }
        Ok(())
    }

    pub fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<Run, ReplayError> {
        while let Some(now) = self.next_moment() {
            self.live_through(now)?;
            progress(self.over);
            let none_comes = self.next_arrival >= self.trace.jobs.len();
            if (none_comes && self.over == self.work.len() as u64) || self.is_stuck() {
                break;
            }
        }
        self.settle_the_rest();
        self.out.lasted = Span(self.on_trace().0);
        self.out.goodput = goodput_at(self.state(), self.now);
        self.out.jobs = self.jobs;
        Ok(self.out)
    }

    /// Everything up to and with this time of the trace. Where time ends it goes on all the same.
    pub fn advance(&mut self, until: Span) -> Result<(), ReplayError> {
        let until = self.start.plus(until);
        while let Some(now) = self.next_moment().filter(|now| *now <= until) {
            self.live_through(now)?;
        }
        self.now = self.now.max(until);
        Ok(())
    }

    fn live_through(&mut self, now: Time) -> Result<(), ReplayError> {
        self.now = now;
        while let Some(due) = self.agenda.pop(now) {
            self.happen(due)?;
        }
        self.give_up()?;
        self.arrive()?;
        let wakes = self.host.engine().next_wakeup().is_some_and(|at| at <= now);
        if std::mem::take(&mut self.look) || wakes {
            self.command(Command::Tick, "a tick")?;
        }
        self.schedule()?;
        self.sample();
        Ok(())
    }

    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// What time the engine has.
    pub fn now(&self) -> Time {
        self.now
    }

    pub fn start(&self) -> Time {
        self.start
    }

    /// From now on agents speak up so often. Only for those who did so before.
    pub fn speak_every(&mut self, every: Span) {
        if self.heartbeat.replace(every).is_none() {
            self.agenda.add(self.now.plus(every), Due::Heartbeat);
        }
    }

    fn state(&self) -> &State {
        self.host.engine().state()
    }

    /// What waits at the end for more nodes than are up waited in vain for the failures to stop.
    fn settle_the_rest(&mut self) {
        let unfinished = |j: &JobRun| j.end.is_none() && j.fate == Fate::Completed;
        let state = self.host.engine().state();
        for (work, row) in self.work.iter().zip(&mut self.jobs).filter(|(_, j)| unfinished(j)) {
            let demand = Demand::of(&self.trace.jobs[work.job].spec);
            let enough = enough_up(&demand, state.nodes.values());
            row.fate = if enough { Fate::Stuck } else { Fate::Hopeless };
        }
    }

    /// On the clock of the trace.
    fn on_trace(&self) -> Time {
        Time(self.now.since(self.start).0)
    }

    fn next_moment(&self) -> Option<Time> {
        let arrival = self.trace.jobs.get(self.next_arrival).map(|j| self.submitted(j));
        let wakeup = self.host.engine().next_wakeup().filter(|at| *at > self.now);
        [arrival, self.agenda.next(), wakeup].into_iter().flatten().min()
    }

    fn submitted(&self, job: &TraceJob) -> Time {
        self.start.plus(Span(job.submit.0))
    }

    /// Nothing runs, nothing comes, no repair helps, and still somebody waits.
    fn is_stuck(&self) -> bool {
        let state = self.state();
        let idle = state.index.active.is_empty();
        let all_up = state.nodes.values().all(|n| n.drain.is_none())
            || self.idle_failures > idle_failures_max(state.nodes.len());
        let none_comes = self.next_arrival >= self.trace.jobs.len();
        if self.heartbeat.is_some() {
            // Somebody always speaks, and the engine always waits for the next word.
            let quiet = self.agenda.is_quiet() && state.index.back_off.is_empty();
            return idle && none_comes && quiet;
        }
        let none_due = self.host.engine().next_wakeup().is_none_or(|at| at <= self.now);
        idle && all_up && none_comes && none_due
    }

    fn happen(&mut self, due: Due) -> Result<(), ReplayError> {
        match due {
            Due::Finish(lease) => self.finish(lease),
            Due::Saved(lease) => self.save(lease),
            Due::Fails(node) => self.fail(node, self.options.repair),
            Due::Repaired(node) => self.repaired(node),
            Due::Incident(place) => self.befall(place),
            Due::Heartbeat => self.speak_up(),
            Due::Look => {
                self.look = true;
                Ok(())
            }
        }
    }

    /// Takes jobs back that failures would keep from their end for ever.
    fn give_up(&mut self) -> Result<(), ReplayError> {
        for target in std::mem::take(&mut self.hopeless) {
            let Some(index) = self.index_of(target) else { continue };
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
            let first = self.work.len();
            self.expect(self.next_arrival, job);
            self.next_arrival += 1;
            let (spec, user) = (Box::new(self.spec_of(job)), Some(job.user.clone()));
            let command = Command::Submit { actor: operator(), spec, user, key: None };
            let step = self.host.step(command, self.now);
            match &step.reply {
                Ok(Reply::Submitted { job: id, .. }) => {
                    let team = self.state().job(*id).map(|j| j.team.clone()).unwrap_or_default();
                    self.jobs[first..].iter_mut().for_each(|row| row.team.clone_from(&team));
                    self.ids.insert(*id, first);
                }
                Ok(_) => {}
                Err(refused) => {
                    let fate = Fate::Refused(refused.to_string());
                    self.jobs[first..].iter_mut().for_each(|row| row.fate = fate.clone());
                    self.over += (self.jobs.len() - first) as u64;
                }
            }
            self.obey(step)?;
        }
        Ok(())
    }

    /// A row for each task.
    fn expect(&mut self, place: usize, job: &TraceJob) {
        let demand = Demand::of(&job.spec);
        let tasks = job.spec.array.as_ref().map_or(1, |array| array.indices.len());
        for task in 0..tasks {
            let spread = if tasks == 1 { 1.0 } else { noise::around_one(place as u64, task) };
            let run = Span((job.run.0 as f64 * spread) as u64);
            self.work.push(Work { job: place, run, ..Work::default() });
            self.jobs.push(JobRun {
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
            });
        }
    }

    /// Where a task is in `work` and `jobs`, as long as it is not over.
    fn index_of(&self, task: TaskId) -> Option<usize> {
        let first = *self.ids.get(&task.job)?;
        let Some(index) = task.index else { return Some(first) };
        let array = self.trace.jobs[self.work[first].job].spec.array.as_ref()?;
        Some(first + array.indices.iter().position(|of| of == index)?)
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
            if !self.host.engine().wants_schedule() {
                return Ok(());
            }
            let step = self.host.schedule(self.now);
            if let Err(source) = step.reply {
                return Err(ReplayError::Plan { at: self.on_trace(), source });
            }
            self.obey(step)?;
        }
        Err(ReplayError::NoProgress { at: self.on_trace() })
    }

    fn command(&mut self, command: Command, what: &'static str) -> Result<(), ReplayError> {
        let step = self.host.step(command, self.now);
        if let Err(source) = step.reply {
            return Err(ReplayError::Refused { what, source });
        }
        self.obey(step)
    }

    fn sample(&mut self) {
        let waiting = self.state().index.queue.len() as u64;
        let sample = Sample { at: self.on_trace(), held: self.held, waiting };
        match self.out.samples.last_mut() {
            Some(last) if (last.held, last.waiting) == (sample.held, sample.waiting) => {}
            Some(last) if last.at == sample.at => *last = sample,
            _ => self.out.samples.push(sample),
        }
    }
}
