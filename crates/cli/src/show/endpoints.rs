//! `tutti endpoints`.

use tutti_model::{NO_ROUTER, Rollout, RolloutStage, Span};
use tutti_wire::api::{EndpointRow, EndpointState};

use super::table::{Grid, plain};
use super::{count, time};
use crate::style::{Ink, Style};

pub const NONE: &str = "no endpoint (tutti serve FILE makes one)";

pub fn table(endpoints: &[EndpointRow], style: Style, width: Option<u16>) -> String {
    if endpoints.is_empty() {
        return NONE.to_owned();
    }
    let head = [
        "NAME",
        "STATE",
        ">READY",
        ">BOUNDS",
        ">REV",
        ">REQ/S",
        ">ERRORS",
        ">TTFB P50",
        ">P95",
        ">IN FLIGHT",
        ">QUEUED",
        "NOTE",
    ];
    let mut grid = Grid::new(&head, style);
    for e in endpoints {
        let f = &e.figures;
        grid.row([
            plain(e.name.clone()),
            (e.state.as_str().to_owned(), ink(e.state)),
            plain(format!("{}/{}", e.ready, e.want)),
            plain(bounds(e.min, e.max)),
            plain(e.revision.to_string()),
            plain(rate(f.requests_per_second)),
            (percent(f.errors), if f.errors > 0.0 { Ink::Red } else { Ink::Plain }),
            plain(latency(f.first_byte_p50)),
            plain(latency(f.first_byte_p95)),
            plain(e.in_flight.to_string()),
            plain(e.queued.to_string()),
            (note(e), Ink::Dim),
        ]);
    }
    let mut lines = vec![grid.render(width), total(endpoints)];
    if endpoints.iter().all(|e| e.router_count == 0) {
        lines.push(style.paint(Ink::Yellow, NO_ROUTER));
    }
    lines.join("\n")
}

fn total(endpoints: &[EndpointRow]) -> String {
    let ready: u32 = endpoints.iter().map(|e| e.ready).sum();
    let gpus: u32 = endpoints.iter().map(|e| e.ready * e.gpus_per_replica).sum();
    let rate_in_all: f64 = endpoints.iter().map(|e| e.figures.requests_per_second).sum();
    format!(
        "{}, {} on {}, {} requests/s",
        count(endpoints.len() as u64, "endpoint"),
        count(ready.into(), "replica"),
        count(gpus.into(), "GPU"),
        rate(rate_in_all)
    )
}

pub fn ink(state: EndpointState) -> Ink {
    match state {
        EndpointState::Ready => Ink::Green,
        EndpointState::Partial => Ink::Yellow,
        EndpointState::Starting => Ink::Cyan,
        EndpointState::Asleep | EndpointState::Stopping => Ink::Dim,
        EndpointState::Failing => Ink::Red,
    }
}

/// `2`, or `1..8`, as `tutti endpoints scale` takes it.
pub fn bounds(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min}..{max}") }
}

fn note(e: &EndpointRow) -> String {
    let mut parts = Vec::new();
    parts.extend(e.rollout.as_ref().map(rollout));
    if !e.models.is_empty() {
        parts.push(format!("also {}", e.models.join(", ")));
    }
    if e.figures.refused_per_second > 0.0 {
        parts.push(format!("refuses {}/s", rate(e.figures.refused_per_second)));
    }
    parts.join("; ")
}

/// Where a rollout is, in words.
pub fn rollout(r: &Rollout) -> String {
    match r.stage {
        RolloutStage::Canary { percent, since: None } => {
            format!("revision {} will get {percent}% when it is ready", r.to)
        }
        RolloutStage::Canary { percent, since: Some(_) } => {
            format!("revision {} gets {percent}% and is looked at", r.to)
        }
        RolloutStage::Rolling => format!("going from revision {} to {}", r.from, r.to),
        RolloutStage::Watching { .. } => {
            format!("all on revision {}, which may still be taken back", r.to)
        }
        RolloutStage::Back => format!("going back from revision {} to {}", r.to, r.from),
    }
}

