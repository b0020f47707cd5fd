use serde_json::json;
use tutti_model::{Role, RolloutStage};
use tutti_wire::api::EndpointRow;

use super::*;
use crate::endpoints::tests::{rollout, row};
use crate::shell::tests::reader;

fn detail(row: EndpointRow) -> EndpointDetail {
    let replica = |job: u64, revision: u32, phase: serde_json::Value| {
        json!({
            "job": job, "revision": revision, "phase": phase, "since": 2000,
            "state": "running", "address": "10.0.0.7:8123", "nodes": ["n1", "n/2"], "gpus": 4,
            "in_flight": 9, "requests": 12_345, "errors": 3, "broken": job == 8,
            "own": { "running": 7, "waiting": 2, "kv_used": 0.5 },
        })
    };
    let mut whole = serde_json::to_value(&row).unwrap();
    let rest = json!({
        "replicas": [
            replica(7, 2, json!({ "phase": "ready" })),
            replica(8, 3, json!({ "phase": "coming" })),
            replica(9, 2, json!({ "phase": "draining", "until": 90_000 })),
        ],
        "revisions": [
            { "number": 1, "at": 1000, "by": "bob", "command": "serve --old", "taken_back": "too many <errors>" },
            { "number": 2, "at": 2000, "by": "ada", "command": "serve" },
            { "number": 3, "at": 3000, "by": "ada", "command": "serve --new" },
        ],
        "routers": [
            { "router": "r1", "address": "gw:8080", "heard_at": 59_000, "current": true },
            { "router": "r2", "address": "gw:8081", "heard_at": 10_000, "current": false },
        ],
        "why": ["1 replica waits for 4 free GPUs"],
        "served": {
            "total": { "requests": 1_000_000, "output_tokens": 77 }, "gpu_hours": 12.34, "cost": 30.5,
            "currency": "EUR", "cost_per_million_tokens": 0.4,
        },
        "chronicle": [{ "at": 1000, "text": "made by bob" }, { "at": 3000, "text": "revision 3" }],
        "spec": { "run": "serve --new", "service": {} },
    });
    let (Some(whole), serde_json::Value::Object(rest)) = (whole.as_object_mut(), rest) else {
        panic!("objects")
    };
    whole.extend(rest);
    serde_json::from_value(serde_json::Value::Object(whole.clone())).unwrap()
}

fn view() -> View {
    let row = row("chat", EndpointState::Partial);
    View { detail: detail(row), curves: Curves::default(), at: Time(60_000), inside: true }
}

fn text(view: &View) -> String {
    page(&reader(Role::Viewer), view).into_string()
}

#[test]
fn everything_live_is_in_the_page_as_it_is_sent() {
    let view = view();
    let (page, shown) = (text(&view), view.shown());
    for (id, html) in &shown.regions {
        assert!(page.contains(&format!("id=\"{id}\">{html}")), "{id}");
    }
    for row in &shown.tables["replicas"] {
        assert!(
            page.contains(&row.html) && row.html.contains(&format!("data-key=\"{}\"", row.key))
        );
        assert_eq!(row.html.matches("<td").count(), page_columns(&page), "{}", row.html);
    }
    assert!(page.contains("data-live=\"/live?page=endpoint&amp;name=chat\""), "{page}");
    assert!(
        !page.contains("style=") && !page.contains("://"),
        "nothing is inline or from elsewhere"
    );
}

fn page_columns(page: &str) -> usize {
    let table = page.split(" id=\"replicas\"").nth(1).unwrap();
    table.split("</thead>").next().unwrap().matches("<th ").count()
}

#[test]
fn replicas_lead_to_their_jobs_and_nodes() {
    let rows = view().shown().tables["replicas"].clone();
    let html = &rows[0].html;
    assert!(html.contains("data-href=\"/jobs/7\"") && html.contains("href=\"/jobs/7\""), "{html}");
    assert!(html.contains("/nodes/n1") && html.contains("/nodes/n%2F2"), "{html}");
    assert!(html.contains("7 running, 2 waiting") && html.contains("cache 50 %"), "{html}");
    assert!(html.contains("12,345") && html.contains("10.0.0.7:8123"), "{html}");
    assert!(!html.contains("its job is"), "that it runs goes without saying");
    assert!(rows[1].html.contains("its job is running") && rows[1].html.contains("left out"));
    assert!(rows[2].html.contains("data-until=\"90000\""), "{}", rows[2].html);
}

