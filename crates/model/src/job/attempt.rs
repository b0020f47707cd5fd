//! One try at running a task, with a part on each of its nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Asleep, Bytes, Fault, Generation, GpuIndex, HealthAction, JobId, Kept, LeaseId, Milli, Nap,
    NodeId, PartError, PartPlacement, Pause, PortOwner, Rank, RankExit, SavedPoint, Span, TaskId,
    Time, WatchRule,
};

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
        /// Killed, without time to save.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        at_once: bool,
    },
    TimeLimit,
    /// A rank ended with something other than 0; the others are stopped.
    RankFailed {
        rank: Rank,
        /// What its GPUs' driver said meanwhile, which is most likely the program's own doing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saw: Option<String>,
    },
    /// An agent could not start its part, or could not keep it running.
    LaunchFailed {
        node: NodeId,
        error: String,
        /// It had run before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ran: bool,
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
    /// Whose server listens where routers reach it, as its agent last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_owner: Option<Box<PortOwner>>,
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

impl Part {
    pub fn has_rank(&self, rank: Rank) -> bool {
        rank >= self.first_rank && rank.0 - self.first_rank.0 < self.ranks
    }

    /// Its agent has seen that nobody but its own processes listens where routers reach it.
    pub fn owns_its_port(&self) -> bool {
        self.port_owner.as_deref() == Some(&PortOwner::Part)
    }

    /// Its agent has seen that somebody else listens there, or nobody. One that has not looked, such as one
    /// of an older version, says nothing.
    pub fn lost_its_port(&self) -> bool {
        self.port_owner.as_deref().is_some_and(|owner| *owner != PortOwner::Part)
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
        self.parts.iter().find(|p| p.has_rank(rank))
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
