//! One job: where it stands, what became of each attempt, what its ranks do, what it wrote.

mod ranks;
mod story;

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::{Forecast, Holder, JobState, KeptFor, SavedPoint, Time};
use tutti_wire::api::{JobDetail, JobRow, ProgressDetail, ProgressPoint, RankRow};

use crate::jobs::task_counts;
use crate::live::Shown;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::topology::{self, Spot};
use crate::words;

pub use ranks::RankCurve;
pub use story::{Moment, Stay, Tone};

/// All that is known of a job or task.
#[derive(Clone, Debug)]
pub struct View {
    pub detail: JobDetail,
    /// Tasks of an array that have started, the newest first; empty for others.
    pub tasks: Vec<JobRow>,
    pub stays: Vec<Stay>,
    pub moments: Vec<Moment>,
    /// Where the picture of its time ends: now, or a little after its end.
    pub until: Time,
    pub why: Option<Why>,
    pub progress: ProgressDetail,
    pub ranks: Vec<RankCurve>,
    /// Curves beyond those shown.
    pub more_ranks: usize,
    pub spots: Vec<Spot>,
    pub simulated: bool,
    /// The reader may read its logs and its environment.
    pub inside: bool,
    /// It is known from the archive alone: nothing of it changes any more.
    pub left: bool,
}

/// Why it waits, in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    pub sentence: String,
    pub details: Vec<String>,
    /// Everything that keeps it waiting, what ends last first.
    pub blockers: Vec<String>,
    pub ahead: u64,
    pub forecast: Option<Forecast>,
    pub advice: Vec<String>,
    /// Who holds what it needs, those with the earliest end first.
    pub holders: Vec<Holder>,
    /// For whom what is free is kept.
    pub kept: Vec<KeptFor>,
}

/// Holders beyond these are counted, not listed.
const HOLDERS_LISTED: usize = 20;

/// For the charts of loss and step time.
#[derive(Serialize)]
struct Curves {
    /// Seconds since 1970.
    t: Vec<f64>,
    step: Vec<u64>,
    loss: Vec<Option<f64>>,
    /// Seconds per step.
    pace: Vec<Option<f64>>,
}

impl View {
    pub fn shown(&self) -> Shown {
        let shown = Shown::default()
            .region("head", self.head())
            .region("why", self.why())
            .region("story", self.story())
            .region("ranks", self.ranks())
            .region("place", self.place())
            .region("points", self.points())
            .region("tasks", self.tasks());
        match self.progress.history.is_empty() {
            true => shown,
            false => shown.chart("training", &curves(&self.progress.history)),
        }
    }

    fn is_array(&self) -> bool {
        self.detail.row.array.is_some()
    }

    fn head(&self) -> Markup {
        let row = &self.detail.row;
        let ended = row.ended_at;
        html! {
            dl.facts data-testid="facts" data-can=(self.verbs().join(" ")) {
                (fact("State", html! {
                    span data-testid="state" { (words::job_state(row.state)) }
                    @if self.detail.held { " " (words::badge("held", "‖", "held")) }
                    @if self.simulated { " " (words::simulated()) }
                }))
                @if !row.note.is_empty() && self.why.is_none() {
                    (fact("Note", html! { (row.note) }))
                }
                @if let Some(counts) = &row.array {
                    (fact("Tasks", html! {
                        span data-testid="task-counts" { (task_counts(counts)) }
                    }))
                }
                (fact("User", html! {
                    (row.user) @if let Some(team) = &row.team { span.sub { " of " (team) } }
                }))
                @if let Some(of) = &self.detail.replica_of {
                    (fact("Replica of", html! {
                        span data-testid="replica-of" {
                            (words::endpoint_link(&of.endpoint))
                            span.sub { " revision " (of.revision) }
                        }
                    }))
                }
                (fact("Class", html! { (row.class) " " span.sub { "priority " (row.priority) } }))
                (fact("GPUs", html! {
                    (row.gpus)
                    @if row.nodes > 0 {
                        span.sub { " on " (words::count(row.nodes.into(), "node")) }
                    }
                }))
                (fact("Submitted", words::when(row.submitted_at)))
                @if let Some(at) = row.started_at { (fact("Started", words::when(at))) }
                @if let Some((start, end)) = row.ran_since().zip(ended) {
                    (fact("Took", html! { (words::span(end.since(start))) }))
                }
                @else if let Some(at) = row.ran_since() { (fact("Runs for", words::ago(at))) }
                @if let Some(code) = row.exit_code { (fact("Exit code", html! { (code) })) }
                @if row.restarts > 0 { (fact("Restarts", self.restarts())) }
                @if let Some(line) = self.detail.goodput.as_ref().filter(|g| g.goodput.is_some()) {
                    (fact("Goodput", crate::cost::of_job(line)))
                }
                @if let Some(limit) = self.detail.spec.time {
                    (fact("Time limit", html! {
                        (words::span(limit))
                        @if let Some(of) = &self.detail.spec.default_time_of {
                            span.sub { " " (of.in_words()) }
                        }
                    }))
                }
                @if let Some(before) = &self.detail.stopped_before {
                    (fact("Stopped before", html! { (before) }))
                }
            }
        }
    }

