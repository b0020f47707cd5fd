//! Jobs as the controller remembers them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Asleep, Bytes, DEFAULT_CLASS, Fault, Generation, GpuIndex, HealthAction, IndexRanges, JobId,
    JobSpec, Kept, LeaseId, Milli, NAPS_MAX, Nap, NodeId, PartError, PartPlacement, Pause,
    Priority, Rank, RankExit, SavedPoint, Span, TaskId, Time, WatchRule,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub user: String,
    /// Who pays. Settled at submission.
    #[serde(default = "default_team")]
    pub team: String,
    pub submitted_at: Time,
    /// Starts as the spec's; an operator may change it.
    pub priority: Priority,
    pub held: bool,
    /// What was learned of jobs like it; smaller goes first. Kept by `apply`.
    #[serde(default)]
    pub rank: u64,
    pub tasks: Tasks,
}

fn default_team() -> String {
    crate::DEFAULT_TEAM.to_owned()
}

/// The tasks of a job. An array costs one record until its tasks start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Tasks {
    One(Task),
    Array(ArrayTasks),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArrayTasks {
    /// Never started yet.
    pub waiting: IndexRanges,
    /// Started at least once and not ended.
    pub live: BTreeMap<u32, Task>,
    pub ended: BTreeMap<u32, Ended>,
    /// Tasks that ended together before they ever started: one record, however many.
    pub never_started: Option<Box<(IndexRanges, Ended)>>,
    pub tally: Tally,
}

/// Ended tasks of an array, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

impl Tally {
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::Completed => self.completed += count,
            Outcome::Failed => self.failed += count,
            Outcome::Cancelled => self.cancelled += count,
        }
    }
}

