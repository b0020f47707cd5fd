//! Cost and waste: where GPU-hours went, as a picture of days, a table, the worst wasters, and what
//! endpoints did.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tutti_model::{Report, ReportBy, ReportLine, ServedLine, TaskId, TimeClass};

use crate::live::Shown;
use crate::overview::figure;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// The same hours twice: by day for the picture, and as the reader wants them for the table.
#[derive(Clone, Debug)]
pub struct View {
    pub days: Report,
    pub table: Report,
}

/// What may stand in the first column of the table.
const TABLES: [ReportBy; 3] = [ReportBy::Team, ReportBy::User, ReportBy::Model];

impl View {
    pub fn shown(&self) -> Shown {
        Shown::default()
            .region("sums", figures(&self.table))
            .region("days", self.picture())
            .region("lines", lines(&self.table))
            .region("wasters", wasters(&self.table, true))
            .region("served", served(&self.table, true))
    }

    fn picture(&self) -> Markup {
        html! {
            (columns(&self.days.lines))
            details.sub { summary { "The same as a table" } (lines(&self.days)) }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let by = view.table.by;
    let body = html! {
        div.title {
            h1 { "Cost and waste" }
            p.sub { (view.table.since) " to " (view.table.until) ", days in UTC" }
        }
        (region("sums", &figures(&view.table)))
        section.panel {
            h2 { "GPU-hours of each day" }
            (legend())
            (region("days", &view.picture()))
        }
        section.panel {
            h2 { "Who had them" }
            nav.chips aria-label="Lines of the table" {
                @for other in TABLES {
                    a href={ "/cost?q=" (other.as_str()) } aria-current=[(other == by).then_some("true")] {
                        "by " (other.as_str())
                    }
                }
            }
            (region("lines", &lines(&view.table)))
        }
        section.panel {
            h2 { "Jobs that wasted most" }
            p.sub { (WASTERS) }
            (region("wasters", &wasters(&view.table, true)))
        }
        section.panel {
            h2 { "Endpoints" }
            p.sub { (SERVED) }
            (region("served", &served(&view.table, true)))
        }
    };
    let live = Some(format!("page=cost&q={}", by.as_str()));
    document(reader, &Page { tab: Tab::Cost, title: "Cost and waste", live, body })
}

/// The page for a file: nothing but itself is needed to read it.
pub fn standalone(report: &Report) -> Markup {
    let style = include_str!("../assets/app.css");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "GPU-hours from " (report.since) " to " (report.until) }
                style { (PreEscaped(style)) }
            }
            body {
                main {
                    div.title {
                        h1 { "Where GPU-hours went" }
                        p.sub { (report.since) " to " (report.until) ", days in UTC" }
                    }
                    (figures(report))
                    section.panel {
                        h2 { "GPU-hours by " (report.by.as_str()) }
                        (legend())
                        @if report.by == ReportBy::Day { (columns(&report.lines)) }
                        (lines(report))
                    }
                    section.panel {
                        h2 { "Jobs that wasted most" }
                        p.sub { (WASTERS) }
                        (wasters(report, false))
                    }
                    section.panel {
                        h2 { "Endpoints" }
                        p.sub { (SERVED) }
                        (served(report, false))
                    }
                }
            }
        }
    }
}

/// How each class is drawn; the letter stands where colour does not.
fn css(class: TimeClass) -> &'static str {
    match class {
        TimeClass::Productive => "c-productive",
        TimeClass::Starting => "c-starting",
        TimeClass::LostToFailure => "c-failure",
        TimeClass::LostToPreemption => "c-preemption",
        TimeClass::Suspended => "c-suspended",
        TimeClass::Idle => "c-idle",
        TimeClass::Reserved => "c-reserved",
        TimeClass::Unhealthy => "c-unhealthy",
        TimeClass::Free => "c-free",
    }
}

fn legend() -> Markup {
    html! {
        p.legend { @for class in TimeClass::ALL { span { i.(css(class)) {} (class.words()) } } }
    }
}

fn hours(hours: f64) -> String {
    match hours {
        0.0 => "–".to_owned(),
        h if h < 0.1 => format!("{h:.3}"),
        h if h < 100.0 => format!("{h:.1}"),
        h => words::number(h.round() as u64),
    }
}

fn money(amount: f64, currency: &str) -> Markup {
    let whole = words::number(amount.trunc().max(0.0) as u64);
    let text = if amount < 1000.0 { format!("{amount:.2}") } else { whole };
    html! { (text) small { " " (currency) } }
}

