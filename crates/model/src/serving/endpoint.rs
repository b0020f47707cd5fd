//! An endpoint as the controller remembers it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{JobId, JobSpec, NodeId, Replicas, ServiceSpec, Span, TextRefs, Time};

/// Revisions that are remembered, so that one can go back to them.
pub const REVISIONS_MAX: usize = 10;
/// Nodes that are remembered to have had an endpoint's files.
pub const WARM_NODES_MAX: usize = 64;
/// What happened to an endpoint lately.
pub const CHRONICLE_MAX: usize = 40;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    pub name: String,
    pub user: String,
    pub team: String,
    pub created_at: Time,
    pub revisions: BTreeMap<u32, Revision>,
    /// The revision that serves, or did before a rollout under way.
    pub current: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Replicas that there should be, without those on top during a rollout.
    pub want: u32,
    /// Bounds that a person has set in place of the job file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Replicas>,
    /// Every replica whose job is not over.
    pub replicas: BTreeMap<JobId, Replica>,
    /// Failed one after another without any that stayed ready, the last when, and when the next may be
    /// started.
    #[serde(default)]
    pub failures: u32,
    #[serde(default)]
    pub failed_at: Time,
    #[serde(default)]
    pub not_before: Time,
    /// What the last of them died of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Where its replicas have been ready, newest last: its files are likely to be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<NodeId>,
    /// The key that it was made with: the same again gives the same endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// It ends when its replicas are gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    #[serde(default)]
    pub served: Served,
    #[serde(default)]
    pub chronicle: Vec<Happening>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    pub number: u32,
    pub spec: Arc<JobSpec>,
    /// What of its spec is stored by hash.
    #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
    pub texts: TextRefs,
    pub at: Time,
    pub by: String,
    /// It was taken back, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<String>,
    /// It was in charge, with a replica that answered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served: bool,
    /// Replicas of it that failed one after another without any that stayed ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    pub revision: u32,
    pub phase: ReplicaPhase,
    pub since: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum ReplicaPhase {
    /// It waits for GPUs, starts, loads its model, or does not answer.
    Coming,
    Ready,
    /// No new requests. Its job is cancelled when it has none, or at this time.
    Draining {
        until: Time,
    },
}

/// The way from one revision to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rollout {
    pub from: u32,
    pub to: u32,
    pub began_at: Time,
    pub stage: RolloutStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum RolloutStage {
    /// The new revision gets `percent` of the requests; looked at since its replicas are ready.
    Canary { percent: u32, since: Option<Time> },
    /// Replica by replica.
    Rolling,
    /// All replicas are new; it may still be taken back until this time.
    Watching { until: Time },
    /// Going back to `from`, replica by replica.
    Back,
}

/// What an endpoint has done and used up in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Served {
    pub requests: u64,
    pub errors: u64,
    pub refused: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// GPU-milliseconds of replicas whose jobs are over; those that run are counted by their jobs.
    pub gpu_ms: u64,
    /// What these cost, in micro-units of the policy's currency.
    pub cost_micro: u64,
}

impl Served {
    pub fn add(&mut self, more: &Served) {
        self.requests += more.requests;
        self.errors += more.errors;
        self.refused += more.refused;
        self.prompt_tokens += more.prompt_tokens;
        self.output_tokens += more.output_tokens;
        self.gpu_ms += more.gpu_ms;
        self.cost_micro += more.cost_micro;
    }
}

/// A line in an endpoint's story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Happening {
    pub at: Time,
    pub text: String,
}

impl Endpoint {
    pub fn revision(&self, number: u32) -> Option<&Revision> {
        self.revisions.get(&number)
    }

    /// The revision that new replicas are of: that of a rollout under way, else the current one.
    pub fn newest(&self) -> u32 {
        match &self.rollout {
            Some(Rollout { stage: RolloutStage::Back, from, .. }) => *from,
            Some(rollout) => rollout.to,
            None => self.current,
        }
    }

    /// Revisions after `target` and before `left` that nobody took back, and that were never in charge: they
    /// were replaced on probation or before. Who goes back from `left` to `target` passes over them.
    pub fn passed_over(&self, target: u32, left: u32) -> Vec<u32> {
        // Of revisions from before this was remembered nobody knows.
        let known = self.revisions.values().any(|revision| revision.served);
        let between = self.revisions.range(..left).filter(|(number, _)| **number > target);
        let unproven = between.filter(|(_, r)| known && !r.served && r.taken_back.is_none());
        unproven.map(|(number, _)| *number).collect()
    }

    /// How the current revision is served.
    pub fn service(&self) -> &ServiceSpec {
        static PLAIN: std::sync::LazyLock<ServiceSpec> =
            std::sync::LazyLock::new(ServiceSpec::default);
        let revision = self.revisions.get(&self.newest());
        revision.and_then(|r| r.spec.service.as_deref()).unwrap_or(&PLAIN)
    }

    pub fn bounds(&self) -> Replicas {
        self.bounds.unwrap_or(self.service().replicas)
    }

    /// Whether requests for this model come here, or would with a revision that it may return to.
    pub fn is_asked_for_by(&self, model: &str) -> bool {
        let specs = self.revisions.values().filter_map(|r| r.spec.service.as_deref());
        self.name == model || specs.flat_map(|s| &s.models).any(|name| name == model)
    }

    pub fn ready(&self) -> impl Iterator<Item = (JobId, &Replica)> {
        self.replicas.iter().filter(|(_, r)| r.phase == ReplicaPhase::Ready).map(|(id, r)| (*id, r))
    }

    pub fn note(&mut self, at: Time, text: impl Into<String>) {
        self.chronicle.push(Happening { at, text: text.into() });
        let over = self.chronicle.len().saturating_sub(CHRONICLE_MAX);
        self.chronicle.drain(..over);
    }

    /// How long a request may be held while there is no replica.
    pub fn hold(&self) -> Span {
        let service = self.service();
        Span(service.queue_wait.0.saturating_add(service.warm_up.0))
    }
}

/// Whose replica a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaOf {
    pub endpoint: String,
    pub revision: u32,
}
