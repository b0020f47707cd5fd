//! GPUs, and who has them.

use tutti_model::{GpuIndex, State, Task, Time};
use tutti_wire::api::GpuRow;

/// Every node's name.
pub fn node_names(state: &State) -> Vec<String> {
    state.nodes.values().map(|node| node.facts.name.clone()).collect()
}

/// GPUs of these nodes, without what they do.
pub fn gpu_rows(state: &State, only: impl Fn(&str) -> bool) -> Vec<GpuRow> {
    let mut rows = Vec::new();
    for node in state.nodes.values().filter(|node| only(&node.facts.name)) {
        for gpu in &node.facts.gpus {
            let used = node.used.gpus.get(&gpu.index);
            let fence = node.findings.iter().filter(|f| f.fences() == Some(gpu.index));
            rows.push(GpuRow {
                node: node.facts.name.clone(),
                gpu: gpu.index,
                model: gpu.model.clone(),
                uuid: gpu.uuid.clone(),
                mem: gpu.mem,
                simulated: node.facts.simulated,
                jobs: used.iter().flat_map(|used| used.leases.keys().map(|l| l.task)).collect(),
                fenced: fence.max_by_key(|f| f.action).map(|f| f.text.clone()),
                sample: None,
                age: None,
            });
        }
    }
    rows
}

/// The GPUs that a task has, and since when. None if it has none.
pub fn held_gpus(state: &State, task: &Task, now: Time) -> Option<(Time, Vec<(String, GpuIndex)>)> {
    let attempt = task.attempt()?;
    let since = attempt.running_since(now).unwrap_or(attempt.placed_at);
    let of_part = |part: &tutti_model::Part| {
        let node = state.node_name(part.node);
        part.gpus.iter().map(|&gpu| (node.clone(), gpu)).collect::<Vec<_>>()
    };
    let held: Vec<_> = attempt.parts.iter().flat_map(of_part).collect();
    (!held.is_empty()).then_some((since, held))
}