fn figures(report: &Report) -> Markup {
    let total = &report.total;
    let used = |part: f64| if total.total_hours > 0.0 { part / total.total_hours } else { 0.0 };
    let percent = |share: f64| html! { (format!("{:.1}", share * 100.0)) small { " %" } };
    html! {
        dl.figures data-testid="sums" {
            (figure("Goodput", match total.goodput { Some(share) => percent(share), None => html! { "–" } },
                html! { span.sub { "productive of what was held" } }))
            (figure("Held", percent(used(total.held_hours)),
                html! { span.sub { (hours(total.held_hours)) " of " (hours(total.total_hours)) " GPU-hours" } }))
            (figure("Wasted", html! { (hours(total.wasted_hours)) small { " GPU-hours" } },
                html! { span.sub { "held and not productive" } }))
            @if let (Some(currency), Some(cost)) = (&report.currency, total.cost) {
                (figure("Cost", money(cost.total, currency),
                    html! { span.sub { (money(cost.wasted, currency)) " wasted" } }))
            }
            (figure("Not safe yet", html! { (hours(total.unsaved_hours)) small { " GPU-hours" } },
                html! { span.sub { "would be lost by a failure now" } }))
        }
        @if !report.unpriced.is_empty() {
            p.note { "Without a price, and not in the costs: " (report.unpriced.join(", ")) }
        }
    }
}

/// Columns are never wider than those of so many days.
const DAYS_WIDE: usize = 14;
const WIDE: f64 = 1000.0;
const TALL: f64 = 200.0;

/// A column for each line, classes one above the other, all to the same scale.
fn columns(lines: &[ReportLine]) -> Markup {
    let most = lines.iter().map(|line| line.total_hours).fold(0.0, f64::max);
    if most <= 0.0 {
        return html! { p.calm { "Nothing is on record for these days." } };
    }
    // One column says less than one bar.
    if let [line] = lines {
        return html! {
            div.lone { (bar(line)) }
            p.axis { span { (line.name) } span { (hours(most)) " GPU-hours" } }
        };
    }
    let step = WIDE / lines.len().max(DAYS_WIDE) as f64;
    let column = |n: usize, line: &ReportLine| {
        let mut below = 0.0;
        let piece = |class: TimeClass| {
            let (high, base) = (line.of(class) / most * TALL, below);
            below += high;
            let title = format!("{}: {} {}", line.name, hours(line.of(class)), class.words());
            html! {
                @if high > 0.0 {
                    rect.(css(class)) x=(at(n as f64 * step + step * 0.08)) y=(at(TALL - base - high))
                        width=(at(step * 0.84)) height=(at(high)) { title { (title) } }
                }
            }
        };
        let pieces: Vec<Markup> = TimeClass::ALL.into_iter().map(piece).collect();
        html! { @for piece in pieces { (piece) } }
    };
    let label = format!(
        "GPU-hours of {} by class; the table has the numbers",
        words::count(lines.len() as u64, "day")
    );
    html! {
        svg.columns viewBox=(format!("0 0 {WIDE} {TALL}")) preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (n, line) in lines.iter().enumerate() { (column(n, line)) }
        }
        @if let [first, .., last] = lines {
            @let few = lines.len() < DAYS_WIDE;
            p.axis {
                span { (first.name) @if few { " to " (last.name) } }
                span { (hours(most)) " GPU-hours at most" }
                @if !few { span { (last.name) } }
            }
        }
    }
}

fn at(x: f64) -> String {
    format!("{x:.2}")
}

/// What was held, as one bar.
pub(crate) fn bar(line: &ReportLine) -> Markup {
    let mut left = 0.0;
    let piece = |class: TimeClass| {
        let wide = line.of(class) / line.total_hours.max(f64::MIN_POSITIVE) * 400.0;
        let from = left;
        left += wide;
        html! {
            @if wide > 0.0 {
                rect.(css(class)) x=(at(from)) y="0" width=(at(wide)) height="14" { title { (class.words()) } }
            }
        }
    };
    let pieces: Vec<Markup> = TimeClass::ALL.into_iter().map(piece).collect();
    let label = format!(
        "{} of {} GPU-hours productive",
        hours(line.of(TimeClass::Productive)),
        hours(line.total_hours)
    );
    html! {
        svg.teambar viewBox="0 0 400 14" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.ground x="0" y="0" width="400" height="14" {}
            @for piece in pieces { (piece) }
        }
    }
}

fn lines(report: &Report) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "GPU-hours by " (report.by.as_str()) } {
            table.list data-testid={ "by-" (report.by.as_str()) } {
                thead { tr {
                    th scope="col" { (report.by.as_str()) } th scope="col" { "GPU-hours" }
                    @for class in TimeClass::ALL { th.n scope="col" { (class.words()) } }
                    th.n scope="col" { "goodput" }
                    @if let Some(currency) = &report.currency {
                        th.n scope="col" { (currency) } th.n scope="col" { (currency) " wasted" }
                    }
                } }
                tbody {
                    @for line in &report.lines { (row(line, &name(line), report)) }
                    (row(&report.total, "all", report))
                }
            }
        }
    }
}

