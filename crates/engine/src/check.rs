//! The plan checker. It shares no code with the scheduler and none with the indexes: it counts
//! again, from the leases themselves, and refuses a plan that breaks any rule.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Bytes, DependOn, GpuIndex, Job, JobSpec, Launcher, NodeId, Outcome, PartPlacement, Phase,
    Placement, Plan, State, TaskId, Tasks, Time,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0} does not wait for a start")]
    NotPending(TaskId),
    #[error("{0} is placed twice")]
    PlacedTwice(TaskId),
    #[error("{0} is held")]
    Held(TaskId),
    #[error("{0} waits for other jobs")]
    DependenciesOpen(TaskId),
    #[error("array {0} would run {1} tasks at once, its limit is {2}")]
    ArrayLimit(tutti_model::JobId, u32, u32),
    #[error("{0}: node {1} takes no work")]
    NodeClosed(TaskId, NodeId),
    #[error("{0}: node {1} appears twice")]
    NodeTwice(TaskId, NodeId),
    #[error("{0}: GPU {2} of node {1} does not exist")]
    NoSuchGpu(TaskId, NodeId, GpuIndex),
    #[error("{0}: GPU {2} of node {1} is given to somebody else")]
    GpuTaken(TaskId, NodeId, GpuIndex),
    #[error("{0}: GPU {2} of node {1} is of the wrong model")]
    WrongModel(TaskId, NodeId, GpuIndex),
    #[error("{0}: node {1} has too few free CPUs")]
    CpusTaken(TaskId, NodeId),
    #[error("{0}: node {1} has too little free memory")]
    MemoryTaken(TaskId, NodeId),
    #[error("{0}: the gang is not what was asked for: {1}")]
    NotWhole(TaskId, String),
}

pub fn check(state: &State, plan: &Plan, _now: Time) -> Result<(), Violation> {
    let mut taken = taken_by_leases(state);
    let mut seen = BTreeSet::new();
    let mut started: BTreeMap<_, u32> = BTreeMap::new();
    for placement in &plan.placements {
        let id = placement.task;
        if !seen.insert(id) {
            return Err(Violation::PlacedTwice(id));
        }
        let job = state.job(id.job).ok_or(Violation::NotPending(id))?;
        may_start(state, job, id)?;
        let running = started.entry(id.job).or_insert_with(|| running_tasks(job));
        *running += 1;
        array_limit(job, *running)?;
        whole(&job.spec, placement)?;
        fits(state, &job.spec, placement, &mut taken)?;
    }
    Ok(())
}

#[derive(Default)]
struct Taken {
    gpus: BTreeSet<GpuIndex>,
    cpus: u64,
    mem: u64,
}

fn taken_by_leases(state: &State) -> BTreeMap<NodeId, Taken> {
    let mut taken: BTreeMap<NodeId, Taken> = BTreeMap::new();
    // Only tasks with a lease matter here, and counting over all jobs on every pass would make the
    // checker dearer than the scheduler. An invariant proves that `active` is complete.
    for id in &state.index.active {
        let attempt = state.job(id.job).and_then(|j| j.task(id.index)).and_then(|t| t.attempt());
        let parts = attempt.into_iter().flat_map(|a| &a.parts);
        for part in parts.filter(|p| !p.phase.is_over()) {
            let node = taken.entry(part.node).or_default();
            node.gpus.extend(&part.gpus);
            node.cpus += u64::from(part.cpus);
            node.mem += part.mem.0;
        }
    }
    taken
}

fn may_start(state: &State, job: &Job, id: TaskId) -> Result<(), Violation> {
    let waits = match (&job.tasks, id.index) {
        (Tasks::One(t), None) => pending_now(&t.phase),
        (Tasks::Array(a), Some(i)) => {
            a.waiting.contains(i) || a.live.get(&i).is_some_and(|t| pending_now(&t.phase))
        }
        _ => false,
    };
    if !waits {
        return Err(Violation::NotPending(id));
    }
    if job.held {
        return Err(Violation::Held(id));
    }
    for dep in &job.spec.after {
        let outcome = state.job(dep.job).and_then(Job::outcome);
        let met = match dep.on {
            DependOn::Any => outcome.is_some(),
            DependOn::Ok => outcome == Some(Outcome::Completed),
            DependOn::Failed => outcome == Some(Outcome::Failed),
        };
        if !met {
            return Err(Violation::DependenciesOpen(id));
        }
    }
    Ok(())
}

fn pending_now(phase: &Phase) -> bool {
    matches!(phase, Phase::Pending { not_before: Time(0), .. })
}

