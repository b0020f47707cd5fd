//! Why an endpoint is not as it should be.

use tutti_model::{
    EndpointVerdict, Failing, NotReady, Phase, ReplicaPhase, ReplicaVerdict, RolloutStage, count,
};

use super::exchange::{NO_ROOM, shares};
use super::look::{Look, Seen, Standing};
use crate::decide::View;

pub(crate) fn verdict(view: View<'_>, name: &str) -> Option<EndpointVerdict> {
    let endpoint = view.state.endpoints.get(name)?;
    let look = Look::at(view, endpoint);
    let load = look.memory.and_then(|m| m.load(view.now));
    let why = |seen: &Seen<'_>| {
        let why = not_ready(&look, seen)?;
        Some(ReplicaVerdict { job: seen.id, revision: seen.replica.revision, why })
    };
    let lacks = (look.ready().count() as u32) < endpoint.want;
    let failing = (endpoint.failures > 0 && lacks).then(|| Failing {
        failures: endpoint.failures,
        last: endpoint.last_failure.clone().unwrap_or_default(),
        next: endpoint.not_before,
    });
    Some(EndpointVerdict {
        ready: look.ready().count() as u32,
        want: endpoint.want,
        routers: load.map_or(0, |l| l.routers),
        replicas: look.replicas.iter().filter_map(why).collect(),
        failing,
        rollout: stuck(&look).or_else(|| unasked(&look)),
    })
}

fn not_ready(look: &Look<'_>, seen: &Seen<'_>) -> Option<NotReady> {
    let (now, placed_at) = (look.view.now, seen.attempt().map(|a| a.placed_at));
    match seen.replica.phase {
        ReplicaPhase::Ready => return None,
        ReplicaPhase::Draining { until } => return Some(NotReady::Drains { until }),
        ReplicaPhase::Coming => {}
    }
    Some(match seen.standing {
        Standing::Waits { since } => waits(seen).unwrap_or(NotReady::Waits { since }),
        Standing::Starts => NotReady::Starts { since: placed_at.unwrap_or(now) },
        Standing::Runs { .. } => {
            let since = seen.loads_since(now).unwrap_or(now);
            let said = look.said(seen);
            match super::replicas::ready_by(look, seen) {
                None => NotReady::Unseen { since },
                Some(until) if seen.hangs(now) => NotReady::Hangs { since, until, said },
                Some(until) => NotReady::Loads { since, until, said },
            }
        }
        Standing::Suspended => NotReady::Suspended,
        Standing::Stops | Standing::Over => NotReady::Stops,
    })
}

/// For something else than GPUs.
fn waits(seen: &Seen<'_>) -> Option<NotReady> {
    let job = seen.job?;
    if job.is_held(None) {
        return Some(NotReady::Held);
    }
    match job.task(None)?.phase {
        Phase::Pending { not_before, .. } if not_before.0 > 0 => {
            Some(NotReady::Retries { at: not_before })
        }
        _ => None,
    }
}

/// A canary of which too little was asked to tell how it does.
fn unasked(look: &Look<'_>) -> Option<String> {
    let (rollout, rule) = (look.endpoint.rollout.as_ref()?, &look.endpoint.service().rollout);
    let RolloutStage::Canary { since: Some(since), .. } = rollout.stage else { return None };
    let load = look.memory.and_then(|m| m.load(look.view.now));
    let asked = load.and_then(|l| l.revisions.get(&rollout.to)).map_or(0, |t| t.requests);
    let waits = look.view.now >= since.plus(rule.bake) && asked < rule.min_requests;
    let (to, name, least) = (rollout.to, &look.endpoint.name, count(rule.min_requests, "request"));
    waits.then(|| {
        format!(
            "revision {to} has had {asked} of the {least} that it is judged by: \
             `tutti endpoints update {name} FILE --canary 100` lets it take over at once, \
             `tutti endpoints rollback {name}` takes it back"
        )
    })
}

/// The last replica that answers is not stopped for one that might.
fn stuck(look: &Look<'_>) -> Option<String> {
    let rollout = look.endpoint.rollout.as_ref()?;
    let newest = look.endpoint.newest();
    let waits = |r: &Seen<'_>| matches!(r.standing, Standing::Waits { since } if look.view.now.since(since) >= NO_ROOM);
    let (new, old): (Vec<_>, Vec<_>) = look.live().partition(|r| r.replica.revision == newest);
    let shares = shares(look);
    let short = old.len() > shares.old as usize && new.iter().any(|r| waits(r));
    let stuck = short && !shares.one_for_one && look.ready().count() <= 1;
    let other = if newest == rollout.to { rollout.from } else { rollout.to };
    stuck.then(|| {
        format!(
            "there is no room for revision {newest} beside the last replica of revision {other}, which \
             is not stopped for it: free room for one more, or write `surge = 0` under \
             [service.rollout] and `tutti endpoints update {} FILE`, and requests wait while they are \
             exchanged",
            look.endpoint.name
        )
    })
}
