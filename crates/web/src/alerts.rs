//! What needs somebody: now, lately, and what is looked for.

use maud::{Markup, html};
use tutti_model::{Subject, TaskId, Time, WatchRule};
use tutti_wire::api::{AlertList, RuleRow};

use crate::live::Shown;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// Something that somebody should know.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    pub grave: bool,
    pub about: About,
    pub text: String,
    pub since: Option<Time>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum About {
    Node(String),
    Job(TaskId),
    Team(String),
    /// Of the controller itself: its disk, a certificate.
    Controller,
}

impl From<&Subject> for About {
    fn from(subject: &Subject) -> About {
        match subject {
            Subject::Job { id } => About::Job(*id),
            Subject::Node { name } => About::Node(name.clone()),
            Subject::Team { name } => About::Team(name.clone()),
            Subject::Controller { .. } => About::Controller,
        }
    }
}

impl About {
    fn link(&self) -> Markup {
        html! {
            @match self {
                About::Node(name) => (words::node_link(name)),
                About::Job(id) => { "job " (words::job_link(*id)) },
                About::Team(name) => { "team " (name) },
                About::Controller => { "controller" },
            }
        }
    }
}

/// Worst and newest first.
pub(crate) fn list(alerts: &[Alert], labelled_by: &str) -> Markup {
    html! {
        @if alerts.is_empty() {
            p.calm { span.sign aria-hidden="true" { "✓" } " Nothing does." }
        } @else {
            ul.alerts aria-labelledby=(labelled_by) {
                @for alert in alerts {
                    li.grave[alert.grave] {
                        span.sign aria-hidden="true" { @if alert.grave { "▲" } @else { "△" } }
                        span.text {
                            @if alert.grave { span.away { "Grave: " } }
                            (alert.about.link()) " " (alert.text)
                        }
                        @if let Some(since) = alert.since { span.sub { (words::ago(since)) } }
                    }
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct View {
    pub now: Vec<Alert>,
    /// Beyond those shown.
    pub more: usize,
    /// What rules have found, over or not, and the rules.
    pub found: AlertList,
}

impl View {
    pub fn shown(&self) -> Shown {
        Shown::default()
            .region("alerts-now", self.standing())
            .region("alerts-over", self.over())
            .region("alerts-rules", self.rules())
    }

    fn standing(&self) -> Markup {
        html! {
            (list(&self.now, "alerts-title"))
            @if self.more > 0 { p.sub { "and " (self.more) " more" } }
        }
    }

    fn over(&self) -> Markup {
        let over = self.found.alerts.iter().filter_map(|alert| Some((alert, alert.ended_at?)));
        let over: Vec<_> = over.collect();
        html! {
            @if over.is_empty() {
                p.sub { "Nothing that is remembered." }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Alerts that are over" {
                    table.list data-testid="alerts-over" {
                        thead { tr {
                            th scope="col" { "Ended" } th scope="col" { "Rule" }
                            th scope="col" { "About" } th.n scope="col" { "Lasted" }
                            th scope="col" { "Action" } th scope="col" { "What was wrong" }
                        } }
                        tbody { @for (alert, ended) in &over {
                            tr {
                                td { (words::ago(*ended)) " ago" }
                                td { (alert.rule.as_str()) }
                                td {
                                    (About::from(&alert.subject).link())
                                    @if let Some(job) = &alert.job {
                                        span.sub { " " (job.name) " of " (job.user) }
                                    }
                                }
                                td.n { (words::span(ended.since(alert.since))) }
                                td { (alert.action.as_str()) }
                                td.why { (alert.text) }
                            }
                        } }
                    }
                }
            }
        }
    }

    fn rules(&self) -> Markup {
        let standing = |rule: WatchRule| {
            let of = |alert: &&tutti_model::Alert| alert.rule == rule && alert.ended_at.is_none();
            self.found.alerts.iter().filter(of).count() as u64
        };
        html! {
            div.scroll tabindex="0" role="region" aria-label="Rules" {
                table.list data-testid="alert-rules" {
                    thead { tr {
                        th scope="col" { "Rule" } th scope="col" { "What is looked for" }
                        th.n scope="col" { "Limit" } th.n scope="col" { "Within" }
                        th.n scope="col" { "For" } th.n scope="col" { "Clear after" }
                        th scope="col" { "Action" } th.n scope="col" { "Now" }
                    } }
                    tbody { @for RuleRow { rule, terms } in &self.found.rules {
                        tr {
                            th scope="row" { (rule.as_str()) }
                            td.why { (rule.looks_for()) }
                            td.n { @if rule.has_limit() { (terms.limit.to_string()) } @else { "–" } }
                            td.n {
                                @if terms.within.is_zero() { "–" } @else { (words::span(terms.within)) }
                            }
                            td.n { (words::span(terms.lasts)) }
                            td.n { (words::span(terms.clear)) }
                            td { (terms.action.as_str()) }
                            td.n { (standing(*rule)) }
                        }
                    } }
                }
            }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let body = html! {
        div.title { h1 { "Alerts" } }
        section.panel {
            h2 #alerts-title { "Needs attention" }
            (region("alerts-now", &view.standing()))
        }
        section.panel {
            h2 { "Over" }
            (region("alerts-over", &view.over()))
        }
        section.panel {
            h2 { "What is looked for" }
            (region("alerts-rules", &view.rules()))
        }
    };
    let live = Some("page=alerts".to_owned());
    document(reader, &Page { tab: Tab::Alerts, title: "Alerts", live, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::tests::reader;
    use tutti_model::{AlertJob, AskedBy, JobId, Role, WatchAction};

    fn found(ended_at: Option<Time>) -> tutti_model::Alert {
        tutti_model::Alert {
            id: 3,
            rule: WatchRule::Hang,
            subject: Subject::Job { id: TaskId::single(JobId(7)) },
            asked_by: AskedBy::Policy,
            action: WatchAction::Kill,
            text: "it hangs <on n1>".into(),
            job: Some(AlertJob { name: "train".into(), user: "ada".into() }),
            since: Time(60_000),
            fired_at: Time(120_000),
            ended_at,
        }
    }

    #[test]
    fn what_stands_what_is_over_and_the_rules_are_on_the_page_and_live() {
        let rule = |rule: WatchRule| RuleRow { rule, terms: rule.defaults() };
        let view = View {
            now: vec![Alert {
                grave: true,
                about: About::Node("n7".into()),
                text: "is lost".into(),
                since: None,
            }],
            more: 2,
            found: AlertList {
                alerts: vec![found(None), found(Some(Time(240_000)))],
                rules: WatchRule::ALL.map(rule).into(),
            },
        };
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("href=\"/nodes/n7\"") && text.contains("and 2 more"), "{text}");
        assert_eq!(text.matches("it hangs &lt;on n1&gt;").count(), 1, "only what is over: {text}");
        assert!(
            text.contains("<td class=\"n\">3m</td>") && text.contains("train of ada"),
            "{text}"
        );
        assert_eq!(text.matches("<th scope=\"row\">").count(), WatchRule::ALL.len());
        for (id, html) in view.shown().regions {
            assert!(text.contains(&format!("id=\"{id}\">{html}")), "{id}");
        }
    }

    #[test]
    fn calm_is_said() {
        let text = page(&reader(Role::Viewer), &View::default()).into_string();
        assert!(text.contains("Nothing does.") && text.contains("Nothing that is remembered."));
    }
}
