//! What happened. The journal holds these; [`crate::apply`] turns them into state.
//!
//! Events are never renamed or given another meaning: an old journal must load. New fields need a
//! serde default.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tutti_model::{
    Accusation, BurnIn, Bytes, ClaimCause, Day, Drain, Ended, Epoch, Finding, Generation, GpuBench,
    GpuIndex, JobId, JobSpec, JobUpdate, Kept, LeaseId, LimitByPolicy, Moved, NodeFacts, NodeId,
    PartError, PartPlacement, Policy, PortOwner, Priority, RankExit, Refusal, ReplicaOf,
    ReplicaPhase, Replicas, Rollout, RolloutStage, SavedPoint, Seq, Served, SharedKey, StopCause,
    StoredText, SuspendCause, TaskId, TextDigest, TextRefs, Time, Token, WakePart,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub seq: Seq,
    pub at: Time,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    ControllerStarted {
        epoch: Epoch,
    },
    /// The journal is an older copy that was put back. What was given away after the copy was made is
    /// not known, so every number goes on above it.
    JournalRestored {
        epoch: Epoch,
        next_job: u64,
        next_generation: u64,
    },
    /// A node has leases of jobs or generations that this journal never gave away.
    NumbersSkipped {
        next_job: u64,
        next_generation: u64,
    },

    JobSubmitted {
        job: JobId,
        user: String,
        spec: Arc<JobSpec>,
        key: Option<String>,
        /// Who pays. None in journals from before there were teams.
        #[serde(default)]
        team: Option<String>,
        /// An endpoint has submitted it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replica_of: Option<Box<ReplicaOf>>,
        /// What of the spec is stored by hash. Then the journal has the spec without it.
        #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
        texts: TextRefs,
    },
    /// A text that large specs after this refer to. It goes with the last job or endpoint that has it.
    TextKept {
        digest: TextDigest,
        text: StoredText,
    },
    JobHeld {
        job: JobId,
        by: String,
    },
    JobReleased {
        job: JobId,
        by: String,
    },
    PriorityChanged {
        job: JobId,
        priority: Priority,
        by: String,
    },
    /// Something about the job is not as it was submitted.
    JobUpdated {
        job: JobId,
        update: Box<JobUpdate>,
        /// Who pays from now on, if that changes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        /// The limit of another team or class, for a job that names none itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default_time: Option<LimitByPolicy>,
        by: String,
    },
    /// All waiting tasks of an array that never started, ended at once.
    WaitingEnded {
        job: JobId,
        ended: Ended,
    },
    JobsForgotten {
        jobs: Vec<JobId>,
    },
    /// Submissions before this time can no longer be repeated by their key.
    KeysForgotten {
        before: Time,
    },

    /// The scheduler gave this task these parts.
    Placed {
        task: TaskId,
        generation: Generation,
        parts: Vec<PartPlacement>,
    },
    PartPrepared {
        lease: LeaseId,
        node: NodeId,
        port: u16,
    },
    PartRunning {
        lease: LeaseId,
        node: NodeId,
        exits: Vec<RankExit>,
    },
    PartDone {
        lease: LeaseId,
        node: NodeId,
        exits: Vec<RankExit>,
        error: Option<PartError>,
    },
    /// The disk of the node had no room for some of the part's output.
    OutputDropped {
        lease: LeaseId,
        node: NodeId,
        bytes: u64,
    },
    /// The node no longer has a part that it had acknowledged.
    PartLost {
        lease: LeaseId,
        node: NodeId,
    },
    Stopping {
        lease: LeaseId,
        why: StopCause,
    },
    /// Room is kept for this task until it is free; who is stopped for it follows in `Stopping`.
    Claimed {
        task: TaskId,
        parts: Vec<PartPlacement>,
        cause: ClaimCause,
        victims: Vec<TaskId>,
    },
    Unclaimed {
        task: TaskId,
    },
    /// The work of this attempt up to now is safe.
    Saved {
        lease: LeaseId,
        /// What the job said about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        point: Option<SavedPoint>,
    },
    /// Somebody says where a checkpoint of this task is.
    Registered {
        task: TaskId,
        point: SavedPoint,
    },
    /// The ranks of one part say that another rank is dead or hangs.
    Accused {
        lease: LeaseId,
        accusation: Accusation,
    },
    /// They say so while the gang is suspended or has hardly woken: it does not count.
    Disregarded {
        lease: LeaseId,
        accusation: Accusation,
    },
    /// What the processes of a part have on its GPUs is not what it was.
    PartHolds {
        lease: LeaseId,
        node: NodeId,
        bytes: Bytes,
    },
    /// Whose server listens where routers reach this part is not what it was.
    PortOwned {
        lease: LeaseId,
        node: NodeId,
        owner: PortOwner,
    },
    /// Every part is told to leave its GPUs; this is kept for them in memory.
    Suspending {
        lease: LeaseId,
        why: SuspendCause,
        /// It does not wake by itself.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stays: bool,
        moved: Vec<Moved>,
    },
    /// A part is out of its GPUs, and takes this much memory. With the last one the GPUs are free.
    PartSuspended {
        lease: LeaseId,
        node: NodeId,
        bytes: Bytes,
    },
    /// The parts have GPUs, and are told to go on.
    Waking {
        lease: LeaseId,
        parts: Vec<WakePart>,
        /// It could not be suspended, and keeps its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<Refusal>,
    },
    /// A part runs as before. With the last one the attempt does.
    PartWoken {
        lease: LeaseId,
        node: NodeId,
    },
    /// A suspended attempt does not wake by itself, or does again.
    SuspensionHeld {
        lease: LeaseId,
        by: String,
    },
    SuspensionReleased {
        lease: LeaseId,
        by: String,
    },
    /// It was lost while a person kept it suspended; now it may start again.
    TaskReleased {
        task: TaskId,
        by: String,
    },
    /// It takes so long to stop that what is free of it is given to others.
    LetGo {
        lease: LeaseId,
    },
    /// The attempt is over and the task waits again.
    Requeued {
        lease: LeaseId,
        cause: RetryCause,
        avoid: Option<NodeId>,
        not_before: Time,
        /// The highest step that it had done, if it said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        /// Whether the attempt came to anything.
        #[serde(default, skip_serializing_if = "Fruit::is_unknown")]
        fruit: Fruit,
        /// Where a rank failed, or was blamed; not a node that was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed_on: Option<NodeId>,
        /// Why it had to go, if it was stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<Box<StopCause>>,
        /// A person kept it suspended: it does not start again before it is resumed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<Box<Kept>>,
    },
    /// The wait after a failure is over; the task may be placed again.
    Ready {
        task: TaskId,
    },
    TaskEnded {
        task: TaskId,
        ended: Ended,
    },

    NodeJoined {
        node: NodeId,
        facts: Box<NodeFacts>,
    },
    /// The agent is (again) connected; these leases on it are not current.
    NodeUp {
        node: NodeId,
        facts: Box<NodeFacts>,
        stale: Vec<LeaseId>,
    },
    NodeAway {
        node: NodeId,
    },
    NodeLost {
        node: NodeId,
    },
    StaleGone {
        node: NodeId,
        lease: LeaseId,
    },
    NodeDrained {
        node: NodeId,
        drain: Drain,
    },
    NodeResumed {
        node: NodeId,
        by: String,
    },
    /// Everything that is wrong with the node from now on.
    FindingsChanged {
        node: NodeId,
        findings: Vec<Finding>,
    },
    /// The finding that asked for the drain is gone.
    NodeReopened {
        node: NodeId,
    },
    /// The first time that a key was seen with this name: it joined before keys were on record.
    NodeKeyKnown {
        name: String,
        key: String,
    },
    /// Two agents hold the node's key.
    NodeKeyShared {
        node: NodeId,
        shared: SharedKey,
    },
    /// From now on nobody is this node. What ran there is lost.
    NodeRemoved {
        name: String,
        /// None if it never connected.
        node: Option<NodeId>,
        /// What its agent has to stop.
        leases: Vec<LeaseId>,
        by: String,
    },
    NodeMeasured {
        node: NodeId,
        burn_in: Box<BurnIn>,
    },
    GpusMeasured {
        node: NodeId,
        bench: Box<GpuBench>,
    },

    /// These GPUs of the node are held and hardly used; all others are not, or are not held.
    GpusIdle {
        node: NodeId,
        gpus: BTreeSet<GpuIndex>,
        /// Those that were not among them before have been so since then: it takes a while to tell.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<Time>,
    },
    /// Every book of the ledger is closed, so that the rows of a day that is over are complete.
    LedgerSettled,
    /// The rows of this day are durable somewhere else.
    LedgerDropped {
        day: Day,
    },

    PolicyChanged {
        policy: Arc<Policy>,
        by: String,
    },

    TokenAdded {
        token: Token,
    },
    TokenUsed {
        id: String,
        node: String,
        /// Whoever holds it is the node from now on. None in journals from before keys were on record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    TokenRevoked {
        id: String,
        by: String,
    },

    /// Its first revision is 1.
    EndpointCreated {
        endpoint: String,
        user: String,
        team: String,
        spec: Arc<JobSpec>,
        by: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        want: u32,
        /// What of the spec is stored by hash. Then the journal has the spec without it.
        #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
        texts: TextRefs,
    },
    EndpointRevised {
        endpoint: String,
        revision: u32,
        spec: Arc<JobSpec>,
        by: String,
        /// Replicas of this revision are replicas of the new one: what they run has not changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        same_as: Option<u32>,
        /// The way there. None if there is nothing to exchange.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollout: Option<Rollout>,
        /// What of the spec is stored by hash. Then the journal has the spec without it.
        #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
        texts: TextRefs,
    },
    /// A person has set other bounds than the job file's, or none any more.
    EndpointBounded {
        endpoint: String,
        bounds: Option<Replicas>,
        by: String,
    },
    EndpointWants {
        endpoint: String,
        want: u32,
        why: String,
    },
    ReplicaChanged {
        endpoint: String,
        job: JobId,
        phase: ReplicaPhase,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// It ended by itself, or never became ready.
    ReplicaFailed {
        endpoint: String,
        job: JobId,
        why: String,
        /// In a row, without any that stayed ready.
        failures: u32,
        /// No other one is started before.
        not_before: Time,
    },
    /// It came after the last failure and has been ready for a while: the next failure is the first one.
    ReplicaSteady {
        endpoint: String,
        job: JobId,
    },
    /// Its job is over.
    ReplicaGone {
        endpoint: String,
        job: JobId,
        gpu_ms: u64,
        cost_micro: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A person goes back to an older revision.
    RolloutBegan {
        endpoint: String,
        rollout: Rollout,
        by: String,
    },
    /// `why` is why it is taken back, if it is.
    RolloutMoved {
        endpoint: String,
        stage: RolloutStage,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// All replicas are of this revision.
    RolloutEnded {
        endpoint: String,
        current: u32,
    },
    /// It ends when its replicas are gone.
    EndpointStopping {
        endpoint: String,
        by: String,
    },
    EndpointGone {
        endpoint: String,
    },
    EndpointServed {
        endpoint: String,
        more: Served,
    },
}

impl Event {
    /// About what it takes in memory, as far as users decide about it.
    pub fn bytes(&self) -> u64 {
        const USUAL: u64 = 256;
        match self {
            Event::TextKept { text, .. } => USUAL + text.bytes(),
            Event::JobSubmitted { spec, texts, .. }
            | Event::EndpointCreated { spec, texts, .. }
            | Event::EndpointRevised { spec, texts, .. } => USUAL + spec.bytes_beside(texts),
            Event::JobUpdated { update, .. } => USUAL + update.bytes(),
            _ => USUAL,
        }
    }

    /// The task that it changes the standing of.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Event::Placed { task, .. } | Event::TaskEnded { task, .. } => Some(*task),
            Event::PartPrepared { lease, .. }
            | Event::PartRunning { lease, .. }
            | Event::PartDone { lease, .. }
            | Event::PartLost { lease, .. }
            | Event::Stopping { lease, .. }
            | Event::Suspending { lease, .. }
            | Event::PartSuspended { lease, .. }
            | Event::Waking { lease, .. }
            | Event::PartWoken { lease, .. }
            | Event::PortOwned { lease, .. }
            | Event::Requeued { lease, .. } => Some(lease.task),
            _ => None,
        }
    }

    /// The endpoint that it changes.
    pub fn endpoint(&self) -> Option<&String> {
        match self {
            Event::EndpointCreated { endpoint, .. }
            | Event::EndpointRevised { endpoint, .. }
            | Event::EndpointBounded { endpoint, .. }
            | Event::EndpointWants { endpoint, .. }
            | Event::ReplicaChanged { endpoint, .. }
            | Event::ReplicaFailed { endpoint, .. }
            | Event::ReplicaSteady { endpoint, .. }
            | Event::ReplicaGone { endpoint, .. }
            | Event::RolloutBegan { endpoint, .. }
            | Event::RolloutMoved { endpoint, .. }
            | Event::RolloutEnded { endpoint, .. }
            | Event::EndpointStopping { endpoint, .. }
            | Event::EndpointGone { endpoint }
            | Event::EndpointServed { endpoint, .. } => Some(endpoint),
            _ => None,
        }
    }
}

/// What an attempt that is tried again has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fruit {
    /// It was stopped by others, or the node is to blame: it had no chance.
    #[default]
    Unknown,
    /// It got further than every attempt before it.
    Further,
    /// It failed where those before it had failed, or at once.
    None,
}

impl Fruit {
    fn is_unknown(&self) -> bool {
        *self == Fruit::Unknown
    }
}

/// Which retry budget pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryCause {
    NodeFailure,
    Preemption,
    JobFailure,
    /// An elastic job changed its size. Costs nothing.
    Resize,
    /// An operator cleared its node. Costs nothing.
    Eviction,
    /// A GPU or node of it is broken. Costs nothing.
    Health,
}