    /// What can be done with it as it is now. Buttons of other things are not shown.
    fn verbs(&self) -> Vec<&'static str> {
        let (row, held) = (&self.detail.row, self.detail.held);
        let counts = row.array.as_ref();
        let is = |state| row.state == state;
        let waits = is(JobState::Pending) || counts.is_some_and(|c| c.pending > 0);
        let runs = matches!(row.state, JobState::Starting | JobState::Running)
            || counts.is_some_and(|c| c.running > 0);
        let sleeps = is(JobState::Suspended) || counts.is_some_and(|c| c.suspended > 0);
        let goes_on = waits || runs || sleeps || is(JobState::Stopping);
        let verbs = [
            ("cancel", goes_on),
            ("hold", waits && !held),
            ("release", waits && held),
            ("suspend", runs),
            ("resume", sleeps),
        ];
        verbs.into_iter().filter(|(_, can)| *can).map(|(verb, _)| verb).collect()
    }

    fn restarts(&self) -> Markup {
        let by = &self.detail.restarts_by_cause;
        let causes = [
            (by.node_failure, "node failure"),
            (by.preemption, "preemption"),
            (by.job_failure, "its own failure"),
            (by.health, "a broken GPU"),
        ];
        let words: Vec<String> = causes
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, cause)| format!("{n} by {cause}"))
            .collect();
        html! { (self.detail.row.restarts) span.sub { " " (words.join(", ")) } }
    }

    fn why(&self) -> Markup {
        html! {
            @if let Some(why) = &self.why {
                section.panel.why data-testid="why" {
                    h2 { "Why it waits" }
                    p.lead { (why.sentence) }
                    @if !why.details.is_empty() {
                        ul { @for line in &why.details { li { (line) } } }
                    }
                    @if !why.blockers.is_empty() {
                        h3 { "What keeps it waiting, what ends last first" }
                        ul data-testid="blockers" { @for line in &why.blockers { li { (line) } } }
                    }
                    p {
                        @if why.ahead > 0 {
                            (words::count(why.ahead, "task")) " before it in line. "
                        }
                        @if let Some(forecast) = why.forecast {
                            "Expected to start " (words::expected(forecast)) "."
                        } @else { "When it starts is not known." }
                    }
                    (holders(why))
                    @if !why.advice.is_empty() {
                        h3 { "What would start it sooner" }
                        ul { @for line in &why.advice { li { (line) } } }
                    }
                }
            }
        }
    }

    fn story(&self) -> Markup {
        if let Some(counts) = &self.detail.row.array {
            return story::of_array(&self.detail.row, counts, &self.tasks, &self.moments);
        }
        // Without its attempts it would look as if it had only waited.
        if self.left && self.stays.is_empty() && self.detail.row.started_at.is_some() {
            return html! {};
        }
        story::draw(self.detail.row.submitted_at, self.until, &self.stays, &self.moments)
    }

    fn ranks(&self) -> Markup {
        html! {
            @if !self.ranks.is_empty() {
                section.panel aria-labelledby="ranks-title" {
                    h2 #ranks-title { "Activity of its GPUs" }
                    (ranks::draw(&self.ranks, &self.progress.ranks))
                    @if self.more_ranks > 0 { p.sub { "and " (self.more_ranks) " more" } }
                }
            }
            @if !self.progress.ranks.is_empty() { (rank_table(&self.progress)) }
        }
    }

    fn place(&self) -> Markup {
        html! {
            @if !self.spots.is_empty() {
                section.panel { h2 { "Where it runs" } (topology::draw(&self.spots)) }
            }
        }
    }

    fn points(&self) -> Markup {
        let saved = self.progress.progress.as_ref().and_then(|p| p.saved.as_ref());
        let points: Vec<&SavedPoint> = match self.detail.checkpoints.is_empty() {
            true => saved.into_iter().collect(),
            false => self.detail.checkpoints.iter().rev().collect(),
        };
        html! {
            @if !points.is_empty() {
                section.panel {
                    h2 { "Checkpoints" }
                    div.scroll tabindex="0" role="region" aria-label="Checkpoints" {
                        table {
                            thead { tr {
                                th.n scope="col" { "Step" } th.n scope="col" { "Saved" }
                                th scope="col" { "Where" }
                            } }
                            tbody { @for point in points { tr {
                                td.n { (words::number(point.step)) }
                                td.n {
                                    @if let Some(at) = point.at { (words::when(at)) } @else { "–" }
                                }
                                td.path { (point.path.as_deref().unwrap_or("–")) }
                            } } } }
                    }
                }
            }
        }
    }

    fn tasks(&self) -> Markup {
        html! {
            @if self.left && self.is_array() {
                section.panel { h2 { "Tasks" }
                    p.sub {
                        "Each has a page of its own: add _ and its index to the address of this one."
                    }
                }
            } @else if !self.tasks.is_empty() {
                section.panel { h2 { "Tasks" }
                    div.scroll tabindex="0" role="region" aria-label="Tasks" {
                        table {
                            thead { tr {
                                th scope="col" { "Task" } th scope="col" { "State" }
                                th.n scope="col" { "Started" } th scope="col" { "Note" }
                            } }
                            tbody { @for row in &self.tasks { tr {
                                td { (words::job_link(row.id)) }
                                td { (words::job_state(row.state)) }
                                td.n {
                                    @if let Some(at) = row.started_at {
                                        (words::when(at))
                                    } @else { "–" }
                                }
                                td { (row.note) }
                            } } } }
                    }
                }
            }
        }
    }
}

