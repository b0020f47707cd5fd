//! The long answer of `tutti why`.

use tutti_model::{Explanation, Plan, Policy, State, TaskId, Time};

use crate::verdict::verdict;

/// None if the task is not pending.
pub fn explain(
    state: &State,
    plan: &Plan,
    _policy: &Policy,
    task: TaskId,
    now: Time,
) -> Option<Explanation> {
    let verdict = verdict(state, plan, task, now)?;
    Some(Explanation {
        task,
        ahead: 0,
        holders: Vec::new(),
        starts_by: None,
        forecast: None,
        advice: Vec::new(),
        verdict,
    })
}
