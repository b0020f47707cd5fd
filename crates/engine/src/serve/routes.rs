//! What routers are told. A function of the state alone: every controller tells them the same.

use tutti_model::{
    Attempt, AttemptPhase, Endpoint, EndpointRoute, Grant, JobId, KeyRoute, Part, ReplicaPhase,
    ReplicaRoute, Rollout, RolloutStage, RouteTable, ServiceSpec, Share, Span, State, Token,
};

use super::{endpoint_of, job_of};
use crate::event::Event;

/// Where a replica listens, once it runs.
pub fn address(state: &State, job: JobId) -> Option<String> {
    address_of(state, job, running(state, job)?.0)
}

/// Everything that routers must know. Its version is the last record that changed it.
pub fn route_table(state: &State) -> RouteTable {
    RouteTable {
        version: state.routes.0,
        endpoints: state.endpoints.values().map(|e| route(state, e)).collect(),
        keys: keys(state),
    }
}

fn keys(state: &State) -> Vec<KeyRoute> {
    let key = |token: &Token| match &token.grant {
        Grant::Serve { user, limits } => Some(KeyRoute {
            id: token.id.clone(),
            hash: token.hash.clone(),
            user: user.clone(),
            expires_at: token.expires_at,
            limits: limits.clone(),
        }),
        _ => None,
    };
    state.tokens.values().filter_map(key).collect()
}

fn route(state: &State, endpoint: &Endpoint) -> EndpointRoute {
    let service = endpoint.service();
    let known = known_by(endpoint);
    EndpointRoute {
        name: endpoint.name.clone(),
        models: known.models.clone(),
        policy: service.policy,
        sticky_header: service.sticky_header.clone(),
        health: service.health.clone(),
        slow_start: service.slow_start,
        max_in_flight: service.max_in_flight,
        target_in_flight: service.target_in_flight,
        queue: service.queue,
        queue_wait: service.queue_wait,
        hold: if endpoint.stopping { Span(0) } else { endpoint.hold() },
        access: known.access,
        retry: service.retry,
        replicas: endpoint.replicas.keys().filter_map(|&j| replica(state, endpoint, j)).collect(),
        split: split(endpoint),
    }
}

/// Who may ask, and by which names, changes when the new revision has been looked at.
fn known_by(endpoint: &Endpoint) -> &ServiceSpec {
    let canary = |r: &&Rollout| matches!(r.stage, RolloutStage::Canary { .. });
    let old = endpoint.rollout.as_ref().filter(canary).and_then(|r| endpoint.revision(r.from));
    old.and_then(|r| r.spec.service.as_deref()).unwrap_or_else(|| endpoint.service())
}

fn replica(state: &State, endpoint: &Endpoint, job: JobId) -> Option<ReplicaRoute> {
    let replica = endpoint.replicas.get(&job)?;
    let (attempt, stops) = running(state, job)?;
    // Whoever else listens there would get what is meant for it. One that was ready before agents looked at ports
    // serves on.
    let served = replica.phase == ReplicaPhase::Ready;
    let may_be_asked = |part: &&Part| part.owns_its_port() || (served && !part.lost_its_port());
    attempt.parts.first().filter(may_be_asked)?;
    Some(ReplicaRoute {
        job,
        generation: attempt.generation,
        revision: replica.revision,
        address: address_of(state, job, attempt)?,
        draining: stops || matches!(replica.phase, ReplicaPhase::Draining { .. }),
        health: own_health(endpoint, replica.revision),
    })
}

/// A replica of another revision says so where that one does.
fn own_health(endpoint: &Endpoint, revision: u32) -> Option<String> {
    let service = endpoint.revision(revision)?.spec.service.as_deref()?;
    (service.health != endpoint.service().health).then(|| service.health.clone())
}

/// The attempt whose processes listen, and whether they are told to stop: what they have they may
/// finish.
fn running(state: &State, job: JobId) -> Option<(&Attempt, bool)> {
    let attempt = state.job(job)?.task(None)?.attempt()?;
    match attempt.phase {
        AttemptPhase::Running { .. } => Some((attempt, false)),
        AttemptPhase::Stopping { running_since: Some(_), .. } if !attempt.is_ending() => {
            Some((attempt, true))
        }
        _ => None,
    }
}

fn address_of(state: &State, job: JobId, attempt: &Attempt) -> Option<String> {
    let fixed = state.job(job)?.spec.service.as_deref().and_then(|s| s.port);
    let port = fixed.or(attempt.master_port)?;
    let host = &state.node(attempt.parts.first()?.node)?.facts.address;
    Some(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// A canary gets its part, and all before it share the rest by how many of them answer. What is taken back gets nothing more as soon as half of what is wanted
/// answers without it; before, that half alone could not bear it.
fn split(endpoint: &Endpoint) -> Vec<Share> {
    let Some(rollout) = &endpoint.rollout else { return Vec::new() };
    let ready = |revision| endpoint.ready().filter(|(_, r)| r.revision == revision).count() as u32;
    match rollout.stage {
        // What nobody could answer is no use.
        RolloutStage::Canary { percent, .. } => {
            let new = if ready(rollout.to) > 0 { percent * 10 } else { 0 };
            let others = endpoint.revisions.keys().filter(|number| **number != rollout.to);
            let old: Vec<(u32, u32)> =
                others.map(|&number| (number, ready(number))).filter(|(_, n)| *n > 0).collect();
            let all: u32 = old.iter().map(|(_, n)| n).sum();
            if all == 0 {
                return Vec::new();
            }
            let part = |(revision, n)| Share { revision, milli: (1000 - new) * n / all };
            let canary = Share { revision: rollout.to, milli: new };
            old.into_iter().map(part).chain([canary]).collect()
        }
        RolloutStage::Back if ready(rollout.from) * 2 >= endpoint.want.max(1) => {
            vec![Share { revision: rollout.from, milli: 1000 }]
        }
        _ => Vec::new(),
    }
}

/// The part of the table that an event may change, as it was before.
pub(crate) struct RouteScope(Scope);

enum Scope {
    Nothing,
    Keys(Vec<KeyRoute>),
    Endpoint(String, Option<Box<EndpointRoute>>),
    All(Box<RouteTable>),
}

impl RouteScope {
    pub fn before(state: &State, event: &Event) -> RouteScope {
        let named = |name: &String| {
            let route = state.endpoints.get(name).map(|e| Box::new(route(state, e)));
            Scope::Endpoint(name.clone(), route)
        };
        RouteScope(match event {
            Event::TokenAdded { .. } | Event::TokenRevoked { .. } => Scope::Keys(keys(state)),
            Event::EndpointCreated { endpoint, .. } => named(endpoint),
            _ if state.endpoints.is_empty() => Scope::Nothing,
            Event::NodeUp { .. } => Scope::All(Box::new(route_table(state))),
            _ => {
                let of_job = || job_of(event).and_then(|job| endpoint_of(state, job));
                let name = event.endpoint().or_else(|| of_job().map(|e| &e.name));
                name.map_or(Scope::Nothing, named)
            }
        })
    }

    /// After the event was applied: whether routers must be told something else.
    pub fn changed(&self, state: &State) -> bool {
        match &self.0 {
            Scope::Nothing => false,
            Scope::Keys(before) => *before != keys(state),
            Scope::Endpoint(name, before) => {
                let now = state.endpoints.get(name).map(|e| route(state, e));
                before.as_deref() != now.as_ref()
            }
            Scope::All(before) => **before != route_table(state),
        }
    }
}