/// Who has what it waits for, and what is free but kept for others.
fn holders(why: &Why) -> Markup {
    let more = why.holders.len().saturating_sub(HOLDERS_LISTED) as u64;
    html! {
        @if !why.holders.is_empty() {
            h3 #holders-title { "Who holds what it needs" }
            div.scroll tabindex="0" role="region" aria-labelledby="holders-title" {
                table data-testid="holders" {
                    thead { tr {
                        th scope="col" { "Job" } th scope="col" { "Name" } th scope="col" { "User" }
                        th.n scope="col" { "GPUs" } th.n scope="col" { "Nodes" }
                        th.n scope="col" { "Ends at the latest" }
                    } }
                    tbody { @for holder in why.holders.iter().take(HOLDERS_LISTED) { tr {
                        td { (words::job_link(holder.task)) } td { (holder.name) } td { (holder.user) }
                        td.n { (holder.gpus) } td.n { (holder.nodes) }
                        td.n {
                            @if let Some(at) = holder.ends_by { (words::ahead(at)) }
                            @else { "no time limit" }
                        }
                    } } }
                }
            }
            @if more > 0 { p.sub { "and " (words::count(more, "other job")) } }
        }
        @if !why.kept.is_empty() {
            ul data-testid="kept" { @for kept in &why.kept { li {
                (words::count(kept.gpus.into(), "free GPU")) " on " (words::count(kept.nodes.into(), "node"))
                " kept for job " (words::job_link(kept.task))
            } } }
        }
    }
}

pub(crate) fn fact(name: &str, value: Markup) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

fn rank_table(progress: &ProgressDetail) -> Markup {
    let slowest = progress.progress.as_ref().and_then(|p| p.behind.or(p.slowest));
    let row = |rank: &RankRow| {
        let is_slowest = slowest == Some(rank.rank) && progress.ranks.len() > 1;
        html! { tr.slowest[is_slowest] {
            td.n { (rank.rank) @if is_slowest { " " (words::badge("slowest", "▼", "slowest")) } }
            td { @if let Some(node) = &rank.node { (words::node_link(node)) } }
            td.n { (words::number(rank.step)) }
            td.n { @if let Some(pace) = rank.pace { (words::span(pace)) } @else { "–" } }
            td.n { @if let Some(loss) = rank.loss { (format!("{loss:.4}")) } @else { "–" } }
        } }
    };
    html! {
        details.panel {
            summary { "Steps by rank" }
            div.scroll tabindex="0" role="region" aria-label="Steps by rank" {
                table {
                    thead { tr {
                        th.n scope="col" { "Rank" } th scope="col" { "Node" }
                        th.n scope="col" { "Step" } th.n scope="col" { "Time of a step" }
                        th.n scope="col" { "Loss" }
                    } }
                    tbody { @for rank in &progress.ranks { (row(rank)) } } }
            }
        }
    }
}

