//! What became of a job, drawn over time and told in order.

use maud::{Markup, html};
use tutti_model::{JobState, Time};
use tutti_wire::api::{ArrayCounts, JobRow};

use crate::words;

/// Failed tasks of an array that are named; more are counted.
const FAILED_NAMED: usize = 20;

/// One attempt: where it was and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// Counts from 1; none where it is not known any more.
    pub attempt: Option<u32>,
    pub nodes: Vec<String>,
    pub placed: Time,
    pub running: Option<Time>,
    pub ended: Option<Time>,
    /// When it gave its GPUs up, and until when.
    pub naps: Vec<(Time, Option<Time>)>,
    /// How it ended, in words; empty while it goes on.
    pub how: String,
    pub tone: Tone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Bad => "bad",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Tone::Plain => "·",
            Tone::Good => "✓",
            Tone::Bad => "✕",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    pub at: Time,
    pub tone: Tone,
    pub text: String,
}

const WIDTH: f64 = 1000.0;

/// A stretch of the picture.
struct Piece {
    from: Time,
    until: Time,
    class: &'static str,
}

fn pieces(submitted: Time, until: Time, stays: &[Stay]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = submitted;
    for stay in stays {
        pieces.push(Piece { from: at, until: stay.placed, class: "pending" });
        let end = stay.ended.unwrap_or(until);
        let running = stay.running.unwrap_or(end);
        pieces.push(Piece { from: stay.placed, until: running, class: "starting" });
        let class = if stay.tone == Tone::Bad { "running bad" } else { "running" };
        pieces.push(Piece { from: running, until: end, class });
        for (from, back) in &stay.naps {
            pieces.push(Piece { from: *from, until: back.unwrap_or(end), class: "suspended" });
        }
        at = end;
    }
    if stays.last().is_none_or(|stay| stay.ended.is_some()) {
        pieces.push(Piece { from: at, until, class: "pending" });
    }
    pieces.retain(|piece| piece.until > piece.from);
    pieces
}

pub fn draw(submitted: Time, until: Time, stays: &[Stay], moments: &[Moment]) -> Markup {
    let whole = until.since(submitted).0.max(1) as f64;
    let x = |at: Time| at.since(submitted).0 as f64 / whole * WIDTH;
    html! {
        section.panel aria-labelledby="story-title" data-testid="story" {
            h2 #story-title { "What became of it" }
            svg.strip viewBox={ "0 0 " (WIDTH) " 22" } preserveAspectRatio="none"
                aria-hidden="true" {
                @for piece in pieces(submitted, until, stays) {
                    rect class=(piece.class) x=(format!("{:.1}", x(piece.from))) y="3" height="16"
                        width=(format!("{:.1}", (x(piece.until) - x(piece.from)).max(1.0))) {}
                }
                @for stay in stays.iter().skip(1) {
                    rect.cut x=(format!("{:.1}", x(stay.placed))) y="0" width="1.5" height="22" {}
                }
            }
            div.ends { (words::when(submitted)) (words::when(until)) }
            p.legend aria-hidden="true" {
                span { i.pending {} "waits" } span { i.starting {} "starts" }
                span { i.running {} "runs" }
                span { i.suspended {} "suspended" }
            }
            @if !stays.is_empty() { (attempts(stays)) }
            (told(moments))
        }
    }
}

fn told(moments: &[Moment]) -> Markup {
    html! {
        @if !moments.is_empty() {
            ol.moments { @for moment in moments {
                li class=(moment.tone.class()) {
                    (words::when(moment.at)) " "
                    span.sign aria-hidden="true" { (moment.tone.sign()) } " " (moment.text)
                }
            } }
        }
    }
}

