//! No two leases share a generation, and every one is below the next to be given.

use std::collections::BTreeSet;

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (id, _, attempt) in super::attempts(state) {
        let generation = attempt.generation;
        if generation.0 >= state.next_generation {
            return Err(format!("{id} has {generation}, next is {}", state.next_generation));
        }
        if !seen.insert(generation) {
            return Err(format!("{id} shares generation {generation}"));
        }
    }
    Ok(())
}
