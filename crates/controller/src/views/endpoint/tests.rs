use std::sync::Arc;

use tutti_engine::{Engine, Settings};
use tutti_model::{
    EndpointReport, Policy, Price, Prices, ReplicaPhase, Replicas, Rollout, RolloutStage,
    RouterReport, Served, ServiceSpec, State, Traffic,
};

use super::*;

const NOW: Time = Time(1_800_000_000_000);

fn spec(run: &str) -> Arc<JobSpec> {
    let service = ServiceSpec { replicas: Replicas { min: 1, max: 4 }, ..ServiceSpec::default() };
    let env = [("API_KEY".to_owned(), "hush".to_owned())].into();
    let gpus_per_node = Some("h100:2".parse().unwrap());
    let service = Some(Box::new(service));
    Arc::new(JobSpec { gpus_per_node, env, service, ..JobSpec::shell(run) })
}

fn endpoint() -> Endpoint {
    let json = serde_json::json!({
        "name": "chat", "user": "ada", "team": "default", "created_at": 5, "revisions": {},
        "current": 1, "want": 2, "replicas": {},
    });
    let mut endpoint: Endpoint = serde_json::from_value(json).unwrap();
    for (number, run) in [(1, "serve old "), (2, "serve new")] {
        let json = serde_json::json!({
            "number": number, "spec": *spec(run), "at": number, "by": "ada",
        });
        endpoint.revisions.insert(number, serde_json::from_value(json).unwrap());
    }
    endpoint
}

fn with(phases: &[ReplicaPhase]) -> Endpoint {
    let replica = |phase: &ReplicaPhase| Replica { revision: 1, phase: *phase, since: NOW };
    let replicas = phases.iter().enumerate().map(|(n, phase)| (JobId(n as u64), replica(phase)));
    Endpoint { replicas: replicas.collect(), ..endpoint() }
}

fn world(endpoint: &Endpoint, prices: Prices) -> World {
    let endpoints = [(endpoint.name.clone(), endpoint.clone())].into();
    let policy = Arc::new(Policy { prices, ..Policy::default() });
    let state = State { endpoints, policy, ..State::default() };
    World::new(Engine::restore(state, Settings::default()))
}

#[test]
fn an_endpoint_is_in_the_state_that_its_replicas_are_in() {
    use ReplicaPhase::{Coming, Ready};
    let draining = ReplicaPhase::Draining { until: NOW };
    for (phases, state) in [
        (&[][..], EndpointState::Starting),
        (&[Coming, Coming], EndpointState::Starting),
        (&[Ready, Coming], EndpointState::Partial),
        (&[Ready, draining], EndpointState::Partial),
        (&[Ready, Ready, Coming], EndpointState::Ready),
    ] {
        assert_eq!(endpoint_state(&with(phases)), state, "{phases:?}");
    }
    let asleep = Endpoint { want: 0, ..with(&[draining]) };
    assert_eq!(endpoint_state(&asleep), EndpointState::Asleep);
    let failing = Endpoint { failures: 3, ..with(&[Coming]) };
    assert_eq!(endpoint_state(&failing), EndpointState::Failing);
    let others_answer = Endpoint { failures: 3, ..with(&[Ready, Coming]) };
    assert_eq!(endpoint_state(&others_answer), EndpointState::Partial);
    let stopping = Endpoint { stopping: true, ..with(&[Ready, Ready]) };
    assert_eq!(endpoint_state(&stopping), EndpointState::Stopping);
}

#[test]
fn a_row_has_the_bounds_in_force_and_what_routers_say() {
    let scaled = Replicas { min: 3, max: 5 };
    let endpoint = Endpoint { bounds: Some(scaled), ..with(&[ReplicaPhase::Ready]) };
    let seen = Seen { in_flight: 9, queued: 2, ..Seen::default() };
    let row = endpoint_row(&endpoint, seen);
    assert_eq!((row.ready, row.want, row.min, row.max), (1, 2, 3, 5));
    assert_eq!((row.gpus_per_replica, row.in_flight, row.queued), (2, 9, 2));
}

#[test]
fn others_see_the_newest_revision_without_its_secrets() {
    let stage = RolloutStage::Rolling;
    let rollout = Rollout { from: 1, to: 2, began_at: NOW, stage };
    let endpoint = Endpoint { rollout: Some(rollout), ..endpoint() };
    let (world, routers) = (world(&endpoint, Prices::default()), Routers::default());
    let detail = |inside| endpoint_detail(&world, &routers, &endpoint, inside, NOW);
    let seen = detail(false);
    assert_eq!((seen.row.revision, seen.spec.display_name()), (1, "serve"));
    assert_eq!(seen.spec.env["API_KEY"], "(hidden)");
    assert_eq!(detail(true).spec.env["API_KEY"], "hush");
    let commands: Vec<_> = seen.revisions.iter().map(|r| r.command.as_str()).collect();
    assert_eq!(commands, ["serve new", "serve old"], "newest first");
    assert!(seen.routers.is_empty());
    assert!(!seen.why.is_empty(), "nobody answers");
}

#[test]
fn what_was_served_has_a_price_per_token() {
    let served_before = Served {
        requests: 10,
        prompt_tokens: 3_000_000,
        gpu_ms: 7_200_000,
        cost_micro: 5_000_000,
        ..Served::default()
    };
    let endpoint = Endpoint { served: served_before, ..endpoint() };
    let traffic = Traffic { requests: 2, output_tokens: 1_000_000, ..Traffic::default() };
    let said = EndpointReport { traffic, ..EndpointReport::default() };
    let endpoints = [("chat".to_owned(), said)].into();
    let report = RouterReport { router: "a".into(), endpoints, ..RouterReport::default() };
    let routers = Routers::default();
    routers.note(report, NOW).unwrap();
    let price = Price { micros: 2_500_000, shape: None };
    let prices = Prices { gpus: [("h100".to_owned(), price)].into(), ..Prices::default() };
    let view = |prices: Prices| {
        let world = world(&endpoint, prices);
        endpoint_detail(&world, &routers, &endpoint, true, NOW).served
    };
    let priced = view(prices);
    assert_eq!((priced.total.requests, priced.gpu_hours, priced.cost), (12, 2.0, Some(5.0)));
    assert_eq!(priced.cost_per_million_tokens, Some(1.25));
    assert_eq!(priced.currency.as_deref(), Some("USD"));
    let free = view(Prices::default());
    assert_eq!((free.cost, free.currency, free.cost_per_million_tokens), (None, None, None));
}
