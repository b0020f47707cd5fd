//! What endpoints do by themselves: as many replicas as are needed, each ready or replaced, and one
//! revision after another. Pure functions of the state, of what routers say now, and of the time.
//!
//! ```text
//!  Load ─► Memory ─┐
//!  State ──────────┼─► settle ─► events ─► applied ─► settle again, until there is nothing to do
//!  Time ───────────┘
//! ```
//!
//! Replicas are ordinary jobs: where they run, when they start again and what they cost is settled
//! elsewhere.

mod exchange;
mod hours;
mod judge;
mod look;
mod memory;
mod replicas;
mod rollout;
mod routes;
mod scale;
mod verdict;

use tutti_model::{Endpoint, JobId, ReplicaPhase, RolloutStage, State, Time};

use crate::decide::View;
use crate::event::Event;
use exchange::NO_ROOM;
use look::{Look, Standing, endpoint_of};

pub(crate) use hours::floor;
pub use memory::Memory;
pub(crate) use routes::RouteScope;
pub use routes::{address, route_table};
pub(crate) use verdict::verdict;

/// What an endpoint does next as things stand; nothing if all is as it should be. What the events of
/// one answer do must be known before the next is asked for.
pub(crate) fn settle(view: View<'_>, name: &str) -> Vec<Event> {
    let Some(endpoint) = view.state.endpoints.get(name) else { return Vec::new() };
    let look = Look::at(view, endpoint);
    let steps: &[fn(&Look<'_>) -> Vec<Event>] = match endpoint.stopping {
        true => &[replicas::gone, leave, replicas::drained],
        false => &[
            replicas::gone,
            replicas::phases,
            |look| replicas::steady(look).into_iter().collect(),
            |look| wants(look).into_iter().collect(),
            |look| rollout::advance(look).into_iter().collect(),
            replicas::overdue,
            exchange::exchange,
            replicas::drained,
        ],
    };
    let mut found = steps.iter().map(|step| step(&look));
    found.find(|events| !events.is_empty()).unwrap_or_default()
}

/// All replicas go, and then the endpoint does.
fn leave(look: &Look<'_>) -> Vec<Event> {
    if look.replicas.is_empty() {
        return vec![Event::EndpointGone { endpoint: look.name() }];
    }
    look.live().map(|seen| replicas::drain(look, seen, "the endpoint is stopped")).collect()
}

fn wants(look: &Look<'_>) -> Option<Event> {
    let (endpoint, now) = (look.endpoint, look.view.now);
    let least = least(endpoint, now);
    let found = scale::wanted(
        endpoint.want,
        endpoint.service(),
        endpoint.bounds(),
        least,
        look.memory,
        now,
    );
    let (want, why) = found?;
    Some(Event::EndpointWants { endpoint: look.name(), want, why })
}

/// By the bounds and the hour; and a revision that nobody asks can't be looked at.
fn least(endpoint: &Endpoint, now: Time) -> u32 {
    let floor = floor(endpoint.service(), endpoint.bounds(), now);
    let bake = endpoint.service().rollout.bake;
    let looked_at = endpoint.rollout.as_ref().is_some_and(|r| match r.stage {
        // Nobody asks: it may sleep, and with that there is nothing left to look at.
        RolloutStage::Canary { since: Some(since), .. } => now < since.plus(bake),
        RolloutStage::Back => false,
        _ => true,
    });
    match looked_at && endpoint.want > 0 {
        true => floor.max(1),
        false => floor,
    }
}

/// The endpoint that must be looked at after this event was applied.
pub(crate) fn touched(state: &State, event: &Event) -> Option<String> {
    if state.endpoints.is_empty() {
        return None;
    }
    let of_job = || endpoint_of(state, job_of(event)?).map(|e| &e.name);
    event.endpoint().or_else(of_job).cloned()
}

/// The job whose standing an event changes.
pub(crate) fn job_of(event: &Event) -> Option<JobId> {
    match event {
        Event::JobSubmitted { job, .. } => Some(*job),
        event => event.task().map(|task| task.job),
    }
}

/// When an endpoint has something to do next, if no router says anything new.
pub(crate) fn next_due(view: View<'_>) -> Option<Time> {
    // What the last tick left undone is not for the next one, however little happened since.
    let now = view.live.last_tick().map_or(view.now, |looked| looked.max(view.now));
    let view = View { now, ..view };
    view.state.endpoints.values().filter_map(|e| due(&Look::at(view, e))).min()
}

fn due(look: &Look<'_>) -> Option<Time> {
    let endpoint = look.endpoint;
    let of_replica = look.replicas.iter().filter_map(|seen| match seen.replica.phase {
        ReplicaPhase::Draining { until } => Some(until),
        ReplicaPhase::Coming => match seen.standing {
            Standing::Waits { since } if endpoint.rollout.is_some() => Some(since.plus(NO_ROOM)),
            _ => replicas::ready_by(look, seen),
        },
        ReplicaPhase::Ready => None,
    });
    let lacks = endpoint.failures > 0 && (look.live().count() as u32) < endpoint.want;
    let retry = lacks.then_some(endpoint.not_before);
    let steady = replicas::steady_at(look).map(|(at, _)| at);
    let hours = hours::next_turn(endpoint.service(), look.view.now);
    let times = of_replica.chain(retry).chain(steady).chain(hours).chain(rollout::next_turn(look));
    times.filter(|at| *at > look.view.now).min()
}
