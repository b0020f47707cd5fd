use tutti_model::{Fabric, GpuLink, HardwareProblem, HardwareProblemKind, Mig};

use super::*;

fn detail(devices: Vec<Gpu>, hardware: Option<Hardware>, simulated: bool) -> NodeDetail {
    let row = serde_json::json!({
        "name": "n1", "state": "ready", "address": "127.0.1.1", "gpu_model": null,
        "gpus": devices.len(), "cpus": 64, "mem": "512GiB", "simulated": simulated,
        "isolation": "cgroup2", "agent_version": "0.1.0", "labels": {}, "gpus_used": 0,
        "cpus_used": 0, "mem_used": "0B", "jobs": [], "drain_reason": null, "since": null,
    });
    let row = serde_json::from_value(row).unwrap();
    let hardware = hardware.map(Box::new);
    NodeDetail { row, sample: None, sample_age: None, devices, hardware }
}

fn gpu(index: u16, model: &str, gib: u64, island: Option<u16>) -> Gpu {
    let (index, model) = (GpuIndex(index), model.to_owned());
    Gpu { index, model, uuid: format!("GPU-{index}"), mem: Bytes::gib(gib), island }
}

fn facts(index: u16, pci: &str, numa: Option<u16>) -> GpuFacts {
    let (index, pci) = (GpuIndex(index), Some(pci.to_owned()));
    GpuFacts { index, pci, numa, ..GpuFacts::default() }
}

fn nic(name: &str, numa: u16, up: bool, nearest: &[u16]) -> Nic {
    Nic {
        name: name.into(),
        port: 1,
        infiniband: up,
        up,
        gbits: if up { 400 } else { 0 },
        pci: Some("0000:18:00.0".into()),
        numa: Some(numa),
        nearest: nearest.iter().copied().map(GpuIndex).collect(),
    }
}

fn numa(id: u16, cpus: &str) -> NumaNode {
    NumaNode { id, cpus: cpus.into(), mem: Bytes::gib(256) }
}

fn link(a: u16, b: u16, kind: LinkKind) -> GpuLink {
    GpuLink { a: GpuIndex(a), b: GpuIndex(b), kind }
}

#[test]
fn a_machine_is_drawn_by_numa_node() {
    let mut joined = facts(0, "0000:1b:00.0", Some(0));
    joined.fabric = Some(Fabric { state: FabricState::Completed, cluster: None, clique: Some(0) });
    let hardware = Hardware {
        driver: Some("580.159.04".into()),
        runtime: Some("13.0".into()),
        gpus: vec![joined, facts(1, "0000:43:00.0", Some(0)), facts(3, "0000:9d:00.0", Some(1))],
        links: vec![link(0, 1, LinkKind::Nvlink { links: 18 }), link(0, 3, LinkKind::SwitchTree)],
        nics: vec![nic("mlx5_0", 0, true, &[0, 1]), nic("mlx5_10", 1, false, &[])],
        numa: vec![numa(0, "0-31"), numa(1, "32-63")],
        control_files: Vec::new(),
        problems: vec![HardwareProblem {
            kind: HardwareProblemKind::Missing,
            pci: Some("0000:61:00.0".into()),
            message: "a GPU does not answer".into(),
        }],
    };
    let gpus =
        vec![gpu(0, "h100", 80, Some(0)), gpu(1, "h100", 80, Some(0)), gpu(3, "h100", 80, Some(1))];
    let text = draw(&detail(gpus, Some(hardware), false), Style::PLAIN);
    assert_eq!(
        text,
        "\
n1  3 × h100, driver 580.159.04, CUDA 13.0
NUMA 0  CPUs 0-31  256 GiB
  GPU 0     h100        80 GiB    0000:1b:00.0  nearest mlx5_0, in its fabric
  GPU 1     h100        80 GiB    0000:43:00.0  nearest mlx5_0
  mlx5_0:1  InfiniBand  400 Gb/s  0000:18:00.0
NUMA 1  CPUs 32-63  256 GiB
  GPU 3      h100      80 GiB  0000:9d:00.0
  mlx5_10:1  Ethernet  -       0000:18:00.0  down
how GPUs are joined
        GPU0  GPU1  GPU3
  GPU0  X     NV18  PXB
  GPU1  NV18  X     SYS
  GPU3  PXB   SYS   X
  NV# that many NVLinks · PXB several PCIe switches · SYS across processors
island of 2 GPUs: 0-1
problem: 0000:61:00.0: a GPU does not answer"
    );
}

#[test]
fn instances_name_their_card_and_one_gpu_has_no_matrix() {
    let mut slice = facts(0, "0000:00:06.0", None);
    slice.mig = Some(Mig {
        parent_uuid: "GPU-p".into(),
        parent: 0,
        gpu_instance: 5,
        compute_instance: 0,
        profile: "1g.18gb".into(),
    });
    let hardware =
        Hardware { gpus: vec![slice], numa: vec![numa(0, "0-15")], ..Hardware::default() };
    let mut gpu = gpu(0, "h200-1g.18gb", 0, Some(0));
    gpu.mem = Bytes(16_500_000_000);
    let text = draw(&detail(vec![gpu], Some(hardware), false), Style::PLAIN);
    assert_eq!(
        text,
        "\
n1  1 × h200-1g.18gb
NUMA 0  CPUs 0-15  256 GiB
at no NUMA node that is known
  GPU 0  h200-1g.18gb  15.4 GiB  0000:00:06.0  MIG 5/0 of card 0 (GPU-p)"
    );
}

#[test]
fn what_is_imagined_or_unknown_is_said() {
    let gpus = tutti_gpu::simulated::gpus(8, "h200");
    let hardware = tutti_gpu::simulated::hardware(&gpus, 128, Bytes::gib(1024));
    let text = draw(&detail(gpus, Some(hardware), true), Style::PLAIN);
    assert!(text.starts_with("n1  8 × h200, simulated\nNUMA 0  CPUs 0-63  512 GiB\n"), "{text}");
    assert!(text.contains("  GPU7  NV18") && text.ends_with("island of 8 GPUs: 0-7"), "{text}");
    let old = draw(&detail(Vec::new(), None, false), Style::PLAIN);
    assert!(old.contains("older than this tutti"), "{old}");
    let none = draw(&detail(Vec::new(), Some(Hardware::default()), false), Style::PLAIN);
    assert_eq!(none, "n1  no GPUs");
}

#[test]
fn an_agent_can_not_write_to_the_terminal() {
    let hardware = Hardware { driver: Some("1\x1b[2J".into()), ..Hardware::default() };
    let text = draw(&detail(Vec::new(), Some(hardware), false), Style::PLAIN);
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn indices_are_shortened() {
    assert_eq!(ranges(&[0, 1, 2, 3, 6]), "0-3,6");
    assert_eq!(ranges(&[2]), "2");
}
