//! The cluster at a glance.

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::Time;

use crate::alerts::{self, Alert};
use crate::grid::{Grid, SIGNS};
use crate::live::Shown;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

/// What the overview shows.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub figures: Figures,
    pub alerts: Vec<Alert>,
    /// Alerts beyond those shown.
    pub more_alerts: usize,
    pub pulse: Pulse,
    pub grid: Grid,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub gpus: u64,
    pub gpus_held: u64,
    /// GPUs that nothing can be placed on: fenced, drained, away.
    pub gpus_out: u64,
    /// Mean activity of those that are held; none if nobody tells.
    pub activity: Option<f64>,
    /// Watts of all GPUs that tell.
    pub power: Option<f64>,
    pub nodes: u64,
    pub nodes_ready: u64,
    pub running: u64,
    pub pending: u64,
    pub suspended: u64,
    /// How long the job waits that has waited longest.
    pub waits_since: Option<Time>,
}

/// The last hours: a point every 15 seconds, and of what is longer ago fewer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pulse {
    /// Seconds since 1970.
    pub t: Vec<u64>,
    /// Per cent of all GPUs.
    pub held: Vec<Option<f32>>,
    pub active: Vec<Option<f32>>,
    pub pending: Vec<Option<u64>>,
    pub running: Vec<Option<u64>>,
    /// Kilowatts.
    pub power: Vec<Option<f32>>,
}

impl View {
    pub fn shown(&self) -> Shown {
        let shown = Shown::default()
            .region("figures", self.figures())
            .region("alerts", self.alerts())
            .chart("pulse", &self.pulse);
        Shown { grid: Some(self.grid.clone()), ..shown }
    }

    fn figures(&self) -> Markup {
        let f = &self.figures;
        html! {
            dl.figures {
                (figure("GPUs held", of(f.gpus_held, f.gpus),
                    html! {
                        (words::meter("GPUs held", f.gpus_held, f.gpus))
                        @if f.gpus_out > 0 {
                            span.sub { (words::number(f.gpus_out)) " out of use" }
                        }
                    }))
                (figure("Activity of held GPUs",
                    html! {
                        @if let Some(a) = f.activity {
                            (format!("{:.0}", a * 100.0)) small { " %" }
                        } @else { "–" }
                    }
                    ,
                    html! { @if let Some(a) = f.activity {
                        (words::meter("Activity", (a * 100.0) as u64, 100))
                    } }))
                (figure("Running", html! { (words::number(f.running)) },
                    html! { @if f.suspended > 0 {
                        span.sub { (words::number(f.suspended)) " suspended" }
                    } }))
                (figure("Waiting", html! { a href="/queue" { (words::number(f.pending)) } },
                    html! { @if let Some(since) = f.waits_since {
                        span.sub { "the longest for " (words::ago(since)) }
                    } }))
                (figure("Nodes ready", of(f.nodes_ready, f.nodes),
                    words::meter("Nodes ready", f.nodes_ready, f.nodes)))
                (figure("Power", html! {
                    @if let Some(watts) = f.power {
                        (format!("{:.1}", watts / 1000.0)) small { " kW" }
                    } @else { "–" }
                }, html! {}))
            }
        }
    }

    fn alerts(&self) -> Markup {
        html! {
            h2 #alerts-title { a href="/alerts" { "Needs attention" } }
            (alerts::list(&self.alerts, "alerts-title"))
            @if self.more_alerts > 0 {
                p.sub { a href="/alerts" { "and " (self.more_alerts) " more" } }
            }
        }
    }
}

fn of(part: u64, whole: u64) -> Markup {
    html! { (words::number(part)) small { " of " (words::number(whole)) } }
}

pub(crate) fn figure(name: &str, value: Markup, below: Markup) -> Markup {
    html! { div { dt { (name) } dd { span.value { (value) } (below) } } }
}

const MODES: &[(&str, &str)] = &[
    ("holding", "Allocation"),
    ("activity", "Activity"),
    ("power", "Power"),
    ("temp", "Temperature"),
    ("health", "Health"),
];

