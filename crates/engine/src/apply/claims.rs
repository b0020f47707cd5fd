//! Room that is kept for a task until it is free.

use tutti_model::{Claim, ClaimCause, Job, JobId, PartPlacement, State, TaskId, Tasks, Time};

pub(super) fn claimed(
    state: &mut State,
    task: TaskId,
    parts: &[PartPlacement],
    cause: ClaimCause,
    victims: &[TaskId],
    at: Time,
) {
    // Nobody could ever use the room that is kept for something that is over.
    if !state.job(task.job).is_some_and(|j| is_alive(j, task)) {
        return;
    }
    let claim = Claim { parts: parts.to_vec(), cause, made_at: at, victims: victims.to_vec() };
    state.claims.insert(task, claim);
}

fn is_alive(job: &Job, task: TaskId) -> bool {
    job.has_task(task.index) && job.ended(task.index).is_none()
}

pub(super) fn drop_of(state: &mut State, task: TaskId) {
    state.claims.remove(&task);
}

/// Of all tasks of an array that never started.
pub(super) fn drop_of_waiting(state: &mut State, id: JobId) {
    let Some(Job { tasks: Tasks::Array(array), .. }) = state.jobs.get(&id).map(AsRef::as_ref)
    else {
        return;
    };
    let waiting = &array.waiting;
    state
        .claims
        .retain(|task, _| task.job != id || !task.index.is_some_and(|i| waiting.contains(i)));
}
