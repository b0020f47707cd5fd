//! What is kept beside the state equals what would be rebuilt from it: a restart forgets nothing
//! and invents nothing.

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    // Without what no index is made of: there is much of it.
    let mut rebuilt = State {
        jobs: state.jobs.clone(),
        nodes: state.nodes.clone(),
        endpoints: state.endpoints.clone(),
        policy: state.policy.clone(),
        ..State::default()
    };
    crate::index::rebuild(&mut rebuilt);
    if rebuilt.index == state.index {
        Ok(())
    } else {
        Err(format!("kept {:?}, rebuilt {:?}", state.index, rebuilt.index))
    }
}
