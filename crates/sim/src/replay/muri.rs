//! The rules of Muri's simulator (SIGCOMM'22): at every arrival and every end the cluster is
//! refilled from empty in the order of the queue, and running jobs move freely.
//!
//! Leases can't express that, so the engine stays out: all unfinished jobs wait in a state of their
//! own, and each event takes the placements of [`tutti_sched::plan`] as what runs from then on.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fate, JobRun, Run, Sample, Stint};
use tutti_model::{
    DEFAULT_TEAM, GpuRequest, Job, JobId, JobSpec, Lane, Like, Link, Node, NodeId, PlacementRule,
    Policy, Priority, QueueKey, QueueOrder, Span, State, Task, TaskId, Tasks, TextRefs, Time, Used,
};

use crate::cluster::NodeBuilder;
use crate::trace::MuriJob;

const NEVER: Span = Span(1 << 60);
const USER: &str = "muri";

/// Seconds, as the publication counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MuriRun {
    /// In the order of submission.
    pub jct_s: Vec<f64>,
    pub start_s: Vec<f64>,
    /// Times that a running job lost its GPUs.
    pub taken: Vec<u32>,
    /// When the last job ended.
    pub makespan_s: f64,
    pub events: u64,
    /// GPUs in use and jobs that wait, from each moment on.
    held: Vec<(f64, u64, u64)>,
    stints: Vec<Vec<Stint>>,
    gpus: u64,
    nodes: Vec<(String, u32)>,
}

impl MuriRun {
    /// In the form of every other replay.
    pub fn into_run(self, jobs: &[MuriJob]) -> Run {
        let time = |s: f64| Time(milliseconds(s).0);
        let sample = |&(at, held, waiting): &(f64, u64, u64)| Sample {
            at: time(at),
            held: held * 1000,
            waiting,
        };
        let rows = jobs.iter().zip(self.stints).enumerate().map(|(i, (job, stints))| JobRun {
            name: job.id.to_string(),
            user: USER.to_owned(),
            team: DEFAULT_TEAM.to_owned(),
            milli: u64::from(job.gpus) * 1000,
            submit: time(job.submit_s),
            start: (!self.start_s[i].is_nan()).then(|| time(self.start_s[i])),
            end: (!self.jct_s[i].is_nan()).then(|| time(job.submit_s + self.jct_s[i])),
            fate: if self.jct_s[i].is_nan() { Fate::Stuck } else { Fate::Completed },
            attempts: stints.len() as u32,
            preemptions: self.taken[i],
            node_failures: 0,
            lost: 0,
            thrown: super::Thrown::default(),
            racks: None,
            stints,
        });
        Run {
            jobs: rows.collect(),
            samples: self.held.iter().map(sample).collect(),
            gpus: self.gpus,
            nodes: self.nodes,
            failures: 0,
            events: self.events,
            ..Run::default()
        }
    }
}

/// A policy with this order, stripped of everything that these rules do not know: no reservation,
/// no preemption, no patience.
pub fn policy(order: QueueOrder) -> Policy {
    let mut policy = Policy {
        order,
        placement: PlacementRule::FirstFit,
        patience: NEVER,
        starve_after: NEVER,
        placements_max: usize::MAX,
        reserved_heads: 0,
        backfill_depth: usize::MAX,
        ..Policy::default()
    };
    policy.preemption.enabled = false;
    policy
}

/// What a job loses of each stretch between two events, in seconds: the published table.
fn overhead_s(gpus: u32, model: &str) -> f64 {
    let row = match model {
        "vgg16" => [7, 7, 8, 9, 9, 10],
        "vgg19" => [7, 7, 8, 9, 10, 10],
        "resnet18" => [4, 5, 5, 7, 7, 7],
        "shufflenet_v2_x1_0" => [4, 4, 5, 5, 7, 8],
        "a2c" => [38, 39, 39, 46, 46, 46],
        "dqn" => [5, 5, 6, 6, 8, 8],
        _ => [10; 6],
    };
    let column = [1, 2, 4, 8, 16, 32].iter().position(|n| *n == gpus);
    column.map_or(10.0, |c| f64::from(row[c]))
}

struct Live {
    left_s: f64,
    runs: bool,
    /// When its remaining time was last brought up to date.
    at_s: f64,
    /// Seconds that it has had GPUs.
    had_s: f64,
}

struct World<'a> {
    jobs: &'a [MuriJob],
    state: State,
    live: BTreeMap<usize, Live>,
    now_s: f64,
    out: MuriRun,
}

