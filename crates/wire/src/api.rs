//! The shapes of `/api/v1`. The CLI's `--json` prints the same.
//!
//! | method and path | body → answer | role |
//! |---|---|---|
//! | GET `/api/v1/openapi.json` | → document | viewer |
//! | GET `/api/v1/cluster` | → [`ClusterInfo`] | viewer |
//! | POST `/api/v1/jobs` | [`Submit`] → [`Submitted`]; header `Idempotency-Key` | user |
//! | POST `/api/v1/jobs:batch` | `[`[`Submit`]`]` → `[`[`SubmitResult`]`]` | user |
//! | GET `/api/v1/jobs` | query [`JobQuery`] → [`JobPage`] | viewer |
//! | GET `/api/v1/jobs/{id}` | → [`JobDetail`]; id is `12` or `12_3` | viewer |
//! | GET `/api/v1/jobs/{id}/why` | → `model::Explanation` | viewer |
//! | GET `/api/v1/jobs/{id}/progress` | → [`ProgressDetail`]: how far it is, by rank and over time | viewer |
//! | GET `/api/v1/jobs/{id}/wait` | query `seconds` (at most 60) → [`JobRow`] once ended, or as it is then | viewer |
//! | POST `/api/v1/jobs/{id}/cancel`, `hold`, `release` | → [`Changed`] | user, own jobs |
//! | POST `/api/v1/jobs/{id}/kill` | → [`Changed`]; cancel without grace | user, own jobs |
//! | POST `/api/v1/jobs/{id}/signal` | [`SendSignal`] → [`Changed`], parts that got it | user, own jobs |
//! | POST `/api/v1/jobs/{id}/update` | `model::JobUpdate` → [`Changed`]; priority, time, team and the like | user, own jobs |
//! | POST `/api/v1/jobs/{id}/saved` | → [`Changed`]; what the task did up to now is safe | user, own jobs |
//! | POST `/api/v1/jobs/{id}/checkpoints` | [`Register`] → [`Changed`]; where a checkpoint of it is | user, own jobs |
//! | POST `/api/v1/jobs/{id}/priority` | [`SetPriority`] → [`Changed`] | user, own jobs and only down; admin |
//! | GET `/api/v1/jobs/{id}/logs` | query [`LogQuery`] → SSE of [`LogEvent`] | viewer, own jobs; admin |
//! | PUT `/api/v1/jobs/{id}/stdin?rank=0` | streamed bytes; end of body closes stdin unless `keep=true` | user, own jobs |
//! | POST `/api/v1/jobs/{id}/exec` | [`ExecRequest`] → SSE of [`ExecEvent`]; first event has the session | user, own jobs |
//! | PUT `/api/v1/exec/{session}/stdin` | streamed bytes | same user |
//! | GET `/api/v1/nodes`, `/api/v1/nodes/{name}` | → [`NodeRow`] list / one [`NodeDetail`], with its newest sample | viewer |
//! | DELETE `/api/v1/nodes/{name}` | [`RemoveNodeQuery`] → [`Changed`] | admin |
//! | POST `/api/v1/nodes/{name}/drain` | [`DrainRequest`] → [`Changed`] | admin |
//! | POST `/api/v1/nodes/{name}/resume` | → [`Changed`] | admin |
//! | GET `/api/v1/telemetry` | query [`TelemetryQuery`] → [`TelemetryCurves`]: seconds for an hour, minutes for a week | viewer |
//! | GET `/api/v1/gpus` | query [`GpuQuery`] → [`GpuRow`] list, each with its newest sample | viewer |
//! | GET `/api/v1/load` | query [`LoadQuery`] → [`Load`]: what GPUs do now, summed up for a screen | viewer |
//! | GET `/api/v1/jobs/{id}/telemetry` | → [`JobTelemetry`]: what its GPUs did in this attempt | viewer |
//! | GET `/metrics` | query [`MetricsQuery`] → text for Prometheus | viewer |
//! | POST `/api/v1/nodes/{name}/inject` | [`InjectRequest`] → [`Board`]; a fire drill | admin |
//! | POST `/api/v1/nodes/{name}/resolve` | [`ResolveRequest`] → [`Board`] | admin |
//! | POST `/api/v1/nodes/{name}/check` | → [`ActiveReport`](tutti_model::ActiveReport) of the GPUs that are idle | admin |
//! | GET `/api/v1/nodes/{name}/health` | → [`Examination`] | viewer |
//! | GET `/api/v1/events` | query `since` (a seq), `job` → SSE of engine records | viewer |
//! | GET `/api/v1/policy` | → `model::Policy` | viewer |
//! | PUT `/api/v1/policy` | `model::Policy`, or a policy file as `application/toml` → [`PolicyReplaced`] | admin |
//! | POST `/api/v1/policy:preview` | the same → [`PolicyPreview`]: what it would change, and whom it would stop | admin |
//! | GET `/api/v1/reservations` | → `model::ReservationRow` list: going on, coming, over | viewer |
//! | GET `/api/v1/quota` | → `model::TeamShare` list | viewer |
//! | GET `/api/v1/report` | query [`ReportQuery`] → `model::Report`: where GPU-hours and money went | viewer |
//! | GET `/api/v1/jobs/{id}/goodput` | → [`JobGoodput`]: what a job made of what it had | viewer |
//! | GET/POST `/api/v1/tokens`, DELETE `/api/v1/tokens/{id}` | [`NewToken`] → [`CreatedToken`] | admin |
//! | POST `/api/v1/join` | [`JoinRequest`] → [`JoinResponse`]; bearer is a join token | join token |
//! | GET `/api/v1/endpoints`, `/api/v1/endpoints/{name}` | → [`EndpointRow`] list / one [`EndpointDetail`] | viewer |
//! | GET `/api/v1/endpoints:stopped` | → [`StoppedEndpoints`]: what each did and took | viewer |
//! | POST `/api/v1/endpoints` | [`Serve`] → [`Serving`]; header `Idempotency-Key` | user |
//! | POST `/api/v1/endpoints/{name}/scale` | [`ScaleRequest`] → [`Changed`] | user, own endpoints |
//! | POST `/api/v1/endpoints/{name}/rollback` | [`RollBackRequest`] → [`Serving`] | user, own endpoints |
//! | POST `/api/v1/endpoints/{name}/stop` | → [`Changed`] | user, own endpoints |
//! | GET `/api/v1/routes` | query [`RoutesQuery`] → `model::RouteTable`, as soon as it is newer | router |
//! | POST `/api/v1/routers` | `model::RouterReport` → [`Changed`], once a second | router |
//! | GET `/api/v1/doctor` | → [`DoctorReport`] | admin |
//! | POST `/api/v1/shutdown` | → [`Changed`] | admin |

