//! One endpoint: what it is asked for, its replicas and revisions, the way from one to the next.

mod replicas;
mod rollout;

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::{Replica, Span, Time};
use tutti_wire::api::{EndpointDetail, EndpointState, ReplicaRow, RevisionRow, RouterRow};

use crate::endpoints::{Entry, TokenPrice, cells, errors, price, replicas as counted, wait};
use crate::job::fact;
use crate::live::Shown;
use crate::overview::figure;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// All that is known of an endpoint.
#[derive(Clone, Debug)]
pub struct View {
    pub detail: EndpointDetail,
    pub curves: Curves,
    /// When that was.
    pub at: Time,
    /// The reader may see what its environment is set to.
    pub inside: bool,
}

/// The last minutes, over all routers. What is not known at a time has no value there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Seconds since 1970.
    pub t: Vec<u64>,
    /// Each second.
    pub requests: Vec<Option<f32>>,
    pub failed: Vec<Option<f32>>,
    /// Milliseconds that 95 of 100 requests did not exceed.
    pub first_byte: Vec<Option<f32>>,
    pub in_flight: Vec<Option<u32>>,
    pub queued: Vec<Option<u32>>,
    /// Replicas that answer, and that should.
    pub ready: Vec<Option<u32>>,
    pub want: Vec<Option<u32>>,
}

/// Routers speak every second: one that was silent for so long is worth a word.
const SILENT: Span = Span::secs(3);

impl View {
    pub fn shown(&self) -> Shown {
        let shown = Shown::default()
            .region("head", self.head())
            .region("why", self.why())
            .region("figures", self.figures())
            .region("rollout", self.rollout())
            .table("replicas", replicas::rows(&self.detail.replicas))
            .region("revisions", self.revisions())
            .region("routers", self.routers())
            .region("sums", self.sums())
            .region("history", self.history());
        match self.curves.t.is_empty() {
            true => shown,
            false => shown.chart("endpoint", &self.curves),
        }
    }

    /// As the list has it.
    fn entry(&self) -> Entry {
        let of = |row: &ReplicaRow| Replica {
            revision: row.revision,
            phase: row.phase,
            since: row.since,
        };
        Entry {
            row: self.detail.row.clone(),
            replicas: self.detail.replicas.iter().map(of).collect(),
            price: TokenPrice::of(&self.detail.served),
        }
    }

    fn head(&self) -> Markup {
        let row = &self.detail.row;
        html! {
            dl.facts data-testid="facts" {
                (fact("State", html! {
                    span data-testid="state" { (words::endpoint_state(row.state)) }
                }))
                (fact("Replicas", html! {
                    span.counted data-testid="counted" { (counted(&self.entry())) }
                }))
                (fact("GPUs", html! {
                    (words::number(u64::from(row.gpus_per_replica) * u64::from(row.ready)))
                    span.sub { ", " (row.gpus_per_replica) " of each replica" }
                }))
                (fact("Revision", html! { (row.revision) }))
                (fact("User", html! { (row.user) span.sub { " of " (row.team) } }))
                (fact("Asked for as", html! {
                    (row.name) @for model in &row.models { ", " (model) }
                }))
                (fact("Replica picked by", html! { (row.policy.as_str()) }))
                (fact("Since", words::when(row.created_at)))
            }
        }
    }

    fn why(&self) -> Markup {
        let row = &self.detail.row;
        html! {
            @if !self.detail.why.is_empty() {
                section.panel.why data-testid="why" {
                    h2 { "Why it is not as it should be" }
                    ul { @for line in &self.detail.why { li { (line) } } }
                }
            } @else if row.state == EndpointState::Asleep {
                section.panel.why data-testid="why" {
                    p.calm { "Nobody asks, so no replica runs. The next request starts one and waits for it." }
                }
            }
        }
    }

    fn figures(&self) -> Markup {
        let (row, figures) = (&self.detail.row, &self.detail.row.figures);
        let sub = |text: String| html! { span.sub { (text) } };
        let refused = words::rate(figures.refused_per_second);
        html! {
            dl.figures data-testid="figures" {
                (figure("Requests", html! { (words::rate(figures.requests_per_second)) small { " /s" } },
                    html! { span.sub { (errors(figures)) " failed, " (refused) " /s refused" } }))
                (figure("First byte, p95", wait(figures.first_byte_p95),
                    html! { span.sub { "median " (wait(figures.first_byte_p50)) } }))
                (figure("Per token", wait(figures.per_token_p50), sub("median".to_owned())))
                (figure("Waiting", html! { (words::number(row.queued.into())) },
                    html! { span.sub {
                        (words::number(row.in_flight.into())) " under way"
                        @if let Some(late) = figures.queue_wait_p95 { ", p95 waits " (words::wait(late)) }
                    } }))
                (figure("Tokens", html! {
                    (words::rate(figures.output_tokens_per_second)) small { " /s" }
                }, sub("of answers".to_owned())))
                (figure("Prefix hits", html! {
                    @if let Some(part) = figures.prefix_hits { (words::percent(part)) } @else { "–" }
                }, sub("of prompts' blocks".to_owned())))
                (figure("Per million tokens", price(self.entry().price.as_ref()), sub("of all time".to_owned())))
            }
        }
    }

