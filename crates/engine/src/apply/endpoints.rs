//! Endpoints come, change, and go; their replicas are jobs, which [`super::jobs`] and
//! [`super::attempts`] keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use tutti_model::{
    Endpoint, JobId, JobSpec, PastEndpoint, REVISIONS_MAX, Replica, ReplicaOf, ReplicaPhase,
    Revision, Rollout, RolloutStage, Served, State, TextRefs, Time, WARM_NODES_MAX, count,
};

use crate::event::Event;
use crate::{index, texts};

pub(super) fn changed(state: &mut State, event: &Event, at: Time) {
    let (Event::EndpointCreated { endpoint, .. }
    | Event::EndpointRevised { endpoint, .. }
    | Event::EndpointGone { endpoint }) = event
    else {
        return change_any(state, event, at);
    };
    // These bring specs, or take them.
    let before = state.endpoints.get(endpoint).cloned();
    before.iter().for_each(|e| index::specs_removed(&mut state.index, e));
    change_any(state, event, at);
    if let Some(after) = state.endpoints.get(endpoint) {
        index::specs_added(&mut state.index, after);
    }
    let before = before.iter().flat_map(|e| e.revisions.values());
    texts::drop_unused(state, before.flat_map(|revision| revision.texts.iter()));
}

fn change_any(state: &mut State, event: &Event, at: Time) {
    match event {
        Event::EndpointCreated { endpoint, user, team, spec, by, key, want, texts } => {
            let (spec, texts) = texts::whole(state, spec, texts);
            let revision = revision(1, (&spec, &texts), by, at);
            let mut new = Endpoint {
                name: endpoint.clone(),
                user: user.clone(),
                team: team.clone(),
                created_at: at,
                revisions: BTreeMap::from([(1, revision)]),
                current: 1,
                rollout: None,
                want: *want,
                bounds: None,
                replicas: BTreeMap::new(),
                failures: 0,
                failed_at: Time(0),
                not_before: Time(0),
                last_failure: None,
                warm: Vec::new(),
                key: key.clone(),
                stopping: false,
                served: Served::default(),
                chronicle: Vec::new(),
            };
            new.note(at, format!("served by {by}"));
            state.endpoints.insert(endpoint.clone(), new);
        }
        Event::EndpointGone { endpoint } => {
            let gone = state.endpoints.remove(endpoint).map(|gone| PastEndpoint::of(gone, at));
            gone.into_iter().for_each(|gone| state.past_endpoints.add(gone));
        }
        Event::EndpointServed { endpoint, more } => served(state, endpoint, more),
        Event::ReplicaChanged { endpoint, job, phase, why } => {
            replica_changed(state, endpoint, *job, *phase, why.as_deref(), at);
        }
        Event::EndpointRevised { endpoint, spec, texts, .. } => {
            let (spec, texts) = texts::whole(state, spec, texts);
            let endpoint = state.endpoints.get_mut(endpoint);
            endpoint.into_iter().for_each(|e| revised(e, event, (&spec, &texts), at));
        }
        event => {
            let endpoint = event.endpoint().and_then(|name| state.endpoints.get_mut(name));
            endpoint.into_iter().for_each(|endpoint| change(endpoint, event, at));
        }
    }
}

