//! What routers are told: which endpoints there are, where their replicas listen, who may ask.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Access, Generation, JobId, RetryRule, RoutePolicy, Span, Time};

/// Everything that a router needs to know. A router that can't reach the controller goes on with the
/// newest one it has, also after a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouteTable {
    /// Grows with every change, over restarts of the controller too.
    pub version: u64,
    pub endpoints: Vec<EndpointRoute>,
    pub keys: Vec<KeyRoute>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndpointRoute {
    pub name: String,
    /// Other names by which requests may ask for it in `model`.
    #[serde(default)]
    pub models: Vec<String>,
    pub policy: RoutePolicy,
    pub sticky_header: String,
    pub health: String,
    #[schema(value_type = String)]
    pub slow_start: Span,
    #[serde(default)]
    pub max_in_flight: Option<u32>,
    pub target_in_flight: u32,
    pub queue: u32,
    #[schema(value_type = String)]
    pub queue_wait: Span,
    /// How long a request is held while there is no replica at all but one may come.
    #[schema(value_type = String)]
    pub hold: Span,
    pub access: Access,
    pub retry: RetryRule,
    pub replicas: Vec<ReplicaRoute>,
    /// Parts of the requests by revision, in thousandths; a revision that is not listed gets none. Empty:
    /// replicas are all alike.
    #[serde(default)]
    pub split: Vec<Share>,
}

/// A revision's part of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Share {
    pub revision: u32,
    pub milli: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaRoute {
    pub job: JobId,
    /// A replica that was started again is another one.
    pub generation: Generation,
    pub revision: u32,
    /// `host:port`.
    pub address: String,
    /// It gets no new requests; those it has are finished.
    #[serde(default)]
    pub draining: bool,
    /// Where it says that it is well, if not where the endpoint's newest revision does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
}

/// A key that requests may show, as routers know it: not the secret, only its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyRoute {
    pub id: String,
    /// Hex of blake3 of the secret part.
    pub hash: String,
    pub user: String,
    #[serde(default)]
    pub expires_at: Option<Time>,
    #[serde(default)]
    pub limits: KeyLimits,
}

/// What one key may use up, in each router. None: as much as there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct KeyLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Of prompts and answers together, as the servers count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Under way or waiting at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Endpoints it is good for; all if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
}