/// `0`, `0.25`, `12.4`, `1,240`: no more digits than mean something.
pub fn rate(per_second: f64) -> String {
    match per_second {
        n if n <= 0.0 => "0".to_owned(),
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 1000.0 => format!("{n:.1}"),
        n => super::thousands(n.round() as u64),
    }
}

/// A part of one. Few failures of many requests are not none.
pub fn percent(part: f64) -> String {
    match part * 100.0 {
        p if p <= 0.0 => "0%".to_owned(),
        p if p < 0.1 => "<0.1%".to_owned(),
        p => format!("{p:.1}%"),
    }
}

pub fn latency(span: Option<Span>) -> String {
    match span {
        None => "-".to_owned(),
        Some(span) if span.0 < 10_000 => format!("{}ms", span.0),
        Some(span) => time::short(span),
    }
}

#[cfg(test)]
pub mod tests {
    use tutti_model::{RoutePolicy, Time};
    use tutti_wire::api::Figures;

    use super::*;

    pub fn row(name: &str, state: EndpointState) -> EndpointRow {
        EndpointRow {
            name: name.to_owned(),
            user: "ada".into(),
            team: "default".into(),
            state,
            revision: 3,
            rollout: None,
            ready: 2,
            want: 2,
            min: 1,
            max: 8,
            gpus_per_replica: 4,
            policy: RoutePolicy::Prefix,
            models: Vec::new(),
            router_count: 1,
            in_flight: 5,
            queued: 0,
            figures: Figures {
                requests_per_second: 12.44,
                output_tokens_per_second: 1800.0,
                first_byte_p50: Some(Span(120)),
                first_byte_p95: Some(Span(340)),
                ..Figures::default()
            },
            created_at: Time(0),
        }
    }

    #[test]
    fn endpoints_are_listed_with_how_they_do() {
        let rollout = Rollout {
            from: 3,
            to: 4,
            began_at: Time(0),
            stage: RolloutStage::Canary { percent: 10, since: Some(Time(1)) },
        };
        let mut asleep = row("embed", EndpointState::Asleep);
        (asleep.ready, asleep.want, asleep.min, asleep.in_flight) = (0, 0, 0, 0);
        asleep.figures = Figures { errors: 0.0004, ..Figures::default() };
        asleep.models = vec!["bge-m3".into()];
        let busy = EndpointRow { rollout: Some(rollout), ..row("chat", EndpointState::Ready) };
        assert_eq!(
            table(&[busy, asleep], Style::PLAIN, None),
            "NAME   STATE   READY  BOUNDS  REV  REQ/S  ERRORS  TTFB P50    P95  IN FLIGHT  QUEUED  NOTE
chat   ready     2/2    1..8    3   12.4      0%     120ms  340ms          5       0  revision 4 gets 10% and is looked at
embed  asleep    0/0    0..8    3      0   <0.1%         -      -          0       0  also bge-m3
2 endpoints, 2 replicas on 8 GPUs, 12.4 requests/s"
        );
        assert_eq!(table(&[], Style::PLAIN, None), NONE);
        let alone = EndpointRow { router_count: 0, ..row("chat", EndpointState::Ready) };
        let text = table(&[alone], Style::PLAIN, None);
        assert_eq!(text.lines().last(), Some(NO_ROUTER));
    }

    #[test]
    fn figures_have_no_more_digits_than_mean_something() {
        assert_eq!([0.0, 0.25, 12.44, 1240.4].map(rate), ["0", "0.25", "12.4", "1,240"]);
        assert_eq!([0.0, 0.0004, 0.0123, 1.0].map(percent), ["0%", "<0.1%", "1.2%", "100.0%"]);
        let spans = [None, Some(Span(340)), Some(Span(61_500))].map(latency);
        assert_eq!(spans, ["-", "340ms", "1m1s"]);
    }
}
