use std::sync::Arc;
use std::time::Instant;

use tutti_model::{
    Bytes, GpuSample, GpuUse, Hardware, LeaseId, Link, Mig, Milli, NodeFacts, NodeId, NodeSample,
    TaskId, Used,
};

use super::*;

const NOW: Time = Time(1_800_000_000_000);

fn node(name: &str, gpus: u16) -> Node {
    let gpu = |index| Gpu {
        index: GpuIndex(index),
        model: "h100".into(),
        uuid: format!("GPU-{name}-{index}"),
        mem: Bytes::gib(80),
        island: None,
    };
    let facts = |index| GpuFacts {
        index: GpuIndex(index),
        name: "NVIDIA H100 80GB HBM3".into(),
        pci: Some(format!("0000:{index:02x}:00.0")),
        ..GpuFacts::default()
    };
    let hardware = Hardware { gpus: (0..gpus).map(facts).collect(), ..Hardware::default() };
    Node {
        id: NodeId(1),
        facts: NodeFacts {
            name: name.into(),
            gpus: (0..gpus).map(gpu).collect(),
            hardware: Some(Box::new(hardware)),
            ..NodeFacts::default()
        },
        ..empty_node()
    }
}

fn empty_node() -> Node {
    serde_json::from_value(serde_json::json!({
        "id": 1, "facts": serde_json::to_value(NodeFacts::default()).unwrap(), "link": Link::Up,
        "drain": null, "stale": [], "joined_at": 0,
    }))
    .unwrap()
}

fn held(mut node: Node, gpu: u16, tasks: &[&str]) -> Node {
    let lease = |task: &str| LeaseId {
        task: task.parse::<TaskId>().unwrap(),
        generation: tutti_model::Generation(1),
    };
    let leases = tasks.iter().map(|task| (lease(task), Milli(500))).collect();
    node.used = Used { gpus: [(GpuIndex(gpu), GpuUse { leases })].into(), ..Used::default() };
    node
}

fn sample(gpus: u16) -> NodeSample {
    let gpu = |index| GpuSample {
        index: GpuIndex(index),
        util: Some(97),
        mem_used: Some(Bytes(1536 << 20)),
        power_mw: Some(698_250),
        energy_mj: Some(123_456_789_012),
        sm_active: Some(0.7),
        remap_failed: Some(false),
        ..GpuSample::default()
    };
    NodeSample { at: NOW, gpus: (0..gpus).map(gpu).collect(), ..NodeSample::default() }
}

fn text(nodes: &[Node], store: &Store) -> String {
    let scene = Scene { nodes: nodes.iter().map(node_scene).collect(), cluster: None };
    let mut all = String::new();
    scene.render(store, None, NOW, &mut |piece| {
        all += &piece;
        true
    });
    all
}

#[test]
fn a_gpu_has_dcgms_names_labels_and_units() {
    let store = Store::default();
    store.push("n1", sample(2), NOW);
    let text = text(&[held(node("n1", 2), 1, &["12", "13_4"])], &store);
    let labels = "gpu=\"1\",UUID=\"GPU-n1-1\",pci_bus_id=\"00000000:01:00.0\",device=\"nvidia1\",\
                  modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"n1\",hpc_job=\"12,13_4\"";
    for (name, value) in [
        ("DCGM_FI_DEV_GPU_UTIL", "97"),
        ("DCGM_FI_DEV_FB_USED", "1536"),
        ("DCGM_FI_DEV_POWER_USAGE", "698.25"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "123456789012"),
        ("DCGM_FI_DEV_XID_ERRORS", "0"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0"),
        ("DCGM_FI_PROF_SM_ACTIVE", "0.7"),
    ] {
        let line = format!("{name}{{{labels}}} {value}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.contains("# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"));
    assert!(!text.contains("DCGM_FI_DEV_GPU_TEMP"), "what the device does not tell is left out");
    let free = "gpu=\"0\",UUID=\"GPU-n1-0\",pci_bus_id=\"00000000:00:00.0\",device=\"nvidia0\",\
                modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"n1\"}";
    assert!(text.contains(free), "{text}");
}

#[test]
fn a_mig_instance_is_shown_on_its_gpu() {
    let mut node = node("n1", 3);
    node.facts.hardware.as_mut().unwrap().gpus[2].mig = Some(Mig {
        parent_uuid: "GPU-whole".into(),
        parent: 0,
        gpu_instance: 7,
        compute_instance: 0,
        profile: "1g.10gb".into(),
    });
    let labels = node_scene(&node).gpus[2].1.clone();
    assert!(labels.starts_with("gpu=\"0\",UUID=\"GPU-whole\""), "{labels}");
    assert!(labels.ends_with("GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\""), "{labels}");
}

#[test]
fn old_values_are_left_out_but_for_their_age() {
    let store = Store::default();
    store.push("n1", sample(1), Time(NOW.0 - 20_000));
    let text = text(&[node("n1", 1)], &store);
    assert!(text.contains("tutti_telemetry_age_seconds{node=\"n1\"} 20\n"), "{text}");
    assert!(text.contains("tutti_node_up{node=\"n1\"} 1\n"));
    assert!(!text.contains("DCGM_") && !text.contains("tutti_node_load1"), "{text}");
}

/// How large and how slow it gets; printed for the guide, bounded here.
#[test]
fn ten_thousand_gpus_are_written_in_pieces() {
    let store = Store::default();
    let nodes: Vec<Node> = (0..1250).map(|i| node(&format!("gpu-{i}"), 8)).collect();
    let full = NodeSample {
        gpus: sample(8).gpus.into_iter().map(|g| GpuSample { temp: Some(60), ..g }).collect(),
        ..sample(8)
    };
    nodes.iter().for_each(|node| store.push(&node.facts.name, full.clone(), NOW));
    let began = Instant::now();
    let scene = Arc::new(Scene { nodes: nodes.iter().map(node_scene).collect(), cluster: None });
    let (mut bytes, mut largest) = (0, 0);
    scene.render(&store, None, NOW, &mut |piece| {
        bytes += piece.len();
        largest = largest.max(piece.len());
        true
    });
    tracing::info!(bytes, took = ?began.elapsed(), "10,000 GPUs");
    assert!(bytes > 10_000_000 && largest < 100_000, "{bytes} {largest}");
}
