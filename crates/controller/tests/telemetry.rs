//! What agents say of their machines, once and every second, and what people see of it.

mod common;

use std::time::Duration;

use common::Cluster;
use common::agent::{self, Stream};
use serde_json::{Value, json};
use tutti_model::{Bytes, GpuIndex, GpuSample, Hardware, HostSample, NodeSample, Time};
use tutti_wire::frame;
use tutti_wire::stream::ToController;

fn sample(power_w: u32) -> NodeSample {
    let gpu = |index| GpuSample {
        index: GpuIndex(index),
        util: Some(97),
        mem_used: Some(Bytes(10 << 30)),
        power_mw: Some(power_w * 1000),
        sm_active: Some(0.5),
        ..GpuSample::default()
    };
    NodeSample {
        at: Time(1_000),
        gpus: vec![gpu(0), gpu(1)],
        host: HostSample { cpu: 0.25, mem_total: Bytes(64 << 30), ..HostSample::default() },
        processes: Vec::new(),
        ..NodeSample::default()
    }
}

async fn send(stream: &mut Stream, sample: NodeSample) {
    let sample = Box::new(sample);
    frame::write(stream, &ToController::Telemetry { sample }).await.unwrap();
}

/// Asks until it is so.
async fn until(cluster: &Cluster, path: &str, what: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let answer = cluster.get(path).await;
            if what(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it never became so")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_sample_is_shown_with_its_node() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::connect(cluster.addr(), &identity, 2).await;
    assert!(cluster.get("/api/v1/nodes/n1").await.get("sample").is_none());
    send(&mut stream, sample(300)).await;
    send(&mut stream, sample(500)).await;
    let newest = |node: &Value| node["sample"]["gpus"][1]["power_mw"] == 500_000;
    let node = until(&cluster, "/api/v1/nodes/n1", newest).await;
    assert_eq!(node["sample"]["host"]["cpu"], 0.25);
    assert_eq!((&node["name"], node["gpus"].as_u64()), (&Value::from("n1"), Some(2)));
    assert!(node["sample_age"].is_string() || node["sample_age"].is_u64(), "{node}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_is_made_of_is_shown_with_that_node_alone() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::dial(cluster.addr(), &identity).await.unwrap();
    let mut facts = agent::facts("n1", 2);
    let hardware = Hardware { driver: Some("580.159.04".into()), ..Hardware::default() };
    facts.hardware = Some(Box::new(hardware));
    frame::write(&mut stream, &agent::hello(facts)).await.unwrap();
    until(&cluster, "/api/v1/nodes", |nodes| nodes[0]["name"] == "n1").await;
    let told = |node: &Value| node["hardware"]["driver"] == "580.159.04";
    let node = until(&cluster, "/api/v1/nodes/n1", told).await;
    assert_eq!(node["devices"][1]["uuid"], "n1-1");
    let list = cluster.get("/api/v1/nodes").await;
    assert_eq!(list[0]["name"], "n1");
    assert!(list[0].get("hardware").is_none() && list[0].get("devices").is_none());
    cluster.stop().await;
}

/// The last value that is known of a curve.
fn last(answer: &Value, curve: usize) -> Option<f64> {
    let mean = answer["curves"][curve]["mean"].as_array()?;
    mean.iter().rev().find_map(Value::as_f64)
}

#[tokio::test(flavor = "multi_thread")]
async fn history_outlives_the_controller() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::connect(cluster.addr(), &identity, 2).await;
    send(&mut stream, sample(432)).await;
    let path = "/api/v1/telemetry?node=n1&gpu=1&series=power,sm";
    let answer = until(&cluster, path, |answer| last(answer, 1) == Some(432.0)).await;
    assert_eq!(answer["step"], "1s");
    let names: Vec<_> = answer["curves"].as_array().unwrap().iter().map(|c| &c["series"]).collect();
    assert_eq!(names, ["sm", "power"]);
    let host = cluster.get("/api/v1/telemetry?gpu=none&series=cpu&since=2h").await;
    assert_eq!((&host["step"], last(&host, 0)), (&Value::from("1m"), Some(0.25)));
    assert!(host["curves"][0]["max"].is_array() && host["curves"][0].get("gpu").is_none());

    let dir = cluster.stop().await;
    let files: Vec<_> = std::fs::read_dir(dir.path().join("telemetry")).unwrap().collect();
    assert!(!files.is_empty(), "it was written down at the end");
    let again = Cluster::start_in(dir).await;
    let kept = until(&again, path, |answer| last(answer, 1) == Some(432.0)).await;
    assert_eq!(last(&kept, 0), Some(0.5));
    let old = again.get("/api/v1/nodes/n1").await;
    assert!(old.get("sample").is_none(), "that was before this controller: {old}");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_about_nothing_say_what_there_is() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _stream = agent::connect(cluster.addr(), &identity, 1).await;
    for (query, status, word) in [
        ("series=watts", 400, "power"),
        ("gpu=first", 400, "an index such as 0"),
        ("node=n9", 404, "n9"),
        ("since=1m&until=1h", 400, "not before"),
        ("nodes=n1", 400, "unknown in the query"),
    ] {
        let answer = cluster.call("GET", &format!("/api/v1/telemetry?{query}"), None).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, status, "{query}: {text}");
        assert!(text.contains(word), "{query}: {text}");
    }
    let none = cluster.get("/api/v1/telemetry?node=n1").await;
    assert_eq!(none["curves"].as_array().map(Vec::len), Some(0));
    cluster.stop().await;
}

