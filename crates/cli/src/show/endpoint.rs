//! `tutti endpoints show`: one endpoint, and why it is not as it should be.

use tutti_model::{JobState, ReplicaPhase, RolloutStage, Time};
use tutti_wire::api::{
    EndpointDetail, EndpointRow, Figures, ReplicaRow, RevisionRow, RouterRow, ServedView,
};

use super::endpoints::{bounds, ink, latency, percent, rate, rollout};
use super::plan::{money, short_count};
use super::table::{Grid, plain};
use super::{count, harmless, thousands, time, urls};
use crate::style::{Ink, Style};

/// Of the chronicle, the newest.
const HAPPENINGS_SHOWN: usize = 10;

pub fn detail(e: &EndpointDetail, now: Time, style: Style, width: Option<u16>) -> String {
    let row = &e.row;
    let mut lines = vec![format!(
        "endpoint {}  {}",
        style.paint(Ink::Bold, &harmless(&row.name)),
        style.paint(ink(row.state), row.state.as_str())
    )];
    lines.extend(facts(e, now).iter().map(|(key, value)| format!("  {key:<12}{value}")));
    let mut parts = vec![lines.join("\n")];
    if !e.replicas.is_empty() {
        parts.push(replicas(&e.replicas, now, style, width));
    }
    parts.push(revisions(e, now, style, width));
    if !e.chronicle.is_empty() {
        parts.push(chronicle(e, now));
    }
    parts.join("\n\n")
}

/// What is wrong, for `tutti why`.
pub fn why(e: &EndpointDetail, style: Style) -> String {
    let row = &e.row;
    let head = format!(
        "endpoint {} is {}: {} of {} answer",
        harmless(&row.name),
        style.paint(ink(row.state), row.state.as_str()),
        row.ready,
        count(row.want.into(), "replica")
    );
    let reasons = e.why.iter().map(|w| format!("  {}", harmless(w)));
    let of_replicas = e.replicas.iter().filter_map(|r| {
        let why = r.why.as_deref().filter(|w| !e.why.iter().any(|told| told.contains(w)))?;
        Some(format!("  replica (job {}): {}", r.job, harmless(why)))
    });
    std::iter::once(head).chain(reasons).chain(of_replicas).collect::<Vec<_>>().join("\n")
}

fn facts(e: &EndpointDetail, now: Time) -> Vec<(&'static str, String)> {
    let row = &e.row;
    let mut facts = Vec::new();
    let mut add = |key: &'static str, value: String| {
        if !value.is_empty() {
            facts.push((key, harmless(&value)));
        }
    };
    e.why.iter().for_each(|w| add("why", w.clone()));
    add("user", format!("{}, team {}", row.user, row.team));
    add("created", ago(row.created_at, now));
    let gpus = count(row.gpus_per_replica.into(), "GPU");
    let scale = bounds(row.min, row.max);
    add("replicas", format!("{} of {} ready, {gpus} each, bounds {scale}", row.ready, row.want));
    add("rollout", row.rollout.as_ref().map(rollout).unwrap_or_default());
    add("policy", row.policy.as_str().to_owned());
    add("models", row.models.join(", "));
    for router in &e.routers {
        add("router", router_line(router, now));
    }
    if e.routers.is_empty() {
        add("router", "none".to_owned());
    }
    add("now", format!("{} in flight, {} queued", row.in_flight, row.queued));
    for (key, value) in figures(&row.figures) {
        add(key, value);
    }
    for (key, value) in served(&e.served) {
        add(key, value);
    }
    facts
}

fn router_line(router: &RouterRow, now: Time) -> String {
    let behind = if router.current { "" } else { ", goes by an older table" };
    let heard = now.since(router.heard_at);
    let silent = match heard.0 {
        ..5_000 => String::new(),
        _ => format!(", silent for {}", time::short(heard)),
    };
    let name = called(&router.router).map_or_else(String::new, |name| format!(" ({name})"));
    format!("{}{name}{behind}{silent}", urls::base(&router.address))
}

