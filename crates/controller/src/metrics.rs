//! The cluster as Prometheus reads it: text format 0.0.4. GPUs under the names and labels of NVIDIA's
//! dcgm-exporter, so that dashboards made for it work; everything else under `tutti_`.
//!
//! ```text
//!  engine's state ── Scene: labels, counts (under its lock, short) ─┐
//!  telemetry ─────── newest samples ────────────────────────────────┴─► families ─► pieces of text
//! ```
//! The text is made piece by piece while it is sent: with ten thousand GPUs it has tens of
//! megabytes.

mod cluster;
mod endpoint;
mod gpu;
mod host;
mod text;

use std::collections::BTreeMap;

use tutti_engine::time_sums_at;
use tutti_journal::Stats;
use tutti_model::{
    Gpu, GpuFacts, GpuIndex, Node, NodeState, Span, Time, TimeSums, Vendor, WatchRule,
};

use crate::clock::patience;
use crate::core::{Passes, World};
use crate::serving::Routers;
use crate::telemetry::{Newest, Store};
use endpoint::EndpointScene;
use text::Labels;

pub use text::{CONTENT_TYPE, Text};

/// Values older than this are left out, so that they end in Prometheus as well.
const STALE: Span = Span::secs(10);

/// What the engine knows, at one moment.
pub struct Scene {
    nodes: Vec<NodeScene>,
    cluster: Option<ClusterScene>,
}

struct NodeScene {
    name: String,
    state: NodeState,
    /// `node="n1"`.
    labels: String,
    /// By index: `gpu="0",UUID="GPU-...",...`.
    gpus: Vec<(GpuIndex, String)>,
    gpus_used: usize,
    /// Neither used nor fenced.
    gpus_free: usize,
}

struct ClusterScene {
    tasks: BTreeMap<String, u64>,
    passes: Passes,
    seq: u64,
    sums: TimeSums,
    alerts: BTreeMap<WatchRule, u64>,
    routers: usize,
    endpoints: Vec<EndpointScene>,
}

impl Scene {
    /// Of these nodes; without names of all, and with the cluster's own values.
    pub fn new(world: &World, routers: &Routers, only: Option<&[&str]>, now: Time) -> Scene {
        let state = world.engine.state();
        let wanted = |node: &&Node| only.is_none_or(|names| names.contains(&&*node.facts.name));
        let cluster = only.is_none().then(|| ClusterScene {
            tasks: world.reads.totals().by_name(),
            passes: world.passes,
            seq: state.seq.0,
            sums: time_sums_at(state, now),
            alerts: world.alerts.counts(),
            routers: routers.count(now),
            endpoints: endpoint::scenes(world, routers, now),
        });
        Scene { nodes: state.nodes.values().filter(wanted).map(node_scene).collect(), cluster }
    }

    /// Hands out the text in pieces; stops when nobody takes them.
    pub fn render(
        &self,
        store: &Store,
        journal: Option<&Stats>,
        now: Time,
        take: &mut dyn FnMut(String) -> bool,
    ) {
        let newest: Vec<Option<Newest>> =
            self.nodes.iter().map(|node| store.newest(&node.name)).collect();
        let mut text = Text::new(take);
        if let Some(cluster) = &self.cluster {
            cluster::render(cluster, self, journal, &mut text);
            endpoint::render(&cluster.endpoints, cluster.routers, &mut text);
        }
        let nodes: Vec<Shown<'_>> = self
            .nodes
            .iter()
            .zip(&newest)
            .map(|(node, newest)| Shown::new(node, newest, now))
            .collect();
        host::render(&nodes, &mut text);
        gpu::render(&nodes, &mut text);
        text.end();
    }
}

/// A node with its newest sample.
struct Shown<'a> {
    scene: &'a NodeScene,
    newest: Option<&'a Newest>,
    age_ms: Option<u64>,
}

impl<'a> Shown<'a> {
    fn new(scene: &'a NodeScene, newest: &'a Option<Newest>, now: Time) -> Shown<'a> {
        let age_ms = newest.as_ref().map(|newest| newest.age(now).0);
        let fresh = |_: &&Newest| age_ms.is_some_and(|age| age < patience(STALE).0);
        Shown { scene, newest: newest.as_ref().filter(fresh), age_ms }
    }
}

fn node_scene(node: &Node) -> NodeScene {
    let name = node.facts.name.clone();
    let facts = |index: GpuIndex| {
        let hardware = node.facts.hardware.as_ref()?;
        hardware.gpus.iter().find(|facts| facts.index == index)
    };
    let label = |gpu: &Gpu| (gpu.index, gpu_labels(node, gpu, facts(gpu.index)));
    NodeScene {
        labels: Labels::default().with("node", &name).text(),
        state: node.state(),
        gpus: node.facts.gpus.iter().map(label).collect(),
        gpus_used: node.used.gpus.len(),
        gpus_free: node.free_gpu_count() as usize,
        name,
    }
}

/// As dcgm-exporter writes them, those of MIG instances too.
fn gpu_labels(node: &Node, gpu: &Gpu, facts: Option<&GpuFacts>) -> String {
    let mig = facts.and_then(|facts| facts.mig.as_ref());
    let index = mig.map_or(gpu.index.0, |mig| mig.parent);
    let uuid = mig.map_or(&gpu.uuid, |mig| &mig.parent_uuid);
    let name = facts.map_or(gpu.model.as_str(), |facts| facts.name.as_str());
    let device = match facts.map(|facts| facts.vendor) {
        Some(Vendor::Amd) => "amdgpu",
        Some(Vendor::Intel) => "xpu",
        Some(Vendor::Simulated) => "simulated",
        Some(Vendor::Nvidia) | None => "nvidia",
    };
    let mut labels = Labels::default()
        .with("gpu", &index.to_string())
        .with("UUID", uuid)
        .with("pci_bus_id", &facts.and_then(|f| f.pci.as_deref()).map_or(String::new(), bus_id))
        .with("device", &format!("{device}{index}"))
        .with("modelName", name)
        .with("Hostname", &node.facts.name);
    if let Some(mig) = mig {
        labels = labels
            .with("GPU_I_PROFILE", &mig.profile)
            .with("GPU_I_ID", &mig.gpu_instance.to_string());
    }
    let jobs: Vec<String> = node
        .used
        .gpus
        .get(&gpu.index)
        .iter()
        .flat_map(|used| used.leases.keys().map(|lease| lease.task.to_string()))
        .collect();
    // One series for a shared GPU, so that sums over GPUs stay right.
    if !jobs.is_empty() {
        labels = labels.with("hpc_job", &jobs.join(","));
    }
    labels.text()
}

/// "0000:1b:00.0" is "00000000:1B:00.0" to NVIDIA.
fn bus_id(pci: &str) -> String {
    match pci.split_once(':') {
        Some((domain, rest)) if domain.len() <= 8 => {
            format!("{domain:0>8}:{rest}").to_ascii_uppercase()
        }
        _ => pci.to_owned(),
    }
}

/// Nodes of each state that there may be.
fn node_states(state: &[NodeScene]) -> Vec<(NodeState, usize)> {
    let all = [
        NodeState::Ready,
        NodeState::Cleaning,
        NodeState::Draining,
        NodeState::Drained,
        NodeState::Away,
        NodeState::Lost,
    ];
    all.map(|s| (s, state.iter().filter(|node| node.state == s).count())).to_vec()
}

#[cfg(test)]
mod tests;