fn name(line: &ReportLine) -> String {
    if line.name.is_empty() { "nobody".to_owned() } else { line.name.clone() }
}

fn row(line: &ReportLine, name: &str, report: &Report) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td.wide { (bar(line)) }
            @for class in TimeClass::ALL { td.n { (hours(line.of(class))) } }
            td.n { @if let Some(share) = line.goodput { (format!("{:.1} %", share * 100.0)) } @else { "–" } }
            @if report.currency.is_some() {
                @let cost = line.cost.unwrap_or_default();
                td.n { (format!("{:.2}", cost.total)) } td.n { (format!("{:.2}", cost.wasted)) }
            }
        }
    }
}

/// Days have only what was wasted on them, jobs all that they ever wasted.
const WASTERS: &str = "Of jobs that ended in these days or go on. Amounts are those of the whole \
                       job, other days included.";

/// `linked`: there are pages behind them.
fn wasters(report: &Report, linked: bool) -> Markup {
    html! {
        @if report.wasters.is_empty() && report.total.wasted_hours == 0.0 {
            p.calm { span.sign aria-hidden="true" { "✓" } " Nobody wasted anything." }
        } @else if report.wasters.is_empty() {
            p.calm { "Of jobs that ended in these days or go on, none is known to have wasted anything." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Jobs that wasted most" {
                table.list data-testid="wasters" {
                    thead { tr {
                        th scope="col" { "Job" } th scope="col" { "User" } th scope="col" { "Team" }
                        th scope="col" { "GPU-hours" } th.n scope="col" { "held" } th.n scope="col" { "wasted" }
                        @if let Some(currency) = &report.currency { th.n scope="col" { (currency) " wasted" } }
                        th scope="col" { "mostly" }
                    } }
                    tbody { @for waster in &report.wasters {
                        tr {
                            th scope="row" {
                                @if linked { (words::job_link(TaskId::single(waster.id))) } @else { (waster.id) }
                                @if let Some(name) = &waster.name { span.sub { " " (name) } }
                            }
                            td { (waster.user) } td { (waster.team) }
                            td.wide { (bar(&waster.line)) }
                            td.n { (hours(waster.line.held_hours)) } td.n { (hours(waster.line.wasted_hours)) }
                            @if report.currency.is_some() {
                                td.n { (format!("{:.2}", waster.line.cost.unwrap_or_default().wasted)) }
                            }
                            td { (mostly(&waster.line)) }
                        }
                    } }
                }
            }
        }
    }
}

const SERVED: &str = "Those that were stopped in these days or go on. Totals since each was made, \
                      other days included.";

fn served(report: &Report, linked: bool) -> Markup {
    html! {
        @if report.served.is_empty() {
            p.calm { "There was none." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Endpoints" {
                table.list data-testid="served" {
                    thead { tr {
                        th scope="col" { "Endpoint" } th scope="col" { "Team" }
                        @for head in ["requests", "failed", "tokens in", "tokens out", "GPU-hours"] {
                            th.n scope="col" { (head) }
                        }
                        @if let Some(currency) = &report.currency {
                            th.n scope="col" { (currency) }
                            th.n scope="col" { (currency) " per million tokens" }
                        }
                        th scope="col" { "state" }
                    } }
                    tbody { @for line in &report.served { (served_row(line, report, linked)) } }
                }
            }
        }
    }
}

fn served_row(line: &ServedLine, report: &Report, linked: bool) -> Markup {
    let total = &line.total;
    html! {
        tr {
            th scope="row" {
                @if linked && line.stopped_at.is_none() { (words::endpoint_link(&line.name)) }
                @else { (line.name) }
            }
            td { (line.team) }
            @for n in [total.requests, total.errors, total.prompt_tokens, total.output_tokens] {
                td.n { (words::number(n)) }
            }
            td.n { (hours(line.gpu_hours)) }
            @if report.currency.is_some() {
                @for cost in [line.cost, line.cost_per_million_tokens] {
                    td.n { @if let Some(cost) = cost { (format!("{cost:.2}")) } @else { "–" } }
                }
            }
            td { @if let Some(at) = line.stopped_at { "stopped " (words::when(at)) } @else { "serving" } }
        }
    }
}

fn mostly(line: &ReportLine) -> &'static str {
    let wasted = line.gpu_hours.iter().filter(|(class, _)| class.is_waste());
    wasted.max_by(|a, b| a.1.total_cmp(b.1)).map_or("", |(class, _)| class.words())
}

