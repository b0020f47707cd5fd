//! What agents say of their machines, once and every second, and what people see of it.

mod common;

use std::time::Duration;

use common::Cluster;
use common::agent::{self, Stream};
use serde_json::Value;
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
    let told = |node: &Value| node["hardware"]["driver"] == "580.159.04";
    let node = until(&cluster, "/api/v1/nodes/n1", told).await;
    assert_eq!(node["devices"][1]["uuid"], "n1-1");
    let list = cluster.get("/api/v1/nodes").await;
    assert_eq!(list[0]["name"], "n1");
    assert!(list[0].get("hardware").is_none() && list[0].get("devices").is_none());
    cluster.stop().await;
}
