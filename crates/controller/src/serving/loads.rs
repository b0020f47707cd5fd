//! Reports of all routers into one load for each endpoint. Pure.

use std::collections::BTreeMap;

use tutti_model::{
    EndpointLoad, EndpointReport, Generation, JobId, PastEndpoint, ReplicaLoad, ReplicaPhase,
    ReplicaReport, RouterReport, Span, State, Time, Traffic,
};

/// What routers say of an endpoint is taken for so long after its end.
const LATE_FOR: Span = Span::secs(60);

/// What the state says that reports are read against.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Of the newest table.
    pub version: u64,
    pub endpoints: BTreeMap<String, EndpointScene>,
    /// Those that were stopped lately, and when each was created: routers may still speak of them.
    pub gone: BTreeMap<String, Time>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointScene {
    /// Another time is another endpoint, that only has the same name.
    pub created_at: Time,
    /// When the rollout that is under way began.
    pub rollout: Option<Time>,
    /// Those that have been placed; others can't be known to routers.
    pub replicas: BTreeMap<JobId, ReplicaScene>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaScene {
    pub generation: Generation,
    pub draining: bool,
}

impl Scene {
    pub fn of(state: &State, now: Time) -> Scene {
        let replica = |(id, replica): (&JobId, &tutti_model::Replica)| {
            let generation = state.job(*id)?.task(None)?.attempt()?.generation;
            let draining = matches!(replica.phase, ReplicaPhase::Draining { .. });
            Some((*id, ReplicaScene { generation, draining }))
        };
        let endpoint = |(name, endpoint): (&String, &tutti_model::Endpoint)| {
            let scene = EndpointScene {
                created_at: endpoint.created_at,
                rollout: endpoint.rollout.as_ref().map(|rollout| rollout.began_at),
                replicas: endpoint.replicas.iter().filter_map(replica).collect(),
            };
            (name.clone(), scene)
        };
        let gone = lately_gone(state, now).into_iter();
        Scene {
            version: state.routes.0,
            endpoints: state.endpoints.iter().map(endpoint).collect(),
            gone: gone.map(|(name, past)| (name.to_owned(), past.created_at)).collect(),
        }
    }

    /// When the endpoint of this name was created.
    pub(super) fn created_at(&self, name: &str) -> Option<Time> {
        let here = self.endpoints.get(name).map(|endpoint| endpoint.created_at);
        here.or_else(|| self.gone.get(name).copied())
    }
}

/// Those whose names are not taken again.
pub(super) fn lately_gone(state: &State, now: Time) -> BTreeMap<&str, &PastEndpoint> {
    let mut gone = BTreeMap::new();
    let lately = |past: &&PastEndpoint| now.since(past.stopped_at) < LATE_FOR;
    for past in state.past_endpoints.iter().take_while(lately) {
        if !state.endpoints.contains_key(&past.name) {
            gone.entry(past.name.as_str()).or_insert(past);
        }
    }
    gone
}

/// What is known of the routers at one moment.
pub(super) struct Word<'a> {
    /// Of those that spoke lately.
    pub live: Vec<&'a RouterReport>,
    /// The last word of those that are silent: they may still send requests.
    pub silent: Vec<&'a RouterReport>,
    /// Routers that were there before the controller was started, and have not spoken yet.
    pub unheard: usize,
    /// The version in which a replica is draining.
    pub drains: &'a BTreeMap<JobId, u64>,
}

impl Word<'_> {
    /// Of one endpoint. `revisions` is how it went with each.
    pub fn load(
        &self,
        name: &str,
        scene: &EndpointScene,
        revisions: BTreeMap<u32, Traffic>,
    ) -> EndpointLoad {
        let said: Vec<&EndpointReport> =
            self.live.iter().filter_map(|report| report.endpoints.get(name)).collect();
        let replica = |(id, replica): (&JobId, &ReplicaScene)| {
            (*id, self.replica(name, *id, *replica, &said))
        };
        EndpointLoad {
            routers: self.live.len() as u32,
            in_flight: said.iter().map(|said| said.in_flight).sum(),
            queued: said.iter().map(|said| said.queued).sum(),
            peak: said.iter().map(|said| said.peak).sum(),
            replicas: scene.replicas.iter().map(replica).collect(),
            revisions,
        }
    }

    fn replica(
        &self,
        endpoint: &str,
        id: JobId,
        scene: ReplicaScene,
        said: &[&EndpointReport],
    ) -> ReplicaLoad {
        let of_same = |said: &EndpointReport| {
            said.replicas.get(&id).filter(|r| r.generation == scene.generation).cloned()
        };
        let same: Vec<ReplicaReport> = said.iter().filter_map(|said| of_same(said)).collect();
        // Requests that a silent router had there may still be under way.
        let silent = self.silent.iter().filter_map(|report| report.endpoints.get(endpoint));
        let left = silent.filter_map(of_same).map(|replica| replica.in_flight).sum::<u32>();
        let ready = same.iter().any(|replica| replica.ready);
        let why = same.iter().find_map(|replica| replica.why.clone());
        ReplicaLoad {
            generation: scene.generation,
            ready,
            in_flight: left + same.iter().map(|replica| replica.in_flight).sum::<u32>(),
            all_know_draining: scene.draining && self.all_know(endpoint, id, scene.generation),
            why: why.filter(|_| !ready),
        }
    }

    /// A router knows if it goes by a table that says so, or has no such replica.
    fn all_know(&self, endpoint: &str, id: JobId, generation: Generation) -> bool {
        let Some(version) = self.drains.get(&id) else { return false };
        let has = |report: &RouterReport| {
            let replica = report.endpoints.get(endpoint).and_then(|said| said.replicas.get(&id));
            replica.is_some_and(|replica| replica.generation == generation)
        };
        let knows = |report: &&RouterReport| report.version >= *version || !has(report);
        self.unheard == 0 && self.live.iter().chain(&self.silent).all(knows)
    }
}
