//! Who had which GPU when.

use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use tutti_model::{TaskId, Time};

use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// Rows of the table; the picture has all.
const LISTED: usize = 200;

/// Bars are sent by the hour of the day in which they began, so that what changes is in few of these.
/// In the order of names they come before the picture's frame, with which it is drawn.
const HOURS: [&str; 24] = [
    "bars-00", "bars-01", "bars-02", "bars-03", "bars-04", "bars-05", "bars-06", "bars-07",
    "bars-08", "bars-09", "bars-10", "bars-11", "bars-12", "bars-13", "bars-14", "bars-15",
    "bars-16", "bars-17", "bars-18", "bars-19", "bars-20", "bars-21", "bars-22", "bars-23",
];

#[derive(Clone, Debug, Default)]
pub struct View {
    pub from: Time,
    /// Node names, in the order of the picture, with how many GPUs each has.
    pub nodes: Vec<(String, u16)>,
    /// Oldest first.
    pub bars: Vec<Bar>,
    /// Older ones that are too many to draw.
    pub left_out: usize,
    /// There were others before, which nobody remembers.
    pub forgot: bool,
}

/// One attempt on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    pub task: TaskId,
    pub name: String,
    pub user: String,
    /// Its place in `nodes`.
    pub node: usize,
    pub gpus: Vec<u16>,
    pub from: Time,
    /// None: it goes on.
    pub until: Option<Time>,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    Open = 0,
    Completed = 1,
    Failed = 2,
    Cancelled = 3,
    /// It came back, or waits to.
    Requeued = 4,
}

impl End {
    fn words(self) -> Markup {
        match self {
            End::Open => words::badge("running", "●", "goes on"),
            End::Completed => words::badge("completed", "✓", "completed"),
            End::Failed => words::badge("failed", "✕", "failed"),
            End::Cancelled => words::badge("cancelled", "⊘", "cancelled"),
            End::Requeued => words::badge("stopping", "↻", "to be started again"),
        }
    }
}

/// Job, node, GPUs, from, until (0: open), end.
type SentBar<'a> = (usize, usize, &'a [u16], u64, u64, u8);

/// What bars are drawn into; times are seconds.
#[derive(Serialize)]
struct Frame<'a> {
    from: u64,
    nodes: Vec<(&'a str, u16)>,
}

/// Bars as they are sent: seconds, and jobs named once.
#[derive(Serialize)]
struct Sent<'a> {
    jobs: Vec<(String, &'a str, &'a str)>,
    bars: Vec<SentBar<'a>>,
}

fn seconds(at: Time) -> u64 {
    at.0 / 1000
}

impl View {
    pub fn shown(&self) -> Shown {
        let nodes = self.nodes.iter().map(|(name, gpus)| (name.as_str(), *gpus)).collect();
        let shown = Shown::default()
            .region("left-out", self.note())
            .table("bars", self.rows())
            .chart("gantt", &Frame { from: seconds(self.from), nodes });
        let of_hour = |shown: Shown, (hour, name): (usize, &'static str)| {
            let began = |bar: &&Bar| (seconds(bar.from) / 3600 % 24) as usize == hour;
            shown.chart(name, &sent(self.bars.iter().filter(began)))
        };
        HOURS.into_iter().enumerate().fold(shown, of_hour)
    }

    /// The newest ones in words.
    fn rows(&self) -> Vec<Row> {
        self.bars.iter().rev().take(LISTED).map(|bar| self.row(bar)).collect()
    }

    fn row(&self, bar: &Bar) -> Row {
        let node = self.nodes.get(bar.node).map_or("", |(name, _)| name);
        let key = format!("{}/{}/{node}", bar.task, bar.from.0);
        let row = html! {
            tr data-key=(key) {
                td { (words::job_link(bar.task)) } td { (bar.name) }
                td { @if !node.is_empty() { (words::node_link(node)) } }
                td { (gpus(&bar.gpus)) }
                td.n { (words::when(bar.from)) }
                td.n { @if let Some(until) = bar.until { (words::when(until)) } @else { "now" } }
                td { (bar.end.words()) }
            }
        };
        Row { key, html: row.into_string() }
    }

    fn table(&self) -> Markup {
        html! {
            details {
                summary { "The same as a table: the newest " (LISTED) " at most" }
                div.scroll tabindex="0" role="region" aria-label="Attempts by node" {
                    table #bars data-testid="bars" {
                        thead { tr {
                            th scope="col" { "Job" } th scope="col" { "Name" }
                            th scope="col" { "Node" } th scope="col" { "GPUs" }
                            th.n scope="col" { "From" } th.n scope="col" { "Until" }
                            th scope="col" { "How" }
                        } }
                        tbody { @for row in self.rows() { (PreEscaped(row.html)) } }
                    }
                }
            }
        }
    }

    fn note(&self) -> Markup {
        html! {
            @if self.left_out > 0 {
                p.note {
                    "Not drawn: " (words::count(self.left_out as u64, "older bar")) " of these days."
                }
            }
            @if self.forgot {
                p.note { "Attempts that are older than the oldest shown are not kept." }
            }
        }
    }
}

