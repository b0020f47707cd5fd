//! The one reason why a pending task is pending.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Attempt, Dependency, Gpu, GpuIndex, Job, JobState, Kept, Lane, LostSleep, Phase, Plan, State,
    Task, TaskId, Tasks, Time, Verdict, WakeNeed,
};

use crate::claims;
use crate::lanes::{self, active_tasks};

/// None if there is no such task or it is neither pending nor suspended. An array without an index stands for its
/// untouched rest or, once all have started, for the first task that waits again.
pub fn verdict(state: &State, plan: &Plan, task: TaskId, now: Time) -> Option<Verdict> {
    let job = state.job(task.job)?;
    if let Some(attempt) = job.task(task.index).and_then(Task::attempt).filter(|a| a.is_suspended())
    {
        let kept = || claimed(state, job, task).filter(|_| state.claims.contains_key(&task));
        let known = plan.by_task.get(&task).filter(|v| matches!(v, Verdict::Suspended { .. }));
        let held_up = match known {
            Some(Verdict::Suspended { held_up, .. }) => held_up.clone(),
            _ => None,
        };
        return kept().or_else(|| suspended(state, attempt, held_up));
    }
    let waiting = Waiting::find(job, task.index)?;
    if job.held {
        return Some(Verdict::Held { suspended: None });
    }
    if let Waiting::Task { index, .. } = waiting
        && let Some(suspended) = lost_sleep(state, job, index)
    {
        return Some(Verdict::Held { suspended: Some(suspended) });
    }
    let waiting_for = unmet(state, job);
    if !waiting_for.is_empty() {
        return Some(Verdict::Dependencies { waiting_for });
    }
    if let Waiting::Task { not_before, .. } = waiting
        && not_before > now
    {
        return Some(Verdict::BackOff { until: not_before });
    }
    let limit = || array_limit(state, plan, job, task);
    let found = claimed(state, job, task).or_else(limit);
    Some(found.unwrap_or_else(|| planned(plan, job, task, waiting)))
}

/// It was lost while a person kept it suspended.
fn lost_sleep(state: &State, job: &Job, index: Option<u32>) -> Option<LostSleep> {
    let task = job.task(index)?;
    let Kept { by, node } = task.kept()?;
    let step = task.past().saved.as_ref().map(|point| point.step);
    Some(LostSleep { by: by.clone(), node: node.map(|n| state.node_name(n)), step })
}

/// What a suspended attempt waits for: so many GPUs of its models, on its own nodes.
pub(crate) fn suspended(
    state: &State,
    attempt: &Attempt,
    held_up: Option<String>,
) -> Option<Verdict> {
    let pause = attempt.pause()?;
    let mut needs = Vec::new();
    for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
        let Some(node) = state.node(part.node) else { continue };
        let mut models: BTreeMap<&str, Vec<GpuIndex>> = BTreeMap::new();
        for index in part.home_gpus() {
            let gpu = node.facts.gpus.iter().find(|g| g.index == *index);
            models.entry(gpu.map_or("gpu", |g| g.model.as_str())).or_default().push(*index);
        }
        for (model, home) in models {
            let gpus = home.len() as u32;
            let own = if node.facts.can_move { Vec::new() } else { home };
            let does = |g: &&Gpu| g.model == model && (own.is_empty() || own.contains(&g.index));
            let free = node.free_gpus().filter(does).count() as u32;
            let fenced = node.facts.gpus.iter().filter(does).map(|g| g.index);
            let fenced = fenced.filter(|gpu| node.is_fenced(*gpu)).collect();
            let (node, model) = (node.facts.name.clone(), model.to_owned());
            needs.push(WakeNeed { node, gpus, model, free, own, fenced });
        }
    }
    let (why, stays) = (pause.why.clone(), pause.stays);
    Some(Verdict::Suspended { why, stays, needs, held_up })
}