fn change(endpoint: &mut Endpoint, event: &Event, at: Time) {
    match event {
        Event::EndpointBounded { bounds, by, .. } => {
            endpoint.bounds = *bounds;
            endpoint.note(
                at,
                match bounds {
                    Some(b) => {
                        format!("{by} wants {} to {}", b.min, count(b.max.into(), "replica"))
                    }
                    None => format!("{by} wants as many replicas as the job file says"),
                },
            );
        }
        Event::EndpointWants { want, why, .. } => {
            let (is, was) = (count((*want).into(), "replica"), endpoint.want);
            endpoint.note(at, format!("{is} instead of {was}: {why}"));
            endpoint.want = *want;
        }
        Event::ReplicaFailed { job, why, failures, not_before, .. } => {
            let revision = endpoint.replicas.get(job).map(|r| r.revision);
            if *failures > endpoint.failures
                && let Some(revision) = revision.and_then(|r| endpoint.revisions.get_mut(&r))
            {
                revision.failures += 1;
            }
            endpoint.failures = *failures;
            endpoint.failed_at = at;
            endpoint.not_before = *not_before;
            endpoint.last_failure = Some(why.clone());
            let wait = not_before.since(at).short_up();
            let text = format!("replica {job} failed ({failures} in a row), next in {wait}: {why}");
            endpoint.note(at, text);
        }
        Event::ReplicaSteady { job, .. } => {
            endpoint.failures = 0;
            endpoint.not_before = Time(0);
            let revision = endpoint.replicas.get(job).map(|r| r.revision);
            let revision = revision.and_then(|r| endpoint.revisions.get_mut(&r));
            revision.into_iter().for_each(|revision| revision.failures = 0);
        }
        Event::ReplicaGone { job, gpu_ms, cost_micro, why, .. } => {
            endpoint.replicas.remove(job);
            endpoint.served.gpu_ms += gpu_ms;
            endpoint.served.cost_micro += cost_micro;
            if let Some(why) = why {
                endpoint.note(at, format!("replica {job} is gone: {why}"));
            }
        }
        Event::RolloutBegan { rollout, by, .. } => {
            let left = endpoint.newest();
            let back = rollout.to < left;
            if let Some(left) = endpoint.revisions.get_mut(&left).filter(|_| back) {
                left.taken_back = Some(format!("{by} went back"));
            }
            let goes = if back { "goes back" } else { "goes on" };
            let over = passing_over(endpoint, rollout.to, endpoint.newest());
            endpoint.note(at, format!("{by} {goes} to revision {}{over}", rollout.to));
            begin(endpoint, Some(rollout));
        }
        Event::RolloutMoved { stage, why, .. } => moved(endpoint, *stage, why.as_deref(), at),
        Event::RolloutEnded { current, .. } => {
            endpoint.rollout = None;
            endpoint.current = *current;
            if let Some(revision) = endpoint.revisions.get_mut(current) {
                revision.taken_back = None;
                revision.served = true;
            }
            endpoint.note(at, format!("revision {current} serves"));
        }
        Event::EndpointStopping { by, .. } => {
            endpoint.stopping = true;
            endpoint.rollout = None;
            endpoint.note(at, format!("{by} stops it"));
        }
        _ => {}
    }
}

/// Routers may say it after the end.
fn served(state: &mut State, name: &str, more: &Served) {
    let served = match state.endpoints.get_mut(name) {
        Some(endpoint) => Some(&mut endpoint.served),
        None => state.past_endpoints.last_mut(name).map(|past| &mut past.served),
    };
    served.into_iter().for_each(|served| served.add(more));
}

fn revision(
    number: u32,
    (spec, texts): (&Arc<JobSpec>, &TextRefs),
    by: &str,
    at: Time,
) -> Revision {
    let by = by.to_owned();
    Revision {
        number,
        spec: Arc::clone(spec),
        texts: texts.clone(),
        at,
        by,
        taken_back: None,
        served: false,
        failures: 0,
    }
}

fn revised(
    endpoint: &mut Endpoint,
    event: &Event,
    (spec, texts): (&Arc<JobSpec>, &TextRefs),
    at: Time,
) {
    let Event::EndpointRevised { revision: number, by, same_as, rollout, .. } = event else {
        return;
    };
    let files = |spec: &JobSpec| spec.service.as_deref().and_then(|s| s.files.clone());
    if files(spec) != endpoint.service().files {
        endpoint.warm.clear();
    }
    endpoint.revisions.insert(*number, revision(*number, (spec, texts), by, at));
    if let Some(old) = same_as {
        let same = endpoint.replicas.values_mut().filter(|r| r.revision == *old);
        same.for_each(|replica| replica.revision = *number);
    }
    match (rollout, same_as) {
        (Some(_), _) => begin(endpoint, rollout.as_ref()),
        // What is under way goes on, to the new settings.
        (None, Some(old)) => {
            if let Some(rollout) = &mut endpoint.rollout {
                for end in [&mut rollout.from, &mut rollout.to] {
                    *end = if *end == *old { *number } else { *end };
                }
            }
            if endpoint.current == *old {
                endpoint.current = *number;
            }
        }
        (None, None) => (endpoint.rollout, endpoint.current) = (None, *number),
    }
    if let Some(old) = same_as {
        // The same replicas have answered.
        let proven = endpoint.current == *number
            && endpoint.revisions.get(old).is_some_and(|old| old.served);
        if let Some(new) = endpoint.revisions.get_mut(number) {
            new.served = proven;
        }
    }
    let how = match (same_as, rollout) {
        (Some(_), _) => ", with the same replicas".to_owned(),
        (None, Some(Rollout { stage: RolloutStage::Canary { percent, .. }, .. })) => {
            format!(", with {percent}% of the requests first")
        }
        _ => String::new(),
    };
    let back_to = rollout.as_ref().map(|rollout| rollout.from);
    let unproven = back_to.map_or_else(Vec::new, |to| endpoint.passed_over(to, *number));
    let later = match (back_to, unproven.is_empty()) {
        (Some(back_to), false) => format!(
            "; {} on probation, so a rollback goes to revision {back_to}",
            revisions_were(&unproven)
        ),
        _ => String::new(),
    };
    endpoint.note(at, format!("{by} made revision {number}{how}{later}"));
    forget_revisions(endpoint);
}

