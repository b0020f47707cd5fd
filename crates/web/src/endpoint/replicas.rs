//! The replicas of an endpoint as a table whose rows come and go.

use maud::{Markup, PreEscaped, html};
use tutti_model::{JobState, OwnLoad, ReplicaPhase, TaskId};
use tutti_wire::api::ReplicaRow;

use crate::live::Row;
use crate::words;

const COLUMNS: &[(&str, &str)] = &[
    ("Job", "n"),
    ("Revision", "n"),
    ("Phase", ""),
    ("Since", "n"),
    ("Nodes", ""),
    ("GPUs", "n"),
    ("Address", ""),
    ("Under way", "n"),
    ("Requests", "n"),
    ("Failed", "n"),
    ("Of itself it says", ""),
    ("Why it does not answer", ""),
];

pub fn rows(replicas: &[ReplicaRow]) -> Vec<Row> {
    let row = |replica: &ReplicaRow| Row {
        key: replica.job.to_string(),
        html: row(replica).into_string(),
    };
    replicas.iter().map(row).collect()
}

fn row(replica: &ReplicaRow) -> Markup {
    let job = TaskId::single(replica.job);
    html! {
        tr data-key=(replica.job) data-href={ "/jobs/" (job) } {
            td.n data-v=(replica.job.0) { (words::job_link(job)) }
            td.n { (replica.revision) }
            td.far { (phase(replica)) }
            td.n data-v=(replica.since.0) { (words::ago(replica.since)) }
            td { (nodes(&replica.nodes)) }
            td.n { (replica.gpus) }
            td.path { (replica.address.as_deref().unwrap_or("–")) }
            td.n data-v=(replica.in_flight) { (words::number(replica.in_flight.into())) }
            td.n data-v=(replica.requests) { (words::number(replica.requests)) }
            td.n data-v=(replica.errors) { (words::number(replica.errors)) }
            td.far { (own(replica.own)) }
            td.why { (replica.why.as_deref().unwrap_or_default()) }
        }
    }
}

/// The state of its job where that says more: a replica that comes may wait for GPUs or load its model.
fn phase(replica: &ReplicaRow) -> Markup {
    let tells = replica.phase == ReplicaPhase::Coming || replica.state != JobState::Running;
    html! {
        (words::replica_phase(replica.phase))
        @if let ReplicaPhase::Draining { until } = replica.phase {
            span.sub { " ends " (words::ahead(until)) }
        }
        @if replica.broken { " " (words::badge("failed", "✕", "left out")) }
        @if tells { " " span.sub { "its job is " (replica.state.as_str()) } }
    }
}

/// More are counted.
const NODES_MAX: usize = 4;

fn nodes(names: &[String]) -> Markup {
    html! {
        @for (i, name) in names.iter().take(NODES_MAX).enumerate() {
            @if i > 0 { ", " } (words::node_link(name))
        }
        @if names.len() > NODES_MAX { span.sub { " and " (names.len() - NODES_MAX) " more" } }
        @if names.is_empty() { "–" }
    }
}

fn own(load: Option<OwnLoad>) -> Markup {
    html! {
        @if let Some(load) = load {
            (load.running) " running, " (load.waiting) " waiting"
            @if let Some(used) = load.kv_used { span.sub { ", cache " (words::percent(used)) } }
        } @else { "–" }
    }
}

pub fn table(rows: &[Row]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Replicas" {
            table #replicas data-sortable="" data-testid="replicas" {
                thead { tr {
                    @for (name, class) in COLUMNS {
                        th class=[(!class.is_empty()).then_some(class)] scope="col" {
                            button type="button" data-sort="" { (name) }
                        }
                    }
                } }
                tbody { @for row in rows { (PreEscaped(&row.html)) } }
            }
        }
        p.empty data-empty="replicas" hidden[!rows.is_empty()] { "There is none." }
    }
}
