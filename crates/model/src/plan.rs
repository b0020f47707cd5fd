//! What the scheduler answers: placements, and a verdict for everything left waiting.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bytes, Demand, Dependency, GpuIndex, JobId, NodeId, Span, TaskId, Time};

/// How the operator wants the scheduler to behave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// After waiting this long, a task that does not fit stops everything behind it from starting,
    /// so that large gangs do not starve behind small jobs.
    pub patience: Span,
    /// At most this many placements in one pass; the rest follows in the next.
    pub placements_max: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { patience: Span::secs(300), placements_max: 4096 }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub placements: Vec<Placement>,
    /// Everything with this demand waits for this reason ...
    pub by_demand: BTreeMap<Demand, Verdict>,
    /// ... unless the task has a reason of its own.
    pub by_task: BTreeMap<TaskId, Verdict>,
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
}

/// The reason why a pending task is pending, as data. CLI, API and dashboard show the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// Held by its owner or an operator.
    Held,
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
    /// Room is kept for an older or more important job that has waited too long.
    Behind { job: JobId },
    /// About to be tried in the next pass.
    Next,
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
    /// Nodes that could take a part if they were empty, by what stops them now.
    pub blocked: Blocked,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocked {
    /// Lacks the GPU model, or is too small even when empty.
    pub unsuitable: u32,
    pub gpus_busy: u32,
    pub cpus_busy: u32,
    pub mem_busy: u32,
    pub draining: u32,
    /// Lost, away or cleaning up.
    pub away: u32,
}

/// The long answer of `tutti why`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub task: TaskId,
    pub verdict: Verdict,
    /// Tasks that would be tried before this one.
    pub ahead: u64,
    /// Who holds GPUs that it could use, those with the earliest end first.
    pub holders: Vec<Holder>,
    /// When enough of the holders' time limits have run out; none if some have no limit.
    pub starts_by: Option<Time>,
    /// Changes that would start it now, cheapest first.
    pub advice: Vec<String>,
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

/// Why a job is refused at submission: no state of the cluster as it is built could run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Impossible {
    #[error("no node has joined the cluster yet")]
    NoNodes,
    #[error("asks for {wanted} nodes; the cluster has {have}{}", suffix(.model))]
    TooManyNodes { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for {wanted} GPUs on one node; the largest node has {have}{}", suffix(.model))]
    TooManyGpusPerNode { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for {wanted} GPUs; the cluster has {have}{}", suffix(.model))]
    TooManyGpus { wanted: u32, have: u32, model: Option<String> },
    #[error("asks for GPU model '{wanted}'; the cluster has {}", list(.have))]
    NoSuchModel { wanted: String, have: Vec<String> },
    #[error("asks for {wanted} CPUs on one node; the largest suitable node has {have}")]
    TooManyCpus { wanted: u32, have: u32 },
    #[error("asks for {wanted} of memory on one node; the largest suitable node has {have}")]
    TooMuchMemory { wanted: Bytes, have: Bytes },
    /// Each need alone is met somewhere, but not on enough nodes together.
    #[error("asks for {wanted} {of}; the cluster has room for {have}")]
    TooFew { wanted: u32, have: u32, of: String },
}

fn suffix(model: &Option<String>) -> String {
    model.as_ref().map_or_else(String::new, |m| format!(" with {m}"))
}

fn list(models: &[String]) -> String {
    if models.is_empty() { "no GPUs".to_owned() } else { models.join(", ") }
}
