//! Jobs as tables: those that wait, and all of them.

use maud::{Markup, html};
use tutti_model::Forecast;
use tutti_wire::api::{ArrayCounts, JobProgress, JobRow};

use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, groups, region};
use crate::words;

/// A job that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub row: JobRow,
    pub held: bool,
    pub forecast: Option<Forecast>,
}

/// The queue, or the part of it that was asked for.
#[derive(Clone, Debug, Default)]
pub struct QueueView {
    pub jobs: Vec<Waiting>,
    /// Tasks that wait in the whole cluster.
    pub pending: u64,
    /// There are more rows than are shown.
    pub more: bool,
    pub query: String,
}

#[derive(Clone, Debug, Default)]
pub struct JobsView {
    pub jobs: Vec<JobRow>,
    /// Tasks by state.
    pub totals: Vec<(String, u64)>,
    pub more: bool,
    pub query: String,
}

impl QueueView {
    pub fn shown(&self) -> Shown {
        let rows = self.jobs.iter().map(|job| keyed(&job.row, waiting_row(job)));
        Shown::default().region("queue-note", self.note()).table("queue", rows.collect())
    }

    fn note(&self) -> Markup {
        html! {
            p.note {
                (words::count(self.pending, "task")) " waiting in the cluster"
                @if self.more {
                    "; the first " (self.jobs.len()) " jobs are shown: filter to see others"
                }
                "."
            }
        }
    }
}

fn keyed(row: &JobRow, markup: Markup) -> Row {
    Row { key: row.id.to_string(), html: markup.into_string() }
}

fn waiting_row(job: &Waiting) -> Markup {
    let row = &job.row;
    html! {
        tr role="row" data-key=(row.id) data-owner=(row.user) data-href={ "/jobs/" (row.id) } {
            (pick(row))
            td.n role="cell" data-v=(row.id.job.0) { (words::job_link(row.id)) }
            td.name role="cell" { (row.name) (array(row.array.as_ref())) }
            td role="cell" { (row.user) }
            td role="cell" { (row.team.as_deref().unwrap_or("")) }
            td role="cell" data-v=(row.priority.0) { (row.class) " " span.sub { (row.priority) } }
            td.n role="cell" { (asks(row)) }
            td.n role="cell" data-v=(row.submitted_at.0) { (words::ago(row.submitted_at)) }
            td.why role="cell" {
                @if job.held { span.badge.held { span.sign aria-hidden="true" { "‖" } "held" } " " }
                (row.note)
            }
            td role="cell" data-v=(job.forecast.map_or(u64::MAX, |f| f.early.0)) { (expected(job.forecast)) }
        }
    }
}

fn expected(forecast: Option<Forecast>) -> Markup {
    html! {
        @if let Some(forecast) = forecast { (words::expected(forecast)) }
        @else { span.sub { "not known" } }
    }
}

/// Shown to those who may act, by the style sheet: rows are the same for everybody.
fn pick(row: &JobRow) -> Markup {
    html! { td.pick role="cell" { input type="checkbox" aria-label={ "Select job " (row.id) }; } }
}

fn asks(row: &JobRow) -> Markup {
    html! {
        @if row.gpus == 0 { "–" } @else if row.share.is_whole() { (row.gpus) }
        @else { (words::milli(u64::from(row.gpus) * u64::from(row.share.0))) }
        @if row.nodes > 1 { span.sub { " on " (row.nodes) } }
    }
}

fn array(counts: Option<&ArrayCounts>) -> Markup {
    html! {
        @if let Some(c) = counts {
            span.sub { " " (task_counts(c)) }
        }
    }
}

/// `1,000 tasks: 3 failed, 10 running, 987 pending`. What went wrong comes first.
pub(crate) fn task_counts(c: &ArrayCounts) -> String {
    let states = [
        (c.failed, "failed"),
        (c.running, "running"),
        (c.suspended, "suspended"),
        (c.pending, "pending"),
        (c.completed, "completed"),
        (c.cancelled, "cancelled"),
    ];
    let all = states.iter().map(|(n, _)| n).sum();
    let parts: Vec<String> = states
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, state)| format!("{} {state}", words::number(*n)))
        .collect();
    format!("{}: {}", words::count(all, "task"), parts.join(", "))
}