impl ArrayTasks {
    pub fn ended_task(&self, index: u32) -> Option<&Ended> {
        self.ended.get(&index).or_else(|| {
            let (indices, ended) = self.never_started.as_deref()?;
            indices.contains(index).then_some(ended)
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub phase: Phase,
    /// Attempts made so far, the running one included.
    pub attempts: u32,
    pub restarts: Restarts,
    pub first_started_at: Option<Time>,
    /// Nodes where an attempt of this task failed; placed there again only if nothing else fits.
    pub avoid: BTreeSet<NodeId>,
    /// GPU-milliseconds that earlier attempts ran.
    #[serde(default)]
    pub served: u64,
    /// It waits because a node failed under it, and goes before everything else of its class: its
    /// other nodes are warm, and the spares are there for it.
    #[serde(default)]
    pub lost_node: bool,
    /// When it was last preempted.
    #[serde(default)]
    pub preempted_at: Option<Time>,
    /// How long the attempt before this wait lasted.
    #[serde(default)]
    pub last_ran: Option<Span>,
    /// What earlier attempts came to; none if nothing that matters is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Box<Past>>,
}

/// So many checkpoints of a task are remembered. Where they are listed in full is with their files.
pub const KNOWN_POINTS_MAX: usize = 16;

/// What is known of the attempts of a task so far, beyond their number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Past {
    /// The newest point that a restart goes on from, as the job has said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
    /// The newest checkpoints that were heard of, in the order in which they were; at most
    /// [`KNOWN_POINTS_MAX`], each step once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<SavedPoint>,
    /// The highest step that it is known to have done, and the highest that was ever safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_saved: Option<u64>,
    /// Restarts since it last got further: what its budgets have paid. `restarts` counts all.
    #[serde(skip_serializing_if = "Restarts::is_none")]
    pub spent: Restarts,
    /// Attempts in a row that failed without getting anywhere.
    #[serde(skip_serializing_if = "is_zero")]
    pub fruitless: u32,
    /// Why the newest attempt before this one came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Box<StopCause>>,
    /// When earlier attempts were suspended, oldest first; at most [`crate::NAPS_MAX`], the newest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub naps: Vec<Nap>,
    /// How long earlier attempts were suspended in all.
    #[serde(skip_serializing_if = "Span::is_zero")]
    pub away: Span,
    /// Nodes where a rank of it failed, for whatever reason, since it last got further.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub failed_on: BTreeSet<NodeId>,
    /// It was lost while a person kept it suspended, and waits until it is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Box<Kept>>,
}

impl Past {
    /// A checkpoint that was not known, or is another one of the same step.
    pub fn learn(&mut self, point: &SavedPoint) {
        self.points.retain(|known| known.step != point.step);
        self.points.push(point.clone());
        if self.points.len() > KNOWN_POINTS_MAX {
            self.points.remove(0);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restarts {
    pub node_failure: u32,
    pub preemption: u32,
    pub job_failure: u32,
    /// A GPU or node of it was broken. Nothing pays for these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub health: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Restarts {
    fn is_none(&self) -> bool {
        self.total() == 0
    }
    pub fn total(&self) -> u32 {
        self.node_failure + self.preemption + self.job_failure + self.health
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting since `since`, and not to be started before `not_before` (back-off after a failure).
    Pending {
        since: Time,
        not_before: Time,
    },
    Active(Box<Attempt>),
    Ended(Ended),
}

/// One try at running a task: the lease it holds and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    pub generation: Generation,
    pub placed_at: Time,
    pub phase: AttemptPhase,
    /// Where the gang meets: a free port on the first part's node, known once that is prepared.
    pub master_port: Option<u16>,
    /// One part per node, in rank order.
    pub parts: Vec<Part>,
    /// What it is charged: thousandths of a weighted GPU, everything that it blocks counted.
    #[serde(default)]
    pub charge: u64,
    /// When its work was last safe: nothing from before is lost if it is stopped.
    #[serde(default)]
    pub saved_at: Option<Time>,
    /// What it said about that point, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
    /// Something became safe that was not before: it got further than every attempt before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub advanced: bool,
    /// It takes so long to stop that what is free of it is not kept for its return any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub let_go: bool,
    /// What its ranks said of each other, at most one accusation for each part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accusations: Vec<Accusation>,
    /// What they said while it was suspended or had hardly woken, which does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disregarded: Vec<Accusation>,
    /// When it was suspended, oldest first; at most [`crate::NAPS_MAX`], the newest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub naps: Vec<Nap>,
    /// How long all suspensions that are over lasted.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub away: Span,
    /// A person kept it suspended when it was told to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Box<Kept>>,
}

/// The ranks of one part say that a rank of the gang is dead or hangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accusation {
    /// Where the accusers run.
    pub by: NodeId,
    pub fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AttemptPhase {
    /// Agents have been told; not every part runs yet.
    Starting,
    /// Since when, less what it was suspended for.
    Running { since: Time },
    /// Told to leave its GPUs, which it holds until all of it is out.
    Suspending { pause: Pause },
    /// It holds no GPU; its processes stand still, and their GPU state is in memory.
    Suspended { since: Time, pause: Pause },
    /// It has GPUs again; not every part runs yet.
    Waking {
        since: Time,
        pause: Pause,
        /// Why it is stopped as soon as it runs: it could not be suspended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<StopCause>,
    },
    /// Told to stop; the lease is held until every part is gone.
    Stopping { since: Time, running_since: Option<Time>, why: StopCause },
}

/// Why an attempt is being stopped. Decides what becomes of the task afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum StopCause {
    Cancelled {
        by: String,
    },
    TimeLimit,
    /// A rank ended with something other than 0; the others are stopped.
    RankFailed {
        rank: Rank,
        /// What its GPUs' driver said meanwhile, which is most likely the program's own doing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saw: Option<String>,
    },
    /// An agent could not start its part.
    LaunchFailed {
        node: NodeId,
        error: String,
    },
    NodeLost {
        node: NodeId,
    },
    Preempted {
        for_job: JobId,
        /// It asks to be suspended, and this is why it was not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_suspended: Option<String>,
    },
    /// An elastic job goes on with this many nodes.
    Resized {
        nodes: u32,
    },
    /// Ranks say that another one is dead or hangs; this one, where it runs.
    PeerFault {
        rank: Rank,
        node: NodeId,
        op: String,
        why: String,
    },
    /// No step for this long. The rank that lags behind all others, if there is one.
    Stalled {
        rank: Option<Rank>,
        node: Option<NodeId>,
        idle: Span,
    },
    /// An operator clears the node.
    Evicted {
        node: NodeId,
        by: String,
    },
    /// Something is wrong with this node, or with this GPU of it.
    Unhealthy {
        node: NodeId,
        gpu: Option<GpuIndex>,
        text: String,
        action: HealthAction,
    },
    /// An alert asks for it: to be started again, or not.
    Watched {
        rule: WatchRule,
        /// What was wrong, in words.
        text: String,
        again: bool,
    },
}

impl StopCause {
    /// The node that it is stopped for.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            StopCause::LaunchFailed { node, .. }
            | StopCause::NodeLost { node }
            | StopCause::PeerFault { node, .. }
            | StopCause::Evicted { node, .. }
            | StopCause::Unhealthy { node, .. } => Some(*node),
            StopCause::Stalled { node, .. } => *node,
            StopCause::Cancelled { .. }
            | StopCause::TimeLimit
            | StopCause::RankFailed { .. }
            | StopCause::Preempted { .. }
            | StopCause::Watched { .. }
            | StopCause::Resized { .. } => None,
        }
    }
}

/// What one node contributes to an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub node: NodeId,
    pub gpus: Vec<GpuIndex>,
    pub cpus: u32,
    pub mem: Bytes,
    /// Of each of its GPUs.
    #[serde(default)]
    pub share: Milli,
    pub first_rank: Rank,
    pub ranks: u32,
    pub phase: PartState,
    /// Free on its node for the gang, known once the part is prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What its processes have on its GPUs, as last heard, give or take a little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_mem: Option<Bytes>,
    /// It is suspended, or on its way out or back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Box<Asleep>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PartState {
    /// The agent was told, or will be as soon as it can be reached.
    Sent,
    /// Everything is ready on the node; ranks start when all parts are.
    Prepared {
        port: u16,
    },
    Running {
        exits: Vec<RankExit>,
    },
    /// No process left, GPUs free.
    Done {
        exits: Vec<RankExit>,
        error: Option<PartError>,
    },
    /// The node is gone, and with it what ran there.
    Lost,
}

/// A part that runs, as it would be placed again.
impl From<&Part> for PartPlacement {
    fn from(part: &Part) -> PartPlacement {
        PartPlacement {
            node: part.node,
            gpus: part.gpus.clone(),
            cpus: part.cpus,
            mem: part.mem,
            ranks: part.ranks,
            share: part.share,
        }
    }
}

impl PartState {
    pub fn is_over(&self) -> bool {
        matches!(self, PartState::Done { .. } | PartState::Lost)
    }
    pub fn exits(&self) -> &[RankExit] {
        match self {
            PartState::Running { exits } | PartState::Done { exits, .. } => exits,
            _ => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub outcome: Outcome,
    /// 128 + signal when killed; none if it never ran.
    pub exit_code: Option<i32>,
    pub reason: EndReason,
    pub started_at: Option<Time>,
    pub ended_at: Time,
    pub attempts: u32,
    pub restarts: Restarts,
    /// Where the last attempt ran, in rank order; its logs are there.
    pub nodes: Vec<NodeId>,
    pub gpus: u32,
    /// How long it was suspended in all, known once the end is applied.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub away: Span,
    /// How long the last attempt lasted, known once the end is applied. None if nothing was ever
    /// placed, and in snapshots from before this was kept.
    #[serde(default)]
    pub last_ran: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum EndReason {
    /// Every rank returned 0.
    Finished,
    /// This rank was the first to fail.
    RankFailed {
        rank: Rank,
        signal: Option<i32>,
        /// What its GPUs' driver said meanwhile, which is most likely the program's own doing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saw: Option<String>,
    },
    LaunchFailed {
        node: NodeId,
        error: String,
    },
    TimeLimit,
    Cancelled {
        by: String,
    },
    /// A dependency can no longer be met.
    DependencyUnmet {
        job: JobId,
    },
    /// Nodes failed under it more often than its budget allows.
    NodeFailures {
        last: NodeId,
    },
    Preemptions,
    /// Ranks said that this one was dead or hung.
    PeerFault {
        rank: Rank,
        node: NodeId,
        op: String,
        why: String,
    },
    Stalled {
        rank: Option<Rank>,
        idle: Span,
    },
    /// Something was wrong with this node or GPU more often than its budget allows.
    Unhealthy {
        node: NodeId,
        gpu: Option<GpuIndex>,
        text: String,
    },
    /// An alert asked for it, or asked once too often for a new start.
    Watched {
        rule: WatchRule,
        text: String,
    },
    /// It failed so often without getting anywhere that it is not the nodes.
    CrashLoop {
        attempts: u32,
        /// Where, if on several nodes.
        nodes: Vec<NodeId>,
        #[schema(no_recursion)]
        last: Box<EndReason>,
    },
}

/// The eight words for where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Pending,
    Starting,
    Running,
    Suspended,
    Stopping,
    Completed,
    Failed,
    Cancelled,
}

impl JobState {
    /// In the order of a life.
    pub const ALL: [JobState; 8] = [
        JobState::Pending,
        JobState::Starting,
        JobState::Running,
        JobState::Suspended,
        JobState::Stopping,
        JobState::Completed,
        JobState::Failed,
        JobState::Cancelled,
    ];

    /// The state that is called so.
    pub fn named(word: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.as_str() == word)
    }

    pub fn is_final(self) -> bool {
        matches!(self, JobState::Completed | JobState::Failed | JobState::Cancelled)
    }
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Suspended => "suspended",
            JobState::Stopping => "stopping",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

impl From<Outcome> for JobState {
    fn from(o: Outcome) -> JobState {
        match o {
            Outcome::Completed => JobState::Completed,
            Outcome::Failed => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        }
    }
}

static NO_PAST: Past = Past {
    saved: None,
    points: Vec::new(),
    best_step: None,
    best_saved: None,
    stopped: None,
    naps: Vec::new(),
    away: Span(0),
    spent: Restarts { node_failure: 0, preemption: 0, job_failure: 0, health: 0 },
    fruitless: 0,
    failed_on: BTreeSet::new(),
    kept: None,
};

impl Task {
    /// Since when it counts as waiting, if it waits.
    pub fn waits_since(&self) -> Option<Time> {
        match self.phase {
            Phase::Pending { .. } if self.lost_node => Some(Time(0)),
            Phase::Pending { since, .. } => Some(since),
            _ => None,
        }
    }

    pub fn pending(since: Time) -> Task {
        Task {
            phase: Phase::Pending { since, not_before: Time(0) },
            attempts: 0,
            restarts: Restarts::default(),
            first_started_at: None,
            avoid: BTreeSet::new(),
            served: 0,
            lost_node: false,
            preempted_at: None,
            last_ran: None,
            past: None,
        }
    }

    /// The attempt is over: what is worth knowing of its suspensions stays with the task.
    pub fn keep_naps(&mut self, at: Time) {
        let away = self.attempt().map_or(Span(0), |a| a.away(at));
        if away > Span(0) {
            self.past_mut().away.0 += away.0;
        }
        let Some(attempt) = self.attempt_mut().filter(|a| !a.naps.is_empty()) else { return };
        let mut naps = std::mem::take(&mut attempt.naps);
        let open = naps.last_mut().filter(|nap| nap.until.is_none());
        open.into_iter().for_each(|nap| nap.cut_at = Some(at));
        let kept = &mut self.past_mut().naps;
        kept.append(&mut naps);
        kept.drain(..kept.len().saturating_sub(NAPS_MAX));
    }

    /// How long it was suspended in all attempts so far.
    pub fn away(&self, now: Time) -> Span {
        let here = self.attempt().map_or(Span(0), |a| a.away(now));
        Span(self.past().away.0.saturating_add(here.0))
    }

    /// Every suspension that is remembered, oldest first.
    pub fn all_naps(&self) -> impl Iterator<Item = &Nap> {
        self.past().naps.iter().chain(self.attempt().into_iter().flat_map(|a| &a.naps))
    }

    pub fn past(&self) -> &Past {
        self.past.as_deref().unwrap_or(&NO_PAST)
    }
    pub fn past_mut(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }

    pub fn state(&self) -> JobState {
        match &self.phase {
            Phase::Pending { .. } => JobState::Pending,
            Phase::Active(a) => match a.phase {
                AttemptPhase::Starting => JobState::Starting,
                AttemptPhase::Running { .. } => JobState::Running,
                AttemptPhase::Suspending { .. }
                | AttemptPhase::Suspended { .. }
                | AttemptPhase::Waking { .. } => JobState::Suspended,
                AttemptPhase::Stopping { .. } => JobState::Stopping,
            },
            Phase::Ended(e) => e.outcome.into(),
        }
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Active(a) => Some(a),
            _ => None,
        }
    }

    pub fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Active(a) => Some(a),
            _ => None,
        }
    }
}

