//! Endpoints as people see them, and what routers ask and say.

use serde::{Deserialize, Serialize};
use tutti_model::{
    Generation, Happening, JobId, JobSpec, JobState, OwnLoad, ReplicaPhase, Rollout, RoutePolicy,
    Served, ServedLine, Span, Time,
};
use utoipa::{IntoParams, ToSchema};

/// A job file with a `[service]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Serve {
    pub spec: JobSpec,
    /// Served as this user; only an admin may name somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Also takes the place of a revision that serves; without it a name that is taken is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub update: bool,
    /// Only takes the place of a revision that serves: a name that nothing is served under is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_exist: bool,
    /// Per cent of requests that a new revision gets first, in place of the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Serving {
    pub name: String,
    pub revision: u32,
    /// Revisions that were on probation when another took their place: a rollback that names none passes
    /// over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<u32>,
}

/// Bounds of replicas in place of the file's; none: as the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ScaleRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RollBackRequest {
    /// The last good one if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
}

/// A line of `tutti endpoints`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndpointRow {
    pub name: String,
    pub user: String,
    pub team: String,
    pub state: EndpointState,
    pub revision: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Replicas that answer, that should be there, and the bounds.
    pub ready: u32,
    pub want: u32,
    pub min: u32,
    pub max: u32,
    /// Of one replica.
    pub gpus_per_replica: u32,
    pub policy: RoutePolicy,
    pub models: Vec<String>,
    /// Routers that spoke lately. None: nobody can ask it anything.
    #[serde(default)]
    pub router_count: u32,
    /// As the routers say now.
    pub in_flight: u32,
    pub queued: u32,
    pub figures: Figures,
    pub created_at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndpointState {
    /// As many replicas answer as should.
    Ready,
    /// Some answer, not all that should.
    Partial,
    /// None answers yet, or any more.
    Starting,
    /// Nobody asks, so there is none.
    Asleep,
    /// Replicas fail one after another.
    Failing,
    Stopping,
}

impl EndpointState {
    pub fn as_str(self) -> &'static str {
        match self {
            EndpointState::Ready => "ready",
            EndpointState::Partial => "partial",
            EndpointState::Starting => "starting",
            EndpointState::Asleep => "asleep",
            EndpointState::Failing => "failing",
            EndpointState::Stopping => "stopping",
        }
    }
}

/// How it goes: over the last minute, by all routers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Figures {
    pub requests_per_second: f64,
    /// Part of the requests that failed, 0 to 1.
    pub errors: f64,
    pub refused_per_second: f64,
    pub output_tokens_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_p50: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_p95: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_token_p50: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_wait_p95: Option<Span>,
    /// Part of the prompts' blocks that the replica had seen, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hits: Option<f64>,
}

/// Everything of one endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndpointDetail {
    #[serde(flatten)]
    pub row: EndpointRow,
    pub replicas: Vec<ReplicaRow>,
    pub revisions: Vec<RevisionRow>,
    pub routers: Vec<RouterRow>,
    /// Why it is not as it should be, a sentence each.
    pub why: Vec<String>,
    pub served: ServedView,
    pub chronicle: Vec<Happening>,
    /// How the newest revision is served.
    pub spec: JobSpec,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaRow {
    pub job: JobId,
    pub revision: u32,
    pub phase: ReplicaPhase,
    pub since: Time,
    pub state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub nodes: Vec<String>,
    pub gpus: u32,
    pub in_flight: u32,
    pub requests: u64,
    pub errors: u64,
    /// Nothing is sent there after failures.
    pub broken: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnLoad>,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RevisionRow {
    pub number: u32,
    pub at: Time,
    pub by: String,
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouterRow {
    pub router: String,
    pub address: String,
    /// When it last said something.
    pub heard_at: Time,
    /// It goes by the newest table.
    pub current: bool,
}

/// What an endpoint has done in all, and what that cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServedView {
    pub total: Served,
    /// Of all its replicas so far, those that run included.
    pub gpu_hours: f64,
    /// In the policy's currency, if GPUs have a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Per million tokens, prompts and answers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_million_tokens: Option<f64>,
}

/// Endpoints that were stopped, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoppedEndpoints {
    /// None: no prices are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    pub endpoints: Vec<ServedLine>,
}

/// A router asks for a table that is newer than the one it has; waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct RoutesQuery {
    /// The version that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How long to wait for a newer one, at most 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}
