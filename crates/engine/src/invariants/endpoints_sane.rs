//! An endpoint has the revisions that it speaks of, wants no more and no fewer replicas than it may
//! have, and remembers only so much. Those that were stopped are few enough, and in order.

use tutti_model::{
    CHRONICLE_MAX, Endpoint, PAST_ENDPOINTS_MAX, PastEndpoint, State, WARM_NODES_MAX,
};

pub(super) fn check(state: &State) -> Result<(), String> {
    past(state)?;
    state.endpoints.iter().try_for_each(|(name, endpoint)| {
        if *name != endpoint.name {
            return Err(format!("{name} is called {}", endpoint.name));
        }
        problem(endpoint).map_or(Ok(()), |problem| Err(format!("{name}: {problem}")))
    })
}

fn past(state: &State) -> Result<(), String> {
    let past: Vec<&PastEndpoint> = state.past_endpoints.iter().collect();
    if past.len() > PAST_ENDPOINTS_MAX {
        return Err(format!("{} that were stopped are remembered", past.len()));
    }
    let stopped = past.iter().map(|p| p.stopped_at);
    if !stopped.clone().is_sorted_by(|newer, older| newer >= older) {
        return Err(format!("they were stopped in this order: {:?}", stopped.collect::<Vec<_>>()));
    }
    let early = past.iter().find(|p| p.stopped_at < p.created_at);
    early.map_or(Ok(()), |p| Err(format!("{} was stopped before it was made", p.name)))
}

fn problem(endpoint: &Endpoint) -> Option<String> {
    let rollout = endpoint.rollout.iter().flat_map(|r| [r.from, r.to]);
    let named = rollout.chain([endpoint.current]);
    let mut named = named.chain(endpoint.replicas.values().map(|r| r.revision));
    if let Some(missing) = named.find(|n| endpoint.revision(*n).is_none()) {
        return Some(format!("revision {missing} is not known"));
    }
    if endpoint.revisions.values().any(|r| r.spec.service.is_none()) {
        return Some("a revision is no service".to_owned());
    }
    let (bounds, want) = (endpoint.bounds(), endpoint.want);
    if !endpoint.stopping && !(bounds.min..=bounds.max).contains(&want) {
        return Some(format!("it wants {want} replicas, and may have {bounds:?}"));
    }
    if endpoint.chronicle.len() > CHRONICLE_MAX || endpoint.warm.len() > WARM_NODES_MAX {
        return Some("it remembers too much".to_owned());
    }
    None
}
