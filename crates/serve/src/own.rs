//! The router's own paths.

use std::fmt::Write;
use std::time::Instant;

use serde_json::json;
use tutti_model::{BUCKETS_MS, Histogram, RouterReport};

use crate::access::{Caller, unauthorized};
use crate::answer::Answer;
use crate::http::RequestHead;
use crate::report::report;
use crate::routes::Routes;
use crate::shared::Shared;

pub fn answer(head: &RequestHead, shared: &Shared, routes: &Routes, caller: &Caller) -> Answer {
    if !matches!(head.method(), "GET" | "HEAD") {
        return Answer::error(405, "method_not_allowed", "this path can only be read: use GET");
    }
    let known = caller.key.is_some() || caller.local;
    match head.path() {
        "/v1/models" => models(routes, caller),
        "/-/healthy" => Answer::text(200, "ok\n"),
        "/-/ready" => ready(shared, routes),
        "/-/metrics" | "/-/endpoints" if caller.foreign.is_some() => caller.turned_away(),
        "/-/metrics" | "/-/endpoints" if !known => {
            unauthorized("a key is needed for this, away from the router's own machine")
        }
        "/-/metrics" => Answer {
            content_type: "text/plain; version=0.0.4",
            ..Answer::text(200, &metrics(&report(shared, routes, Some(caller))))
        },
        "/-/endpoints" => match serde_json::to_value(report(shared, routes, Some(caller))) {
            Ok(report) => Answer::json(200, &report),
            Err(error) => Answer::error(500, "report", &error.to_string()),
        },
        _ => Answer::error(
            404,
            "no_such_path",
            "there are /-/healthy, /-/ready, /-/metrics and /-/endpoints",
        ),
    }
}

fn models(routes: &Routes, caller: &Caller) -> Answer {
    if !caller.may_ask(routes.any_open) {
        return caller.turned_away();
    }
    let data: Vec<_> = routes
        .visible(caller)
        .map(
            |(name, _)| json!({ "id": name, "object": "model", "created": 0, "owned_by": "tutti" }),
        )
        .collect();
    Answer::json(200, &json!({ "object": "list", "data": data }))
}

/// It has a table and is not about to leave.
fn ready(shared: &Shared, routes: &Routes) -> Answer {
    if shared.stopping() {
        return Answer::text(503, "stopping\n");
    }
    if routes.version == 0 && routes.entries.is_empty() {
        return Answer::text(503, "no route table yet\n");
    }
    let now = Instant::now();
    let ready = routes.entries.iter().filter(|e| e.desk.any_ready(now)).count();
    Answer::text(
        200,
        &format!(
            "ok: {ready} of {}\n",
            tutti_model::count(routes.entries.len() as u64, "endpoint")
        ),
    )
}

/// Prometheus' text format.
fn metrics(report: &RouterReport) -> String {
    let mut out = String::new();
    type Read = fn(&tutti_model::EndpointReport) -> u64;
    let plain: [(&str, &str, Read); 10] = [
        ("in_flight", "gauge", |e| e.in_flight.into()),
        ("queued", "gauge", |e| e.queued.into()),
        ("requests_total", "counter", |e| e.traffic.requests),
        ("errors_total", "counter", |e| e.traffic.errors),
        ("refused_total", "counter", |e| e.traffic.refused),
        ("cancelled_total", "counter", |e| e.traffic.cancelled),
        ("retried_total", "counter", |e| e.traffic.retried),
        ("prompt_tokens_total", "counter", |e| e.traffic.prompt_tokens),
        ("output_tokens_total", "counter", |e| e.traffic.output_tokens),
        ("prefix_hits_total", "counter", |e| e.traffic.prefix_hits),
    ];
    for (name, kind, read) in plain {
        let _ = writeln!(out, "# TYPE tutti_router_{name} {kind}");
        for (endpoint, e) in &report.endpoints {
            let endpoint = escape(endpoint);
            let _ = writeln!(out, "tutti_router_{name}{{endpoint=\"{endpoint}\"}} {}", read(e));
        }
    }
    type Times = fn(&tutti_model::Traffic) -> &Histogram;
    let times: [(&str, Times); 4] = [
        ("first_byte_seconds", |t| &t.first_byte),
        ("per_token_seconds", |t| &t.per_token),
        ("queue_wait_seconds", |t| &t.queue_wait),
        ("total_seconds", |t| &t.total),
    ];
    for (name, read) in times {
        let _ = writeln!(out, "# TYPE tutti_router_{name} histogram");
        for (endpoint, e) in &report.endpoints {
            histogram(&mut out, name, &escape(endpoint), read(&e.traffic));
        }
    }
    replicas(&mut out, report);
    out
}

fn histogram(out: &mut String, name: &str, endpoint: &str, histogram: &Histogram) {
    let mut sum = 0;
    for (at, bound) in BUCKETS_MS.iter().enumerate() {
        sum += histogram.counts.get(at).copied().unwrap_or(0);
        let le = *bound as f64 / 1000.0;
        let labels = format!("endpoint=\"{endpoint}\",le=\"{le}\"");
        let _ = writeln!(out, "tutti_router_{name}_bucket{{{labels}}} {sum}");
    }
    let count = histogram.count();
    let labels = format!("endpoint=\"{endpoint}\"");
    let _ = writeln!(out, "tutti_router_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
    let seconds = histogram.sum_us as f64 / 1e6;
    let _ = writeln!(out, "tutti_router_{name}_sum{{{labels}}} {seconds}");
    let _ = writeln!(out, "tutti_router_{name}_count{{{labels}}} {count}");
}

fn replicas(out: &mut String, report: &RouterReport) {
    type Read = fn(&tutti_model::ReplicaReport) -> u64;
    let plain: [(&str, &str, Read); 5] = [
        ("replica_ready", "gauge", |r| r.ready.into()),
        ("replica_broken", "gauge", |r| r.broken.into()),
        ("replica_in_flight", "gauge", |r| r.in_flight.into()),
        ("replica_requests_total", "counter", |r| r.requests),
        ("replica_errors_total", "counter", |r| r.errors),
    ];
    for (name, kind, read) in plain {
        let _ = writeln!(out, "# TYPE tutti_router_{name} {kind}");
        for (endpoint, e) in &report.endpoints {
            for (job, replica) in &e.replicas {
                let labels = format!("endpoint=\"{}\",job=\"{}\"", escape(endpoint), job.0);
                let _ = writeln!(out, "tutti_router_{name}{{{labels}}} {}", read(replica));
            }
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
