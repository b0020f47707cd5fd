//! Nodes: whether they are there, how old their values are, and what the machines do.

use tutti_model::{HostSample, NicSample, NodeState};

use super::Shown;
use super::text::{Kind, Labels, Text};

type Of = fn(&HostSample) -> f64;

const FAMILIES: &[(&str, &str, Of)] = &[
    ("tutti_node_cpu_ratio", "Share of all processors that is busy.", |h| f64::from(h.cpu)),
    ("tutti_node_load1", "Load average over one minute.", |h| f64::from(h.load1)),
    ("tutti_node_memory_bytes", "Memory of the node.", |h| h.mem_total.0 as f64),
    ("tutti_node_memory_available_bytes", "Memory that programs could still take.", |h| {
        h.mem_available.0 as f64
    }),
    ("tutti_node_disk_bytes", "Size of the file system with the agent's data.", |h| {
        h.disk_total.0 as f64
    }),
    ("tutti_node_disk_free_bytes", "What is free on that file system.", |h| h.disk_free.0 as f64),
    ("tutti_node_disk_read_bytes_per_second", "Read from all disks.", |h| h.disk_read as f64),
    ("tutti_node_disk_write_bytes_per_second", "Written to all disks.", |h| h.disk_write as f64),
    ("tutti_node_network_receive_bytes_per_second", "Received by all interfaces.", |h| {
        h.net_rx as f64
    }),
    ("tutti_node_network_transmit_bytes_per_second", "Sent by all interfaces.", |h| {
        h.net_tx as f64
    }),
];

type OfPort = fn(&NicSample) -> f64;

const PORTS: &[(&str, Kind, &str, OfPort)] = &[
    ("tutti_node_rdma_up", Kind::Gauge, "Whether a port is up.", |n| f64::from(u8::from(n.up))),
    (
        "tutti_node_rdma_receive_bytes_per_second",
        Kind::Gauge,
        "Received by a port of an RDMA adapter.",
        |n| n.rx as f64,
    ),
    (
        "tutti_node_rdma_transmit_bytes_per_second",
        Kind::Gauge,
        "Sent by a port of an RDMA adapter.",
        |n| n.tx as f64,
    ),
    ("tutti_node_rdma_symbol_errors_total", Kind::Counter, "Symbol errors of a port.", |n| {
        n.symbol_errors as f64
    }),
    ("tutti_node_rdma_link_downed_total", Kind::Counter, "How often a port lost its link.", |n| {
        n.link_downed as f64
    }),
    (
        "tutti_node_rdma_receive_errors_total",
        Kind::Counter,
        "Bad packets that came to a port.",
        |n| n.rcv_errors as f64,
    ),
];

pub fn render(nodes: &[Shown<'_>], text: &mut Text<'_>) {
    let up = |state: NodeState| !matches!(state, NodeState::Away | NodeState::Lost);
    let ups = nodes.iter().map(|n| (&n.scene.labels, f64::from(u8::from(up(n.scene.state)))));
    text.family(("tutti_node_up", Kind::Gauge, "Whether a node's agent is connected."), ups);
    let ages = nodes.iter().filter_map(|n| Some((&n.scene.labels, n.age_ms? as f64 / 1000.0)));
    let help = "Age of the newest values of a node; beyond 10 s they are left out.";
    text.family(("tutti_telemetry_age_seconds", Kind::Gauge, help), ages);
    for (name, help, of) in FAMILIES {
        let values =
            nodes.iter().filter_map(|n| Some((&n.scene.labels, of(&n.newest?.sample.host))));
        text.family((name, Kind::Gauge, help), values);
    }
    for (name, kind, help, of) in PORTS {
        let ports = nodes.iter().flat_map(|n| {
            let nics = n.newest.map_or(&[][..], |newest| &newest.sample.host.nics);
            nics.iter().map(|nic| {
                let labels = Labels::default().with("node", &n.scene.name).with("port", &nic.port);
                (labels.text(), of(nic))
            })
        });
        text.family((name, *kind, help), ports);
    }
}
