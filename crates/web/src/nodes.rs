//! Nodes: all of them, and one with its GPUs, its findings and its past.

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::{Finding, GpuSample, HealthAction, NodeKept, TaskId};
use tutti_wire::api::NodeRow;

use crate::job::Moment;
use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, groups, region};
use crate::words;

/// Tasks for which something of a node is kept that its row names; more are counted.
const KEPT_NAMED: usize = 2;

/// A node with what its GPUs do now.
#[derive(Clone, Debug)]
pub struct Entry {
    pub row: NodeRow,
    /// Mean activity of its GPUs, their watts, the hottest of them.
    pub activity: Option<f64>,
    pub power: Option<f64>,
    pub hottest: Option<i16>,
}

#[derive(Clone, Debug, Default)]
pub struct ListView {
    pub nodes: Vec<Entry>,
    pub query: String,
}

#[derive(Clone, Debug)]
pub struct View {
    pub entry: Entry,
    pub gpus: Vec<Card>,
    pub history: Vec<Moment>,
    pub curves: Curves,
}

/// One GPU of the node.
#[derive(Clone, Debug)]
pub struct Card {
    pub index: u16,
    pub model: String,
    pub jobs: Vec<TaskId>,
    pub sample: Option<GpuSample>,
}

/// The last hour: means over its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Seconds since 1970.
    pub t: Vec<u64>,
    /// Per cent.
    pub active: Vec<Option<f32>>,
    /// Watts of all.
    pub power: Vec<Option<f32>>,
    /// Degrees of the hottest.
    pub temp: Vec<Option<f32>>,
}

impl ListView {
    pub fn shown(&self) -> Shown {
        // The head of the page says it if all of them are.
        let mixed = self.nodes.iter().any(|entry| !entry.row.facts.simulated);
        let row = |entry: &Entry| Row {
            key: entry.row.name.clone(),
            html: list_row(entry, mixed).into_string(),
        };
        Shown::default()
            .region("nodes-note", self.note())
            .table("nodes", self.nodes.iter().map(row).collect())
    }

    fn note(&self) -> Markup {
        let ready =
            self.nodes.iter().filter(|n| n.row.state == tutti_model::NodeState::Ready).count();
        html! { p.note { (words::count(self.nodes.len() as u64, "node")) ", " (ready) " ready." } }
    }
}

fn list_row(entry: &Entry, mixed: bool) -> Markup {
    let row = &entry.row;
    html! {
        tr role="row" data-key=(row.name) data-href={ "/nodes/" (words::encoded(&row.name)) } {
            td.pick role="cell" { input type="checkbox" aria-label={ "Select node " (row.name) }; }
            td role="cell" {
                (words::node_link(&row.name))
                @if mixed && row.facts.simulated { " " (words::simulated()) }
            }
            td role="cell" { (place(row)) }
            td role="cell" { (words::node_state(row.state)) (kept(&row.kept)) }
            td role="cell" { (row.facts.gpu_model.as_deref().unwrap_or("–")) }
            td.n role="cell" data-v=(row.gpus_used) {
                (words::milli(row.gpu_milli_used)) span.sub { " of " (row.facts.gpus) }
            }
            td.n role="cell" data-v=(tens(entry.activity.map(|a| a * 1000.0))) {
                @if let Some(a) = entry.activity { (words::percent(a)) } @else { "–" }
            }
            td.n role="cell" data-v=(tens(entry.power)) {
                @if let Some(w) = entry.power { (words::watts(w)) } @else { "–" }
            }
            td.n role="cell" data-v=(entry.hottest.unwrap_or(-1)) {
                @if let Some(t) = entry.hottest { (t) " °C" } @else { "–" }
            }
            td role="cell" { (jobs(&row.jobs)) }
            td.why role="cell" { (trouble(row)) }
        }
    }
}

/// For sorting; finer steps than are shown would send rows that look the same.
fn tens(value: Option<f64>) -> i64 {
    value.map_or(-1, |value| (value / 10.0).round() as i64)
}