pub fn run(
    jobs: &[MuriJob],
    nodes: u32,
    gpus_per_node: u16,
    order: QueueOrder,
    progress: &mut dyn FnMut(u64),
) -> MuriRun {
    let mut world = World::new(jobs, nodes, gpus_per_node, policy(order));
    let mut next = 0;
    let mut over = 0;
    loop {
        let arrival = jobs.get(next).map_or(f64::INFINITY, |j| j.submit_s);
        let end = world.next_end();
        let now = arrival.min(end);
        if now.is_infinite() {
            break;
        }
        world.out.events += 1;
        over += world.end_jobs(now);
        world.bring_up_to_date(now);
        while jobs.get(next).is_some_and(|j| j.submit_s <= now) {
            world.arrive(next, u32::from(gpus_per_node));
            next += 1;
        }
        world.refill();
        progress(over);
    }
    world.out
}

impl<'a> World<'a> {
    fn new(jobs: &'a [MuriJob], nodes: u32, gpus: u16, policy: Policy) -> World<'a> {
        let mut state = State { policy: Arc::new(policy), ..State::default() };
        for id in (1..=nodes).map(NodeId) {
            let name = format!("n{id}");
            let node = Node {
                id,
                facts: NodeBuilder::new(&name)
                    .gpus("gpu", gpus, 0)
                    .host(1 << 20, tutti_model::Bytes(1 << 50))
                    .build(),
                link: Link::Up,
                drain: None,
                stale: Default::default(),
                joined_at: Time(0),
                strikes: Vec::new(),
                up_since: None,
                good_at: None,
                burn_in: None,
                gpu_bench: None,
                findings: Vec::new(),
                used: Used::default(),
            };
            state.index.node_names.insert(name, id);
            state.nodes.insert(id, node);
        }
        let missing = vec![f64::NAN; jobs.len()];
        let out = MuriRun {
            jct_s: missing.clone(),
            start_s: missing,
            taken: vec![0; jobs.len()],
            stints: vec![Vec::new(); jobs.len()],
            gpus: u64::from(nodes) * u64::from(gpus),
            nodes: (1..=nodes).map(|n| (format!("n{n}"), gpus.into())).collect(),
            ..MuriRun::default()
        };
        World { jobs, state, live: BTreeMap::new(), now_s: 0.0, out }
    }

    /// When the first running job ends, if nothing happens before.
    fn next_end(&self) -> f64 {
        let ends = self.live.values().filter(|l| l.runs).map(|l| l.at_s + l.left_s);
        ends.fold(f64::INFINITY, f64::min)
    }

    fn end_jobs(&mut self, now: f64) -> u64 {
        let ended: Vec<usize> = self
            .live
            .iter()
            .filter(|(_, l)| l.runs && l.at_s + l.left_s <= now)
            .map(|(&index, _)| index)
            .collect();
        for &index in &ended {
            self.out.jct_s[index] = now - self.jobs[index].submit_s;
            if let Some(stint) = self.out.stints[index].last_mut() {
                stint.until = Time(milliseconds(now).0);
            }
            self.out.makespan_s = self.out.makespan_s.max(now);
            self.leave(index, now);
        }
        ended.len() as u64
    }

    /// Running jobs have come on, less what the event costs them.
    fn bring_up_to_date(&mut self, now: f64) {
        self.now_s = now;
        let running: Vec<usize> =
            self.live.iter().filter(|(_, l)| l.runs).map(|(&index, _)| index).collect();
        for &index in &running {
            let job = &self.jobs[index];
            if let Some(live) = self.live.get_mut(&index) {
                let elapsed = now - live.at_s;
                live.left_s -= (elapsed - overhead_s(job.gpus, &job.model)).max(0.0);
                live.had_s += elapsed;
            }
            self.set_served(index);
        }
        self.live.values_mut().for_each(|l| l.at_s = now);
        running.into_iter().for_each(|index| self.learn_progress(index));
    }

    fn arrive(&mut self, index: usize, per_node: u32) {
        let job = &self.jobs[index];
        let mut spec = JobSpec::shell("train");
        spec.nodes = Some(job.gpus.div_ceil(per_node).max(1));
        let count = job.gpus.min(per_node);
        spec.gpus_per_node = Some(GpuRequest { model: None, count });
        if self.knows_durations() {
            spec.time = Some(milliseconds(job.service_s));
        }
        let id = id_of(index);
        let submitted_at = Time(milliseconds(job.submit_s).0);
        let like = like(job);
        self.state.learned.service.submitted(like, id);
        let record = Job {
            id,
            spec: Arc::new(spec),
            user: USER.to_owned(),
            team: DEFAULT_TEAM.to_owned(),
            submitted_at,
            priority: Priority::NORMAL,
            rank: self.state.learned.service.rank(like, id),
            held: false,
            replica_of: None,
            texts: TextRefs::default(),
            cut: TextRefs::default(),
            asked: None,
            tasks: Tasks::One(Task::pending(submitted_at)),
        };
        self.state.jobs.insert(id, Arc::new(record));
        let left_s = job.service_s;
        self.live.insert(index, Live { left_s, runs: false, at_s: self.now_s, had_s: 0.0 });
        self.queue(index);
        self.state.index.waiting.insert((submitted_at, TaskId::single(id)));
    }

    fn knows_durations(&self) -> bool {
        self.state.policy.order != QueueOrder::Fair
    }

    fn leave(&mut self, index: usize, now: f64) {
        let id = id_of(index);
        self.unqueue(index);
        let Some(job) = self.state.jobs.remove(&id) else { return };
        self.state.index.waiting.remove(&(job.submitted_at, TaskId::single(id)));
        if let Some(live) = self.live.remove(&index) {
            let had = milliseconds(live.had_s + now - live.at_s);
            let like = like(&self.jobs[index]);
            self.state.learned.service.ended(like, id, had);
            self.rank_kin(index);
        }
    }

    /// How long it has run tells about its kin.
    fn learn_progress(&mut self, index: usize) {
        let Some(live) = self.live.get(&index) else { return };
        let (had, like) = (milliseconds(live.had_s), like(&self.jobs[index]));
        if self.state.learned.service.ran(like, id_of(index), had) {
            self.rank_kin(index);
        }
    }

    fn rank_kin(&mut self, index: usize) {
        let like = like(&self.jobs[index]);
        for (id, rank) in self.state.learned.service.ranks_of_kin(like, id_of(index)) {
            if self.state.job(id).is_none_or(|j| j.rank == rank) {
                continue;
            }
            self.rekey(index_of(id), |job| job.rank = rank);
        }
    }

    /// What the order goes by where durations are known: how much of the service is done.
    fn set_served(&mut self, index: usize) {
        let job = &self.jobs[index];
        let Some(live) = self.live.get(&index) else { return };
        let done_s = if self.knows_durations() { job.service_s - live.left_s } else { live.had_s };
        let served = milliseconds(done_s).0 * u64::from(job.gpus);
        self.rekey(index, |job| {
            if let Tasks::One(task) = &mut job.tasks {
                task.served = served;
            }
        });
    }

    /// Changes what a job's place in the queue depends on.
    fn rekey(&mut self, index: usize, change: impl FnOnce(&mut Job)) {
        self.unqueue(index);
        if let Some(job) = self.state.jobs_mut(id_of(index)) {
            change(job);
        }
        self.queue(index);
    }

    fn place_in_queue(&self, index: usize) -> Option<(Lane, QueueKey)> {
        let job = self.state.job(id_of(index))?;
        Some((Lane::of(job), QueueKey::of(&self.state.policy, job, None, job.task(None))))
    }

    fn queue(&mut self, index: usize) {
        if let Some((lane, key)) = self.place_in_queue(index) {
            self.state.index.queue.insert(lane, key);
        }
    }

    fn unqueue(&mut self, index: usize) {
        if let Some((lane, key)) = self.place_in_queue(index) {
            self.state.index.queue.remove(&lane, &key);
        }
    }

    /// Empties the cluster in thought and fills it anew.
    fn refill(&mut self) {
        let now = Time(milliseconds(self.now_s).0);
        self.state.at = now;
        let plan = tutti_sched::plan(&self.state, &self.state.policy, now);
        let mut runs: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        let mut held = 0;
        for placement in &plan.placements {
            held += placement.parts.iter().map(|p| p.gpus.len() as u64).sum::<u64>();
            let nodes = placement.parts.iter().map(|p| p.node).collect();
            runs.insert(index_of(placement.task.job), nodes);
        }
        let waiting = (self.live.len() - runs.len()) as u64;
        for (&index, live) in &mut self.live {
            let stints = &mut self.out.stints[index];
            if live.runs
                && let Some(stint) = stints.last_mut()
            {
                stint.until = now;
            }
            let Some(nodes) = runs.remove(&index) else {
                self.out.taken[index] += u32::from(live.runs);
                live.runs = false;
                continue;
            };
            if self.out.start_s[index].is_nan() {
                self.out.start_s[index] = self.now_s;
            }
            if !live.runs || stints.last().is_none_or(|s| s.nodes != nodes) {
                let milli = u64::from(self.jobs[index].gpus) * 1000;
                stints.push(Stint { from: now, until: now, nodes, milli });
            }
            live.runs = true;
        }
        self.out.held.push((self.now_s, held, waiting));
    }
}

/// Ids count from 1 in the order of submission: equal ranks go by age.
fn id_of(index: usize) -> JobId {
    JobId(index as u64 + 1)
}

fn index_of(job: JobId) -> usize {
    (job.0 - 1) as usize
}

/// All jobs are one user's: the traces name none.
fn like(job: &MuriJob) -> Like<'static> {
    Like { user: USER, gpus: job.gpus.into() }
}

fn milliseconds(seconds: f64) -> Span {
    Span((seconds * 1000.0).round().max(0.0) as u64)
}
