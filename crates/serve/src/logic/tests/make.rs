//! Routes, replicas and endpoints for tests.

use std::time::{Duration, Instant};

use tutti_model::{
    Access, EndpointRoute, Generation, JobId, ReplicaRoute, RetryRule, RoutePolicy, Share, Span,
};

use crate::logic::{Ask, Choice, Endpoint, Pick, PromptBlocks, ReplicaKey};

pub fn key(job: u64) -> ReplicaKey {
    ReplicaKey { job: JobId(job), generation: Generation(1) }
}

pub fn replica(job: u64, revision: u32) -> ReplicaRoute {
    ReplicaRoute {
        job: JobId(job),
        generation: Generation(1),
        revision,
        address: format!("127.0.0.1:{}", 9000 + job),
        draining: false,
        health: None,
    }
}

/// With this many replicas of revision 1 and no slow start.
pub fn route(policy: RoutePolicy, replicas: u64) -> EndpointRoute {
    EndpointRoute {
        name: "chat".to_owned(),
        models: Vec::new(),
        policy,
        sticky_header: "x-session-id".to_owned(),
        health: "/health".to_owned(),
        slow_start: Span(0),
        max_in_flight: None,
        target_in_flight: 16,
        queue: 100,
        queue_wait: Span::secs(60),
        hold: Span::secs(60),
        access: Access::Open,
        retry: RetryRule::Safe,
        replicas: (1..=replicas).map(|job| replica(job, 1)).collect(),
        split: Vec::new(),
    }
}

pub fn shares(parts: &[(u32, u32)]) -> Vec<Share> {
    parts.iter().map(|&(revision, milli)| Share { revision, milli }).collect()
}

/// With all replicas ready.
pub fn ready(route: &EndpointRoute, now: Instant) -> Endpoint {
    let mut endpoint = Endpoint::new(route, 7, now);
    for replica in &route.replicas {
        endpoint.probed(replica.into(), Ok(()), now);
    }
    endpoint
}

pub fn choice(pick: Pick) -> Choice {
    match pick {
        Pick::Replica(choice) => choice,
        other => panic!("no replica but {other:?}"),
    }
}

pub fn plain(endpoint: &mut Endpoint, now: Instant) -> u64 {
    choice(endpoint.pick(&Ask::default(), &[], now)).key.job.0
}

pub fn with_prompt(endpoint: &mut Endpoint, prompt: &PromptBlocks, now: Instant) -> Choice {
    choice(endpoint.pick(&Ask { prompt: Some(prompt), sticky: None }, &[], now))
}

pub fn after(now: Instant, ms: u64) -> Instant {
    now + Duration::from_millis(ms)
}