impl Attempt {
    pub fn lease(&self, task: TaskId) -> LeaseId {
        LeaseId { task, generation: self.generation }
    }
    pub fn world_size(&self) -> u32 {
        self.parts.iter().map(|p| p.ranks).sum()
    }
    /// Part of it is over already.
    pub fn is_ending(&self) -> bool {
        self.parts.iter().any(|p| p.phase.is_over())
    }
    /// When the last rank of the parts that are over ended, by its node's clock.
    pub fn ended_in_part_at(&self) -> Option<Time> {
        let exits = self.parts.iter().filter_map(|p| match &p.phase {
            PartState::Done { exits, .. } => Some(exits),
            _ => None,
        });
        exits.flatten().map(|exit| exit.at).max()
    }
    /// GPUs that it has, or had before it was suspended.
    pub fn gpu_count(&self) -> u32 {
        self.parts.iter().map(|p| p.home_gpus().len() as u32).sum()
    }
    /// GPU-milliseconds since it began to run.
    pub fn served(&self, now: Time) -> u64 {
        let ran = self.ran(now).unwrap_or_default().0;
        ran.saturating_mul(self.gpu_count().into())
    }
    /// How long all of it has run; its suspensions do not count. None if it never did.
    pub fn ran(&self, now: Time) -> Option<Span> {
        match &self.phase {
            AttemptPhase::Starting => None,
            AttemptPhase::Running { since } => Some(now.since(*since)),
            AttemptPhase::Suspending { pause }
            | AttemptPhase::Suspended { pause, .. }
            | AttemptPhase::Waking { pause, .. } => Some(pause.ran),
            AttemptPhase::Stopping { running_since, .. } => running_since.map(|at| now.since(at)),
        }
    }
    /// Since when it would have run by now, had it never been suspended.
    pub fn running_since(&self, now: Time) -> Option<Time> {
        self.ran(now).map(|ran| Time(now.0.saturating_sub(ran.0)))
    }
    /// How long it has lasted: from when all of it ran, or from its placement if nobody said so
    /// before now. Short work is over before anybody says that it runs.
    pub fn lasted(&self, now: Time) -> Span {
        let ran = self.ran(now).filter(|ran| ran.0 > 0);
        ran.unwrap_or_else(|| now.since(self.placed_at))
    }
    pub fn part_of(&self, rank: Rank) -> Option<&Part> {
        let has = |p: &&Part| rank >= p.first_rank && rank.0 - p.first_rank.0 < p.ranks;
        self.parts.iter().find(has)
    }
    pub fn part_on(&self, node: NodeId) -> Option<&Part> {
        self.parts.iter().find(|p| p.node == node)
    }
    pub fn is_over(&self) -> bool {
        self.parts.iter().all(|p| p.phase.is_over())
    }
    /// It is stopped through no wish of anybody, and will be started again as soon as it is gone.
    pub fn will_return(&self) -> bool {
        if self.kept.is_some() {
            return false;
        }
        let AttemptPhase::Stopping { why, .. } = &self.phase else { return false };
        match why {
            StopCause::NodeLost { .. }
            | StopCause::PeerFault { .. }
            | StopCause::Stalled { .. }
            | StopCause::LaunchFailed { .. }
            | StopCause::Evicted { .. }
            | StopCause::Watched { again: true, .. }
            | StopCause::Unhealthy { .. } => !self.let_go,
            StopCause::RankFailed { .. }
            | StopCause::Watched { again: false, .. }
            | StopCause::Cancelled { .. }
            | StopCause::TimeLimit
            | StopCause::Preempted { .. }
            | StopCause::Resized { .. } => false,
        }
    }
}

