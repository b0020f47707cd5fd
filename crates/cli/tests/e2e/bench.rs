//! `tutti bench`: the cluster measures itself.

use serde_json::Value;
use tutti_model::{GpuBenchFigures, GpuRates};
use tutti_testkit::Cluster;

use crate::cluster;

#[test]
fn every_pair_of_an_allocation_is_measured() {
    let cluster = cluster(2);
    let args = ["bench", "collectives", "-N", "2", "-G", "2", "--sizes", "1KiB,64KiB", "--json"];
    let report: Value = serde_json::from_str(&cluster.cli(&args).ok()).unwrap();
    assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(report["pairs"].as_array().unwrap().len(), 6);
    assert_eq!(report["all_reduce"][1]["bytes"], 65_536);
    let domains: Vec<&str> = report["domains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["domain"].as_str().unwrap())
        .collect();
    assert_eq!(domains, ["node", "cluster"]);
    let nodes: Value = serde_json::from_str(&cluster.cli(&["nodes", "--json"]).ok()).unwrap();
    for node in nodes.as_array().unwrap() {
        let kept = &node["burn_in"];
        assert_eq!((&kept["job"], &kept["ranks"]), (&report["job"], &4.into()), "{node}");
        assert!(kept["inside"]["bandwidth"].as_u64() > Some(0), "{node}");
        assert!(kept["outside"]["latency_ns"].as_u64() > Some(0), "{node}");
    }
    let table = cluster.cli(&["bench", "collectives", "-N", "1", "--sizes", "1KiB"]).ok();
    assert!(table.contains("1KiB"), "{table}");
    let nodes: Value = serde_json::from_str(&cluster.cli(&["nodes", "--json"]).ok()).unwrap();
    assert_eq!(nodes[0]["burn_in"]["job"], report["job"], "one rank alone says nothing of links");
    cluster
        .cli(&["bench", "collectives", "--tolerance", "1"])
        .call()
        .exited(2)
        .says(&["tolerance"]);
}

#[test]
fn simulated_gpus_are_not_measured() {
    let cluster = cluster(2);
    let none = "has simulated GPUs: there is nothing to measure";
    let refused = cluster.cli(&["bench", "gpu", "-N", "1"]).call();
    refused.exited(5).says(&[&format!("n1 {none}"), &format!("n2 {none}")]);
    assert!(cluster.cli(&["ps", "--all"]).ok().lines().all(|line| !line.contains("bench-gpu")));
    let asked = cluster.cli(&["bench", "gpu", "--local", "--last"]).call();
    asked.exited(2).says(&["--local", "--last"]);
}

#[test]
fn what_gpus_were_measured_to_do_stays_with_their_node() {
    let mut cluster = cluster(2);
    let last = |cluster: &Cluster, args: &[&str]| {
        cluster.cli(&[&["bench", "gpu", "--last"][..], args].concat()).ok()
    };
    assert!(last(&cluster, &[]).contains("no GPU was measured yet"));
    let rates = |median, worst| Some(GpuRates { median, worst });
    let figures = GpuBenchFigures {
        job: "1".parse().unwrap(),
        gpu: "NVIDIA H100 80GB HBM3".into(),
        gpus: 8,
        matmul: rates(718_500_000_000_000, 640_000_000_000_000),
        fp8: None,
        copy: rates(4_120_000_000_000, 4_100_000_000_000),
        shapes: Vec::new(),
        slow: vec!["GPU 3: bf16 is 11 % slower than its like".into()],
    };
    cluster.client().gpus_measured("n1", &figures).unwrap();
    cluster.kill_controller();
    cluster.start_controller();
    cluster.wait_ready();
    let table = last(&cluster, &[]);
    for word in ["NVIDIA H100", "718.5", "640.0", "4120.0", "GPU 3"] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    let rows: Value = serde_json::from_str(&last(&cluster, &["--json"])).unwrap();
    assert_eq!(rows[0]["node"], "n1");
    assert_eq!(rows[0]["gpus"], 8);
    assert!(cluster.cli(&["nodes"]).ok().contains("GPU 3: bf16 is 11 % slower"));
    let file = cluster.scratch().join("here.json");
    last(&cluster, &["--out", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["gpu"], "NVIDIA H100 80GB HBM3");
    assert_eq!(written["matmul_tflops"], 718.5);
    assert_eq!(written["copy_gbps"], 4120.0);
}
