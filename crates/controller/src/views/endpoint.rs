//! Endpoints, short and long: what the state says, and what routers do.

use tutti_engine::address;
use tutti_model::{Command, Demand, Endpoint, JobId, JobSpec, Replica, Revision, Time};
use tutti_wire::api::{EndpointDetail, EndpointRow, EndpointState, ReplicaRow, RevisionRow};

use super::{row, served, without_secrets};
use crate::core::World;
use crate::serving::{ReplicaSeen, Routers, Seen};

/// So many replicas that failed in a row are no accident.
const FAILING_FROM: u32 = 2;

/// All of them, by name.
pub fn endpoint_rows(world: &World, routers: &Routers, now: Time) -> Vec<EndpointRow> {
    let endpoints = world.engine.state().endpoints.values();
    endpoints.map(|endpoint| endpoint_row(endpoint, routers.seen(&endpoint.name, now))).collect()
}

pub fn endpoint_row(endpoint: &Endpoint, seen: Seen) -> EndpointRow {
    let service = endpoint.service();
    let bounds = endpoint.bounds();
    let newest = endpoint.revision(endpoint.newest());
    EndpointRow {
        name: endpoint.name.clone(),
        user: endpoint.user.clone(),
        team: endpoint.team.clone(),
        state: endpoint_state(endpoint),
        revision: endpoint.current,
        rollout: endpoint.rollout.clone(),
        ready: endpoint.ready().count() as u32,
        want: endpoint.want,
        min: bounds.min,
        max: bounds.max,
        gpus_per_replica: newest.map_or(0, |revision| Demand::of(&revision.spec).asked().1),
        policy: service.policy,
        models: service.models.clone(),
        router_count: seen.routers,
        in_flight: seen.in_flight,
        queued: seen.queued,
        figures: seen.figures,
        created_at: endpoint.created_at,
    }
}

pub fn endpoint_state(endpoint: &Endpoint) -> EndpointState {
    let ready = endpoint.ready().count() as u32;
    match endpoint {
        Endpoint { stopping: true, .. } => EndpointState::Stopping,
        Endpoint { want: 0, .. } if ready == 0 => EndpointState::Asleep,
        Endpoint { want, .. } if ready >= *want => EndpointState::Ready,
        _ if ready > 0 => EndpointState::Partial,
        Endpoint { failures: FAILING_FROM.., .. } => EndpointState::Failing,
        _ => EndpointState::Starting,
    }
}

/// `inside`: the reader may know everything about this endpoint.
pub fn endpoint_detail(
    world: &World,
    routers: &Routers,
    endpoint: &Endpoint,
    inside: bool,
    now: Time,
) -> EndpointDetail {
    let state = world.engine.state();
    let seen = routers.seen(&endpoint.name, now);
    let replica = |(id, replica): (&JobId, &Replica)| {
        replica_row(world, *id, replica, seen.replicas.get(id), now)
    };
    let verdict = world.engine.endpoint_verdict(&endpoint.name, now);
    let newest = endpoint.revision(endpoint.newest());
    let spec = newest.map(|revision| match inside {
        true => (*revision.spec).clone(),
        false => without_secrets(&revision.spec),
    });
    EndpointDetail {
        replicas: endpoint.replicas.iter().filter_map(replica).collect(),
        revisions: endpoint.revisions.values().rev().map(revision_row).collect(),
        routers: routers.rows(state.routes.0, now),
        why: verdict.map_or_else(Vec::new, |verdict| verdict.sentences(now)),
        served: served(state, endpoint, &seen.pending, now),
        chronicle: endpoint.chronicle.clone(),
        spec: spec.unwrap_or_else(|| JobSpec::shell("")),
        row: endpoint_row(endpoint, seen),
    }
}

/// None if its job is gone, which is so for a moment only.
fn replica_row(
    world: &World,
    id: JobId,
    replica: &Replica,
    seen: Option<&ReplicaSeen>,
    now: Time,
) -> Option<ReplicaRow> {
    let job = world.engine.state().job(id)?;
    let row = row(world, job, None, now)?;
    let attempt = job.task(None).and_then(|task| task.attempt());
    let generation = attempt.map(|attempt| attempt.generation);
    let seen = seen.filter(|seen| Some(seen.generation) == generation);
    let note = Some(row.note).filter(|note| !note.is_empty());
    let said = seen.filter(|seen| !seen.ready).and_then(|seen| seen.why.clone());
    Some(ReplicaRow {
        job: id,
        revision: replica.revision,
        phase: replica.phase,
        since: replica.since,
        state: row.state,
        generation,
        address: address(world.engine.state(), id),
        nodes: row.node_names,
        gpus: row.gpus,
        in_flight: seen.map_or(0, |seen| seen.in_flight),
        requests: seen.map_or(0, |seen| seen.requests),
        errors: seen.map_or(0, |seen| seen.errors),
        broken: seen.is_some_and(|seen| seen.broken),
        own: seen.and_then(|seen| seen.own),
        // Whoever is placed and does not answer is described best by who asked.
        why: said.or(note),
    })
}

fn revision_row(revision: &Revision) -> RevisionRow {
    RevisionRow {
        number: revision.number,
        at: revision.at,
        by: revision.by.clone(),
        command: match &*revision.spec.run {
            Command::Shell(line) => line.trim().to_owned(),
            Command::Argv(words) => words.join(" "),
        },
        taken_back: revision.taken_back.clone(),
    }
}

#[cfg(test)]
mod tests;