impl Job {
    pub fn class(&self) -> &str {
        self.spec.class.as_deref().unwrap_or(DEFAULT_CLASS)
    }
    /// The task with this id, if it has a record of its own (a waiting array task has none).
    pub fn task(&self, index: Option<u32>) -> Option<&Task> {
        match (&self.tasks, index) {
            (Tasks::One(t), None) => Some(t),
            (Tasks::Array(a), Some(i)) => a.live.get(&i),
            _ => None,
        }
    }

    /// Whether the job has such a task at all, started or not.
    pub fn has_task(&self, index: Option<u32>) -> bool {
        match (&self.tasks, index) {
            (Tasks::One(_), None) => true,
            (Tasks::Array(a), Some(i)) => {
                a.waiting.contains(i) || a.live.contains_key(&i) || a.ended_task(i).is_some()
            }
            _ => false,
        }
    }

    pub fn task_state(&self, index: Option<u32>) -> Option<JobState> {
        match (&self.tasks, index) {
            (Tasks::One(t), None) => Some(t.state()),
            (Tasks::Array(a), Some(i)) => {
                if let Some(t) = a.live.get(&i) {
                    Some(t.state())
                } else if let Some(e) = a.ended_task(i) {
                    Some(e.outcome.into())
                } else {
                    a.waiting.contains(i).then_some(JobState::Pending)
                }
            }
            _ => None,
        }
    }

