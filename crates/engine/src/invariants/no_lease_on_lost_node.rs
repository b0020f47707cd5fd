//! What ran on a lost node is lost: no part there is still believed to run.

use tutti_model::{Link, State};

pub(super) fn check(state: &State) -> Result<(), String> {
    let lost = state.nodes.values().filter(|n| matches!(n.link, Link::Lost { .. }));
    for node in lost {
        if let Some(lease) = node.used.leases.first() {
            return Err(format!("{lease} on node {}", node.id));
        }
    }
    Ok(())
}
