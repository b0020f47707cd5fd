//! Times scheduling passes on large clusters. `cargo run --release -p tutti-sched --example pass`
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::print_stdout)]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tutti_model::*;

const NOW: Time = Time(1_000_000_000);

fn main() {
    small_cluster();
    mixed_empty_cluster();
    large_full_cluster();
}

/// The benchmark's shape: many short CPU jobs on few nodes.
fn small_cluster() {
    let mut state = cluster(16, 8);
    for id in 0..2000 {
        submit(&mut state, id + 1, gang(1, 0));
    }
    for node in state.nodes.values_mut() {
        node.facts.cpus = 256;
    }
    pass("16 nodes, 2,000 one-CPU jobs", &state);
    let mut state = cluster(16, 8);
    let spec = JobSpec { array: "0-1999".parse().ok(), ..gang(1, 1) };
    submit(&mut state, 1, spec);
    pass("16 nodes, an array of 2,000 one-GPU tasks", &state);
}

fn mixed_empty_cluster() {
    let mut state = cluster(10_000, 8);
    for id in 0..100_000 {
        submit(&mut state, id + 1, kind(id));
    }
    pass("10,000 empty nodes, 100,000 jobs of 24 kinds", &state);
    let mut state = cluster(10_000, 8);
    for id in 0..4000 {
        submit(&mut state, id + 1, JobSpec { gpus: Some(20), ..JobSpec::shell("true") });
    }
    pass("10,000 empty nodes, 4,000 jobs of 20 GPUs each", &state);
}

fn large_full_cluster() {
    let mut state = cluster(10_000, 8);
    for node in state.nodes.values_mut() {
        fill(node);
    }
    for id in 0..100_000 {
        submit(&mut state, id + 1, kind(id));
    }
    pass("10,000 full nodes, 100,000 jobs of 24 kinds", &state);
    why(&state);
    if let Some(node) = state.nodes.get_mut(&NodeId(5000)) {
        node.used = Used::default();
    }
    pass("the same, one node freed", &state);
}

fn why(state: &State) {
    let policy = Policy::default();
    let plan = tutti_sched::plan(state, &policy, NOW);
    let start = Instant::now();
    let task = TaskId::single(JobId(100_000));
    let ahead = tutti_sched::explain(state, &plan, &policy, task, NOW).map(|e| e.ahead);
    println!("  why for the last of them: {:.2?}, ahead: {ahead:?}", start.elapsed());
}

fn pass(what: &str, state: &State) {
    let policy = Policy::default();
    let mut best = None;
    let mut plan = Plan::default();
    for _ in 0..5 {
        let start = Instant::now();
        plan = tutti_sched::plan(state, &policy, NOW);
        let took = start.elapsed();
        best = Some(best.map_or(took, |b: std::time::Duration| b.min(took)));
    }
    let took = best.unwrap_or_default();
    let (placed, verdicts) = (plan.placements.len(), plan.by_demand.len());
    println!("{what}: {took:.2?} ({placed} placed, {verdicts} kinds wait)");
}

fn kind(n: u64) -> JobSpec {
    let spec = gang([1, 1, 1, 2, 4][(n % 5) as usize], [1, 2, 4, 8][(n / 5 % 4) as usize]);
    JobSpec { cpus_per_gpu: Some(1 + (n / 20 % 2) as u32), ..spec }
}

fn gang(nodes: u32, gpus: u32) -> JobSpec {
    let gpus_per_node = Some(GpuRequest { model: None, count: gpus });
    JobSpec { nodes: Some(nodes), gpus_per_node, ..JobSpec::shell("true") }
}

fn cluster(nodes: u32, gpus: u16) -> State {
    let mut state = State::default();
    for id in 1..=nodes {
        let gpu = |i| Gpu {
            index: GpuIndex(i),
            model: "h100".to_owned(),
            uuid: format!("gpu-{id}-{i}"),
            mem: Bytes::gib(80),
        };
        let facts = NodeFacts {
            name: format!("n{id}"),
            address: "127.0.0.1".to_owned(),
            cpus: 128,
            // Real machines differ by a little.
            mem: Bytes(Bytes::gib(2000).0 + u64::from(id % 997) * 4096),
            gpus: (0..gpus).map(gpu).collect(),
            simulated: true,
            isolation: "process group".to_owned(),
            agent_version: "0".to_owned(),
            labels: BTreeMap::new(),
        };
        let node = Node {
            id: NodeId(id),
            facts,
            link: Link::Up,
            drain: None,
            stale: Default::default(),
            joined_at: Time(0),
            used: Used::default(),
        };
        state.nodes.insert(node.id, node);
    }
    state
}

fn fill(node: &mut Node) {
    let lease = |i: u16| LeaseId {
        task: TaskId::single(JobId(1_000_000 + u64::from(i))),
        generation: Generation(1),
    };
    node.used.gpus = node.facts.gpus.iter().map(|g| (g.index, lease(g.index.0))).collect();
    node.used.cpus = 8;
}

fn submit(state: &mut State, id: u64, spec: JobSpec) {
    let id = JobId(id);
    let key = QueueKey { priority: Reverse(spec.priority), job: id, index: None };
    state.index.queue.insert(Demand::of(&spec), key);
    let tasks = match &spec.array {
        Some(a) => Tasks::Array(ArrayTasks { waiting: a.indices.clone(), ..ArrayTasks::default() }),
        None => Tasks::One(Task::pending(NOW)),
    };
    let job = Job {
        id,
        user: "ada".to_owned(),
        submitted_at: NOW,
        priority: spec.priority,
        held: false,
        spec: Arc::new(spec),
        tasks,
    };
    state.jobs.insert(id, Arc::new(job));
}
