//! What is kept beside the state equals what would be rebuilt from it: a restart forgets nothing
//! and invents nothing.

use tutti_model::State;

pub(super) fn check(state: &State) -> Result<(), String> {
    let mut rebuilt = state.clone();
    crate::index::rebuild(&mut rebuilt);
    if rebuilt.index == state.index {
        Ok(())
    } else {
        Err(format!("kept {:?}, rebuilt {:?}", state.index, rebuilt.index))
    }
}