/// A node with two GPUs, and a job that has one of them.
async fn with_a_job(cluster: &Cluster) -> (agent::FakeAgent, String) {
    let identity = cluster.join("n1").await;
    let agent = agent::FakeAgent::start(cluster.addr(), identity, 2, agent::Ranks::Stay).await;
    let id = cluster.submit(json!({ "run": "train", "gpus": 1 })).await;
    until(cluster, &format!("/api/v1/jobs/{id}"), |job| job["state"] == "running").await;
    (agent, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_and_its_gpus_are_seen_together() {
    let cluster = Cluster::start().await;
    let (agent, id) = with_a_job(&cluster).await;
    let empty = cluster.get(&format!("/api/v1/jobs/{id}/telemetry")).await;
    assert_eq!(empty["gpus"].as_array().map(Vec::len), Some(1));
    assert!(empty["total"]["power"].is_null(), "{empty}");
    let gpus = cluster.get("/api/v1/gpus?node=n1").await;
    let jobs: Vec<_> = gpus.as_array().unwrap().iter().map(|gpu| gpu["jobs"].clone()).collect();
    assert!(jobs.contains(&json!([id])) && jobs.contains(&json!([])), "{gpus}");
    let missing = cluster.call("GET", "/api/v1/jobs/99/telemetry", None).await;
    assert_eq!(missing.status, 404);
    let waiting = cluster.submit(json!({ "run": "train", "gpus": 2 })).await;
    let waiting = cluster.get(&format!("/api/v1/jobs/{waiting}/telemetry")).await;
    assert!(waiting["gpus"] == json!([]) && waiting.get("since").is_none(), "{waiting}");
    drop(agent);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_viewers() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::connect(cluster.addr(), &identity, 2).await;
    send(&mut stream, sample(250)).await;
    until(&cluster, "/api/v1/nodes/n1", |node| node.get("sample").is_some()).await;
    assert_eq!(cluster.raw("GET", "/metrics", &[], None).await.status, 401);
    let viewer = cluster.access("prometheus", "viewer").await;
    let answer = cluster.call_as(&viewer, "GET", "/metrics", None).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.to_lowercase().contains("text/plain; version=0.0.4"), "{}", answer.head);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    for line in [
        "tutti_nodes{state=\"ready\"} 1",
        "tutti_gpus{state=\"free\"} 2",
        "tutti_tasks{state=\"pending\"} 0",
        "tutti_node_up{node=\"n1\"} 1",
        "tutti_node_cpu_ratio{node=\"n1\"} 0.25",
        "} 250",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let one = cluster.call_as(&viewer, "GET", "/metrics?nodes=n1,n2", None).await;
    let one = String::from_utf8_lossy(&one.body).into_owned();
    assert!(one.contains("DCGM_FI_DEV_POWER_USAGE{") && !one.contains("tutti_tasks"), "{one}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_screen_asks_for_what_it_shows() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut first = agent::connect(cluster.addr(), &identity, 2).await;
    let identity = cluster.join("n2").await;
    let _second = agent::connect(cluster.addr(), &identity, 2).await;
    send(&mut first, sample(300)).await;
    let heard = |load: &Value| load["cluster"]["heard"] == 2;
    let load = until(&cluster, "/api/v1/load", heard).await;
    let all = &load["cluster"];
    assert_eq!((all["gpus"].as_u64(), all["power"].as_f64()), (Some(4), Some(600.0)), "{load}");
    assert_eq!((&load["nodes"], &load["jobs"]), (&json!([]), &json!([])));
    let load = cluster.get("/api/v1/load?nodes=n1,n9&jobs=7").await;
    assert_eq!(load["nodes"].as_array().map(Vec::len), Some(1), "{load}");
    let cell = &load["nodes"][0]["gpus"][1];
    assert_eq!((cell["util"].as_u64(), cell["sm"].as_u64()), (Some(97), Some(50)), "{load}");
    assert_eq!(load["jobs"], json!([]), "there is no such job");
    let bad = cluster.call("GET", "/api/v1/load?jobs=seven", None).await;
    assert_eq!(bad.status, 400);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_load_of_a_job_is_that_of_its_gpus() {
    let cluster = Cluster::start().await;
    let (agent, id) = with_a_job(&cluster).await;
    let load = cluster.get(&format!("/api/v1/load?nodes=n1&jobs={id}")).await;
    assert_eq!(load["jobs"][0]["load"]["gpus"], 1, "{load}");
    let cells = load["nodes"][0]["gpus"].as_array().unwrap();
    let held: Vec<_> = cells.iter().filter(|c| c["milli"] == 1000).collect();
    assert_eq!(held.len(), 1, "{load}");
    assert_eq!(held[0]["jobs"], json!([id]));
    drop(agent);
    cluster.stop().await;
}
