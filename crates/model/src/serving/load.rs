//! What routers say: how much there is to do, how it went, and which replicas answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Generation, Histogram, JobId};

/// A router's word, once a second. Counters run since the router's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RouterReport {
    /// Picked at the router's start; another one after a restart.
    pub router: String,
    /// Where people reach it.
    pub address: String,
    /// The version of the table that it goes by.
    pub version: u64,
    pub endpoints: BTreeMap<String, EndpointReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct EndpointReport {
    /// With a replica.
    pub in_flight: u32,
    /// Waiting for one.
    pub queued: u32,
    /// Most at the same time since the last report, under way and waiting together.
    pub peak: u32,
    pub traffic: Traffic,
    /// The same by revision.
    pub revisions: BTreeMap<u32, Traffic>,
    pub replicas: BTreeMap<JobId, ReplicaReport>,
}

/// How it went since the router's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Traffic {
    pub requests: u64,
    /// Answered with 5xx by the replica, broken off, or by the router for want of a replica.
    pub errors: u64,
    /// Refused with 429: queue full, or a key's limit.
    pub refused: u64,
    /// The client left before the end.
    pub cancelled: u64,
    /// Sent to another replica after the first one failed.
    pub retried: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Requests whose prompt began as one that the same replica had seen before.
    pub prefix_hits: u64,
    /// Blocks of prompts, in all and already seen by the replica that got them.
    pub prefix_blocks: u64,
    pub prefix_blocks_hit: u64,
    /// From the request to the first byte of the answer's body.
    pub first_byte: Histogram,
    /// Between tokens of a stream.
    pub per_token: Histogram,
    pub queue_wait: Histogram,
    /// From the request to the end of the answer.
    pub total: Histogram,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReplicaReport {
    pub generation: Generation,
    /// Its health path answers.
    pub ready: bool,
    /// Nothing is sent there after failures.
    pub broken: bool,
    pub in_flight: u32,
    pub requests: u64,
    pub errors: u64,
    /// Why it is not ready, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What the server says of itself (vLLM, SGLang).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnLoad>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OwnLoad {
    pub running: u32,
    pub waiting: u32,
    /// Part of the key-value cache that is in use, 0 to 1.
    pub kv_used: Option<f64>,
}

/// An endpoint as all routers together see it now. A level: never in the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointLoad {
    /// Routers that spoke lately.
    pub routers: u32,
    pub in_flight: u32,
    pub queued: u32,
    /// Most of both together since the last time, as far as routers say. May be less than what is
    /// under way now.
    pub peak: u32,
    pub replicas: BTreeMap<JobId, ReplicaLoad>,
    /// Since the endpoint's newest rollout began, or of the last minutes.
    pub revisions: BTreeMap<u32, Traffic>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaLoad {
    pub generation: Generation,
    /// Some router has an answer from it.
    pub ready: bool,
    /// Over all routers, with the last word of those that are silent: they may still be at it.
    pub in_flight: u32,
    /// Every router knows that it gets nothing more.
    pub all_know_draining: bool,
    pub why: Option<String>,
}

impl Traffic {
    pub fn merge(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.retried += other.retried;
        self.prompt_tokens += other.prompt_tokens;
        self.output_tokens += other.output_tokens;
        self.prefix_hits += other.prefix_hits;
        self.prefix_blocks += other.prefix_blocks;
        self.prefix_blocks_hit += other.prefix_blocks_hit;
        self.first_byte.merge(&other.first_byte);
        self.per_token.merge(&other.per_token);
        self.queue_wait.merge(&other.queue_wait);
        self.total.merge(&other.total);
    }

    /// What came since `earlier`; all of it if the router counts from nothing again.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        if self.requests < earlier.requests {
            return self.clone();
        }
        let less = |now: u64, then: u64| now.saturating_sub(then);
        Traffic {
            requests: less(self.requests, earlier.requests),
            errors: less(self.errors, earlier.errors),
            refused: less(self.refused, earlier.refused),
            cancelled: less(self.cancelled, earlier.cancelled),
            retried: less(self.retried, earlier.retried),
            prompt_tokens: less(self.prompt_tokens, earlier.prompt_tokens),
            output_tokens: less(self.output_tokens, earlier.output_tokens),
            prefix_hits: less(self.prefix_hits, earlier.prefix_hits),
            prefix_blocks: less(self.prefix_blocks, earlier.prefix_blocks),
            prefix_blocks_hit: less(self.prefix_blocks_hit, earlier.prefix_blocks_hit),
            first_byte: self.first_byte.since(&earlier.first_byte),
            per_token: self.per_token.since(&earlier.per_token),
            queue_wait: self.queue_wait.since(&earlier.queue_wait),
            total: self.total.since(&earlier.total),
        }
    }
}
