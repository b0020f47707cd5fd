//! Without anybody asking for it, few nodes are taken out, and each says why.

use tutti_model::State;

use crate::health::most_out;
use crate::settings::Settings;

pub(super) fn check(state: &State) -> Result<(), String> {
    let out: Vec<_> = state.nodes.values().filter_map(|n| n.drain.as_ref()).collect();
    let out: Vec<_> = out.into_iter().filter(|d| d.auto).collect();
    let most = most_out(state.nodes.len(), &Settings::default());
    if out.len() > most || out.iter().any(|d| d.reason.is_empty()) {
        return Err(format!("{} of {} nodes: {out:?}", out.len(), state.nodes.len()));
    }
    Ok(())
}
