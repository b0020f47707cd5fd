//! What the scheduler answers: placements, and a verdict for everything left waiting.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Blocker, Bytes, DefaultTimeOf, Demand, Dependency, GpuIndex, JobId, Lane, Milli, NodeId, Span,
    SuspendCause, TaskId, Time, Topology,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub placements: Vec<Placement>,
    /// Room to be kept for tasks, and who is stopped for it.
    pub claims: Vec<NewClaim>,
    /// Suspended tasks that go on.
    pub wakes: Vec<Wake>,
    /// Claims that can no longer come true, or that nobody needs.
    pub dropped: Vec<TaskId>,
    /// Blocked tasks whose start must not be delayed, the first in line first.
    pub heads: Vec<Head>,
    /// Whoever asks for this waits for this reason, ...
    pub by_demand: BTreeMap<Demand, Verdict>,
    /// ... unless the lane has a reason of its own, ...
    pub by_lane: BTreeMap<Lane, Verdict>,
    /// ... or the task.
    pub by_task: BTreeMap<TaskId, Verdict>,
}

/// Room that is kept for a task until all of it is free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub parts: Vec<PartPlacement>,
    pub cause: ClaimCause,
    pub made_at: Time,
    /// Who was stopped for it.
    pub victims: Vec<TaskId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    pub task: TaskId,
    pub parts: Vec<PartPlacement>,
    pub cause: ClaimCause,
    /// The cheapest set whose room makes the parts fit; empty if time alone will.
    pub victims: Vec<Victim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimCause {
    /// Its team has less than its guarantee; the victims borrowed.
    Guarantee,
    /// The victims are of a lower class.
    Class,
    /// It has waited longer than patience allows. Nobody is stopped.
    Overdue,
    /// An elastic job takes more or fewer nodes; it is its own victim.
    Resize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pub task: TaskId,
    pub how: Stop,
    /// GPU-milliseconds of work that are lost.
    pub cost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Stopped whole and put back into the queue.
    Requeue,
    /// An elastic job goes on with these parts, which it holds now.
    Shrink { keep: Vec<PartPlacement> },
    /// Its GPU state is moved to host memory, so much on each node, and it goes on later.
    Suspend { moved: Vec<Moved> },
}

/// What leaves the GPUs of a node for its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    pub node: NodeId,
    pub bytes: Bytes,
}

/// A suspended task goes on, on its own nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub task: TaskId,
    /// One for each of its parts, in their order.
    pub parts: Vec<WakePart>,
}

/// The GPUs that a suspended part gets, in the order of those it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WakePart {
    pub node: NodeId,
    pub gpus: Vec<GpuIndex>,
}

/// A blocked task that has a time to start by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub task: TaskId,
    /// None if some of what it waits for has no known end.
    pub starts_by: Option<Time>,
    pub nodes: Vec<NodeId>,
}

/// A task and the nodes it gets, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub task: TaskId,
    pub parts: Vec<PartPlacement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartPlacement {
    pub node: NodeId,
    pub gpus: Vec<GpuIndex>,
    pub cpus: u32,
    pub mem: Bytes,
    pub ranks: u32,
    /// Of each of its GPUs.
    #[serde(default)]
    pub share: Milli,
}

/// The reason why a pending task is pending, as data. CLI, API and dashboard show the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// Held by its owner or an operator.
    Held {
        /// It was not held, but suspended, and lost what was suspended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suspended: Option<LostSleep>,
    },
    /// Waits for other jobs to end.
    Dependencies { waiting_for: Vec<Dependency> },
    /// Failed a moment ago; tried again at this time.
    BackOff { until: Time },
    /// The array runs as many tasks at once as it may.
    ArrayLimit { max_running: u32 },
    /// Fits the cluster, but not now.
    Busy(Shortage),
    /// Would fit if nodes that are lost, away or draining came back.
    NodesUnavailable(Shortage),
    /// It would delay a job that is before it in line and has a time to start.
    Behind { job: JobId },
    /// The team may not have more GPUs at once: of this model if one is named, else of all
    /// together.
    TeamLimit {
        team: String,
        limit: u32,
        used: u32,
        wanted: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// Would fit but for nodes that are reserved for others or for maintenance.
    Reserved { reservation: String, until: Time, shortage: Shortage },
    /// Room is being made: it starts when these have stopped or ended.
    Claimed { cause: ClaimCause, waiting_for: Vec<TaskId> },
    /// It is suspended, and wakes on its own nodes only.
    Suspended {
        why: SuspendCause,
        /// Somebody wants it to stay so until it is resumed.
        stays: bool,
        needs: Vec<WakeNeed>,
        /// What keeps it from waking although all that is free, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held_up: Option<String>,
    },
    /// About to be tried in the next pass.
    Next,
}

