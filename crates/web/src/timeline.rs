//! Who had which GPU when.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};
use tutti_model::{TaskId, Time};

use crate::gantt::Gantt;
use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// Rows of the table; the picture has all.
const LISTED: usize = 200;
/// Lanes of a node for what has no GPU: of more at once the picture would have little room left for others.
const PLAIN_LANES: usize = 8;

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
    /// In the order of their numbers.
    const ALL: [End; 5] = [End::Open, End::Completed, End::Failed, End::Cancelled, End::Requeued];

    /// Of its mark in the legend, whose colour its bars have.
    fn class(self) -> &'static str {
        match self {
            End::Open => "running",
            End::Completed => "completed",
            End::Failed => "failed",
            End::Cancelled => "cancelled",
            End::Requeued => "requeued",
        }
    }

    fn legend(self) -> &'static str {
        match self {
            End::Open => "goes on",
            End::Completed => "completed",
            End::Failed => "failed",
            End::Cancelled => "cancelled",
            End::Requeued => "to be started again",
        }
    }

    fn words(self) -> Markup {
        match self {
            End::Open => words::badge("running", "●", self.legend()),
            End::Completed => words::badge("completed", "✓", self.legend()),
            End::Failed => words::badge("failed", "✕", self.legend()),
            End::Cancelled => words::badge("cancelled", "⊘", self.legend()),
            End::Requeued => words::badge("stopping", "↻", self.legend()),
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
        let plain = Plain::of(&self.bars);
        let bars = self.bars.iter().enumerate().filter_map(|(at, bar)| {
            let lanes = self.lanes(bar, plain.lanes.get(&at).copied())?;
            let key = (bar.task, bar.node, seconds(bar.from));
            Some((key, (lanes, bar.until.map_or(0, seconds), bar.end as u8)))
        });
        let lanes = |(at, (name, gpus)): (usize, &(String, u16))| {
            let plain = plain.used.get(&at).copied().unwrap_or_default();
            (name.clone(), *gpus, (gpus + plain).max(1))
        };
        Gantt {
            from: seconds(self.from),
            nodes: self.nodes.iter().enumerate().map(lanes).collect(),
            jobs: self.bars.iter().map(job).collect(),
            bars: bars.collect(),
            more: plain.more,
        }
    }

    /// What has no GPU has a lane below those of the GPUs: it has none of theirs. None if there is no lane left.
    fn lanes(&self, bar: &Bar, plain: Option<u16>) -> Option<Vec<u16>> {
        match self.nodes.get(bar.node) {
            Some((_, gpus)) if bar.gpus.is_empty() => Some(vec![gpus + plain?]),
            _ => Some(bar.gpus.clone()),
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
            @let more = Plain::of(&self.bars).more.values().sum::<usize>();
            @if more > 0 {
                p.note {
                    "Not drawn: " (words::count(more as u64, "bar")) " without a GPU, beside "
                    (PLAIN_LANES) " others on the same node at the same time."
                }
            }
            @if self.forgot {
                p.note { "Attempts that are older than the oldest shown are not kept." }
            }
        }
    }
}

/// Where bars without a GPU are: beside each other while they are there at once, in the first lane that is free.
#[derive(Debug, Default)]
struct Plain {
    /// Of bars by their place.
    lanes: BTreeMap<usize, u16>,
    /// Lanes of each node, and bars of it that have none.
    used: BTreeMap<usize, u16>,
    more: BTreeMap<usize, usize>,
}

impl Plain {
    /// In the order in which they began: so none changes its lane because another begins or ends.
    fn of(bars: &[Bar]) -> Plain {
        let mut order: Vec<usize> =
            (0..bars.len()).filter(|at| bars[*at].gpus.is_empty()).collect();
        order.sort_by_key(|at| (bars[*at].from, bars[*at].task));
        let mut plain = Plain::default();
        // Of each node, until when each of its lanes is taken.
        let mut taken: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for at in order {
            let bar = &bars[at];
            let from = seconds(bar.from);
            // The picture knows seconds: what was shorter takes one.
            let until = bar.until.map_or(u64::MAX, |until| seconds(until).max(from + 1));
            let ends = taken.entry(bar.node).or_default();
            match ends.iter().position(|end| *end <= from) {
                Some(lane) => {
                    ends[lane] = until;
                    plain.lanes.insert(at, lane as u16);
                }
                None if ends.len() < PLAIN_LANES => {
                    plain.lanes.insert(at, ends.len() as u16);
                    ends.push(until);
                }
                None => *plain.more.entry(bar.node).or_default() += 1,
            }
        }
        plain.used = taken.into_iter().map(|(node, ends)| (node, ends.len() as u16)).collect();
        plain
    }
}