mod alerts;
mod endpoints;
mod load;
mod policy;
mod progress;
mod report;
mod telemetry;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tutti_model::{
    ActiveReport, Blocker, BurnIn, Bytes, EndReason, Finding as HealthFinding, Gpu, GpuBench,
    Grant, Hardware, HealthAction, JobSpec, JobState, Lack, Milli, NodeFacts, NodeKept,
    NodeReservation, NodeSample, NodeState, Place, Priority, RankExit, ReplicaOf, ReportLine,
    Restarts, Role, SavedPoint, Span, SuspendCause, TaskId, Time, Verdict,
};
use utoipa::{IntoParams, ToSchema};

use crate::stream::LogStream;
pub use crate::stream::{Examination, Watched};
use crate::textfile::FileError;

pub use alerts::{AlertList, AlertQuery, RuleRow};
pub use endpoints::*;
pub use load::{GpuCell, GpuLoad, JobLoad, Load, LoadQuery, NodeLoad};
pub use policy::{PolicyPreview, PolicyReplaced};
pub use progress::{JobProgress, ProgressDetail, ProgressPoint, RankRow};
pub use report::{CpuUse, IdleGpu, JobGoodput, MemUse, ReportQuery};
pub use telemetry::{
    GpuFigures, GpuQuery, GpuRow, JobGpu, JobTelemetry, MetricsQuery, TelemetryCurve,
    TelemetryCurves, TelemetryQuery,
};

/// Every error of the API. `exit` is what the CLI exits with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map_or_else(String::new, |h| format!("\n  {h}")))]
pub struct ApiError {
    /// A word for programs: `not_found`, `denied`, `invalid`, `impossible`, ...
    pub code: String,
    /// What was wrong, with the offending value.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(default)]
    pub exit: i32,
    /// Everything that is wrong, where it is more than one thing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ProblemRow>,
}

