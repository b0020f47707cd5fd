//! Nodes, and the cluster as a whole.

use std::collections::BTreeSet;

use tutti_engine::Actor;
use tutti_model::{GpuIndex, GpuUse, Link, Milli, Node, NodeState, State, TaskId, Time};
use tutti_wire::api::{ClusterInfo, NodeRow, SharedGpu};

use super::KeptByNode;
use crate::core::World;

pub fn node_row(world: &World, node: &Node, kept: &KeptByNode, now: Time) -> NodeRow {
    let state = world.engine.state();
    let jobs: BTreeSet<TaskId> = node.used.leases.iter().map(|l| l.task).collect();
    let since = match node.link {
        Link::Up => node.drain.as_ref().map(|d| d.since).or(node.up_since),
        Link::Away { since } | Link::Lost { since } => Some(since),
    };
    NodeRow {
        name: node.facts.name.clone(),
        state: node.state(),
        facts: (&node.facts).into(),
        gpus_used: node.used.gpus.len() as u32,
        gpu_milli_used: node.used.gpus.values().map(|u| u64::from(u.milli())).sum(),
        shared: node.used.gpus.iter().filter_map(|(gpu, used)| shared(*gpu, used)).collect(),
        cpus_used: node.used.cpus,
        mem_used: node.used.mem,
        exclusive: jobs.iter().copied().find(|t| alone(state, *t)),
        jobs: jobs.into_iter().collect(),
        place: state.policy.topology.place_of(node),
        drain_reason: node.drain.as_ref().map(|d| d.reason.clone()),
        drained_by: node.drain.as_ref().map(|d| d.by.clone()),
        trouble: trouble(world, node, now),
        burn_in: node.burn_in.clone(),
        gpu_bench: node.gpu_bench.clone(),
        findings: node.findings.clone(),
        fenced: node.fenced().into_iter().map(|gpu| gpu.0).collect(),
        reservations: tutti_sched::reservations_of(state, node, now),
        kept: kept.get(&node.id).cloned().unwrap_or_default(),
        since,
    }
}

/// While it is drained, the reason says it.
pub fn trouble(world: &World, node: &Node, now: Time) -> Option<String> {
    let (state, settings) = (world.engine.state(), world.engine.settings());
    if node.drain.is_some() { None } else { tutti_engine::trouble(state, settings, node, now) }
}

fn alone(state: &State, task: TaskId) -> bool {
    state.job(task.job).is_some_and(|j| j.spec.exclusive)
}

/// None if one job has all of it.
fn shared(gpu: GpuIndex, used: &GpuUse) -> Option<SharedGpu> {
    let whole = used.leases.len() == 1 && used.leases.values().all(Milli::is_whole);
    let jobs = used.leases.keys().map(|l| l.task).collect();
    (!whole).then(|| SharedGpu { gpu: gpu.0, used: used.milli(), jobs })
}

pub fn cluster(world: &World, actor: &Actor, now: Time) -> ClusterInfo {
    let state = world.engine.state();
    let nodes = || state.nodes.values();
    ClusterInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        user: actor.user.clone(),
        role: actor.role,
        nodes: state.nodes.len() as u32,
        nodes_ready: nodes().filter(|n| n.state() == NodeState::Ready).count() as u32,
        gpus: nodes().map(|n| n.facts.gpus.len() as u32).sum(),
        gpus_used: nodes().map(|n| n.used.gpus.len() as u32).sum(),
        simulated: nodes().any(|n| n.facts.simulated),
        tasks: world.reads.totals().by_name(),
        now,
        epoch: state.epoch.0,
        seq: state.seq.0,
    }
}

/// Sorts numbers inside a name by their size.
pub fn counted(name: &str) -> Vec<(u64, String)> {
    let mut key: Vec<(u64, String)> = Vec::new();
    for piece in name.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        // Too long for a number: sorted after those that are not, by its text.
        let number = if digits == 0 { 0 } else { piece[..digits].parse().unwrap_or(u64::MAX) };
        key.push((number, piece[digits..].to_owned()));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn names_sort_as_people_count() {
        let mut names = ["n10", "n2", "n1", "gpu-a12", "gpu-a3", "n", "99999999999999999999999"];
        names.sort_by_key(|n| counted(n));
        assert_eq!(names, ["gpu-a3", "gpu-a12", "n", "n1", "n2", "n10", "99999999999999999999999"]);
    }
}