fn place(row: &NodeRow) -> String {
    let place = &row.place;
    [&place.site, &place.rack].into_iter().flatten().cloned().collect::<Vec<_>>().join(" / ")
}

fn jobs(jobs: &[TaskId]) -> Markup {
    html! {
        @for (i, job) in jobs.iter().take(3).enumerate() {
            @if i > 0 { ", " } (words::job_link(*job))
        }
        @if jobs.len() > 3 { span.sub { " and " (jobs.len() - 3) " more" } }
    }
}

/// `8 kept for job 12`, beside a state that would let people think that they are there for all.
fn kept(kept: &[NodeKept]) -> Markup {
    html! {
        @for kept in kept.iter().take(KEPT_NAMED) {
            " " span.sub.kept data-testid="kept" {
                @if kept.gpus > 0 { (words::count(kept.gpus.into(), "GPU")) " " }
                "kept for job " (words::job_link(kept.task))
            }
        }
        @if kept.len() > KEPT_NAMED {
            span.sub { " and " (words::count((kept.len() - KEPT_NAMED) as u64, "other job")) }
        }
    }
}

fn trouble(row: &NodeRow) -> Markup {
    html! {
        @if let Some(reason) = &row.drain_reason {
            "drained by " (row.drained_by.as_deref().unwrap_or("somebody"))
            @if !reason.is_empty() { ": " (reason) } " "
        }
        @for r in &row.reservations {
            @match &r.team {
                None => { "maintenance " (r.name) },
                Some(team) => { "reserved for team " (team) " (" (r.name) ")" },
            }
            " from " (words::when(r.from)) " until " (words::when(r.until)) " "
        }
        @if let Some(trouble) = &row.trouble { (trouble) " " }
        @if let Some(worst) = row.findings.iter().max_by_key(|f| f.action) {
            (action(worst.action)) " " (worst.text)
            @if row.findings.len() > 1 { span.sub { " and " (row.findings.len() - 1) " more" } }
        }
    }
}

fn action(action: HealthAction) -> Markup {
    let (class, sign) = match action {
        HealthAction::Note => ("held", "△"),
        HealthAction::RestartJob => ("stopping", "△"),
        _ => ("failed", "▲"),
    };
    words::badge(class, sign, action.in_words())
}

const COLUMNS: &[(&str, &str)] = &[
    ("Node", ""),
    ("Place", ""),
    ("State", ""),
    ("Model", ""),
    ("GPUs held", "n"),
    ("Activity", "n"),
    ("Power", "n"),
    ("Hottest", "n"),
    ("Jobs", ""),
    ("What is wrong", ""),
];

/// Draining is for admins.
fn tools(reader: &Reader) -> Markup {
    html! {
        div.bar.tools {
            form.filter role="search" method="get" action="/nodes" {
                label.away for="filter" { "Filter" }
                input #filter type="search" name="q" data-filter="nodes" placeholder="Filter";
            }
            @if reader.is_admin() {
                div.act role="group" aria-label="Selected nodes" data-act="nodes" data-of="nodes"
                    data-testid="actions" {
                    span.sub data-picked="" { "none selected" }
                    button type="button" data-verb="drain" disabled { "Drain" }
                    button type="button" data-verb="resume" disabled { "Resume" }
                }
            }
        }
    }
}