/// The code of the error that says: somebody else changed the policy since it was read.
pub const POLICY_MOVED: &str = "policy_moved";
/// The code of the error that says: there was such a node, and somebody took it out of the cluster.
pub const NODE_REMOVED: &str = "node_removed";

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemRow {
    /// The key, such as `teams.vision.parent`; empty if it is about the whole.
    pub path: String,
    pub problem: String,
    /// Where it stands, if a file was sent; both count from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl From<tutti_model::BadPolicy> for ProblemRow {
    fn from(bad: tutti_model::BadPolicy) -> Self {
        ProblemRow { path: bad.path, problem: bad.problem, line: None, column: None }
    }
}

impl From<FileError> for ProblemRow {
    fn from(e: FileError) -> Self {
        ProblemRow {
            problem: e.problem.to_string(),
            path: e.key.unwrap_or_default(),
            line: Some(e.line),
            column: Some(e.column),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Submit {
    pub spec: JobSpec,
    /// On whose behalf; only for admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// As the header, for batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    pub id: TaskId,
    /// The idempotency key was known; nothing new was made.
    #[serde(default)]
    pub repeated: bool,
    /// Keys of the job file that are understood but not acted on yet.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SubmitResult {
    Submitted(Submitted),
    Refused { error: ApiError },
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// States, comma separated; none is every state; `active` is all that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Part of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Job ids, comma separated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Show each started or ended task of an array as a row of its own.
    pub tasks: bool,
    /// Newest first.
    pub newest: bool,
    /// Ended at or after this, the archive included; in milliseconds since 1970. Without `until`, also
    /// what has not ended. Newest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Ended before this; the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Rows in a page; 100 if not given, at most 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// The header of every answer with the cluster's time, in milliseconds since 1970. A simulated cluster
/// has a clock of its own.
pub const NOW_HEADER: &str = "tutti-now";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    pub jobs: Vec<JobRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Tasks in the whole cluster by state, whatever the filter.
    pub totals: BTreeMap<String, u64>,
}

/// One line of `tutti ps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRow {
    pub id: TaskId,
    pub name: String,
    pub user: String,
    pub team: Option<String>,
    /// `standard` unless it asked for another.
    #[serde(default)]
    pub class: String,
    pub state: JobState,
    /// Nodes it has or, while pending, asks for; 0 where the scheduler chooses how many.
    pub nodes: u32,
    /// GPUs it has or asks for, over all nodes.
    pub gpus: u32,
    /// What it has of each of them, in thousandths.
    #[serde(default)]
    pub share: Milli,
    pub priority: Priority,
    pub submitted_at: Time,
    /// When its first attempt got nodes.
    pub started_at: Option<Time>,
    pub ended_at: Option<Time>,
    /// How long it was suspended since then. Not counted for a whole array.
    #[serde(default)]
    pub suspended_for: Span,
    /// How long it waited for nodes again since then, between attempts. Not counted for a whole array.
    #[serde(default)]
    pub between_attempts: Span,
    pub exit_code: Option<i32>,
    pub restarts: u32,
    pub verdict: Option<Verdict>,
    /// Everything that keeps it from starting, what ends last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// The verdict with what else keeps it waiting, or how it ended, in one short sentence.
    pub note: String,
    /// For the row of a whole array: its tasks by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayCounts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_names: Vec<String>,
    /// How far it is, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
}

impl JobRow {
    /// When it would have started, had it run ever since: without its suspensions, and without the time
    /// between attempts.
    pub fn ran_since(&self) -> Option<Time> {
        Some(self.started_at?.plus(self.suspended_for).plus(self.between_attempts))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArrayCounts {
    pub pending: u64,
    /// Starting and stopping ones included.
    pub running: u64,
    #[serde(default)]
    pub suspended: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// All about one job or task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    #[serde(flatten)]
    pub row: JobRow,
    pub spec: JobSpec,
    pub attempt: Option<u32>,
    pub generation: Option<u64>,
    pub restarts_by_cause: Restarts,
    pub parts: Vec<PartRow>,
    pub end: Option<EndReason>,
    pub time_left: Option<Span>,
    pub held: bool,
    /// Checkpoints that it has reported or that were registered for it, oldest first: the newest few.
    #[serde(default)]
    pub checkpoints: Vec<SavedPoint>,
    /// Why the attempt before this one had to go, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_before: Option<String>,
    /// When this attempt was suspended, oldest first: the newest few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspensions: Vec<SuspensionRow>,
    /// What the whole job made of its GPUs; none if it never had any, and for one task of an array: the
    /// sum is that of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<ReportLine>,
    /// The endpoint that it serves, or served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<ReplicaOf>,
    /// Bytes of its output that are in no log, because a node's disk had no room. Known of attempts
    /// that are over.
    #[serde(default)]
    pub output_dropped: u64,
}

/// One time that a job gave its GPUs up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SuspensionRow {
    pub why: SuspendCause,
    /// When it was told to leave its GPUs, and when they were free.
    pub since: Time,
    pub out_at: Option<Time>,
    /// When it got GPUs again, and when it went on.
    pub back_at: Option<Time>,
    pub until: Option<Time>,
    /// What its GPU state took of the hosts' memory, on all nodes.
    pub bytes: Bytes,
    /// It could not be suspended: where, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Which attempt of the job. 0: not known.
    #[serde(default)]
    pub attempt: u32,
    /// The attempt ended then, before it went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PartRow {
    pub node: String,
    pub address: String,
    pub gpus: Vec<u16>,
    /// Of each of its GPUs, in thousandths.
    #[serde(default)]
    pub share: Milli,
    pub cpus: u32,
    pub mem: Bytes,
    pub first_rank: u32,
    pub ranks: u32,
    /// sent, prepared, running, suspending, suspended, waking, done or lost.
    pub phase: String,
    pub exits: Vec<RankExit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// How many jobs, tasks, nodes or tokens were changed.
    pub changed: u64,
}

/// Where a checkpoint of a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Register {
    pub step: u64,
    /// Absolute, or a URL.
    pub path: String,
}

/// A signal for the processes of a job, which goes on unless they end of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendSignal {
    /// `USR1` or `SIGUSR1`.
    pub signal: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetPriority {
    pub priority: Priority,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Ranks, such as `0` or `0-3,7`; none is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<String>,
    /// Counts from 1; none is the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Go on until the job has ended, over restarts too.
    pub follow: bool,
    /// Only the last so many lines of each rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
}

/// SSE `data:` of a log. The event name is `line`, `note` or `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LogEvent {
    Line {
        rank: u32,
        at: Time,
        stream: LogStream,
        /// Without its newline. Bytes that are not UTF-8 come as base64 in `raw` instead.
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        raw: Option<String>,
        /// No newline was seen yet.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        partial: bool,
    },
    /// Something the reader should know: a restart, a lost node, lines removed by rotation.
    Note { text: String },
    /// Nothing more will come. With `follow`, the job has ended.
    End { state: Option<JobState>, exit_code: Option<i32> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    #[serde(default)]
    pub rank: u32,
    pub argv: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        session: String,
    },
    /// base64
    Data {
        stream: LogStream,
        data: String,
    },
    Exited {
        code: i32,
    },
    Failed {
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeRow {
    pub name: String,
    pub state: NodeState,
    #[serde(flatten)]
    pub facts: NodeFactsRow,
    /// GPUs that somebody has, whole or in part.
    pub gpus_used: u32,
    /// The same in thousandths: two jobs with a quarter each are 500.
    #[serde(default)]
    pub gpu_milli_used: u64,
    /// GPUs that are not held whole by one job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedGpu>,
    pub cpus_used: u32,
    pub mem_used: Bytes,
    pub jobs: Vec<TaskId>,
    /// Who has the node alone: nobody else is given what is free of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<TaskId>,
    /// Where it stands in the network, from the policy or from its labels.
    #[serde(default)]
    pub place: Place,
    pub drain_reason: Option<String>,
    /// Who drained it; `tutti` if too much went wrong on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_by: Option<String>,
    /// What goes wrong on it, while it still takes work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// What its links were last measured to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn_in: Option<BurnIn>,
    /// What its GPUs were last measured to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_bench: Option<GpuBench>,
    /// What is wrong with it, or with its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<HealthFinding>,
    /// GPUs that nothing is placed on because of that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fenced: Vec<u16>,
    /// For whom it is reserved, or that it is kept for maintenance: now or later, the next first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<NodeReservation>,
    /// For whom what is free of it is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<NodeKept>,
    pub since: Option<Time>,
}

/// A node with what it is made of and what it did last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    #[serde(flatten)]
    pub row: NodeRow,
    /// None: its agent has not sent one since the controller started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<NodeSample>,
    /// How old the sample is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_age: Option<Span>,
    /// Its GPUs as the scheduler knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Gpu>,
    /// None: its agent is too old to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Box<Hardware>>,
}

/// A GPU of which somebody has a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedGpu {
    pub gpu: u16,
    /// In thousandths.
    pub used: u32,
    pub jobs: Vec<TaskId>,
}

/// [`NodeFacts`] without the name, which is a column of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeFactsRow {
    pub address: String,
    pub gpu_model: Option<String>,
    pub gpus: u32,
    pub cpus: u32,
    pub mem: Bytes,
    pub simulated: bool,
    pub isolation: String,
    /// What keeps jobs apart elsewhere and can't be had on this node.
    #[serde(default)]
    pub lacks: Vec<Lack>,
    /// What can run images there.
    #[serde(default)]
    pub runtimes: Vec<String>,
    pub agent_version: String,
    pub labels: BTreeMap<String, String>,
    /// Its agent can move a running program's GPU state to host memory and back.
    #[serde(default)]
    pub can_suspend: bool,
    /// Why it can't, where one might expect it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_note: Option<String>,
    /// Why parts of its GPUs can't be given, or are given without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_note: Option<String>,
}