    pub fn ended(&self, index: Option<u32>) -> Option<&Ended> {
        match (&self.tasks, index) {
            (Tasks::One(Task { phase: Phase::Ended(e), .. }), None) => Some(e),
            (Tasks::Array(a), Some(i)) => a.ended_task(i),
            _ => None,
        }
    }

    /// Tasks that hold or may get a lease, started ones only.
    pub fn live_tasks(&self) -> Box<dyn Iterator<Item = (TaskId, &Task)> + '_> {
        match &self.tasks {
            Tasks::One(t) if matches!(t.phase, Phase::Ended(_)) => Box::new(std::iter::empty()),
            Tasks::One(t) => Box::new(std::iter::once((TaskId::single(self.id), t))),
            Tasks::Array(a) => {
                Box::new(a.live.iter().map(|(&i, t)| (TaskId::of_array(self.id, i), t)))
            }
        }
    }

    pub fn is_over(&self) -> bool {
        match &self.tasks {
            Tasks::One(t) => matches!(t.phase, Phase::Ended(_)),
            Tasks::Array(a) => a.waiting.is_empty() && a.live.is_empty(),
        }
    }

    /// The outcome of the whole job once it is over: the worst of its tasks.
    pub fn outcome(&self) -> Option<Outcome> {
        if !self.is_over() {
            return None;
        }
        match &self.tasks {
            Tasks::One(Task { phase: Phase::Ended(e), .. }) => Some(e.outcome),
            Tasks::One(_) => None,
            Tasks::Array(a) => Some(if a.tally.failed > 0 {
                Outcome::Failed
            } else if a.tally.cancelled > 0 {
                Outcome::Cancelled
            } else {
                Outcome::Completed
            }),
        }
    }

    /// Where the job as a whole stands: running if any task runs, else the most advanced of them.
    pub fn state(&self) -> JobState {
        if let Some(outcome) = self.outcome() {
            return outcome.into();
        }
        match &self.tasks {
            Tasks::One(t) => t.state(),
            Tasks::Array(a) => {
                let any = |s| a.live.values().any(|t| t.state() == s);
                [JobState::Running, JobState::Starting, JobState::Stopping, JobState::Suspended]
                    .into_iter()
                    .find(|&s| any(s))
                    .unwrap_or(JobState::Pending)
            }
        }
    }

    pub fn ended_at(&self) -> Option<Time> {
        match &self.tasks {
            Tasks::One(Task { phase: Phase::Ended(e), .. }) => Some(e.ended_at),
            Tasks::One(_) => None,
            Tasks::Array(a) if self.is_over() => {
                let unstarted = a.never_started.as_deref().map(|(_, e)| e.ended_at);
                a.ended.values().map(|e| e.ended_at).chain(unstarted).max()
            }
            Tasks::Array(_) => None,
        }
    }
}