pub fn list_page(reader: &Reader, view: &ListView) -> Markup {
    let shown = view.shown();
    let body = html! {
        div.title { h1 { "Nodes" } (region("nodes-note", &view.note())) }
        (tools(reader))
        div.scroll.tall tabindex="0" role="region" aria-label="Nodes" {
            table.list.even #nodes role="table" data-sortable="" data-testid="nodes" {
                thead role="rowgroup" { tr role="row" {
                    th.pick scope="col" role="columnheader" {
                        input type="checkbox" data-all="" aria-label="Select all that are shown";
                    }
                    @for (name, class) in COLUMNS {
                        th class=[(!class.is_empty()).then_some(class)] scope="col"
                            role="columnheader" {
                            button type="button" data-sort="" { (name) }
                        }
                    }
                } }
                (groups(&shown.tables["nodes"]))
            }
        }
        p.empty data-empty="nodes" { "No node has joined yet." }
    };
    let live = Some("page=nodes".to_owned());
    document(reader, &Page { tab: Tab::Nodes, title: "Nodes", live, body })
}

impl View {
    pub fn shown(&self) -> Shown {
        Shown::default()
            .region("head", self.head())
            .region("findings", self.findings())
            .region("cards", self.cards())
            .region("history", self.history())
            .chart("node", &self.curves)
    }

    fn head(&self) -> Markup {
        let (row, facts) = (&self.entry.row, &self.entry.row.facts);
        let drains = row.drain_reason.is_some();
        html! {
            dl.facts data-can=(if drains { "resume" } else { "drain" }) {
                div {
                    dt { "State" }
                    dd {
                        (words::node_state(row.state))
                        @if facts.simulated { " " (words::simulated()) }
                    }
                }
                @if let Some(since) = row.since {
                    div { dt { "Since" } dd { (words::when(since)) } }
                }
                @if let Some(reason) = &row.drain_reason {
                    div {
                        dt { "Drained by" }
                        dd { (row.drained_by.as_deref().unwrap_or("somebody")) ": " (reason) }
                    }
                }
                div {
                    dt { "GPUs" }
                    dd {
                        (words::milli(row.gpu_milli_used)) " of " (facts.gpus) " held, "
                        (facts.gpu_model.as_deref().unwrap_or("no GPU"))
                    }
                }
                @if !self.entry.row.kept.is_empty() { div { dt { "Kept" } dd { (self.kept()) } } }
                div { dt { "CPUs" } dd { (row.cpus_used) " of " (facts.cpus) } }
                div {
                    dt { "Memory" }
                    dd { (words::bytes(row.mem_used)) " of " (words::bytes(facts.mem)) }
                }
                @if !place(row).is_empty() { div { dt { "Place" } dd { (place(row)) } } }
                div { dt { "Address" } dd { (facts.address) } }
                div { dt { "Isolation" } dd { (facts.isolation) } }
                @if !facts.agent_version.is_empty() {
                    div { dt { "Agent" } dd { (facts.agent_version) } }
                }
                @if !row.jobs.is_empty() { div { dt { "Jobs" } dd { (jobs(&row.jobs)) } } }
            }
        }
    }

    fn findings(&self) -> Markup {
        let row = &self.entry.row;
        html! {
            section.panel {
                h2 { "Findings" }
                @if row.findings.is_empty() && row.trouble.is_none() {
                    p.calm { span.sign aria-hidden="true" { "✓" } " Nothing is wrong." }
                }
                @if let Some(trouble) = &row.trouble { p { (trouble) } }
                @if !row.findings.is_empty() {
                    ul.alerts { @for found in &row.findings { (finding(found)) } }
                }
            }
        }
    }

    fn cards(&self) -> Markup {
        html! {
            section.panel {
                h2 { "GPUs" }
                div.scroll tabindex="0" role="region" aria-label="GPUs" {
                    table data-testid="cards" {
                        thead { tr {
                            th.n scope="col" { "GPU" } th scope="col" { "Model" }
                            th scope="col" { "Job" }
                            th.n scope="col" { "Used" } th.n scope="col" { "SM" }
                            th.n scope="col" { "Tensor" }
                            th.n scope="col" { "Memory" } th.n scope="col" { "Power" }
                            th.n scope="col" { "Heat" } th scope="col" { "Health" }
                        } }
                        tbody { @for card in &self.gpus { (self.card(card)) } }
                    }
                }
            }
        }
    }