/// A person suspended it, and its processes are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostSleep {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// With this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The step that it goes on from, if one is safe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

/// What a suspended task needs on one of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WakeNeed {
    pub node: String,
    pub gpus: u32,
    pub model: String,
    /// Of those, free and kept for nobody else.
    pub free: u32,
    /// No others will do: the node's driver can't bring it back elsewhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<GpuIndex>,
    /// GPUs that would do if they were not fenced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<GpuIndex>,
}

/// What is missing, counted over nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Shortage {
    /// 0 when only the number of GPUs counts, on however many nodes.
    pub nodes_wanted: u32,
    /// Over all nodes.
    pub gpus_wanted: u32,
    /// Nodes that could take a part now.
    pub nodes_fitting: u32,
    pub gpus_free: u32,
    pub nodes_total: u32,
    /// The most nodes (or, where only GPUs count, GPUs) free together inside one domain that it
    /// may span; equals the free ones in all where it may span everything.
    #[serde(default)]
    pub within: Topology,
    #[serde(default)]
    pub best_domain: u32,
    /// Of each GPU.
    #[serde(default)]
    pub share: Milli,
    /// Nodes that could take a part if they were empty, by what stops them now.
    pub blocked: Blocked,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocked {
    /// Lacks the GPU model, or is too small even when empty.
    pub unsuitable: u32,
    /// Lacks a label that is wanted, or has one that is not.
    #[serde(default)]
    pub labels: u32,
    /// Reserved for others or for maintenance.
    #[serde(default)]
    pub reserved: u32,
    /// Kept for a job that is before it in line, or as a spare.
    #[serde(default)]
    pub kept: u32,
    /// Has room, but is not reached from the nodes that the rest would be on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreachable: u32,
    /// Somebody there listens on the fixed port that it would listen on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub port: u32,
    pub gpus_busy: u32,
    pub cpus_busy: u32,
    pub mem_busy: u32,
    pub draining: u32,
    /// Would do if GPUs of it were not fenced.
    #[serde(default)]
    pub fenced: u32,
    /// Would have room now if GPUs of it were not fenced; else when others end.
    #[serde(default)]
    pub fenced_busy: u32,
    /// Somebody is there, and the task wants its nodes for itself.
    #[serde(default)]
    pub not_empty: u32,
    /// Somebody has it for itself.
    #[serde(default)]
    pub alone: u32,
    /// Lost, away or cleaning up.
    pub away: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The long answer of `tutti why`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub task: TaskId,
    pub verdict: Verdict,
    /// Everything that keeps it from starting, what ends last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// Tasks that would be tried before this one.
    pub ahead: u64,
    /// Who holds GPUs that it could use, those with the earliest end first.
    pub holders: Vec<Holder>,
    /// When enough of the holders' time limits have run out; none if some have no limit.
    pub starts_by: Option<Time>,
    /// When it is expected to start.
    #[serde(default)]
    pub forecast: Option<Forecast>,
    /// Changes that would start it now, cheapest first.
    pub advice: Vec<String>,
    /// GPUs that it could use if they were not fenced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fences: Vec<Fence>,
    /// For whom GPUs are kept that are free and that it could use, the most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptFor>,
    /// A suspended task that can't wake for broken GPUs is stopped then, and starts again elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_up_at: Option<Time>,
    /// The time limit that it got because it named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_time: Option<DefaultTime>,
}

/// A time limit that a job did not ask for, and whose default it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DefaultTime {
    #[schema(value_type = String)]
    pub time: Span,
    pub of: DefaultTimeOf,
}

impl Explanation {
    /// Who holds what it waits for: nobody, where something else keeps it.
    pub fn holders_in_its_way(&self) -> &[Holder] {
        let waits_for_room = matches!(
            self.verdict,
            Verdict::Busy(_)
                | Verdict::NodesUnavailable(_)
                | Verdict::Reserved { .. }
                | Verdict::Behind { .. }
                | Verdict::Claimed { .. }
                | Verdict::Suspended { stays: false, .. }
        );
        if waits_for_room { &self.holders } else { &[] }
    }
}

