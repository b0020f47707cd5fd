//! Endpoints: replicas, requests, tokens, times, and what they cost.

use tutti_model::{Endpoint, Histogram, ReplicaPhase, Time};

use super::text::{Kind, Labels, Text};
use crate::core::World;
use crate::serving::{Routers, Seen};
use crate::views::served;

/// One endpoint at one moment.
pub struct EndpointScene {
    /// `endpoint="chat"`.
    labels: String,
    name: String,
    want: u32,
    /// Coming, ready and draining.
    replicas: [(&'static str, usize); 3],
    seen: Seen,
    served: tutti_wire::api::ServedView,
}

pub fn scenes(world: &World, routers: &Routers, now: Time) -> Vec<EndpointScene> {
    let endpoints = world.engine.state().endpoints.values();
    endpoints.map(|endpoint| scene(world, routers, endpoint, now)).collect()
}

fn scene(world: &World, routers: &Routers, endpoint: &Endpoint, now: Time) -> EndpointScene {
    let count = |is: fn(&ReplicaPhase) -> bool| {
        endpoint.replicas.values().filter(|replica| is(&replica.phase)).count()
    };
    let seen = routers.seen(&endpoint.name, now);
    EndpointScene {
        labels: Labels::default().with("endpoint", &endpoint.name).text(),
        name: endpoint.name.clone(),
        want: endpoint.want,
        replicas: [
            ("coming", count(|phase| matches!(phase, ReplicaPhase::Coming))),
            ("ready", count(|phase| matches!(phase, ReplicaPhase::Ready))),
            ("draining", count(|phase| matches!(phase, ReplicaPhase::Draining { .. }))),
        ],
        served: served(world.engine.state(), endpoint, &seen.pending, now),
        seen,
    }
}

/// A name, what it is, and how to get at it.
type Family = (&'static str, Kind, &'static str, fn(&EndpointScene) -> f64);

const FAMILIES: [Family; 13] = [
    ("tutti_endpoint_want", Kind::Gauge, "Replicas that there should be.", |e| e.want.into()),
    ("tutti_endpoint_in_flight", Kind::Gauge, "Requests with a replica.", |e| {
        e.seen.in_flight.into()
    }),
    ("tutti_endpoint_queued", Kind::Gauge, "Requests that wait for a replica.", |e| {
        e.seen.queued.into()
    }),
    ("tutti_endpoint_requests_total", Kind::Counter, "Requests that were asked.", |e| {
        e.served.total.requests as f64
    }),
    ("tutti_endpoint_errors_total", Kind::Counter, "Requests that failed.", |e| {
        e.served.total.errors as f64
    }),
    ("tutti_endpoint_refused_total", Kind::Counter, "Requests refused with 429.", |e| {
        e.served.total.refused as f64
    }),
    ("tutti_endpoint_cancelled_total", Kind::Counter, "Requests whose client left.", |e| {
        e.seen.traffic.cancelled as f64
    }),
    ("tutti_endpoint_retried_total", Kind::Counter, "Requests sent to another replica.", |e| {
        e.seen.traffic.retried as f64
    }),
    ("tutti_endpoint_prompt_tokens_total", Kind::Counter, "Tokens of prompts.", |e| {
        e.served.total.prompt_tokens as f64
    }),
    ("tutti_endpoint_output_tokens_total", Kind::Counter, "Tokens of answers.", |e| {
        e.served.total.output_tokens as f64
    }),
    ("tutti_endpoint_prefix_blocks_total", Kind::Counter, "Blocks of prompts.", |e| {
        e.seen.traffic.prefix_blocks as f64
    }),
    (
        "tutti_endpoint_prefix_blocks_hit_total",
        Kind::Counter,
        "Blocks of prompts that their replica had seen.",
        |e| e.seen.traffic.prefix_blocks_hit as f64,
    ),
    (
        "tutti_endpoint_gpu_seconds_total",
        Kind::Counter,
        "GPU-seconds that its replicas held, so far.",
        |e| e.served.gpu_hours * 3600.0,
    ),
];

type Times = (&'static str, &'static str, fn(&EndpointScene) -> &Histogram);

const TIMES: [Times; 4] = [
    (
        "tutti_endpoint_first_byte_seconds",
        "From the request to the first byte of the answer's body.",
        |e| &e.seen.traffic.first_byte,
    ),
    ("tutti_endpoint_per_token_seconds", "Between tokens of a stream.", |e| {
        &e.seen.traffic.per_token
    }),
    ("tutti_endpoint_queue_wait_seconds", "Waiting for a replica.", |e| &e.seen.traffic.queue_wait),
    ("tutti_endpoint_request_seconds", "From the request to the end of the answer.", |e| {
        &e.seen.traffic.total
    }),
];

pub fn render(endpoints: &[EndpointScene], routers: usize, text: &mut Text<'_>) {
    let help = "Routers that spoke within the last seconds.";
    text.family(("tutti_routers", Kind::Gauge, help), [("", routers as f64)].into_iter());
    let by_state = endpoints.iter().flat_map(|endpoint| {
        endpoint.replicas.iter().map(|(state, n)| {
            let labels = Labels::default().with("endpoint", &endpoint.name).with("state", state);
            (labels.text(), *n as f64)
        })
    });
    let help = "Replicas by state.";
    text.family(("tutti_endpoint_replicas", Kind::Gauge, help), by_state);
    for (name, kind, help, of) in FAMILIES {
        let samples = endpoints.iter().map(|endpoint| (&endpoint.labels, of(endpoint)));
        text.family((name, kind, help), samples);
    }
    let costs = endpoints.iter().filter_map(|e| Some((&e.labels, e.served.cost?)));
    let help = "What its replicas cost so far, in the policy's currency.";
    text.family(("tutti_endpoint_cost_total", Kind::Counter, help), costs);
    for (name, help, of) in TIMES {
        let samples = endpoints.iter().map(|endpoint| (&endpoint.labels, of(endpoint)));
        text.histograms((name, help), samples);
    }
}