    fn card(&self, card: &Card) -> Markup {
        let row = &self.entry.row;
        let sample = card.sample.clone().unwrap_or_default();
        let worst = row
            .findings
            .iter()
            .filter(|f| f.gpu.is_some_and(|g| g.0 == card.index))
            .max_by_key(|f| f.action);
        let share =
            |value: Option<f32>| value.map_or_else(|| "–".to_owned(), |v| words::percent(v.into()));
        html! { tr {
            td.n { (card.index) } td { (card.model) }
            td { @if card.jobs.is_empty() { span.sub { "free" } } @else { (jobs(&card.jobs)) } }
            td.n { @if let Some(util) = sample.util { (util) " %" } @else { "–" } }
            td.n { (share(sample.sm_active)) } td.n { (share(sample.tensor_active)) }
            td.n { @if let Some(mem) = sample.mem_used { (words::bytes(mem)) } @else { "–" } }
            td.n { @if let Some(mw) = sample.power_mw { (mw / 1000) " W" } @else { "–" } }
            td.n { @if let Some(temp) = sample.temp { (temp) " °C" } @else { "–" } }
            td { @if let Some(worst) = worst { (action(worst.action)) } @else { "well" } }
        } }
    }

    /// All of it, and what others may still do there.
    fn kept(&self) -> Markup {
        html! { @for (i, kept) in self.entry.row.kept.iter().enumerate() {
            @if i > 0 { "; " }
            @if kept.gpus > 0 { (words::count(kept.gpus.into(), "free GPU")) " " }
            "for job " (words::job_link(kept.task))
            @if let Some(from) = kept.from {
                ", which starts by " (words::when(from)) ": what ends before may run there"
            }
        } }
    }

    fn history(&self) -> Markup {
        html! {
            section.panel data-testid="history" {
                h2 { "What happened to it" }
                @if self.history.is_empty() { p.sub { "Nothing since the controller started." } }
                ol.moments { @for moment in &self.history {
                    li class=(moment.tone.class()) {
                        (words::when(moment.at)) " " (moment.text)
                    }
                } }
            }
        }
    }
}