/// Of an array that limits them, as many tasks run as may, or will by this plan or a claim.
pub(crate) fn array_limit(state: &State, plan: &Plan, job: &Job, task: TaskId) -> Option<Verdict> {
    let max_running = lanes::array_limit(job)?;
    let active = &state.index.active;
    let of_job = TaskId::single(job.id)..=TaskId::of_array(job.id, u32::MAX);
    let claimed = state.claims.range(of_job).map(|(t, _)| *t);
    let (starts, claims) = (&plan.placements, &plan.claims);
    let planned = starts.iter().map(|p| p.task).chain(claims.iter().map(|c| c.task));
    let planned = planned.filter(|t| t.job == job.id);
    let others = |t: &TaskId| *t != task && !active.contains(t);
    let coming: BTreeSet<TaskId> = claimed.chain(planned).filter(others).collect();
    let running = active_tasks(active, job.id) as usize + coming.len();
    (running >= max_running as usize).then_some(Verdict::ArrayLimit { max_running })
}

/// Room that is kept for the task, or for any task of a whole array.
fn claimed(state: &State, job: &Job, task: TaskId) -> Option<Verdict> {
    let last = TaskId { index: task.index.or(Some(u32::MAX)), ..task };
    let (&task, claim) = state.claims.range(task..=last).find(|(t, _)| t.job == job.id)?;
    let waiting_for = match claims::standing(state, task, claim) {
        claims::Standing::Waiting(waiting_for) => waiting_for,
        claims::Standing::Ready => Vec::new(),
        claims::Standing::Void => return None,
    };
    Some(Verdict::Claimed { cause: claim.cause, waiting_for })
}

/// What the last pass found.
fn planned(plan: &Plan, job: &Job, task: TaskId, waiting: Waiting) -> Verdict {
    let lane = Lane::of(job);
    let lane = plan.by_lane.get(&lane).or_else(|| plan.by_demand.get(&lane.demand));
    let found = match waiting {
        Waiting::Rest => {
            let first = match &job.tasks {
                Tasks::Array(array) if task.index.is_none() => array.waiting.first(),
                _ => task.index,
            };
            let own = plan.by_task.get(&TaskId { index: first, ..task });
            let rest = plan.by_task.get(&TaskId::single(job.id));
            own.or(rest).or(lane)
        }
        Waiting::Task { index, .. } => plan.by_task.get(&TaskId { index, ..task }).or(lane),
    };
    // A head stands back for nobody: least of all for its own job.
    let itself = |v: &&Verdict| matches!(v, Verdict::Behind { job: other } if *other == job.id);
    let found = match found {
        Some(v) if itself(&v) => lane.filter(|v| !itself(v)),
        found => found,
    };
    found.cloned().unwrap_or(Verdict::Next)
}

/// The jobs that must still end. One that has ended either met the dependency or cancelled this
/// job; one that is forgotten had ended.
pub(crate) fn unmet(state: &State, job: &Job) -> Vec<Dependency> {
    let running = |d: &&Dependency| state.job(d.job).is_some_and(|other| !other.is_over());
    job.spec.after.iter().filter(running).copied().collect()
}

/// How a pending task stands in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Part of an array's untouched rest.
    Rest,
    /// Has a record of its own.
    Task { index: Option<u32>, not_before: Time },
}

impl Waiting {
    pub fn find(job: &Job, index: Option<u32>) -> Option<Waiting> {
        match (&job.tasks, index) {
            (Tasks::Array(array), None) if !array.waiting.is_empty() => Some(Waiting::Rest),
            (Tasks::Array(array), None) => {
                let waits = |(_, t): &(&u32, &Task)| t.state() == JobState::Pending;
                let mut waiting = array.live.iter().filter(waits);
                let first = waiting.clone().next();
                let (&i, _) = waiting.find(|(_, t)| t.kept().is_none()).or(first)?;
                Waiting::find(job, Some(i))
            }
            (Tasks::Array(array), Some(i)) if array.waiting.contains(i) => Some(Waiting::Rest),
            _ => match job.task(index)?.phase {
                Phase::Pending { not_before, .. } => Some(Waiting::Task { index, not_before }),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests;