/// The box above a table: what is shown, and what is done with what is selected.
fn tools(reader: &Reader, action: &str, query: &str, table: &'static str) -> Markup {
    html! {
        div.bar.tools {
            form.filter role="search" method="get" action=(action) {
                label.away for="filter" { "Filter" }
                input #filter type="search" name="q" value=(query) data-filter=(table)
                    placeholder="Filter: words, user:ada, team:vision, state:running";
                button type="submit" { "Search all" }
            }
            @if reader.may_act() {
                div.act role="group" aria-label="Selected jobs" data-act=(table)
                    data-testid="actions" {
                    span.sub data-picked="" { "none selected" }
                    button type="button" data-verb="cancel" disabled { "Cancel" }
                    button type="button" data-verb="hold" disabled { "Hold" }
                    button type="button" data-verb="release" disabled { "Release" }
                    label.away for="priority" { "Priority" }
                    select #priority data-verb="priority" disabled {
                        option value="" { "Priority…" }
                        @for name in ["low", "normal", "high"] { option value=(name) { (name) } }
                    }
                }
            }
        }
    }
}

fn table(id: &'static str, label: &str, columns: &[(&str, &str)], rows: &[Row]) -> Markup {
    html! {
        div.scroll.tall tabindex="0" role="region" aria-label=(label) {
            table.list.even id=(id) role="table" data-sortable="" data-testid=(id) {
                thead role="rowgroup" { tr role="row" {
                    th.pick scope="col" role="columnheader" {
                        input type="checkbox" data-all="" aria-label="Select all that are shown";
                    }
                    @for (name, class) in columns {
                        th class=[(!class.is_empty()).then_some(class)] scope="col"
                            role="columnheader" {
                            button type="button" data-sort="" { (name) }
                        }
                    }
                } }
                (groups(rows))
            }
        }
    }
}

const QUEUE: &[(&str, &str)] = &[
    ("Job", "n"),
    ("Name", ""),
    ("User", ""),
    ("Team", ""),
    ("Class", ""),
    ("GPUs", "n"),
    ("Waits", "n"),
    ("Why it waits", ""),
    ("Expected to start", ""),
];

pub fn queue_page(reader: &Reader, view: &QueueView, live: String) -> Markup {
    let shown = view.shown();
    let body = html! {
        div.title { h1 { "Queue" } (region("queue-note", &view.note())) }
        (tools(reader, "/queue", &view.query, "queue"))
        (table("queue", "Jobs that wait", QUEUE, &shown.tables["queue"]))
        p.empty data-empty="queue" { "Nothing waits here." }
    };
    document(reader, &Page { tab: Tab::Queue, title: "Queue", live: Some(live), body })
}

const JOBS: &[(&str, &str)] = &[
    ("Job", "n"),
    ("Name", ""),
    ("User", ""),
    ("Team", ""),
    ("State", ""),
    ("GPUs", "n"),
    ("Progress", ""),
    ("Started", "n"),
    ("Took", "n"),
    ("Note", ""),
];

impl JobsView {
    pub fn shown(&self) -> Shown {
        let rows = self.jobs.iter().map(|row| keyed(row, job_row(row)));
        Shown::default().region("totals", self.totals()).table("jobs", rows.collect())
    }

    fn totals(&self) -> Markup {
        html! {
            ul.chips aria-label="Tasks by state" {
                @for (state, n) in self.totals.iter().filter(|(_, n)| *n > 0) {
                    li {
                        a href={ "/jobs?q=state:" (state) } {
                            (state) " " b { (words::number(*n)) }
                        }
                    }
                }
            }
            @if self.more {
                p.note { "The newest " (self.jobs.len()) " jobs are shown: filter to see others." }
            }
        }
    }
}

fn job_row(row: &JobRow) -> Markup {
    html! {
        tr role="row" data-key=(row.id) data-owner=(row.user) data-href={ "/jobs/" (row.id) } {
            (pick(row))
            td.n role="cell" data-v=(row.id.job.0) { (words::job_link(row.id)) }
            td.name role="cell" { (row.name) (array(row.array.as_ref())) }
            td role="cell" { (row.user) }
            td role="cell" { (row.team.as_deref().unwrap_or("")) }
            td role="cell" { (words::job_state(row.state)) }
            td.n role="cell" { (asks(row)) }
            td role="cell" { (progress(row.progress.as_ref())) }
            td.n role="cell" data-v=(row.started_at.map_or(0, |t| t.0)) {
                @if let Some(at) = row.started_at { (words::when(at)) } @else { "–" }
            }
            td.n role="cell" { (took(row)) }
            td.why role="cell" {
                (row.note)
                @if row.restarts > 0 {
                    span.sub { " " (words::count(row.restarts.into(), "restart")) }
                }
            }
        }
    }
}

