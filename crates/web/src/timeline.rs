//! Who had which GPU when.

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::{TaskId, Time};

use crate::live::Shown;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// Rows of the table; the picture has all.
const LISTED: usize = 200;

#[derive(Clone, Debug, Default)]
pub struct View {
    pub from: Time,
    pub until: Time,
    /// Node names, in the order of the picture, with how many GPUs each has.
    pub nodes: Vec<(String, u16)>,
    pub bars: Vec<Bar>,
    /// Older ones are left out.
    pub more: bool,
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

/// As the picture is sent: seconds, and jobs named once.
#[derive(Serialize)]
struct Sent<'a> {
    from: u64,
    until: u64,
    nodes: Vec<(&'a str, u16)>,
    jobs: Vec<(String, &'a str, &'a str)>,
    bars: Vec<SentBar<'a>>,
}

impl View {
    pub fn shown(&self) -> Shown {
        Shown::default().region("listed", self.listed()).chart("gantt", &self.sent())
    }

    fn sent(&self) -> Sent<'_> {
        let mut ids: Vec<TaskId> = self.bars.iter().map(|bar| bar.task).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut jobs: Vec<(String, &str, &str)> =
            ids.iter().map(|id| (id.to_string(), "", "")).collect();
        let place = |task: TaskId| ids.binary_search(&task).unwrap_or_default();
        for bar in &self.bars {
            let job = &mut jobs[place(bar.task)];
            (job.1, job.2) = (&bar.name, &bar.user);
        }
        let seconds = |at: Time| at.0 / 1000;
        let sent = |bar: &Bar| {
            let until = bar.until.map_or(0, seconds);
            (place(bar.task), bar.node, seconds(bar.from), until, bar.end as u8)
        };
        let bars = self.bars.iter().map(|bar| {
            let (job, node, from, until, end) = sent(bar);
            (job, node, bar.gpus.as_slice(), from, until, end)
        });
        Sent {
            from: seconds(self.from),
            until: seconds(self.until),
            nodes: self.nodes.iter().map(|(name, gpus)| (name.as_str(), *gpus)).collect(),
            bars: bars.collect(),
            jobs,
        }
    }

    fn listed(&self) -> Markup {
        let newest = self.bars.iter().rev().take(LISTED);
        html! {
            details {
                summary { "The same as a table: the newest " (self.bars.len().min(LISTED)) }
                div.scroll tabindex="0" role="region" aria-label="Attempts by node" {
                    table data-testid="bars" {
                        thead { tr {
                            th scope="col" { "Job" } th scope="col" { "Name" }
                            th scope="col" { "Node" } th scope="col" { "GPUs" }
                            th.n scope="col" { "From" } th.n scope="col" { "Until" }
                            th scope="col" { "How" }
                        } }
                        tbody { @for bar in newest { tr {
                            td { (words::job_link(bar.task)) } td { (bar.name) }
                            td {
                                @if let Some((name, _)) = self.nodes.get(bar.node) {
                                    (words::node_link(name))
                                }
                            }
                            td { (gpus(&bar.gpus)) }
                            td.n { (words::when(bar.from)) }
                            td.n {
                                @if let Some(until) = bar.until {
                                    (words::when(until))
                                } @else { "now" }
                            }
                            td { (bar.end.words()) }
                        } } }
                    }
                }
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
            div #gantt.gantt tabindex="0" role="application" data-chart="gantt" data-testid="gantt"
                aria-label="Who had which GPU when. Left and right move in time, plus and minus zoom. The table below says the same." {
                canvas aria-hidden="true" {}
            }
            p #bar.cell { "Point at a bar." }
            @if view.more {
                p.note { "Attempts that are older than the oldest shown are not kept." }
            }
            (region("listed", &view.listed()))
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

    #[test]
    fn jobs_are_named_once_and_times_are_seconds() {
        let bar = |job, node, until: Option<u64>, end| Bar {
            task: TaskId::single(JobId(job)),
            name: format!("job<{job}>"),
            user: "ada".into(),
            node,
            gpus: vec![0, 1],
            from: Time(10_000),
            until: until.map(Time),
            end,
        };
        let view = View {
            from: Time(0),
            until: Time(60_000),
            nodes: vec![("n1".into(), 8), ("n2".into(), 8)],
            bars: vec![
                bar(9, 0, None, End::Open),
                bar(9, 1, None, End::Open),
                bar(4, 0, Some(30_000), End::Failed),
            ],
            more: false,
        };
        let json: serde_json::Value = serde_json::from_str(&view.shown().series["gantt"]).unwrap();
        assert_eq!(
            json["jobs"],
            serde_json::json!([["4", "job<4>", "ada"], ["9", "job<9>", "ada"]])
        );
        assert_eq!(json["bars"][1], serde_json::json!([1, 1, [0, 1], 10, 0, 0]));
        assert_eq!(json["bars"][2], serde_json::json!([0, 0, [0, 1], 10, 30, 2]));
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("job&lt;4&gt;") && text.contains("goes on"), "{text}");
    }
}
