use serde_json::json;
use tutti_model::{Role, Rollout, Time};

use super::*;
use crate::shell::tests::reader;

pub(crate) fn row(name: &str, state: EndpointState) -> EndpointRow {
    let json = json!({
        "name": name, "user": "ada", "team": "vision", "state": state.as_str(), "revision": 2,
        "ready": 2, "want": 3, "min": 1, "max": 8, "gpus_per_replica": 4, "policy": "prefix",
        "models": ["llama <8b>"], "in_flight": 21, "queued": 4, "created_at": 1000,
        "figures": {
            "requests_per_second": 12.3, "errors": 0.031, "refused_per_second": 0.2,
            "output_tokens_per_second": 2345.0, "first_byte_p50": "180ms", "first_byte_p95": "1400ms",
            "per_token_p50": "22ms", "queue_wait_p95": "300ms", "prefix_hits": 0.64,
        },
    });
    serde_json::from_value(json).unwrap()
}

pub(crate) fn rollout(stage: RolloutStage) -> Rollout {
    Rollout { from: 2, to: 3, began_at: Time(5000), stage }
}

fn entry(row: EndpointRow) -> Entry {
    let of = |revision, phase| Replica { revision, phase, since: Time(0) };
    let replicas =
        vec![of(2, ReplicaPhase::Ready), of(3, ReplicaPhase::Ready), of(3, ReplicaPhase::Coming)];
    let price = TokenPrice { amount: 0.4567, currency: "EUR".into() };
    Entry { row, replicas, price: Some(price) }
}

fn view(entries: Vec<Entry>) -> ListView {
    let totals = vec![(EndpointState::Partial, 1), (EndpointState::Asleep, 0)];
    ListView { endpoints: entries, totals, query: "team:vision".into() }
}

fn text(view: &ListView) -> String {
    list_page(&reader(Role::Viewer), view, "page=endpoints&q=team%3Avision".into()).into_string()
}

#[test]
fn a_row_says_how_it_goes_and_what_it_costs() {
    let text = text(&view(vec![entry(row("chat <1>", EndpointState::Partial))]));
    let said = [
        "href=\"/endpoints/chat%20%3C1%3E\">chat &lt;1&gt;</a>",
        "<span class=\"sub\"> llama &lt;8b&gt;</span>",
        "<span class=\"sign\" aria-hidden=\"true\">◐</span>partial",
        "2 of 3<span class=\"sub\"> [1–8]</span>",
        "aria-label=\"Replicas: 2 ready, 1 coming, room for 5 more\"",
        "180 ms / 1.4 s",
        ">22 ms<",
        ">4 / 21<",
        "64 %",
        "2,345",
        "0.46<small> EUR</small>",
    ];
    for words in said {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.contains("aria-hidden=\"true\">▲</span> 3.1 %"), "many errors have a sign");
    assert!(text.contains("state:partial") && !text.contains("state:asleep"), "{text}");
    assert!(text.contains("value=\"team:vision\""), "{text}");
    assert!(!text.contains("style=") && !text.contains("onclick"), "nothing is inline");
}

#[test]
fn what_is_not_known_is_not_made_up() {
    let mut quiet = row("chat", EndpointState::Asleep);
    quiet.figures = Figures::default();
    let quiet = Entry { price: None, replicas: Vec::new(), ..entry(quiet) };
    let html = &view(vec![quiet]).shown().tables["endpoints"][0].html;
    assert_eq!(html.matches(">–<").count(), 5, "{html}");
    assert!(!html.contains("NaN") && !html.contains('▲'), "{html}");
}

#[test]
fn a_rollout_says_how_far_it_is() {
    let said = |stage| {
        let row =
            EndpointRow { rollout: Some(rollout(stage)), ..row("chat", EndpointState::Partial) };
        revision(&entry(row)).into_string()
    };
    let canary = said(RolloutStage::Canary { percent: 5, since: None });
    assert!(canary.starts_with("2 → 3 ") && canary.contains("canary 5 %"), "{canary}");
    assert!(said(RolloutStage::Rolling).contains("1 of 3"));
    assert!(said(RolloutStage::Watching { until: Time(9) }).contains("watched"));
    assert!(said(RolloutStage::Back).contains("back, 1 of 3"));
    let none = revision(&entry(row("chat", EndpointState::Ready))).into_string();
    assert_eq!(none, "2");
}

#[test]
fn rows_are_the_same_in_the_page_and_live_and_only_cells_change() {
    let view = view(vec![entry(row("chat", EndpointState::Ready))]);
    let (page, shown) = (text(&view), view.shown());
    let row = &shown.tables["endpoints"][0];
    assert!(page.contains(&row.html) && row.html.starts_with("<tr role=\"row\" data-key=\"chat\""));
    let mut later = view.clone();
    later.endpoints[0].row.figures.requests_per_second = 99.0;
    let events = later.shown().changes(Some(&shown));
    assert_eq!(events.len(), 1);
    assert!(events[0].data.contains("\"cells\":[[\"chat\",[[5,\"99\",\"99000\"]]]]"), "{events:?}");
}

#[test]
fn every_column_has_a_cell() {
    let html = list_row(&entry(row("chat", EndpointState::Ready))).into_string();
    assert_eq!(html.matches("<td").count(), COLUMNS.len());
}

#[test]
fn where_there_is_none_it_says_how_to_start_one() {
    let none = text(&ListView::default());
    assert!(none.contains("tutti serve FILE") && !none.contains("data-empty=\"endpoints\" hidden"));
    let some = text(&view(vec![entry(row("chat", EndpointState::Ready))]));
    assert!(some.contains("data-empty=\"endpoints\" hidden"), "{some}");
}
