//! Teams: what each is guaranteed, has, borrows and lends.

use maud::{Markup, html};
use serde::Serialize;
use tutti_model::TeamShare;

use crate::live::Shown;
use crate::shell::{Page, Reader, Tab, document, region};
use crate::words;

#[derive(Clone, Debug, Default)]
pub struct View {
    pub teams: Vec<TeamShare>,
    pub gpus: u64,
    pub past: Past,
}

/// What teams held over the last hours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Past {
    /// Seconds since 1970.
    pub t: Vec<u64>,
    pub names: Vec<String>,
    /// GPUs of each, in the order of the names.
    pub held: Vec<Vec<Option<f32>>>,
}

impl View {
    pub fn shown(&self) -> Shown {
        Shown::default().region("teams", self.table()).chart("shares", &self.past)
    }

    fn table(&self) -> Markup {
        html! {
            div.scroll.tall tabindex="0" role="region" aria-label="Teams" {
                table.list data-testid="teams" {
                    thead { tr {
                        th scope="col" { "Team" } th scope="col" { "GPUs" }
                        th.n scope="col" { "Held" } th.n scope="col" { "Guarantee" }
                        th.n scope="col" { "Borrowed" } th.n scope="col" { "Lent" }
                        th.n scope="col" { "Limit" } th.n scope="col" { "Share" }
                        th.n scope="col" { "Due" }
                        th.n scope="col" { "Running" } th.n scope="col" { "Waiting" }
                        th scope="col" { "Members" }
                    } }
                    tbody { @for team in &self.teams { (self.row(team)) } }
                }
            }
        }
    }

    fn row(&self, team: &TeamShare) -> Markup {
        html! {
            tr {
                th scope="row" class=[team.parent.as_ref().map(|_| "child")] { (team.team) }
                td.wide { (bar(team, self.gpus)) }
                td.n { (words::milli(team.used)) }
                td.n {
                    (team.guarantee) (models(&team.guarantee_models))
                    @if let Some(counts) = team.guarantee_counts {
                        span.sub title="There are too few GPUs for all guarantees" {
                            " counts as " (counts)
                        }
                    }
                }
                td.n { @if team.borrowed > 0 { (words::tenths(team.borrowed)) } @else { "–" } }
                td.n { @if team.lent > 0 { (words::tenths(team.lent)) } @else { "–" } }
                td.n {
                    @if let Some(limit) = team.limit {
                        (limit)
                    } @else if team.limit_models.is_empty() { "–" }
                    (models(&team.limit_models))
                }
                td.n { (per_mille(team.share)) } td.n { (per_mille(team.target)) }
                td.n {
                    a href={ "/jobs?q=state:running+team:" (words::encoded(&team.team)) } {
                        (words::number(team.running))
                    }
                }
                td.n {
                    a href={ "/queue?q=team:" (words::encoded(&team.team)) } {
                        (words::number(team.waiting))
                    }
                }
                td.why { (team.members.join(", ")) }
            }
        }
    }
}

fn per_mille(share: u32) -> String {
    format!("{:.1} %", f64::from(share) / 10.0)
}

fn models(models: &std::collections::BTreeMap<String, u32>) -> Markup {
    html! { @for (model, n) in models { span.sub { " " (n) " " (model) } } }
}

/// What it has of its own, what it borrows, what it lends, and where its guarantee ends; out of all GPUs.
fn bar(team: &TeamShare, gpus: u64) -> Markup {
    let whole = gpus.max(1) as f64 * 1000.0;
    let x = |milli: u64| format!("{:.2}", (milli as f64 / whole * 400.0).min(400.0));
    let own = team.used.saturating_sub(team.borrowed);
    let guarantee = u64::from(team.guarantee_counts.unwrap_or(team.guarantee)) * 1000;
    let label = format!("{} GPUs held, {} guaranteed", words::milli(team.used), team.guarantee);
    html! {
        svg.teambar viewBox="0 0 400 14" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect.ground x="0" y="0" width="400" height="14" {}
            @if team.lent > 0 {
                rect.lent x=(x(guarantee.saturating_sub(team.lent))) y="2"
                    width=(x(team.lent)) height="10" {}
            }
            rect.own x="0" y="2" width=(x(own)) height="10" {}
            @if team.borrowed > 0 {
                rect.borrowed x=(x(own)) y="2" width=(x(team.borrowed)) height="10" {}
            }
            @if guarantee > 0 { rect.edge x=(x(guarantee)) y="0" width="2" height="14" {} }
        }
    }
}

pub fn page(reader: &Reader, view: &View) -> Markup {
    let body = html! {
        div.title {
            h1 { "Teams" }
            p.legend {
                span { i.own {} "held, of its own" } span { i.borrowed {} "borrowed" }
                span { i.lent {} "lent to others" }
                span { i.edge {} "guarantee" }
            }
        }
        (region("teams", &view.table()))
        p.note {
            "Share is what a team has had of late among its siblings, due what its weight says it should have had."
        }
        section.panel {
            h2 { "GPUs held, the last hours" } div.chart #shares data-chart="shares" {}
        }
    };
    let live = Some("page=teams".to_owned());
    document(reader, &Page { tab: Tab::Teams, title: "Teams", live, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::tests::reader;
    use tutti_model::Role;

    #[test]
    fn a_team_that_borrows_and_one_that_lends() {
        let team = |name: &str, used: u64, borrowed: u64, lent: u64| -> TeamShare {
            let json = serde_json::json!({
                "team": name, "guarantee": 8, "weight": 1, "used": used, "borrowed": borrowed,
                "lent": lent, "share": 512, "target": 500, "running": 3, "waiting": 1200,
                "members": ["ada", "bob"],
            });
            serde_json::from_value(json).unwrap()
        };
        let view = View {
            teams: vec![team("vision", 12_000, 4000, 0), team("r&d #1", 2000, 0, 6000)],
            gpus: 16,
            past: Past::default(),
        };
        let text = page(&reader(Role::Viewer), &view).into_string();
        assert_eq!(text.matches("class=\"borrowed\"").count(), 2, "one bar and the legend");
        assert!(
            text.contains("51.2 %") && text.contains("ada, bob") && text.contains("1,200"),
            "{text}"
        );
        assert!(
            text.contains("x=\"200.00\" y=\"2\" width=\"100.00\""),
            "borrowed is the third quarter: {text}"
        );
        assert!(text.contains("q=team:r%26d%20%231\""), "{text}");
        assert!(text.contains(&view.shown().regions["teams"]));
    }
}