fn took(row: &JobRow) -> Markup {
    html! {
        @match (row.ran_since(), row.ended_at) {
            (Some(start), Some(end)) => (words::span(end.since(start))),
            (Some(start), None) => (words::ago(start)),
            (None, _) => "–",
        }
    }
}

fn progress(progress: Option<&JobProgress>) -> Markup {
    html! {
        @if let Some(p) = progress {
            @if let Some(step) = p.step { "step " (words::number(step)) }
            @if let Some(loss) = p.loss { span.sub { " loss " (format!("{loss:.4}")) } }
            @if p.stalled { " " (words::badge("failed", "▲", "stalled")) }
        }
    }
}

pub fn jobs_page(reader: &Reader, view: &JobsView, live: String) -> Markup {
    let shown = view.shown();
    let body = html! {
        div.title { h1 { "Jobs" } (region("totals", &view.totals())) }
        (tools(reader, "/jobs", &view.query, "jobs"))
        (table("jobs", "Jobs", JOBS, &shown.tables["jobs"]))
        p.empty data-empty="jobs" { "There is no such job." }
    };
    document(reader, &Page { tab: Tab::Jobs, title: "Jobs", live: Some(live), body })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::shell::tests::reader;
    use tutti_model::{JobState, Role, Time};

    pub(crate) fn row(id: u64, state: JobState) -> JobRow {
        let json = serde_json::json!({
            "id": id.to_string(), "name": "train <big>", "user": "ada", "team": "vision",
            "class": "standard", "state": state.as_str(), "nodes": 2, "gpus": 16,
            "priority": "normal", "submitted_at": 1000, "restarts": 0,
            "note": "needs 2 free nodes, 1 fits",
        });
        serde_json::from_value(json).unwrap()
    }

    fn queue() -> QueueView {
        let forecast = Some(Forecast { early: Time(3_661_000), late: Some(Time(7_261_000)) });
        let jobs = vec![
            Waiting { row: row(7, JobState::Pending), held: false, forecast },
            Waiting { row: row(8, JobState::Pending), held: true, forecast: None },
        ];
        QueueView { jobs, pending: 2, ..QueueView::default() }
    }

    #[test]
    fn the_queue_says_why_and_when() {
        let text = queue_page(&reader(Role::User), &queue(), "page=queue".into()).into_string();
        assert!(text.contains("train &lt;big&gt;") && text.contains("needs 2 free nodes, 1 fits"));
        assert!(
            text.contains("data-until=\"3661000\"") && text.contains("at the latest"),
            "{text}"
        );
        assert!(text.contains("not known") && text.contains(">held<"), "{text}");
        assert!(text.contains("2 tasks waiting in the cluster."), "{text}");
    }

    #[test]
    fn viewers_get_no_buttons() {
        let page = |role| queue_page(&reader(role), &queue(), String::new()).into_string();
        assert!(page(Role::User).contains("data-verb=\"cancel\""));
        assert!(!page(Role::Viewer).contains("data-verb"));
    }

    #[test]
    fn rows_are_the_same_in_the_page_and_live() {
        let view = queue();
        let text = queue_page(&reader(Role::User), &view, String::new()).into_string();
        for row in &view.shown().tables["queue"] {
            assert!(text.contains(&row.html));
            assert!(row.html.starts_with(&format!("<tr role=\"row\" data-key=\"{}\"", row.key)));
        }
    }

    #[test]
    fn a_running_job_says_how_far_it_is() {
        let progress = JobProgress { step: Some(1200), loss: Some(2.25), ..JobProgress::default() };
        let running = JobRow {
            progress: Some(progress),
            started_at: Some(Time(1000)),
            restarts: 2,
            ..row(9, JobState::Running)
        };
        let array = ArrayCounts { pending: 90, running: 10, ..ArrayCounts::default() };
        let many = JobRow { array: Some(array), ..row(10, JobState::Running) };
        let view = JobsView { jobs: vec![running, many], ..JobsView::default() };
        let text = jobs_page(&reader(Role::Viewer), &view, String::new()).into_string();
        assert!(text.contains("step 1,200") && text.contains("loss 2.2500"), "{text}");
        assert!(text.contains("data-since=\"1000\"") && text.contains("2 restarts"), "{text}");
        assert!(text.contains("100 tasks: 10 running, 90 pending"), "{text}");
    }
}
