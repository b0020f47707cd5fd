//! The running policy over the API: read, replaced as a whole, or left as it is.

mod common;

use common::agent::{FakeAgent, Ranks};
use common::{Cluster, config};
use serde_json::json;
use tutti_controller::start;
use tutti_model::Policy;
use tutti_wire::client::{Client, ClusterRef};
use tutti_wire::policyfile;

const FILE: &str = "patience = '1m'\n[teams.research]\nguarantee = 8\nmembers = ['ada']\n\
    [teams.vision]\nparent = 'research'\nmembers = ['bob']\n";

async fn put_toml(cluster: &Cluster, text: &str) -> common::Answer {
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let kind = "Content-Type: application/toml; charset=utf-8";
    cluster.raw("PUT", "/api/v1/policy", &[&bearer, kind], Some(text)).await
}

async fn running(cluster: &Cluster) -> Policy {
    serde_json::from_value(cluster.get("/api/v1/policy").await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_replaced_as_a_whole_and_outlives_the_controller() {
    let cluster = Cluster::start().await;
    assert_eq!(running(&cluster).await, Policy::default());
    let file = policyfile::parse(None, FILE.as_bytes()).unwrap();
    assert_eq!(put_toml(&cluster, FILE).await.status, 200);
    assert_eq!(running(&cluster).await, file);
    let mut changed = file.clone();
    changed.teams.remove("vision");
    let body = serde_json::to_value(&changed).unwrap();
    assert_eq!(cluster.call("PUT", "/api/v1/policy", Some(body)).await.status, 200);
    assert_eq!(running(&cluster).await, changed);
    let cluster = Cluster::start_in(cluster.stop().await).await;
    assert_eq!(running(&cluster).await, changed);
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert_eq!(log.lines().filter(|l| l.contains("PUT /api/v1/policy")).count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_policy_changes_nothing_and_every_problem_is_told() {
    let cluster = Cluster::start().await;
    assert_eq!(put_toml(&cluster, FILE).await.status, 200);
    let before = running(&cluster).await;
    let answer = put_toml(&cluster, "[teams.a]\nparent = 'b'\n[teams.c]\nweight = 0\n").await;
    assert_eq!(answer.status, 422);
    let error = answer.json();
    assert_eq!((error["code"].as_str(), error["exit"].as_i64()), (Some("bad_policy"), Some(2)));
    let problems = error["problems"].as_array().unwrap();
    let found = |line: u64, path: &str| {
        problems.iter().any(|p| p["line"] == line && p["path"] == path && p["problem"].is_string())
    };
    assert!(found(2, "teams.a.parent") && found(4, "teams.c.weight"), "{error}");
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    for (body, path, at) in [
        ("{ \"teams\":\n  { \"a\": { \"parent\": \"b\" } } }", "teams.a.parent", (2, 22)),
        ("{\n  \"patence\": \"5m\" }", "patence", (2, 3)),
        ("{ \"patience\": [] }", "patience", (1, 15)),
        ("{ \"topology\": { \"rack_label\": \"\" } }", "topology.rack_label", (1, 31)),
    ] {
        let answer = cluster.raw("PUT", "/api/v1/policy", &[&bearer], Some(body)).await;
        assert_eq!(answer.status, 422, "{body}");
        let error = answer.json();
        assert!(error["message"].as_str().unwrap().contains(path), "{error}");
        let [row] = error["problems"].as_array().unwrap().as_slice() else { panic!("{error}") };
        assert_eq!(row["path"], path);
        assert_eq!((row["line"].as_u64(), row["column"].as_u64()), (Some(at.0), Some(at.1)));
    }
    let answer = cluster.raw("PUT", "/api/v1/policy", &[&bearer], Some("{ \"teams\": ")).await;
    assert_eq!((answer.status, &answer.json()["problems"][0]["line"]), (422, &json!(1)));
    assert_eq!(put_toml(&cluster, "teams = [").await.status, 422);
    assert_eq!(running(&cluster).await, before);
    cluster.stop().await;
}

fn tag_of(answer: &common::Answer) -> String {
    let tag = answer
        .head
        .lines()
        .find_map(|l| l.to_lowercase().strip_prefix("etag: ").map(str::to_owned));
    tag.unwrap_or_else(|| panic!("no ETag: {}", answer.head))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_was_changed_meanwhile_is_not_overwritten() {
    let cluster = Cluster::start().await;
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let first = cluster.call("GET", "/api/v1/policy", None).await;
    let tag = tag_of(&first);
    let put = |tag: String, patience: &'static str| {
        let (cluster, bearer) = (&cluster, &bearer);
        async move {
            let body = json!({ "patience": patience }).to_string();
            let if_match = format!("If-Match: {tag}");
            cluster.raw("PUT", "/api/v1/policy", &[bearer, &if_match], Some(&body)).await
        }
    };
    assert_eq!(put(tag.clone(), "1m").await.status, 200);
    let refused = put(tag.clone(), "2m").await;
    assert_eq!(refused.status, 412);
    let error = refused.json();
    assert_eq!((error["code"].as_str(), error["exit"].as_i64()), (Some("policy_moved"), Some(1)));
    assert!(error["hint"].is_string(), "{error}");
    assert_eq!(running(&cluster).await.patience, tutti_model::Span::secs(60));
    let second = tag_of(&cluster.call("GET", "/api/v1/policy", None).await);
    assert_ne!(second, tag);
    assert_eq!(put("what".to_owned(), "2m").await.status, 400);
    assert_eq!(put(format!("{tag}, {second}"), "2m").await.status, 200);
    assert_eq!(put("*".to_owned(), "3m").await.status, 200);
    assert_eq!(running(&cluster).await.patience, tutti_model::Span::secs(180));
    cluster.stop().await;
}

/// Between reading the policy and sending the new one, somebody else sends another: both changes are
/// in the end there.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_changes_at_once_none_is_lost() {
    let cluster = Cluster::start().await;
    let at = ClusterRef::new(&format!("http://{}", cluster.addr()), cluster.admin.parse().unwrap());
    let client = Client::connect(&at.unwrap());
    let changed = tokio::task::spawn_blocking(move || {
        let asked = std::cell::Cell::new(0);
        client.change_policy(|old| {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                client.set_policy(&policyfile::parse(None, FILE.as_bytes()).unwrap()).unwrap();
            }
            Policy { resize_every: tutti_model::Span::secs(7), ..old.clone() }
        })
    });
    let (old, new, notes) = changed.await.unwrap().unwrap();
    let odd = notes.warnings;
    assert_eq!(odd.len(), 1, "research is promised 8 GPUs, and no node has joined: {odd:?}");
    assert_eq!(old, policyfile::parse(None, FILE.as_bytes()).unwrap());
    assert_eq!(new, running(&cluster).await);
    assert_eq!((new.teams.len(), new.resize_every), (2, tutti_model::Span::secs(7)));
    cluster.stop().await;
}

/// A preview says it before, and the answer to the change itself says the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_tells_what_its_preview_told() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    assert_eq!(put_toml(&cluster, FILE).await.status, 200);
    let spec = json!({ "run": "true", "gpus": 8, "team": "vision", "hold": true });
    let job = cluster.submit(spec).await;
    let less = "[teams.research]\n[teams.vision]\nlimit = 4\n";
    let less = serde_json::to_value(policyfile::parse(None, less.as_bytes()).unwrap()).unwrap();
    let preview = cluster.call("POST", "/api/v1/policy:preview", Some(less.clone())).await.json();
    let done = cluster.call("PUT", "/api/v1/policy", Some(less)).await.json();
    assert_eq!(done["never"][0]["task"].as_str(), Some(job.as_str()), "{done}");
    for note in ["never", "overlaps", "warnings"] {
        assert_eq!(done[note], preview[note], "{note}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_given_at_the_start_is_applied_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut with = config(dir.path());
    with.policy = Some(policyfile::parse(None, FILE.as_bytes()).unwrap());
    let handle = start(with.clone()).await.unwrap();
    handle.shutdown();
    handle.ended().await.unwrap();
    with.policy.as_mut().unwrap().teams.get_mut("vision").unwrap().parent = Some("nobody".into());
    let error = start(with).await.err().expect("it is refused");
    let text = tutti_controller::chain(&error);
    assert!(text.contains("teams.vision.parent") && text.contains("nobody"), "{text}");
    let cluster = Cluster::start_in(dir).await;
    assert_eq!(running(&cluster).await.teams.len(), 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_to_their_team_and_only_members_may_name_one() {
    let cluster = Cluster::start().await;
    assert_eq!(put_toml(&cluster, FILE).await.status, 200);
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let submit = |spec: serde_json::Value| {
        let (cluster, ada) = (&cluster, &ada);
        async move { cluster.call_as(ada, "POST", "/api/v1/jobs", Some(json!({ "spec": spec }))).await }
    };
    let mine = submit(json!({ "run": "x" })).await;
    assert_eq!(mine.status, 201);
    let id = mine.json()["id"].as_str().unwrap().to_owned();
    let row = cluster.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((row["team"].as_str(), row["class"].as_str()), (Some("research"), Some("standard")));
    for (spec, status, word) in [
        (json!({ "run": "x", "team": "vision" }), 201, ""),
        (json!({ "run": "x", "team": "nobody" }), 400, "the teams are"),
        (json!({ "run": "x", "class": "nope" }), 400, "the classes are"),
        (json!({ "run": "x", "class": "urgent" }), 400, "urgent is for admins"),
    ] {
        let answer = submit(spec.clone()).await;
        assert_eq!(answer.status, status, "{spec}: {}", String::from_utf8_lossy(&answer.body));
        assert!(answer.json().to_string().contains(word), "{spec}");
    }
    let bob = cluster.access("bob", "user").await;
    let body = Some(json!({ "spec": { "run": "x", "team": "research" } }));
    let answer = cluster.call_as(&bob, "POST", "/api/v1/jobs", body).await;
    assert_eq!(answer.status, 403, "{}", String::from_utf8_lossy(&answer.body));
    let list = cluster.get("/api/v1/jobs?team=research").await;
    assert_eq!(list["jobs"].as_array().unwrap().len(), 1);
    for what in ["jobs", "jobs?since=1", "report"] {
        let of = |team: &str| {
            let sign = if what.contains('?') { '&' } else { '?' };
            format!("/api/v1/{what}{sign}team={team}")
        };
        let answer = cluster.call("GET", &of("reserch"), None).await;
        assert_eq!((answer.status, answer.json()["exit"].as_u64()), (404, Some(3)), "{what}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(message, "there is no team 'reserch', did you mean 'research'?");
        // One that has nothing is one all the same.
        cluster.get(&of("vision")).await;
    }
    let quota = cluster.get("/api/v1/quota").await;
    let teams: Vec<_> = quota.as_array().unwrap().iter().map(|t| t["team"].clone()).collect();
    assert!(teams.contains(&json!("research")) && teams.contains(&json!("vision")), "{quota}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_owner_says_that_a_job_saved_its_work() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let (ada, bob) = (cluster.access("ada", "user").await, cluster.access("bob", "user").await);
    let body = Some(json!({ "spec": { "run": "x", "gpus_per_node": 1 } }));
    let id = cluster.call_as(&ada, "POST", "/api/v1/jobs", body).await.json()["id"].clone();
    let path = format!("/api/v1/jobs/{}/saved", id.as_str().unwrap());
    let show = format!("/api/v1/jobs/{}", id.as_str().unwrap());
    while cluster.get(&show).await["state"] != "running" {
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster.call_as(&bob, "POST", &path, None).await.status, 403);
    assert_eq!(cluster.call_as(&ada, "POST", &path, None).await.status, 200);
    assert_eq!(cluster.call_as(&ada, "POST", "/api/v1/jobs/99/saved", None).await.status, 404);
    cluster.stop().await;
}

/// A preview, reservations and what keeps a job waiting, as the API, `ps` and the nodes have it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_would_do_is_told_before_it_does() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let teams = "[teams.own]\nmembers = ['*']\n[teams.lent]\nmembers = ['*']\n";
    assert_eq!(put_toml(&cluster, teams).await.json()["changed"], 1);
    let submit = |team: &'static str| {
        let spec = json!({ "run": "x", "gpus_per_node": 8, "team": team });
        let cluster = &cluster;
        async move {
            let answer = cluster.call("POST", "/api/v1/jobs", Some(json!({ "spec": spec }))).await;
            answer.json()["id"].as_str().unwrap().to_owned()
        }
    };
    let borrower = submit("lent").await;
    while cluster.get(&format!("/api/v1/jobs/{borrower}")).await["state"] != "running" {
        tokio::task::yield_now().await;
    }
    let owner = submit("own").await;
    let promise = teams.replacen("members", "guarantee = 100\nmembers", 1)
        + "[[reservations]]\nname = 'power work'\nnodes = ['n1']\n\
           from = 2000-01-01T00:00:00Z\nuntil = 2100-01-01T00:00:00Z\n";
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let headers = [bearer.as_str(), "Content-Type: application/toml"];
    let preview = cluster.raw("POST", "/api/v1/policy:preview", &headers, Some(&promise)).await;
    assert_eq!(preview.status, 200, "{}", String::from_utf8_lossy(&preview.body));
    let preview = preview.json();
    let paths: Vec<_> = preview["changes"].as_array().unwrap().iter().map(|c| &c["path"]).collect();
    assert_eq!(paths, ["reservations.power work", "teams.own.guarantee"]);
    assert_eq!(preview["overlaps"][0]["by"][0]["task"], borrower.as_str(), "{preview}");
    assert_eq!(preview["warnings"][0]["path"], "teams.own.guarantee", "{preview}");
    assert_eq!(running(&cluster).await.reservations.len(), 0, "nothing was changed");
    let ada = cluster.access("ada", "user").await;
    let body = Some(serde_json::to_value(Policy::default()).unwrap());
    let refused = cluster.call_as(&ada, "POST", "/api/v1/policy:preview", body).await;
    assert_eq!(refused.status, 403);
    let broken = "[teams.a]\nparent = 'b'\n";
    let refused = cluster.raw("POST", "/api/v1/policy:preview", &headers, Some(broken)).await;
    assert_eq!((refused.status, refused.json()["problems"][0]["line"].as_u64()), (422, Some(2)));

    let applied = put_toml(&cluster, &promise).await.json();
    assert_eq!(applied["warnings"][0]["path"], "teams.own.guarantee", "{applied}");
    let rows = cluster.get("/api/v1/reservations").await;
    assert_eq!((&rows[0]["name"], &rows[0]["state"]), (&json!("power work"), &json!("now")));
    assert_eq!(rows[0]["overlaps"][0]["task"], borrower.as_str(), "{rows}");
    let node = cluster.get("/api/v1/nodes/n1").await;
    assert_eq!(node["reservations"][0]["name"], "power work", "{node}");
    // The node is busy and reserved: both are named, wherever it is looked at.
    let row = cluster.get(&format!("/api/v1/jobs/{owner}")).await;
    let kinds: Vec<_> = row["blockers"].as_array().unwrap().iter().map(|b| &b["kind"]).collect();
    assert_eq!(kinds, ["busy", "reservation"], "{row}");
    assert!(row["note"].as_str().unwrap().contains("also maintenance 'power work' on 1 node"));
    let why = cluster.get(&format!("/api/v1/jobs/{owner}/why")).await;
    assert_eq!(why["blockers"], row["blockers"], "{why}");
    cluster.stop().await;
}
