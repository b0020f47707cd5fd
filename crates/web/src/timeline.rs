//! Who had which GPU when.

use maud::{Markup, PreEscaped, html};
use tutti_model::{TaskId, Time};

use crate::gantt::Gantt;
use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// Rows of the table; the picture has all.
const LISTED: usize = 200;

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

fn seconds(at: Time) -> u64 {
    at.0 / 1000
}

impl View {
    pub fn shown(&self) -> Shown {
        let shown = Shown::default().region("left-out", self.note()).table("bars", self.rows());
        Shown { gantt: Some(self.gantt()), ..shown }
    }

    fn gantt(&self) -> Gantt {
        let job = |bar: &Bar| (bar.task, (bar.name.clone(), bar.user.clone()));
        let sent = |bar: &Bar| {
            let until = bar.until.map_or(0, seconds);
            ((bar.task, bar.node, seconds(bar.from)), (bar.gpus.clone(), until, bar.end as u8))
        };
        Gantt {
            from: seconds(self.from),
            nodes: self.nodes.clone(),
            jobs: self.bars.iter().map(job).collect(),
            bars: self.bars.iter().map(sent).collect(),
        }
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
            div #gantt.gantt tabindex="0" role="application" data-testid="gantt"
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

    #[test]
    fn the_picture_has_seconds_and_each_job_once() {
        let view = view(vec![
            bar(9, 0, 10_000, None, End::Open),
            bar(9, 1, 10_000, None, End::Open),
            bar(4, 0, 10_000, Some(30_000), End::Failed),
        ]);
        let gantt = view.shown().gantt.unwrap();
        assert_eq!((gantt.jobs.len(), gantt.bars.len()), (2, 3));
        let failed = (TaskId::single(JobId(4)), 0, 10);
        assert_eq!(gantt.bars[&failed], (vec![0, 1], 30, End::Failed as u8));
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("job&lt;4&gt;") && text.contains("goes on"), "{text}");
    }

    #[test]
    fn an_end_sends_its_bar_and_no_other() {
        let open = bar(9, 1, 25_000, None, End::Open);
        let ended = Bar { until: Some(Time(26_000)), end: End::Completed, ..open.clone() };
        let old = bar(4, 0, 7_000, Some(8_000), End::Completed);
        let (before, after) = (view(vec![old.clone(), open]), view(vec![old, ended]));
        let changes = after.shown().changes(Some(&before.shown()));
        let names: Vec<_> = changes.iter().map(|event| event.name).collect();
        assert_eq!(names, ["rows", "bars"]);
        assert!(changes[1].data.contains("\"9\"") && !changes[1].data.contains("\"4\""));
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