/// A GPU that nothing may be placed on, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fence {
    pub node: String,
    pub gpu: GpuIndex,
    /// The finding that fences it.
    pub key: String,
    pub text: String,
    pub since: Time,
}

/// A task that is to start where others still hold something, or that comes back there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptFor {
    pub task: TaskId,
    /// Free, and kept for it.
    pub gpus: u32,
    pub nodes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    pub task: TaskId,
    pub user: String,
    pub name: String,
    pub gpus: u32,
    pub nodes: u32,
    pub ends_by: Option<Time>,
}

/// When a waiting task is expected to start: `early` if jobs end as such jobs did before, `late`
/// if all use their time limits; `late` is none if some have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forecast {
    pub early: Time,
    pub late: Option<Time>,
}

/// One team's row of `tutti quota`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TeamShare {
    pub team: String,
    pub parent: Option<String>,
    /// Those of certain models included.
    pub guarantee: u32,
    /// What the guarantee counts for while the cluster has too few GPUs for all guarantees; none if
    /// there are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee_counts: Option<u32>,
    /// Of the guarantee, what is of certain models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub guarantee_models: BTreeMap<String, u32>,
    /// Of all models together; none if only certain models are limited.
    pub limit: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limit_models: BTreeMap<String, u32>,
    pub weight: u32,
    /// GPUs held now, in thousandths, everything under it included.
    pub used: u64,
    /// Of that, beyond the guarantee.
    pub borrowed: u64,
    /// Of the guarantee, used by others now.
    pub lent: u64,
    /// Decayed usage as a part of all siblings', and what the weights say it should be; per mille.
    pub share: u32,
    pub target: u32,
    /// Tasks that hold nodes and are not suspended.
    pub running: u64,
    /// Tasks that gave their GPUs up for a while.
    #[serde(default)]
    pub suspended: u64,
    pub waiting: u64,
    pub members: Vec<String>,
}

/// Why a job is refused at submission: no state of the cluster as it is built could run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Impossible {
    #[error("no node has joined the cluster yet")]
    NoNodes,
    #[error("asks for {}; the cluster has {have}{}", count(*.wanted, "node"), suffix(.model))]
    TooManyNodes { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for {} on one node; the largest node has {have}{}", count(*.wanted, "GPU"), suffix(.model))]
    TooManyGpusPerNode { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for {}; the cluster has {have}{}", count(*.wanted, "GPU"), suffix(.model))]
    TooManyGpus { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for GPU model '{wanted}'; the cluster has {}", list(.have))]
    NoSuchModel { wanted: String, have: Vec<String> },
    #[error("asks for GPUs with {wanted} of memory; the largest{} has {have}", of_gpu(.model))]
    GpusTooSmall { wanted: Bytes, have: Bytes, model: Option<String> },
    #[error("asks for nodes with {wanted}; the cluster has none")]
    NoSuchLabels { wanted: String },
    #[error("asks for {} on one node; the largest suitable node has {have}", count(*.wanted, "CPU"))]
    TooManyCpus { wanted: u32, have: u32 },
    #[error("asks for {wanted} of memory on one node; the largest suitable node has {have}")]
    TooMuchMemory { wanted: Bytes, have: Bytes },
    #[error("asks for {}; team {team} may have {limit} at once", count(*.wanted, "GPU"))]
    OverTeamLimit { team: String, limit: u32, wanted: u32 },
    /// Each need alone is met somewhere, but not on enough nodes together.
    #[error("asks for {wanted} {of}; the cluster has room for {have}")]
    TooFew { wanted: u32, have: u32, of: String },
}

fn count(n: u32, thing: &str) -> String {
    crate::count(n.into(), thing)
}

fn of_gpu(model: &Option<String>) -> String {
    model.as_ref().map_or_else(String::new, |m| format!(" {m}"))
}

fn suffix(model: &Option<String>) -> String {
    model.as_ref().map_or_else(String::new, |m| format!(" with {m}"))
}

fn list(models: &[String]) -> String {
    if models.is_empty() { "no GPUs".to_owned() } else { models.join(", ") }
}
