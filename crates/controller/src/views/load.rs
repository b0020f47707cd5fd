//! Who has which GPUs, as short as it can be said: it is asked for every second.

use std::collections::BTreeSet;

use tutti_model::{Bytes, GpuIndex, Node, State, TaskId, Time};

use super::held_gpus;

/// Everything that [`wire::api::Load`](tutti_wire::api::Load) needs of the state.
pub struct Holdings {
    pub nodes: Vec<HeldNode>,
    /// The wanted tasks that have GPUs, with them.
    pub jobs: Vec<(TaskId, Vec<(String, GpuIndex)>)>,
}

pub struct HeldNode {
    pub name: String,
    /// Somebody asked for this node by name.
    pub wanted: bool,
    pub gpus: Vec<HeldGpu>,
}

pub struct HeldGpu {
    pub gpu: GpuIndex,
    pub mem: Bytes,
    pub milli: u32,
    /// These two only where the node is wanted.
    pub fenced: bool,
    pub jobs: Vec<TaskId>,
}

pub fn holdings(
    state: &State,
    nodes: &BTreeSet<&str>,
    jobs: &BTreeSet<TaskId>,
    now: Time,
) -> Holdings {
    let with_gpus = |id: &TaskId| {
        let task = state.job(id.job)?.task(id.index)?;
        let (_, gpus) = held_gpus(state, task, now)?;
        Some((*id, gpus))
    };
    Holdings {
        nodes: state
            .nodes
            .values()
            .map(|node| held(node, nodes.contains(node.facts.name.as_str())))
            .collect(),
        jobs: jobs.iter().filter_map(with_gpus).collect(),
    }
}

fn held(node: &Node, wanted: bool) -> HeldNode {
    let fenced = if wanted { node.fenced() } else { BTreeSet::new() };
    let gpu = |gpu: &tutti_model::Gpu| {
        let used = node.used.gpus.get(&gpu.index);
        let jobs =
            used.filter(|_| wanted).into_iter().flat_map(|u| u.leases.keys().map(|l| l.task));
        HeldGpu {
            gpu: gpu.index,
            mem: gpu.mem,
            milli: used.map_or(0, |used| used.milli()),
            fenced: fenced.contains(&gpu.index),
            jobs: jobs.collect(),
        }
    };
    HeldNode {
        name: node.facts.name.clone(),
        wanted,
        gpus: node.facts.gpus.iter().map(gpu).collect(),
    }
}