/// What a job made of what it had, in a line with its bar.
pub(crate) fn of_job(line: &ReportLine) -> Markup {
    html! {
        @if let Some(share) = line.goodput {
            (format!("{:.1} %", share * 100.0))
            span.sub {
                " of " (hours(line.held_hours)) " GPU-hours"
                @if line.wasted_hours > 0.0 { ", " (hours(line.wasted_hours)) " wasted, mostly " (mostly(line)) }
                @if line.unsaved_hours > 0.0 { ", " (hours(line.unsaved_hours)) " not safe yet" }
            }
            (bar(line))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::tests::reader;
    use tutti_model::{Cost, Day, JobId, Role, Served, Time, Waster};

    fn line(name: &str, productive: f64, idle: f64) -> ReportLine {
        ReportLine {
            name: name.into(),
            gpu_hours: [(TimeClass::Productive, productive), (TimeClass::Idle, idle)].into(),
            total_hours: productive + idle,
            held_hours: productive + idle,
            wasted_hours: idle,
            unsaved_hours: 0.0,
            goodput: Some(productive / (productive + idle)),
            cost: Some(Cost { total: 1234.5, held: 1234.5, wasted: 5.0 }),
        }
    }

    fn report(by: ReportBy, names: [&str; 2]) -> Report {
        let waster = Waster {
            id: JobId(7),
            name: Some("<train>".into()),
            user: "ada".into(),
            team: "lab".into(),
            line: line("", 1.0, 3.0),
        };
        Report {
            since: Day(20_000),
            until: Day(20_001),
            by,
            currency: Some("EUR".into()),
            unpriced: vec!["b200".into()],
            total: line("", 7.0, 3.0),
            lines: vec![line(names[0], 4.0, 1.0), line(names[1], 3.0, 2.0)],
            wasters: vec![waster],
            served: Vec::new(),
        }
    }

    #[test]
    fn the_page_has_a_picture_and_the_same_as_a_table() {
        let view = View {
            days: report(ReportBy::Day, ["2024-10-04", "2024-10-05"]),
            table: report(ReportBy::Team, ["lab", ""]),
        };
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(
            text.contains("data-testid=\"by-day\"") && text.contains("data-testid=\"by-team\"")
        );
        assert!(
            text.contains("70.0") && text.contains("nobody") && text.contains("b200"),
            "{text}"
        );
        assert!(text.contains("href=\"/jobs/7\"") && text.contains("&lt;train&gt;"), "{text}");
        assert!(
            text.contains("1,234") && text.contains("data-live=\"/live?page=cost&amp;q=team\"")
        );
        assert!(text.contains("height=\"160.00\""), "four of five hours of the tallest: {text}");
        assert!(text.contains(&view.shown().regions["lines"]));
        assert!(!text.contains("style="), "nothing is inline");
    }

    #[test]
    fn nobody_wasted_anything_only_if_nothing_was_wasted() {
        let mut report = report(ReportBy::Team, ["lab", "ops"]);
        let text = |report: &Report| wasters(report, true).into_string();
        assert!(text(&report).contains("/jobs/7"));
        report.wasters.clear();
        assert!(!text(&report).contains("Nobody") && text(&report).contains("none is known"));
        report.total = line("", 7.0, 0.0);
        assert!(text(&report).contains("Nobody wasted anything"));
    }

    fn endpoint(name: &str, stopped_at: Option<Time>) -> ServedLine {
        ServedLine {
            name: name.into(),
            user: "ada".into(),
            team: "lab".into(),
            created_at: Time(0),
            stopped_at,
            total: Served { requests: 12_345, ..Served::default() },
            gpu_hours: 8.5,
            cost: Some(21.25),
            cost_per_million_tokens: None,
        }
    }

    #[test]
    fn endpoints_that_are_there_have_a_page() {
        let mut report = report(ReportBy::Team, ["lab", "ops"]);
        let text = |report: &Report| served(report, true).into_string();
        assert!(text(&report).contains("There was none."));
        report.served = vec![endpoint("chat", None), endpoint("<old>", Some(Day(20_000).begins()))];
        let found = text(&report);
        assert!(found.contains("href=\"/endpoints/chat\"") && found.contains("serving"), "{found}");
        assert!(found.contains("&lt;old&gt;") && found.contains("stopped <time"), "{found}");
        assert!(found.contains("12,345") && found.contains("EUR per million tokens"), "{found}");
        assert!(!found.contains("/endpoints/%3C"), "there is no page any more: {found}");
    }

    #[test]
    fn a_file_needs_nothing_else() {
        let mut report = report(ReportBy::Day, ["2024-10-04", "2024-10-05"]);
        report.served = vec![endpoint("chat", None)];
        let text = standalone(&report).into_string();
        assert!(text.contains("<style>") && text.contains(".c-productive"));
        assert!(!text.contains("href=") && !text.contains("src=") && !text.contains("<script"));
    }
}
