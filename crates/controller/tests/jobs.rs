//! From submission to end, over the API and a pretended agent.

mod common;

use std::time::Duration;

use common::agent::{self, FakeAgent, Ranks};
use common::{Cluster, events};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_and_its_end_is_told() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    let id = cluster.submit(json!({ "run": "true", "gpus_per_node": 1 })).await;
    let row = cluster.wait(&id).await;
    assert_eq!((row["state"].as_str(), row["exit_code"].as_i64()), (Some("completed"), Some(0)));
    assert_eq!(row["node_names"], json!(["n1"]));
    let detail = cluster.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(detail["end"]["reason"], "finished");
    let why = cluster.call("GET", &format!("/api/v1/jobs/{id}/why"), None).await;
    let told = why.head.lines().find_map(|line| line.strip_prefix("tutti-now: "));
    let ended = detail["ended_at"].as_u64().unwrap();
    assert!(told.unwrap().trim().parse::<u64>().unwrap() >= ended, "its clock: {}", why.head);
    assert_eq!((why.status, why.json()["code"].as_str()), (409, Some("conflict")));
    let info = cluster.get("/api/v1/cluster").await;
    assert_eq!(info["tasks"]["completed"], 1);
    assert_eq!((info["nodes_ready"].as_u64(), info["gpus"].as_u64()), (Some(1), Some(8)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_over_two_nodes_and_an_array() {
    let cluster = Cluster::start().await;
    let mut agents = Vec::new();
    for name in ["n1", "n2"] {
        let identity = cluster.join(name).await;
        agents.push(FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await);
    }
    let gang = cluster.submit(json!({ "run": "true", "nodes": 2, "gpus_per_node": 8 })).await;
    assert_eq!(cluster.wait(&gang).await["state"], "completed");
    let array =
        cluster.submit(json!({ "run": "true", "gpus_per_node": 1, "array": "0-199" })).await;
    let row = cluster.wait(&array).await;
    assert_eq!(row["array"]["completed"], 200);
    let page = cluster.get(&format!("/api/v1/jobs?id={array}&tasks=true&limit=150")).await;
    assert_eq!(page["jobs"].as_array().unwrap().len(), 150);
    assert_eq!(page["next"], format!("{array}_149"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_and_mistyped_jobs_are_refused() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    for (spec, status, exit, word) in [
        (json!({ "run": "true", "gpus_per_node": 9 }), 422, 5, "9"),
        (json!({ "run": "true", "gpus_pr_node": 1 }), 400, 2, "spec.gpus_pr_node"),
        (json!({ "run": "" }), 400, 2, "run"),
        (json!({ "run": "true", "after": [99] }), 400, 2, "99"),
    ] {
        let body = Some(json!({ "spec": spec }));
        let answer = cluster.call("POST", "/api/v1/jobs", body).await;
        let error = answer.json();
        assert_eq!((answer.status, error["exit"].as_i64()), (status, Some(exit)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_gives_the_same_job() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let headers = [bearer.as_str(), "Idempotency-Key: once"];
    let body = json!({ "spec": { "run": "true" } }).to_string();
    let first = cluster.raw("POST", "/api/v1/jobs", &headers, Some(&body)).await;
    let again = cluster.raw("POST", "/api/v1/jobs", &headers, Some(&body)).await;
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!(first.json()["id"], again.json()["id"]);
    assert_eq!(again.json()["repeated"], true);
    let other = json!({ "spec": { "run": "false" } }).to_string();
    let reused = cluster.raw("POST", "/api/v1/jobs", &headers, Some(&other)).await;
    assert_eq!(reused.status, 409);
    let hint = reused.json()["hint"].to_string();
    assert!(hint.contains("--key") && hint.contains("Idempotency-Key"), "{hint}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_a_task_that_is_not_there_hears_which_are() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _stream = agent::connect(cluster.addr(), &identity, 1).await;
    let one = cluster.submit(json!({ "run": "true", "hold": true })).await;
    let few = json!({ "run": "true", "hold": true, "array": "1-3,7" });
    let few = cluster.submit(few).await;
    let odd = json!({ "run": "true", "hold": true, "array": "0-998:2" });
    let odd = cluster.submit(odd).await;
    for (method, path, want) in [
        ("GET", format!("{few}_99"), format!("job {few} has the tasks 1-3,7")),
        ("GET", format!("{few}_4/logs"), format!("job {few} has the tasks 1-3,7")),
        ("POST", format!("{few}_4/cancel"), format!("job {few} has the tasks 1-3,7")),
        ("GET", format!("{odd}_1"), format!("job {odd} has 500 tasks from 0 to 998, with gaps")),
        ("GET", format!("{one}_0"), format!("job {one} is no array: its id is {one}")),
    ] {
        let answer = cluster.call(method, &format!("/api/v1/jobs/{path}"), None).await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.json());
        assert_eq!(answer.json()["hint"], want, "{path}: {}", answer.json());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ids_that_nobody_has_are_soon_looked_up() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _stream = agent::connect(cluster.addr(), &identity, 1).await;
    let id = cluster.submit(json!({ "run": "true", "hold": true })).await;
    let ids: Vec<String> = (1..=10_000).rev().map(|n| n.to_string()).collect();
    for more in ["", "&newest=true"] {
        let path = format!("/api/v1/jobs?id={}{more}", ids.join(","));
        let page = tokio::time::timeout(Duration::from_secs(20), cluster.get(&path)).await.unwrap();
        assert_eq!(page["jobs"].as_array().unwrap().len(), 1);
        assert_eq!(page["jobs"][0]["id"], *id);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_and_pages() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _stream = agent::connect(cluster.addr(), &identity, 1).await;
    let spec = |i: u32| json!({ "spec": { "run": "true", "hold": true, "name": format!("j{i}") } });
    let mut batch: Vec<_> = (0..250).map(spec).collect();
    batch.push(json!({ "spec": { "run": "true", "nodes": 7 } }));
    let answer = cluster.call("POST", "/api/v1/jobs:batch", Some(json!(batch))).await;
    let results = answer.json();
    assert_eq!(results[249]["id"], "250");
    assert_eq!(results[250]["error"]["code"], "impossible");

    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = cluster.get(&format!("/api/v1/jobs?state=active&limit=60{after}")).await;
        assert_eq!(page["totals"]["pending"], 250);
        let ids = page["jobs"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap());
        seen.extend(ids.map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (1..=250).map(|i| i.to_string()).collect::<Vec<_>>());
    let newest = cluster.get("/api/v1/jobs?newest=true&limit=2&name=j1").await;
    let ids: Vec<_> = newest["jobs"].as_array().unwrap().iter().map(|j| &j["id"]).collect();
    assert_eq!(ids, ["200", "199"]);
    assert_eq!(newest["jobs"][0]["verdict"]["kind"], "held");
    let bad = cluster.call("GET", "/api/v1/jobs?state=sleeping", None).await;
    assert_eq!(bad.status, 400);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_jobs_and_tokens() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    let done = cluster.submit(json!({ "run": "true" })).await;
    cluster.wait(&done).await;
    let held = cluster.submit(json!({ "run": "true", "hold": true })).await;
    let viewer = cluster.access("eve", "viewer").await;
    let seq = cluster.get("/api/v1/cluster").await["seq"].as_u64().unwrap();
    drop(agent);
    let dir = cluster.stop().await;
    assert!(!dir.path().join("endpoint").exists());

    let cluster = Cluster::start_in(dir).await;
    assert_eq!(cluster.wait(&done).await["state"], "completed");
    assert_eq!(cluster.get(&format!("/api/v1/jobs/{held}")).await["held"], true);
    let info = cluster.call_as(&viewer, "GET", "/api/v1/cluster", None).await.json();
    assert_eq!((info["user"].as_str(), info["epoch"].as_u64()), (Some("eve"), Some(2)));
    assert!(info["seq"].as_u64().unwrap() > seq);
    let report = cluster.get("/api/v1/doctor").await;
    let errors = report["findings"].as_array().unwrap().iter().filter(|f| f["level"] == "error");
    assert_eq!(errors.count(), 0, "{report}");
    let dir = cluster.stop().await;
    let report = tutti_controller::doctor::examine_at_rest(dir.path());
    assert!(
        report.findings.iter().all(|f| f.level == tutti_wire::api::FindingLevel::Ok),
        "{report:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_made_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = common::config(dir.path());
    config.snapshots.records = 20;
    let handle = tutti_controller::start(config).await.unwrap();
    let admin = std::fs::read_to_string(dir.path().join("admin.token")).unwrap().trim().to_owned();
    let cluster = Cluster { dir, handle, admin };
    let identity = cluster.join("n1").await;
    let agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    for _ in 0..30 {
        let id = cluster.submit(json!({ "run": "true" })).await;
        cluster.wait(&id).await;
    }
    let report = cluster.get("/api/v1/doctor").await.to_string();
    assert!(!report.contains("newest snapshot at 0"), "{report}");
    drop(agent);
    let cluster = Cluster::start_in(cluster.stop().await).await;
    assert_eq!(cluster.get("/api/v1/cluster").await["tasks"]["completed"], 30);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_logs_and_exec() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let spec = json!({ "run": "sleep", "gpus_per_node": 2, "ranks_per_node": 2 });
    let id = cluster.submit(spec).await;
    // Log lines come only from a running rank, so this also waits for the start.
    let follow = async {
        let answer =
            cluster.call("GET", &format!("/api/v1/jobs/{id}/logs?follow=true"), None).await;
        events(&answer)
    };
    let cancel = async {
        loop {
            let row = cluster.get(&format!("/api/v1/jobs/{id}")).await;
            if row["state"] == "running" {
                break;
            }
            tokio::task::yield_now().await;
        }
        let body = Some(json!({ "argv": ["echo", "hi"] }));
        let exec = cluster.call("POST", &format!("/api/v1/jobs/{id}/exec"), body).await;
        let kinds: Vec<_> = events(&exec).iter().map(|e| e["type"].to_string()).collect();
        assert_eq!(kinds, ["\"started\"", "\"data\"", "\"exited\""]);
        assert_eq!(events(&exec)[2]["code"], 3);
        let changed = cluster.call("POST", &format!("/api/v1/jobs/{id}/cancel"), None).await;
        assert_eq!(changed.json()["changed"], 1);
    };
    let (log, ()) = tokio::join!(follow, cancel);
    assert_eq!(log.last().unwrap()["type"], "end");
    assert_eq!(log.last().unwrap()["state"], "cancelled");
    let lines: std::collections::BTreeSet<_> =
        log.iter().filter(|e| e["type"] == "line").map(|e| e["rank"].as_u64()).collect();
    assert_eq!(lines, [Some(0), Some(1)].into());

    let ended = cluster.call("GET", &format!("/api/v1/jobs/{id}/logs?rank=1"), None).await;
    let ended = events(&ended);
    assert_eq!(ended[0]["text"], format!("hello from rank 1 of {id}"));
    let bad = cluster.call("GET", &format!("/api/v1/jobs/{id}/logs?rank=x"), None).await;
    assert_eq!(bad.status, 400);

    cluster.stop().await;
}

async fn until(cluster: &Cluster, id: &str, state: &str) -> serde_json::Value {
    for _ in 0..600 {
        let row = cluster.get(&format!("/api/v1/jobs/{id}")).await;
        if row["state"] == state {
            return row;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{id} is never {state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_suspended_and_resumed() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 2, Ranks::Sleepy).await;
    let id = cluster.submit(json!({ "run": "train", "gpus_per_node": 2 })).await;
    until(&cluster, &id, "running").await;
    let change =
        async |verb: &str| cluster.call("POST", &format!("/api/v1/jobs/{id}/{verb}"), None).await;
    let early = change("resume").await;
    assert_eq!((early.status, early.json()["message"].as_str()), (409, Some("1 is not suspended")));
    // Without a word about what it has on its GPUs, all of their memory would have to fit.
    loop {
        let answer = change("suspend").await;
        if answer.status == 200 {
            break;
        }
        let error = answer.json();
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("takes 160GiB of host memory on node n1"), "{message}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let row = until(&cluster, &id, "suspended").await;
    assert_eq!(row["gpus"], 2);
    // Its GPUs are free for others.
    let other = cluster.submit(json!({ "run": "other", "gpus_per_node": 1 })).await;
    until(&cluster, &other, "running").await;
    assert_eq!(change("resume").await.status, 200);
    let why = cluster.get(&format!("/api/v1/jobs/{id}/why")).await;
    assert_eq!(why["verdict"]["kind"], "suspended");
    assert_eq!(why["holders"][0]["task"], json!(other));
    cluster.call("POST", &format!("/api/v1/jobs/{other}/cancel"), None).await;
    until(&cluster, &id, "running").await;
    let detail = cluster.get(&format!("/api/v1/jobs/{id}")).await;
    let suspension = &detail["suspensions"][0];
    assert_eq!(
        (&suspension["why"]["cause"], &suspension["bytes"]),
        (&json!("asked"), &json!("1GiB"))
    );
    assert!(suspension["until"].is_number(), "{suspension}");
    assert_eq!((&detail["attempt"], &detail["restarts"]), (&json!(1), &json!(0)));
    cluster.stop().await;
}
