//! Whoever holds a GPU that is fenced is on the way out; and nobody keeps room there for long.

use tutti_model::{AttemptPhase, State};

use crate::effects::find_attempt;

pub(super) fn check(state: &State) -> Result<(), String> {
    for node in state.nodes.values() {
        for gpu in node.fenced() {
            let holders = node.used.gpus.get(&gpu).into_iter().flat_map(|u| u.leases.keys());
            for &lease in holders {
                let leaves =
                    |a: &tutti_model::Attempt| matches!(a.phase, AttemptPhase::Stopping { .. });
                if !find_attempt(state, lease).is_some_and(leaves) {
                    let name = &node.facts.name;
                    return Err(format!("{lease} goes on on GPU {gpu} of {name}, which is fenced"));
                }
            }
            if node.free_milli(gpu) > 0 {
                return Err(format!(
                    "GPU {gpu} of {} is fenced and counts as free",
                    node.facts.name
                ));
            }
        }
    }
    Ok(())
}
