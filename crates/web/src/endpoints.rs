//! Endpoints as a table: what each is asked for, how it answers, and what that costs.

pub(crate) mod cells;

use maud::{Markup, html};
use tutti_model::{Replica, ReplicaPhase, RolloutStage, Span};
use tutti_wire::api::{EndpointRow, EndpointState, Figures, ServedView};

use crate::live::{Row, Shown};
use crate::shell::{Page, Reader, Tab, document, groups, region};
use crate::words;

/// An endpoint with what its row does not say.
#[derive(Clone, Debug)]
pub struct Entry {
    pub row: EndpointRow,
    /// Every one whose job is not over.
    pub replicas: Vec<Replica>,
    pub price: Option<TokenPrice>,
}

/// Of a million tokens, prompts and answers together.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenPrice {
    pub amount: f64,
    pub currency: String,
}

impl TokenPrice {
    /// None where GPUs have no price, or nobody has asked yet.
    pub fn of(served: &ServedView) -> Option<TokenPrice> {
        let currency = served.currency.clone()?;
        Some(TokenPrice { amount: served.cost_per_million_tokens?, currency })
    }
}

/// The endpoints that were asked for.
#[derive(Clone, Debug, Default)]
pub struct ListView {
    pub endpoints: Vec<Entry>,
    /// All there are, by state.
    pub totals: Vec<(EndpointState, u64)>,
    pub query: String,
}

impl ListView {
    pub fn shown(&self) -> Shown {
        let row = |entry: &Entry| Row {
            key: entry.row.name.clone(),
            html: list_row(entry).into_string(),
        };
        Shown::default()
            .region("endpoints-note", self.note())
            .table("endpoints", self.endpoints.iter().map(row).collect())
    }

    fn note(&self) -> Markup {
        html! {
            ul.chips aria-label="Endpoints by state" {
                @for (state, n) in self.totals.iter().filter(|(_, n)| *n > 0) {
                    li {
                        a href={ "/endpoints?q=state:" (state.as_str()) } {
                            (state.as_str()) " " b { (words::number(*n)) }
                        }
                    }
                }
            }
        }
    }
}

impl Entry {
    /// Replicas that answer with the revision where the rollout leads to: the old one if it goes back.
    pub(crate) fn fresh(&self) -> u64 {
        let Some(rollout) = &self.row.rollout else { return 0 };
        let to = if rollout.stage == RolloutStage::Back { rollout.from } else { rollout.to };
        let fresh = |r: &&Replica| r.revision == to && r.phase == ReplicaPhase::Ready;
        self.replicas.iter().filter(fresh).count() as u64
    }
}

fn list_row(entry: &Entry) -> Markup {
    let (row, figures) = (&entry.row, &entry.row.figures);
    html! {
        tr role="row" data-key=(row.name) data-href={ "/endpoints/" (words::encoded(&row.name)) } {
            td.name role="cell" {
                (words::endpoint_link(&row.name))
                @if !row.models.is_empty() { span.sub { " " (row.models.join(", ")) } }
            }
            td role="cell" { (row.team) " " span.sub { (row.user) } }
            td role="cell" { (words::endpoint_state(row.state)) }
            td role="cell" data-v=(row.ready) { (replicas(entry)) }
            td role="cell" data-v=(row.revision) { (revision(entry)) }
            td.n role="cell" data-v=(thousandths(figures.requests_per_second)) {
                (words::rate(figures.requests_per_second))
            }
            td.n role="cell" data-v=(thousandths(figures.errors)) { (errors(figures)) }
            td.n role="cell" data-v=(millis(figures.first_byte_p95)) { (first_byte(figures)) }
            td.n role="cell" data-v=(millis(figures.per_token_p50)) {
                (wait(figures.per_token_p50))
            }
            td.n role="cell" data-v=(row.queued) {
                (words::number(row.queued.into())) " / " (words::number(row.in_flight.into()))
            }
            td.n role="cell" data-v=(figures.prefix_hits.map_or(-1, thousandths)) {
                @if let Some(part) = figures.prefix_hits { (words::percent(part)) } @else { "–" }
            }
            td.n role="cell" data-v=(thousandths(figures.output_tokens_per_second)) {
                (words::rate(figures.output_tokens_per_second))
            }
            td.n role="cell" data-v=(entry.price.as_ref().map_or(-1, |p| thousandths(p.amount))) {
                (price(entry.price.as_ref()))
            }
        }
    }
}

/// For sorting.
fn thousandths(value: f64) -> i64 {
    (value * 1000.0).round() as i64
}

