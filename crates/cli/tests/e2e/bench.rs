//! `tutti bench`: the cluster measures itself.

use serde_json::Value;

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