/// What somebody called it, without what tells it from itself before a restart.
fn called(router: &str) -> Option<&str> {
    let (name, random) = router.rsplit_once('-')?;
    (random.len() == 16 && random.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

/// Of the last minute.
fn figures(f: &Figures) -> Vec<(&'static str, String)> {
    let mut facts = vec![(
        "requests",
        format!(
            "{}/s, {} failed, {}/s refused, {} tokens/s",
            rate(f.requests_per_second),
            percent(f.errors),
            rate(f.refused_per_second),
            rate(f.output_tokens_per_second)
        ),
    )];
    if f.first_byte_p50.is_some() {
        let (half, most) = (latency(f.first_byte_p50), latency(f.first_byte_p95));
        facts.push(("first byte", format!("p50 {half}, p95 {most}")));
    }
    if f.per_token_p50.is_some() {
        facts.push(("per token", format!("p50 {}", latency(f.per_token_p50))));
    }
    if f.queue_wait_p95.is_some_and(|w| w.0 > 0) {
        facts.push(("queue", format!("p95 {}", latency(f.queue_wait_p95))));
    }
    if let Some(hits) = f.prefix_hits {
        facts.push(("prefix hits", format!("{} of the prompts' blocks", percent(hits))));
    }
    facts
}

/// Since it was made.
fn served(s: &ServedView) -> Vec<(&'static str, String)> {
    let t = &s.total;
    let mut text = count(t.requests, "request");
    for (n, what) in [(t.errors, "failed"), (t.refused, "refused")] {
        if n > 0 {
            text.push_str(&format!(", {} {what}", thousands(n)));
        }
    }
    if t.prompt_tokens + t.output_tokens > 0 {
        let [prompt, output] = [t.prompt_tokens, t.output_tokens].map(|n| short_count(n as f64));
        text.push_str(&format!(", {prompt} tokens in, {output} out"));
    }
    let mut facts = vec![("in all", text), ("GPU-hours", format!("{:.2}", s.gpu_hours))];
    let currency = s.currency.as_deref().unwrap_or_default();
    if let Some(cost) = s.cost {
        let per_million = s
            .cost_per_million_tokens
            .map_or_else(String::new, |c| format!(", {} per million tokens", money(c, currency)));
        facts.push(("cost", format!("{}{per_million}", money(cost, currency))));
    }
    facts
}

fn replicas(rows: &[ReplicaRow], now: Time, style: Style, width: Option<u16>) -> String {
    let head =
        [">JOB", ">REV", "PHASE", ">FOR", "NODES", ">IN FLIGHT", ">REQUESTS", ">ERRORS", "NOTE"];
    let mut grid = Grid::new(&head, style);
    for r in rows {
        let (phase, ink) = phase(r);
        let nodes = if r.nodes.is_empty() { "-".to_owned() } else { r.nodes.join(",") };
        grid.row([
            plain(r.job.to_string()),
            plain(r.revision.to_string()),
            (phase.to_owned(), ink),
            plain(time::short(now.since(r.since))),
            plain(nodes),
            plain(r.in_flight.to_string()),
            plain(thousands(r.requests)),
            (thousands(r.errors), if r.errors > 0 { Ink::Red } else { Ink::Plain }),
            (note(r), Ink::Dim),
        ]);
    }
    grid.render(width)
}

/// What it does, in a word.
pub fn phase(r: &ReplicaRow) -> (&'static str, Ink) {
    match (r.phase, r.state) {
        (ReplicaPhase::Ready, _) if r.broken => ("broken", Ink::Red),
        (ReplicaPhase::Ready, _) => ("ready", Ink::Green),
        (ReplicaPhase::Draining { .. }, _) => ("draining", Ink::Dim),
        (ReplicaPhase::Coming, JobState::Pending) => ("waiting", Ink::Yellow),
        (ReplicaPhase::Coming, JobState::Starting) => ("starting", Ink::Cyan),
        (ReplicaPhase::Coming, JobState::Suspended) => ("suspended", Ink::Yellow),
        // It has answered before.
        (ReplicaPhase::Coming, JobState::Running) if r.requests > 0 => ("silent", Ink::Red),
        (ReplicaPhase::Coming, JobState::Running) => ("loading", Ink::Cyan),
        (ReplicaPhase::Coming, JobState::Stopping) => ("stopping", Ink::Dim),
        (ReplicaPhase::Coming, _) => ("ended", Ink::Red),
    }
}

fn note(r: &ReplicaRow) -> String {
    let mut parts = Vec::new();
    if let ReplicaPhase::Draining { until } = r.phase {
        parts.push(format!("until {} at the latest", time::clock(until)));
    }
    if let Some(own) = r.own {
        let cache = own.kv_used.map_or_else(String::new, |u| format!(", cache {}", percent(u)));
        parts.push(format!("{} running, {} waiting inside{cache}", own.running, own.waiting));
    }
    parts.extend(r.why.clone());
    parts.join("; ")
}

fn revisions(e: &EndpointDetail, now: Time, style: Style, width: Option<u16>) -> String {
    let mut grid = Grid::new(&[">REV", ">AGE", "BY", "NOTE", "COMMAND"], style);
    for r in &e.revisions {
        let (note, ink) = standing(r, &e.row);
        grid.row([
            plain(r.number.to_string()),
            plain(time::short(now.since(r.at))),
            plain(r.by.clone()),
            (note, ink),
            plain(r.command.clone()),
        ]);
    }
    grid.render(width)
}

/// During a rollout both serve, until the old one has no replica left.
fn standing(r: &RevisionRow, row: &EndpointRow) -> (String, Ink) {
    let stage = row.rollout.as_ref().filter(|rollout| rollout.to == r.number).map(|r| r.stage);
    let all_new =
        matches!(row.rollout.as_ref().map(|r| r.stage), Some(RolloutStage::Watching { .. }));
    match (&r.taken_back, stage) {
        (Some(why), _) => (format!("taken back: {why}"), Ink::Red),
        (None, Some(RolloutStage::Watching { .. })) => {
            ("serves, on probation".to_owned(), Ink::Green)
        }
        (None, Some(RolloutStage::Canary { percent, .. })) => {
            (format!("gets {percent}%"), Ink::Cyan)
        }
        (None, Some(RolloutStage::Rolling)) => ("comes".to_owned(), Ink::Cyan),
        (None, Some(RolloutStage::Back)) => ("goes".to_owned(), Ink::Yellow),
        (None, None) if r.number == row.revision && !all_new => ("serves".to_owned(), Ink::Green),
        (None, None) => ("-".to_owned(), Ink::Dim),
    }
}

fn chronicle(e: &EndpointDetail, now: Time) -> String {
    let from = e.chronicle.len().saturating_sub(HAPPENINGS_SHOWN);
    let lines = e.chronicle[from..].iter().map(|h| {
        let ago = format!("{} ago", time::short(now.since(h.at)));
        format!("  {ago:>10}  {}", harmless(&h.text))
    });
    std::iter::once("lately".to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
}

fn ago(at: Time, now: Time) -> String {
    format!("{} ({} ago)", time::clock(at), time::short(now.since(at)))
}

#[cfg(test)]
pub mod tests;