fn millis(wait: Option<Span>) -> i64 {
    wait.map_or(-1, |wait| i64::try_from(wait.0).unwrap_or(i64::MAX))
}

pub(crate) fn wait(wait: Option<Span>) -> Markup {
    html! { @if let Some(wait) = wait { (words::wait(wait)) } @else { "–" } }
}

fn first_byte(figures: &Figures) -> Markup {
    html! {
        @if let Some(late) = figures.first_byte_p95 {
            @if let Some(median) = figures.first_byte_p50 { (words::wait(median)) " / " }
            (words::wait(late))
        } @else { "–" }
    }
}

/// A part of the requests that somebody should look at.
const MANY_ERRORS: f64 = 0.01;

/// With a sign where there are many.
pub(crate) fn errors(figures: &Figures) -> Markup {
    let many = figures.errors >= MANY_ERRORS;
    html! {
        @if many { span.bad { span.sign aria-hidden="true" { "▲" } " " (words::fine_percent(figures.errors)) } }
        @else if figures.requests_per_second > 0.0 { (words::fine_percent(figures.errors)) }
        @else { "–" }
    }
}

pub(crate) fn price(price: Option<&TokenPrice>) -> Markup {
    html! {
        @if let Some(TokenPrice { amount, currency }) = price {
            (format!("{amount:.2}")) small { " " (currency) }
        } @else { "–" }
    }
}

/// How many answer of how many there should be, the bounds, and each as a cell.
pub(crate) fn replicas(entry: &Entry) -> Markup {
    let row = &entry.row;
    html! {
        (row.ready) " of " (row.want)
        span.sub { " " (bounds(row)) }
        (cells::draw(&entry.replicas, row.want, row.max))
    }
}

fn bounds(row: &EndpointRow) -> String {
    match row.min == row.max {
        true => format!("[{}]", row.min),
        false => format!("[{}–{}]", row.min, row.max),
    }
}

fn revision(entry: &Entry) -> Markup {
    let row = &entry.row;
    let Some(rollout) = &row.rollout else { return html! { (row.revision) } };
    let fresh = || format!("{} of {}", entry.fresh(), row.want);
    let (sign, words) = match rollout.stage {
        RolloutStage::Canary { percent, .. } => ("◔", format!("canary {percent} %")),
        RolloutStage::Rolling => ("◑", fresh()),
        RolloutStage::Watching { .. } => ("◕", "watched".to_owned()),
        RolloutStage::Back => ("↶", format!("back, {}", fresh())),
    };
    html! { (rollout.from) " → " (rollout.to) " " (words::badge("rollout", sign, &words)) }
}

const COLUMNS: &[(&str, &str)] = &[
    ("Endpoint", ""),
    ("Team", ""),
    ("State", ""),
    ("Replicas", ""),
    ("Revision", ""),
    ("Requests/s", "n"),
    ("Errors", "n"),
    ("First byte p50 / p95", "n"),
    ("Per token", "n"),
    ("Queue / under way", "n"),
    ("Prefix hits", "n"),
    ("Tokens/s", "n"),
    ("Per 1M tokens", "n"),
];

pub fn list_page(reader: &Reader, view: &ListView, live: String) -> Markup {
    let shown = view.shown();
    let rows = &shown.tables["endpoints"];
    let body = html! {
        div.title { h1 { "Endpoints" } (region("endpoints-note", &view.note())) }
        div.bar.tools {
            form.filter role="search" method="get" action="/endpoints" {
                label.away for="filter" { "Filter" }
                input #filter type="search" name="q" value=(view.query) data-filter="endpoints"
                    placeholder="Filter: words, user:ada, team:vision, state:ready";
                button type="submit" { "Search" }
            }
            (cells::legend())
        }
        div.scroll.tall tabindex="0" role="region" aria-label="Endpoints" {
            table.list.even #endpoints role="table" data-sortable="" data-testid="endpoints" {
                thead role="rowgroup" { tr role="row" {
                    @for (name, class) in COLUMNS {
                        th class=[(!class.is_empty()).then_some(class)] scope="col"
                            role="columnheader" {
                            button type="button" data-sort="" { (name) }
                        }
                    }
                } }
                (groups(rows))
            }
        }
        p.empty data-empty="endpoints" hidden[!rows.is_empty()] {
            "There is no such endpoint. " code { "tutti serve FILE" } " starts one."
        }
        p.note { "Figures are of the last minute, over all routers; what a million tokens cost, of all time." }
    };
    document(reader, &Page { tab: Tab::Endpoints, title: "Endpoints", live: Some(live), body })
}

#[cfg(test)]
pub(crate) mod tests;
