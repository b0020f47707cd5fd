//! The one reason why a pending task is pending.

use tutti_model::{
    Dependency, Job, JobState, Lane, Phase, Plan, State, TaskId, Tasks, Time, Verdict,
};

/// None if there is no such task or it is not pending. An array without an index stands for its
/// untouched rest or, once all have started, for the first task that waits again.
pub fn verdict(state: &State, plan: &Plan, task: TaskId, now: Time) -> Option<Verdict> {
    let job = state.job(task.job)?;
    let waiting = Waiting::find(job, task.index)?;
    if job.held {
        return Some(Verdict::Held);
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
    let by_task = plan.by_task.get(&task).or_else(|| plan.by_task.get(&TaskId::single(job.id)));
    let by_lane = || plan.by_lane.get(&Lane::of(job));
    Some(by_task.or_else(by_lane).cloned().unwrap_or(Verdict::Next))
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
                let (&i, _) = array.live.iter().find(|(_, t)| t.state() == JobState::Pending)?;
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
