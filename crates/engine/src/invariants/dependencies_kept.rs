//! Nothing holds a lease before what it waits for has ended as it should.

use tutti_model::State;

use crate::index::{DependencyState, dependency};

pub(super) fn check(state: &State) -> Result<(), String> {
    for (id, job, _) in super::attempts(state) {
        // A job it waited for may have been forgotten since it started.
        let known = job.spec.after.iter().filter(|d| state.job(d.job).is_some());
        for dep in known {
            if dependency(state, dep) != DependencyState::Met {
                return Err(format!("{id} runs although {dep} is not met"));
            }
        }
    }
    Ok(())
}