/// How many tasks of an array are in which state, what went wrong first.
fn shares(counts: &ArrayCounts) -> Vec<(JobState, u64)> {
    let all = [
        (JobState::Failed, counts.failed),
        (JobState::Completed, counts.completed),
        (JobState::Cancelled, counts.cancelled),
        (JobState::Running, counts.running),
        (JobState::Suspended, counts.suspended),
        (JobState::Pending, counts.pending),
    ];
    all.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Of a whole array: its tasks have attempts, and it has none of its own. `tasks` are those that are
/// known, in any state.
pub fn of_array(
    job: &JobRow,
    counts: &ArrayCounts,
    tasks: &[JobRow],
    moments: &[Moment],
) -> Markup {
    let shares = shares(counts);
    let all = shares.iter().map(|(_, n)| n).sum::<u64>().max(1) as f64;
    let wide = |n: u64| n as f64 / all * WIDTH;
    let starts = shares.iter().scan(0.0, |at, (_, n)| {
        *at += wide(*n);
        Some(*at - wide(*n))
    });
    html! {
        section.panel aria-labelledby="story-title" data-testid="story" {
            h2 #story-title { "What became of it" }
            svg.strip viewBox={ "0 0 " (WIDTH) " 22" } preserveAspectRatio="none"
                aria-hidden="true" {
                @for (x, (state, n)) in starts.zip(&shares) {
                    rect class=(state.as_str()) x=(format!("{x:.1}")) y="3" height="16"
                        width=(format!("{:.1}", wide(*n).max(1.0))) {}
                }
            }
            ul.chips data-testid="outcomes" aria-label="Tasks by state" {
                @for (state, n) in &shares {
                    li { b { (words::number(*n)) } " " (words::job_state(*state)) }
                }
            }
            (failed(job, counts.failed, tasks))
            (told(moments))
        }
    }
}

/// Which tasks failed and how: the first few, and how to see all.
fn failed(job: &JobRow, count: u64, tasks: &[JobRow]) -> Markup {
    let mut failed: Vec<&JobRow> = tasks.iter().filter(|t| t.state == JobState::Failed).collect();
    failed.sort_by_key(|task| task.id);
    failed.truncate(FAILED_NAMED);
    let more = count.saturating_sub(failed.len() as u64);
    html! {
        @if count > 0 {
            p data-testid="failed" {
                @if !failed.is_empty() { "Failed: " }
                @for (i, task) in failed.iter().enumerate() {
                    @if i > 0 { ", " }
                    (words::job_link(task.id))
                    @if let Some(how) = how_failed(task) { span.sub { " (" (how) ")" } }
                }
                @if more > 0 {
                    @if !failed.is_empty() { " and " (words::number(more)) " more" }
                    @else { (words::count(more, "task")) " failed" }
                    ": " code { "tutti ps --tasks " (job.id) " --state failed" } " lists all"
                }
                "."
            }
        }
    }
}

fn how_failed(task: &JobRow) -> Option<String> {
    match task.exit_code {
        Some(code) => Some(format!("exit {code}")),
        None => (!task.note.is_empty()).then(|| task.note.clone()),
    }
}

fn attempts(stays: &[Stay]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Attempts" {
            table.attempts data-testid="attempts" {
                thead { tr {
                    th.n scope="col" { "Attempt" } th.n scope="col" { "Placed" }
                    th.n scope="col" { "Ran" }
                    th scope="col" { "Nodes" } th scope="col" { "How it ended" }
                } }
                tbody { @for stay in stays { tr {
                    td.n { @if let Some(n) = stay.attempt { (n) } @else { "–" } }
                    td.n { (words::when(stay.placed)) }
                    td.n { @match (stay.running, stay.ended) {
                        (Some(from), Some(end)) => (words::span(end.since(from))),
                        (Some(from), None) => (words::ago(from)),
                        (None, _) => "–",
                    } }
                    td { (nodes(&stay.nodes)) }
                    td class=(stay.tone.class()) {
                        @if stay.ended.is_none() { "goes on" } @else {
                            span.sign aria-hidden="true" { (stay.tone.sign()) } " " (stay.how)
                        }
                        @if !stay.naps.is_empty() {
                            span.sub {
                                " suspended " (words::count(stay.naps.len() as u64, "time"))
                            }
                        }
                    }
                } } }
            }
        }
    }
}

fn nodes(names: &[String]) -> String {
    match names {
        [] => "–".to_owned(),
        few if few.len() <= 4 => few.join(", "),
        [first, second, .., last] => format!("{first}, {second} … {last} ({})", names.len()),
        rest => rest.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(placed: u64, running: u64, ended: Option<u64>) -> Stay {
        Stay {
            attempt: Some(1),
            nodes: vec!["n1".into()],
            placed: Time(placed),
            running: Some(Time(running)),
            ended: ended.map(Time),
            naps: Vec::new(),
            how: String::new(),
            tone: Tone::Plain,
        }
    }

    fn classes(stays: &[Stay], until: u64) -> Vec<(&'static str, u64, u64)> {
        let pieces = pieces(Time(0), Time(until), stays);
        pieces.iter().map(|p| (p.class, p.from.0, p.until.0)).collect()
    }

    #[test]
    fn time_is_covered_without_gaps() {
        assert_eq!(classes(&[], 9), [("pending", 0, 9)]);
        let first = Stay { tone: Tone::Bad, ..stay(10, 12, Some(40)) };
        let second = Stay { naps: vec![(Time(60), Some(Time(70)))], ..stay(50, 51, None) };
        let all = [
            ("pending", 0, 10),
            ("starting", 10, 12),
            ("running bad", 12, 40),
            ("pending", 40, 50),
            ("starting", 50, 51),
            ("running", 51, 100),
            ("suspended", 60, 70),
        ];
        assert_eq!(classes(&[first, second], 100), all);
    }

    #[test]
    fn causes_are_told() {
        let lost = Stay { tone: Tone::Bad, how: "n1 was lost".into(), ..stay(10, 12, Some(40)) };
        let moment = Moment { at: Time(5), tone: Tone::Plain, text: "held by ada".into() };
        let text = draw(Time(0), Time(100), &[lost], &[moment]).into_string();
        assert!(text.contains("n1 was lost") && text.contains("held by ada"), "{text}");
        assert!(!text.contains("style="));
    }

    #[test]
    fn many_nodes_are_counted() {
        let names: Vec<String> = (1..=64).map(|n| format!("n{n}")).collect();
        assert_eq!(nodes(&names), "n1, n2 … n64 (64)");
        assert_eq!(nodes(&names[..2]), "n1, n2");
    }
}