/// Of the table that says what the picture shows.
const COLUMNS: &[(&str, &str)] = &[
    ("Site", ""),
    ("Rack", ""),
    ("Node", ""),
    ("GPUs", ""),
    ("Held", "n"),
    ("Free", "n"),
    ("Out", "n"),
    ("Activity", "n"),
    ("Power", "n"),
    ("Hottest", "n"),
    ("Health", ""),
];

fn signs() -> String {
    serde_json::to_string(&SIGNS).expect("our own types become JSON")
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let body = html! {
        h1.away { "Overview" }
        (region("figures", &view.figures()))
        section.panel.gpus aria-labelledby="gpus-title" {
            div.bar {
                h2 #gpus-title { "GPUs" }
                div.modes role="radiogroup" aria-label="Colour by" {
                    @for (i, (mode, name)) in MODES.iter().enumerate() {
                        button type="button" role="radio" data-mode=(mode) data-key=(i + 1)
                            aria-checked=(if i == 0 { "true" } else { "false" })
                            tabindex=(if i == 0 { "0" } else { "-1" }) { (name) }
                    }
                }
                div #legend.legend data-testid="legend" {}
            }
            div #grid.grid tabindex="0" role="application" data-testid="grid"
                aria-label="GPUs by site, rack and node. Arrow keys move from GPU to GPU, Enter opens its job. The table below says the same."
                aria-describedby="cell" data-signs=(signs()) {
                canvas #cells aria-hidden="true" {}
            }
            p #cell.cell data-testid="cell" {
                "Point at a GPU, or move to one with the arrow keys."
            }
            details #by-node {
                summary { "The same as a table" }
                div.scroll tabindex="0" role="region" aria-label="GPUs by node" {
                    table.even role="table" data-testid="by-node" {
                        thead role="rowgroup" { tr role="row" {
                            @for (name, class) in COLUMNS {
                                th class=[(!class.is_empty()).then_some(class)] scope="col"
                                    role="columnheader" { (name) }
                            }
                        } }
                        tbody role="rowgroup" {}
                    }
                }
            }
        }
        div.split {
            section.panel aria-labelledby="pulse-title" {
                h2 #pulse-title { "The last hours" }
                div.chart #pulse data-chart="pulse" {}
            }
            section.panel { (region("alerts", &view.alerts())) }
        }
    };
    let live = Some("page=overview".to_owned());
    document(reader, &Page { tab: Tab::Overview, title: "Overview", live, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::About;
    use crate::shell::tests::reader;
    use tutti_model::{JobId, Role, TaskId};

    fn view() -> View {
        View {
            figures: Figures {
                gpus: 1024,
                gpus_held: 900,
                running: 12,
                pending: 3,
                ..Figures::default()
            },
            alerts: vec![Alert {
                grave: true,
                about: About::Node("n7".into()),
                text: "GPU 3: fell off the bus <xid 79>".into(),
                since: Some(Time(40_000)),
            }],
            ..View::default()
        }
    }

    #[test]
    fn figures_and_alerts_are_in_the_page_and_live() {
        let view = view();
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert!(text.contains("900<small> of 1,024</small>"), "{text}");
        assert!(text.contains("fell off the bus &lt;xid 79&gt;") && text.contains("/nodes/n7"));
        let shown = view.shown();
        for (id, html) in &shown.regions {
            assert!(
                text.contains(&format!("id=\"{id}\">{html}")),
                "{id} is in the page as it is sent"
            );
        }
        assert!(shown.grid.is_some() && shown.series.contains_key("pulse"));
    }

    #[test]
    fn calm_is_said() {
        let calm = View { alerts: Vec::new(), ..view() };
        assert!(calm.alerts().into_string().contains("Nothing does."));
    }

    #[test]
    fn a_job_can_be_what_an_alert_is_about() {
        let about = About::Job(TaskId::single(JobId(7)));
        let alert = Alert { grave: false, about, text: "stalled".into(), since: None };
        let view = View { alerts: vec![alert], more_alerts: 4, ..view() };
        let text = view.alerts().into_string();
        assert!(text.contains("href=\"/jobs/7\"") && text.contains("and 4 more"), "{text}");
    }
}
