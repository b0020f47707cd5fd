//! No cause has restarted a task more often than its budget allows since the task last got further.

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    for job in state.jobs.values() {
        let budget = job.spec.retry;
        for (id, task) in job.live_tasks() {
            let used = task.past().spent;
            if used.node_failure > budget.node_failure
                || used.preemption > budget.preemption
                || used.job_failure > budget.job_failure
            {
                return Err(format!("{id}: {used:?} of {budget:?}"));
            }
        }
    }
    Ok(())
}