impl From<&NodeFacts> for NodeFactsRow {
    fn from(f: &NodeFacts) -> Self {
        NodeFactsRow {
            address: f.address.clone(),
            gpu_model: f.gpus.first().map(|g| g.model.clone()),
            gpus: f.gpus.len() as u32,
            cpus: f.cpus,
            mem: f.mem,
            simulated: f.simulated,
            isolation: f.isolation.clone(),
            lacks: f.lacks.clone(),
            runtimes: f.runtimes.clone(),
            agent_version: f.agent_version.clone(),
            labels: f.labels.clone(),
            can_suspend: f.can_suspend,
            suspend_note: f.suspend_note.clone(),
            share_note: f.share_note.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct RemoveNodeQuery {
    /// Also if something runs there, which is lost then.
    pub force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainRequest {
    #[serde(default)]
    pub reason: String,
    /// What runs there is asked to save, stopped, and started again elsewhere.
    #[serde(default)]
    pub evict: bool,
}

/// A fire drill: as if the node had seen this. An XID, or a finding in so many words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InjectRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// Instead of an XID: the name of the check, its action and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<HealthAction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Even if the devices are not simulated: jobs there are stopped as if they were broken.
    pub real: bool,
}

/// Without either, everything that stands on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResolveRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Do not check GPUs before their fences go.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
}

/// Everything that stands on a node after a drill or a resolve, and what that touched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Board {
    pub findings: Vec<HealthFinding>,
    pub touched: Vec<HealthFinding>,
    /// GPUs that were checked before their fences were to go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<Box<ActiveReport>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    pub version: String,
    pub user: String,
    pub role: Role,
    pub nodes: u32,
    pub nodes_ready: u32,
    pub gpus: u32,
    pub gpus_used: u32,
    pub simulated: bool,
    pub tasks: BTreeMap<String, u64>,
    pub now: Time,
    pub epoch: u64,
    pub seq: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    pub grant: Grant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRow {
    pub id: String,
    pub grant: Grant,
    pub created_at: Time,
    pub created_by: String,
    pub expires_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    #[serde(flatten)]
    pub row: TokenRow,
    /// Shown once.
    pub secret: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinRequest {
    pub node: String,
    /// PEM of a certificate request; the key never leaves the node.
    pub csr: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinResponse {
    pub certificate: String,
    pub ca: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    pub level: FindingLevel,
    pub subject: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FindingLevel {
    Ok,
    Warning,
    Error,
}