fn sent<'a>(bars: impl Iterator<Item = &'a Bar>) -> Sent<'a> {
    let bars: Vec<&Bar> = bars.collect();
    let mut ids: Vec<TaskId> = bars.iter().map(|bar| bar.task).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut jobs: Vec<(String, &str, &str)> =
        ids.iter().map(|id| (id.to_string(), "", "")).collect();
    let place = |task: TaskId| ids.binary_search(&task).unwrap_or_default();
    for bar in &bars {
        let job = &mut jobs[place(bar.task)];
        (job.1, job.2) = (&bar.name, &bar.user);
    }
    let bars = bars.into_iter().map(|bar| {
        let until = bar.until.map_or(0, seconds);
        let (job, from) = (place(bar.task), seconds(bar.from));
        (job, bar.node, bar.gpus.as_slice(), from, until, bar.end as u8)
    });
    Sent { bars: bars.collect(), jobs }
}

fn gpus(gpus: &[u16]) -> String {
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let body = html! {
        div.title {
            h1 { "Timeline" }
            p.legend {
                span { i.running {} "goes on" } span { i.completed {} "over" }
                span { i.failed {} "failed" } span { i.requeued {} "to be started again" }
            }
        }
        section.panel {
            div.bar {
                div.modes role="group" aria-label="Time shown" data-testid="zoom" {
                    @for (hours, name) in [("1", "1 h"), ("6", "6 h"), ("24", "1 d"), ("168", "7 d")] {
                        button type="button" data-hours=(hours) { (name) }
                    }
                    button type="button" data-zoom="in" aria-label="Closer" { "+" }
                    button type="button" data-zoom="out" aria-label="Further" { "−" }
                }
                p.sub { "Drag to move, Ctrl and wheel to zoom." }
            }
            div #gantt.gantt tabindex="0" role="application" data-chart="gantt" data-testid="gantt"
                aria-label="Who had which GPU when. Left and right move in time, plus and minus zoom. The table below says the same." {
                div.tall { canvas aria-hidden="true" {} }
            }
            p #bar.cell { "Point at a bar." }
            (region("left-out", &view.note()))
            (view.table())
        }
    };
    let live = Some("page=timeline".to_owned());
    document(reader, &Page { tab: Tab::Timeline, title: "Timeline", live, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::tests::reader;
    use tutti_model::{JobId, Role};

    fn bar(job: u64, node: usize, from: u64, until: Option<u64>, end: End) -> Bar {
        Bar {
            task: TaskId::single(JobId(job)),
            name: format!("job<{job}>"),
            user: "ada".into(),
            node,
            gpus: vec![0, 1],
            from: Time(from),
            until: until.map(Time),
            end,
        }
    }

    fn view(bars: Vec<Bar>) -> View {
        let nodes = vec![("n1".into(), 8), ("n2".into(), 8)];
        View { from: Time(0), nodes, bars, left_out: 0, forgot: false }
    }

    fn json(view: &View, chart: &str) -> serde_json::Value {
        serde_json::from_str(&view.shown().series[chart]).unwrap()
    }

    #[test]
    fn jobs_are_named_once_and_times_are_seconds() {
        let view = view(vec![
            bar(9, 0, 10_000, None, End::Open),
            bar(9, 1, 10_000, None, End::Open),
            bar(4, 0, 10_000, Some(30_000), End::Failed),
        ]);
        let sent = json(&view, "bars-00");
        assert_eq!(
            sent["jobs"],
            serde_json::json!([["4", "job<4>", "ada"], ["9", "job<9>", "ada"]])
        );
        assert_eq!(sent["bars"][1], serde_json::json!([1, 1, [0, 1], 10, 0, 0]));
        assert_eq!(sent["bars"][2], serde_json::json!([0, 0, [0, 1], 10, 30, 2]));
        assert_eq!(json(&view, "gantt")["nodes"], serde_json::json!([["n1", 8], ["n2", 8]]));
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("job&lt;4&gt;") && text.contains("goes on"), "{text}");
    }

    #[test]
    fn an_end_sends_its_hour_and_not_the_others() {
        let hour = 3_600_000;
        let open = bar(9, 1, 25 * hour, None, End::Open);
        let ended = Bar { until: Some(Time(26 * hour)), end: End::Completed, ..open.clone() };
        let old = bar(4, 0, 7 * hour, Some(8 * hour), End::Completed);
        let (before, after) = (view(vec![old.clone(), open]), view(vec![old, ended]));
        let changes = after.shown().changes(Some(&before.shown()));
        let charts: Vec<_> = changes.iter().filter(|event| event.name == "series").collect();
        assert_eq!(charts.len(), 1, "{changes:?}");
        assert!(charts[0].data.contains("bars-01"), "{}", charts[0].data);
        let last = *HOURS.iter().max().unwrap();
        assert!(last < "gantt", "the frame comes when all bars are there");
    }

    #[test]
    fn what_is_left_out_is_said() {
        let page_of = |view: &View| page(&reader(Role::Viewer), view).into_string();
        let few = view(Vec::new());
        assert!(!page_of(&few).contains("Not drawn") && !page_of(&few).contains("not kept"));
        let many = View { left_out: 1200, forgot: true, ..few };
        let text = page_of(&many);
        assert!(text.contains("1,200 older bars of these days") && text.contains("not kept"));
        assert!(text.contains(&many.shown().regions["left-out"]), "{text}");
    }
}