    fn rollout(&self) -> Markup {
        let entry = self.entry();
        let rule = self.detail.spec.service.as_deref().map(|service| &service.rollout);
        let canary = rule.is_some_and(|rule| rule.canary > 0);
        html! {
            @if let Some(under_way) = &self.detail.row.rollout {
                (rollout::draw(under_way, canary, entry.fresh(), entry.row.want.into()))
            }
        }
    }

    /// The newest first.
    fn revisions(&self) -> Markup {
        let row = &self.detail.row;
        let mut revisions: Vec<&RevisionRow> = self.detail.revisions.iter().collect();
        revisions.sort_by_key(|revision| std::cmp::Reverse(revision.number));
        html! {
            div.scroll tabindex="0" role="region" aria-label="Revisions" {
                table data-testid="revisions" {
                    thead { tr {
                        th.n scope="col" { "Revision" } th scope="col" { "State" }
                        th.n scope="col" { "Since" } th scope="col" { "By" }
                        th scope="col" { "Command" }
                    } }
                    tbody { @for revision in revisions {
                        tr {
                            td.n { (revision.number) }
                            td.why { (rollout::standing(revision, row)) }
                            td.n { (words::when(revision.at)) }
                            td { (revision.by) }
                            td.path { (revision.command) }
                        }
                    } }
                }
            }
        }
    }

    fn routers(&self) -> Markup {
        html! {
            @if self.detail.routers.is_empty() {
                p.calm { "No router was heard of, so nobody can ask. " code { "tutti router" } " starts one." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Routers" {
                    table data-testid="routers" {
                        thead { tr {
                            th scope="col" { "Router" } th scope="col" { "Address" }
                            th scope="col" { "Heard" } th scope="col" { "Goes by" }
                        } }
                        tbody { @for router in &self.detail.routers { (self.router(router)) } }
                    }
                }
            }
        }
    }

    fn router(&self, router: &RouterRow) -> Markup {
        html! { tr {
            td { (router.router) }
            td.path { (router.address) }
            td {
                @if self.at.since(router.heard_at) < SILENT { "just now" }
                @else { (words::badge("away", "?", "silent for")) " " (words::ago(router.heard_at)) }
            }
            td {
                @if router.current { (words::badge("ready", "●", "the newest table")) }
                @else { (words::badge("draining", "◑", "an older table")) }
            }
        } }
    }

    fn sums(&self) -> Markup {
        let (served, total) = (&self.detail.served, &self.detail.served.total);
        html! {
            dl.facts.inner data-testid="sums" {
                (fact("Requests", html! { (words::number(total.requests)) }))
                (fact("Failed", html! { (words::number(total.errors)) }))
                (fact("Refused", html! { (words::number(total.refused)) }))
                (fact("Tokens of prompts", html! { (words::number(total.prompt_tokens)) }))
                (fact("Tokens of answers", html! { (words::number(total.output_tokens)) }))
                (fact("GPU-hours", html! { (format!("{:.1}", served.gpu_hours)) }))
                @if let Some((cost, currency)) = served.cost.zip(served.currency.as_ref()) {
                    (fact("Cost", html! { (format!("{cost:.2}")) small { " " (currency) } }))
                }
            }
        }
    }

    /// The newest first.
    fn history(&self) -> Markup {
        html! {
            @if self.detail.chronicle.is_empty() { p.sub { "Nothing yet." } }
            ol.moments { @for happening in self.detail.chronicle.iter().rev() {
                li { (words::when(happening.at)) " " (happening.text) }
            } }
        }
    }
}

/// What does not change while the page is open: a new revision is another page's.
fn spec(view: &View) -> Markup {
    let text = serde_json::to_string_pretty(&view.detail.spec).unwrap_or_default();
    html! {
        details.panel {
            summary { "The spec of its newest revision" }
            pre.spec tabindex="0" { (text) }
            @if !view.inside {
                p.sub { "What its environment is set to is for its owner and for admins." }
            }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let name = &view.detail.row.name;
    let shown = view.shown();
    let body = html! {
        div.title { h1 { span.id { "Endpoint" } " " (name) } (cells::legend()) }
        (region("head", &view.head()))
        (region("why", &view.why()))
        div.panel.bare { (region("figures", &view.figures())) }
        (region("rollout", &view.rollout()))
        section.panel hidden data-charts="endpoint" {
            h2 { "The last minutes" }
            div.charts { div.chart #endpoint data-chart="endpoint" {} }
        }
        section.panel { h2 { "Replicas" } (replicas::table(&shown.tables["replicas"])) }
        section.panel { h2 { "Revisions" } (region("revisions", &view.revisions())) }
        div.split {
            section.panel { h2 { "Routers" } (region("routers", &view.routers())) }
            section.panel { h2 { "In all" } (region("sums", &view.sums())) }
        }
        section.panel data-testid="history" {
            h2 { "What happened to it" } (region("history", &view.history()))
        }
        (spec(view))
    };
    let live = Some(format!("page=endpoint&name={}", words::encoded(name)));
    document(reader, &Page { tab: Tab::Endpoints, title: name, live, body })
}

#[cfg(test)]
mod tests;