fn finding(found: &Finding) -> Markup {
    html! {
        li.grave[found.action >= HealthAction::FenceGpu] {
            (action(found.action))
            span.text {
                (found.text)
                @if found.drill { span.sub { " (a drill)" } }
            }
            span.sub { (words::ago(found.since)) }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let name = &view.entry.row.name;
    let body = html! {
        div.title {
            h1 { span.id { "Node" } " " (name) }
            @if reader.is_admin() {
                div.act role="group" aria-label="This node" data-one=(name) data-of="nodes"
                    data-testid="actions" {
                    button type="button" data-verb="drain" { "Drain" }
                    button type="button" data-verb="resume" { "Resume" }
                }
            }
        }
        (region("head", &view.head()))
        (region("findings", &view.findings()))
        section.panel { h2 { "The last hour" } div.charts { div.chart #node data-chart="node" {} } }
        (region("cards", &view.cards()))
        (region("history", &view.history()))
    };
    let live = Some(format!("page=node&name={}", words::encoded(name)));
    document(reader, &Page { tab: Tab::Nodes, title: name, live, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Tone;
    use crate::shell::tests::reader;
    use tutti_model::{GpuIndex, NodeFacts, NodeState, Place, Role, Time};

    fn entry() -> Entry {
        let facts =
            NodeFacts { name: "n7".into(), simulated: true, cpus: 64, ..NodeFacts::default() };
        let finding = Finding {
            key: "xid-79/gpu3".into(),
            check: "xid".into(),
            gpu: Some(GpuIndex(3)),
            action: HealthAction::FenceGpu,
            text: "XID 79 <bus>".into(),
            since: Time(5000),
            drill: true,
            by_job: false,
        };
        let row = NodeRow {
            name: "n7".into(),
            state: NodeState::Draining,
            facts: (&facts).into(),
            gpus_used: 4,
            gpu_milli_used: 3500,
            shared: Vec::new(),
            cpus_used: 8,
            mem_used: tutti_model::Bytes::gib(3),
            jobs: vec![TaskId::single(tutti_model::JobId(12))],
            exclusive: None,
            place: Place { rack: Some("r1".into()), ..Place::default() },
            drain_reason: Some("new cables".into()),
            drained_by: Some("ada".into()),
            trouble: None,
            burn_in: None,
            gpu_bench: None,
            findings: vec![finding],
            fenced: vec![3],
            reservations: Vec::new(),
            kept: Vec::new(),
            since: Some(Time(1000)),
        };
        let (activity, power, hottest) = (Some(0.73), Some(4810.0), Some(71));
        Entry { row, activity, power, hottest }
    }

    #[test]
    fn a_node_says_what_is_wrong() {
        let view = ListView { nodes: vec![entry()], query: String::new() };
        let text = list_page(&reader(Role::Viewer), &view).into_string();
        assert!(
            text.contains("drained by ada: new cables") && text.contains("XID 79 &lt;bus&gt;"),
            "{text}"
        );
        assert!(text.contains("3.5<span class=\"sub\"> of 0") && text.contains("73 %"), "{text}");
        assert!(text.contains("1 node, 0 ready."), "{text}");
    }

    #[test]
    fn a_node_says_for_whom_it_is_kept() {
        let kept = |job, gpus, from: Option<u64>| NodeKept {
            task: TaskId::single(tutti_model::JobId(job)),
            gpus,
            from: from.map(Time),
        };
        let all = vec![kept(12, 8, None), kept(13, 1, Some(9000)), kept(14, 0, None)];
        let mut entry = entry();
        entry.row.kept = all;
        let list = ListView { nodes: vec![entry.clone()], query: String::new() };
        let text = list_page(&reader(Role::Viewer), &list).into_string();
        for told in [
            "8 GPUs kept for job <a href=\"/jobs/12\">12</a>",
            "1 GPU kept for job <a href=\"/jobs/13\">13</a>",
            "and 1 other job",
        ] {
            assert!(text.contains(told), "{told} in {text}");
        }
        let curves = Curves::default();
        let view = View { entry, gpus: Vec::new(), history: Vec::new(), curves };
        let head = view.head().into_string();
        assert!(head.contains("8 free GPUs for job <a href=\"/jobs/12\">12</a>; "), "{head}");
        assert!(
            head.contains("which starts by <time") && head.contains("data-t=\"9000\""),
            "{head}"
        );
        assert!(head.contains("; for job <a href=\"/jobs/14\">"), "{head}");
    }

    #[test]
    fn draining_is_for_admins() {
        let view = ListView { nodes: vec![entry()], query: String::new() };
        for (role, has) in [(Role::Viewer, false), (Role::User, false), (Role::Admin, true)] {
            let text = list_page(&reader(role), &view).into_string();
            assert_eq!(text.contains("data-verb=\"drain\""), has, "{role}");
        }
    }

    #[test]
    fn one_node_has_its_cards_findings_and_past() {
        let sample = GpuSample { util: Some(97), power_mw: Some(650_000), ..GpuSample::default() };
        let card = Card { index: 3, model: "h100".into(), jobs: Vec::new(), sample: Some(sample) };
        let history = vec![Moment { at: Time(9000), tone: Tone::Bad, text: "lost".into() }];
        let view = View { entry: entry(), gpus: vec![card], history, curves: Curves::default() };
        let text = page(&reader(Role::Admin), &view).into_string();
        assert!(text.contains("data-live=\"/live?page=node&amp;name=n7\""), "{text}");
        assert!(text.contains("650 W") && text.contains("(a drill)") && text.contains(" lost"));
        for (id, html) in &view.shown().regions {
            assert!(text.contains(&format!("id=\"{id}\">{html}")), "{id}");
        }
    }
}