/// So many times the usual time of a step: it did not run in between.
const PAUSE: f64 = 8.0;

fn curves(history: &[ProgressPoint]) -> Curves {
    let mut pace: Vec<Option<f64>> = vec![None];
    for two in history.windows(2) {
        let (steps, took) = (two[1].step.saturating_sub(two[0].step), two[1].at.since(two[0].at));
        pace.push((steps > 0).then(|| took.0 as f64 / 1000.0 / steps as f64));
    }
    let mut known: Vec<f64> = pace.iter().flatten().copied().collect();
    known.sort_by(f64::total_cmp);
    if let Some(usual) = known.get(known.len() / 2) {
        pace.iter_mut().for_each(|of| *of = of.filter(|of| *of < usual * PAUSE));
    }
    Curves {
        t: history.iter().map(|point| point.at.0 as f64 / 1000.0).collect(),
        step: history.iter().map(|point| point.step).collect(),
        loss: history.iter().map(|point| point.loss).collect(),
        pace,
    }
}

fn actions(reader: &Reader, view: &View) -> Markup {
    let row = &view.detail.row;
    let may = !view.left && reader.may_act() && (reader.is_admin() || reader.user == row.user);
    html! {
        @if may {
            div.act role="group" aria-label="This job" data-one=(row.id) data-testid="actions" {
                button type="button" data-verb="cancel" { "Cancel" }
                button type="button" data-verb="hold" { "Hold" }
                button type="button" data-verb="release" { "Release" }
                button type="button" data-verb="suspend" { "Suspend" }
                button type="button" data-verb="resume" { "Resume" }
            }
        }
    }
}

fn logs(view: &View) -> Markup {
    let id = view.detail.row.id;
    html! {
        section.panel.logs aria-labelledby="logs-title" {
            div.bar {
                h2 #logs-title { "Log" }
                @if view.inside && !view.is_array() {
                    label.away for="log-rank" { "Ranks" }
                    input #log-rank type="text" placeholder="all ranks, or 0-3,7" size="14";
                    label.away for="log-search" { "Search the log" }
                    input #log-search type="search" placeholder="Search";
                    label { input #log-follow type="checkbox" checked; " Follow" }
                    span #log-count.sub role="status" {}
                }
            }
            @if view.is_array() { p.sub {
                "Each task has a log of its own: open one of them. "
                code { "tutti logs " (id) } " shows all."
            } }
            @else if !view.inside { p.sub { "Logs are for the job's owner and for admins." } }
            @else {
                div #log.log tabindex="0" role="log" aria-label={ "Log of job " (id) }
                    data-job=(id) data-testid="log" {}
            }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let row = &view.detail.row;
    let title = format!("{} {}", row.id, row.name);
    let spec = serde_json::to_string_pretty(&view.detail.spec).unwrap_or_default();
    let body = html! {
        div.title { h1 { span.id { "Job " (row.id) } " " (row.name) } (actions(reader, view)) }
        @if view.left {
            p.note { "From the archive, which has how it ended and not each of its steps." }
        }
        (region("head", &view.head()))
        (region("why", &view.why()))
        (region("story", &view.story()))
        (region("tasks", &view.tasks()))
        (region("ranks", &view.ranks()))
        section.panel hidden data-charts="training" {
            h2 { "Loss and time of a step" }
            div.charts { div.chart #training data-chart="training" {} }
        }
        (region("place", &view.place()))
        (logs(view))
        (region("points", &view.points()))
        details.panel {
            summary { "The spec as it was submitted" }
            pre.spec tabindex="0" { (spec) }
            @if view.left {
                p.sub { "What its environment was set to is not kept." }
            } @else if !view.inside {
                p.sub { "What its environment is set to is for its owner and for admins." }
            }
        }
    };
    let live = (!view.left).then(|| format!("page=job&id={}", row.id));
    document(reader, &Page { tab: Tab::Jobs, title: &title, live, body })
}

#[cfg(test)]
mod tests;