#[test]
fn why_and_what_happened_are_told() {
    let page = text(&view());
    assert!(page.contains("1 replica waits for 4 free GPUs"), "{page}");
    assert!(page.find("revision 3</li>") < page.find("made by bob</li>"), "newest first");
    let calm = View { detail: EndpointDetail { why: Vec::new(), ..view().detail }, ..view() };
    assert_eq!(calm.why().into_string(), "");
    let mut asleep = calm;
    asleep.detail.row.state = EndpointState::Asleep;
    assert!(asleep.why().into_string().contains("The next request starts one"));
}

#[test]
fn revisions_say_which_one_serves() {
    let revisions = view().revisions().into_string();
    assert!(revisions.find("serve --new") < revisions.find("serve --old"), "newest first");
    assert!(revisions.contains("taken back</span> too many &lt;errors&gt;"), "{revisions}");
    assert_eq!(revisions.matches(">serves<").count(), 1, "{revisions}");
}

#[test]
fn a_rollout_shows_where_it_is() {
    let with = |stage| {
        let mut view = view();
        view.detail.row.rollout = Some(rollout(stage));
        view
    };
    assert_eq!(view().rollout().into_string(), "");
    let canary = with(RolloutStage::Canary { percent: 5, since: Some(Time(9000)) });
    let text = canary.rollout().into_string();
    assert!(
        text.contains("class=\"now\" aria-current=\"step\"") && text.contains("5 % of requests")
    );
    assert_eq!(text.matches("<li").count(), 3, "{text}");
    let rolling = with(RolloutStage::Rolling).rollout().into_string();
    assert_eq!(rolling.matches("<li").count(), 2, "it did not begin with a canary: {rolling}");
    assert!(rolling.contains("0 of 3 replicas answer with revision 3"), "{rolling}");
    assert!(rolling.contains("<meter aria-label=\"Replicas with revision 3\""), "{rolling}");
    let back = with(RolloutStage::Back).rollout().into_string();
    assert!(back.contains("Back from revision 3 to 2") && !back.contains("<li"), "{back}");
    assert!(back.contains("1 of 3 replicas answer with revision 2"), "{back}");
    assert!(with(RolloutStage::Back).revisions().into_string().contains("comes back"));
}

#[test]
fn a_router_that_speaks_is_not_news() {
    let mut view = view();
    let before = view.shown();
    view.at = Time(61_000);
    view.detail.routers[0].heard_at = Time(60_500);
    assert_eq!(view.shown().changes(Some(&before)), [], "nothing is sent every second");
    let routers = view.routers().into_string();
    assert!(routers.contains("just now") && routers.contains("an older table"), "{routers}");
    assert!(
        routers.contains("silent for") && routers.contains("data-since=\"10000\""),
        "{routers}"
    );
}

#[test]
fn curves_are_drawn_once_there_are_some() {
    let mut view = view();
    assert!(
        view.shown().series.is_empty() && text(&view).contains("hidden data-charts=\"endpoint\"")
    );
    view.curves = Curves { t: vec![5, 10], requests: vec![Some(1.5), None], ..Curves::default() };
    let json: serde_json::Value = serde_json::from_str(&view.shown().series["endpoint"]).unwrap();
    assert_eq!((&json["t"], &json["requests"]), (&json!([5, 10]), &json!([1.5, null])));
}

#[test]
fn what_it_did_in_all_and_what_that_cost() {
    let sums = view().sums().into_string();
    assert!(
        sums.contains("1,000,000") && sums.contains("12.3") && sums.contains("30.50"),
        "{sums}"
    );
    let figures = view().figures().into_string();
    assert!(figures.contains("0.40<small> EUR</small>") && figures.contains("p95 waits 300 ms"));
    let mut free = view();
    free.detail.served.cost = None;
    assert!(!free.sums().into_string().contains("Cost"));
}

#[test]
fn the_environment_is_for_the_owner() {
    assert!(!text(&view()).contains("for its owner"));
    assert!(text(&View { inside: false, ..view() }).contains("for its owner and for admins"));
}
