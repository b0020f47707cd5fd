//! Without anybody asking for it, few nodes are taken out, and each says why.

use tutti_model::State;

use crate::health::{is_counted_out, most_out};
use crate::settings::Settings;

pub(super) fn check(state: &State) -> Result<(), String> {
    let out = state.nodes.values().filter(|n| is_counted_out(n));
    let out: Vec<_> = out.filter_map(|n| n.drain.as_ref()).collect();
    // An operator who removes nodes decides how many are left.
    let all = state.nodes.len() + state.past_nodes.len();
    let most = most_out(all, &Settings::default());
    if out.len() > most || out.iter().any(|d| d.reason.is_empty()) {
        return Err(format!("{} of {} nodes: {out:?}", out.len(), state.nodes.len()));
    }
    Ok(())
}