fn gpus(gpus: &[u16]) -> String {
    if gpus.is_empty() {
        return "none".to_owned();
    }
    gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let body = html! {
        div.title {
            h1 { "Timeline" }
            p.legend #ends data-testid="legend" {
                @for end in End::ALL { span { i class=(end.class()) {} (end.legend()) } }
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
    fn what_has_no_gpu_is_in_no_gpu_s_lane() {
        let plain = Bar { gpus: Vec::new(), ..bar(5, 0, 10_000, None, End::Open) };
        let elsewhere = Bar { gpus: Vec::new(), ..bar(6, 2, 10_000, None, End::Open) };
        let mut view = view(vec![bar(9, 0, 10_000, None, End::Open), plain, elsewhere]);
        view.nodes.push(("cpu".into(), 0));
        let gantt = view.gantt();
        assert_eq!(gantt.nodes.iter().map(|node| node.2).collect::<Vec<_>>(), [9, 8, 1]);
        let lanes = |job, node| &gantt.bars[&(TaskId::single(JobId(job)), node, 10)].0;
        assert_eq!((lanes(9, 0), lanes(5, 0), lanes(6, 2)), (&vec![0, 1], &vec![8], &vec![0]));
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("<td>none</td>"), "{text}");
    }

    fn plain(job: u64, from: u64, until: Option<u64>) -> Bar {
        Bar { gpus: Vec::new(), ..bar(job, 0, from, until, End::Open) }
    }

    #[test]
    fn what_has_no_gpu_and_is_there_at_once_is_drawn_side_by_side() {
        // As attempts are told: those that are over first, by their ends.
        let bars = vec![
            plain(2, 12_000, Some(20_000)),
            plain(4, 20_000, Some(25_000)),
            plain(1, 10_000, Some(30_000)),
            plain(3, 15_000, None),
            plain(5, 31_000, None),
        ];
        let lanes = |bars: &[Bar]| {
            let gantt = view(bars.to_vec()).gantt();
            let of = |bar: &Bar| gantt.bars[&(bar.task, 0, bar.from.0 / 1000)].0[0];
            (bars.iter().map(of).collect::<Vec<_>>(), gantt.nodes[0].2)
        };
        assert_eq!(lanes(&bars), (vec![9, 9, 8, 10, 8], 11));
        assert_eq!(lanes(&bars[..4]).0, [9, 9, 8, 10], "none moves because another comes");
        let short = [plain(1, 10_100, Some(10_200)), plain(2, 10_300, Some(10_400))];
        assert_eq!(lanes(&short).0, [8, 9], "in the same second they would look like one");
    }

    #[test]
    fn what_has_no_lane_is_counted_and_in_the_table() {
        let many = PLAIN_LANES as u64 + 3;
        let view = view((1..=many).map(|job| plain(job, job * 1000, None)).collect());
        let gantt = view.gantt();
        assert_eq!((gantt.bars.len(), gantt.nodes[0].2), (PLAIN_LANES, 8 + PLAIN_LANES as u16));
        assert_eq!(gantt.more, BTreeMap::from([(0, 3)]));
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("Not drawn: 3 bars without a GPU, beside 8 others"), "{text}");
        assert!((1..=many).all(|job| text.contains(&format!("href=\"/jobs/{job}\""))), "{text}");
        // One that is too old to be drawn makes room for another.
        let mut after = view.clone();
        after.bars.remove(0);
        let changes = after.shown().changes(Some(&view.shown()));
        let bars = changes.iter().find(|event| event.name == "bars").expect("no new picture");
        assert!(bars.data.contains("\"more\":{\"0\":2}"), "{}", bars.data);
    }

    /// Bars have the colours of the marks in the legend: the script reads them there, in this order.
    #[test]
    fn every_end_is_in_the_legend_with_a_colour_of_its_own() {
        let text = page(&reader(Role::Viewer), &view(Vec::new())).into_string();
        let style = include_str!("../assets/app.css");
        let mut at = text.find("id=\"ends\"").expect("a legend");
        let mut colours = std::collections::BTreeSet::new();
        for (number, end) in End::ALL.into_iter().enumerate() {
            assert_eq!(number, end as usize);
            let mark = format!("<i class=\"{}\"></i>{}</span>", end.class(), end.legend());
            at += text[at..].find(&mark).unwrap_or_else(|| panic!("{mark} in its turn: {text}"));
            let rule = format!("i.{} {{", end.class());
            let from = style.find(&rule).unwrap_or_else(|| panic!("{rule} in the style sheet"));
            let colour = style[from..].split_once("background: ").unwrap().1;
            colours.insert(colour.split([';', ' ']).next().unwrap());
        }
        assert_eq!(colours.len(), End::ALL.len(), "{colours:?}");
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