fn passing_over(endpoint: &Endpoint, target: u32, left: u32) -> String {
    match &endpoint.passed_over(target, left)[..] {
        [] => String::new(),
        unproven => format!(", passing over what was on probation: {}", listed(unproven)),
    }
}

fn revisions_were(numbers: &[u32]) -> String {
    match numbers {
        [one] => format!("revision {one} was"),
        all => format!("{} were", listed(all)),
    }
}

fn listed(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|n| format!("revision {n}")).collect();
    numbers.join(", ")
}

/// The oldest go, unless something still is of them.
fn forget_revisions(endpoint: &mut Endpoint) {
    let in_use = |e: &Endpoint, n: u32| {
        let rollout = e.rollout.as_ref().is_some_and(|r| r.from == n || r.to == n);
        rollout || e.current == n || e.replicas.values().any(|r| r.revision == n)
    };
    while endpoint.revisions.len() > REVISIONS_MAX {
        let old = endpoint.revisions.keys().copied().find(|n| !in_use(endpoint, *n));
        let Some(old) = old else { return };
        endpoint.revisions.remove(&old);
    }
}

fn begin(endpoint: &mut Endpoint, rollout: Option<&Rollout>) {
    endpoint.rollout = rollout.cloned();
    // Another revision may do what the last one could not.
    endpoint.failures = 0;
    endpoint.not_before = Time(0);
    if let Some(to) = rollout.and_then(|r| endpoint.revisions.get_mut(&r.to)) {
        to.failures = 0;
        to.taken_back = None;
    }
}

fn moved(endpoint: &mut Endpoint, stage: RolloutStage, why: Option<&str>, at: Time) {
    let Some(rollout) = &mut endpoint.rollout else { return };
    let before = rollout.stage;
    rollout.stage = stage;
    let (from, to) = (rollout.from, rollout.to);
    let text = match stage {
        RolloutStage::Canary { percent, since: None } => {
            format!("revision {to} gets {percent}% of the requests")
        }
        RolloutStage::Canary { since: Some(_), .. } => {
            format!("replicas of revision {to} are ready and looked at")
        }
        RolloutStage::Rolling => format!("revision {to} takes over, replica by replica"),
        RolloutStage::Watching { .. } => format!("all replicas are of revision {to}"),
        RolloutStage::Back => {
            let why = why.unwrap_or("nobody said why");
            if let Some(revision) = endpoint.revisions.get_mut(&to) {
                revision.taken_back = Some(why.to_owned());
            }
            endpoint.failures = 0;
            endpoint.not_before = Time(0);
            let over = passing_over(endpoint, from, to);
            format!("revision {to} is taken back, revision {from} returns{over}: {why}")
        }
    };
    if before != stage {
        endpoint.note(at, text);
    }
}

fn replica_changed(
    state: &mut State,
    name: &str,
    job: JobId,
    phase: ReplicaPhase,
    why: Option<&str>,
    at: Time,
) {
    let nodes: Vec<_> = match (phase, state.job(job).and_then(|j| j.task(None)?.attempt())) {
        (ReplicaPhase::Ready, Some(attempt)) => attempt.parts.iter().map(|p| p.node).collect(),
        _ => Vec::new(),
    };
    let Some(endpoint) = state.endpoints.get_mut(name) else { return };
    let Some(replica) = endpoint.replicas.get_mut(&job) else { return };
    let revision = replica.revision;
    let before = std::mem::replace(&mut replica.phase, phase);
    replica.since = at;
    if phase == ReplicaPhase::Ready {
        let current = endpoint.current == revision;
        if let Some(revision) = endpoint.revisions.get_mut(&revision).filter(|_| current) {
            revision.served = true;
        }
        endpoint.warm.retain(|node| !nodes.contains(node));
        endpoint.warm.extend(nodes);
        let over = endpoint.warm.len().saturating_sub(WARM_NODES_MAX);
        endpoint.warm.drain(..over);
    }
    if let Some(why) = why {
        let what = match (before, phase) {
            (ReplicaPhase::Draining { .. }, ReplicaPhase::Coming) => "stays",
            (_, ReplicaPhase::Coming) => "is not ready any more",
            (_, ReplicaPhase::Ready) => "is ready",
            (_, ReplicaPhase::Draining { .. }) => "goes",
        };
        endpoint.note(at, format!("replica {job} {what}: {why}"));
    }
}

/// A job that its endpoint has submitted.
pub(super) fn replica_submitted(state: &mut State, job: JobId, of: &ReplicaOf, at: Time) {
    let Some(endpoint) = state.endpoints.get_mut(&of.endpoint) else { return };
    let replica = Replica { revision: of.revision, phase: ReplicaPhase::Coming, since: at };
    endpoint.replicas.insert(job, replica);
}