fn running_tasks(job: &Job) -> u32 {
    match &job.tasks {
        Tasks::One(_) => 0,
        Tasks::Array(a) => a.live.values().filter(|t| t.attempt().is_some()).count() as u32,
    }
}

fn array_limit(job: &Job, running: u32) -> Result<(), Violation> {
    match job.spec.array.as_ref().and_then(|a| a.max_running) {
        Some(limit) if running > limit => Err(Violation::ArrayLimit(job.id, running, limit)),
        _ => Ok(()),
    }
}

/// The number of nodes, GPUs, CPUs, memory and ranks is what the spec asks for.
fn whole(spec: &JobSpec, placement: &Placement) -> Result<(), Violation> {
    let wrong = |what: String| Err(Violation::NotWhole(placement.task, what));
    let parts = &placement.parts;
    let mut nodes = BTreeSet::new();
    for part in parts {
        if !nodes.insert(part.node) {
            return Err(Violation::NodeTwice(placement.task, part.node));
        }
        part_is_whole(spec, part).or_else(wrong)?;
    }
    let gpus: usize = parts.iter().map(|p| p.gpus.len()).sum();
    match spec.gpus {
        Some(total) if total > 0 => {
            if gpus != total as usize || parts.iter().any(|p| p.gpus.is_empty()) {
                return wrong(format!("{gpus} GPUs instead of {total}"));
            }
        }
        _ => {
            let wanted = spec.nodes.unwrap_or(1) as usize;
            if parts.len() != wanted {
                return wrong(format!("{} nodes instead of {wanted}", parts.len()));
            }
            let each = spec.gpus_per_node.as_ref().map_or(0, |g| g.count) as usize;
            if let Some(p) = parts.iter().find(|p| p.gpus.len() != each) {
                return wrong(format!(
                    "{} GPUs on node {} instead of {each}",
                    p.gpus.len(),
                    p.node
                ));
            }
        }
    }
    Ok(())
}

fn part_is_whole(spec: &JobSpec, part: &PartPlacement) -> Result<(), String> {
    let gpus = part.gpus.len() as u32;
    let cpus = match (spec.cpus_per_node, spec.cpus_per_gpu) {
        (Some(n), per_gpu) => n + per_gpu.unwrap_or(0) * gpus,
        (None, Some(per_gpu)) if per_gpu > 0 => per_gpu * gpus,
        (None, _) => 1,
    };
    let mem = spec.mem_per_node.unwrap_or_default().0
        + spec.mem_per_gpu.unwrap_or_default().0 * u64::from(gpus);
    let ranks = match (spec.ranks_per_node, spec.launcher) {
        (Some(n), _) => n,
        (None, Launcher::Torch) if gpus > 0 => gpus,
        (None, _) => 1,
    };
    if part.cpus != cpus {
        return Err(format!("{} CPUs on node {} instead of {cpus}", part.cpus, part.node));
    }
    if part.mem != Bytes(mem) {
        return Err(format!("{} memory on node {} instead of {}", part.mem, part.node, Bytes(mem)));
    }
    if part.ranks != ranks {
        return Err(format!("{} ranks on node {} instead of {ranks}", part.ranks, part.node));
    }
    Ok(())
}

/// Everything it gets is there and belongs to nobody else, in this plan included.
fn fits(
    state: &State,
    spec: &JobSpec,
    placement: &Placement,
    taken: &mut BTreeMap<NodeId, Taken>,
) -> Result<(), Violation> {
    let task = placement.task;
    let model = spec.gpus_per_node.as_ref().and_then(|g| g.model.as_deref());
    for part in &placement.parts {
        let open = |n: &&tutti_model::Node| n.accepts_work();
        let node =
            state.node(part.node).filter(open).ok_or(Violation::NodeClosed(task, part.node))?;
        let used = taken.entry(part.node).or_default();
        for &index in &part.gpus {
            let gpu = node.facts.gpus.iter().find(|g| g.index == index);
            let gpu = gpu.ok_or(Violation::NoSuchGpu(task, part.node, index))?;
            if model.is_some_and(|m| !m.split('|').any(|m| m == gpu.model)) {
                return Err(Violation::WrongModel(task, part.node, index));
            }
            if !used.gpus.insert(index) {
                return Err(Violation::GpuTaken(task, part.node, index));
            }
        }
        used.cpus += u64::from(part.cpus);
        used.mem += part.mem.0;
        // A node may come back smaller than what it already runs; that is not this part's doing.
        if part.cpus > 0 && used.cpus > u64::from(node.facts.cpus) {
            return Err(Violation::CpusTaken(task, part.node));
        }
        if part.mem.0 > 0 && used.mem > node.facts.mem.0 {
            return Err(Violation::MemoryTaken(task, part.node));
        }
    }
    Ok(())
}
