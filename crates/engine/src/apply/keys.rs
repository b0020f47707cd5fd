//! Who may call itself by the name of a node.

use tutti_model::{NodeId, NodeKeyRecord, SharedKey, State, Time};

/// Whoever holds this key is the node, and nobody else is.
pub(super) fn held(state: &mut State, name: &str, key: &str, at: Time) {
    let record = NodeKeyRecord::Held { key: key.to_owned(), since: at, shared: None };
    state.node_keys.insert(name.to_owned(), record);
}

pub(super) fn set_shared(state: &mut State, node: NodeId, now: Option<&SharedKey>) {
    let name = state.node_name(node);
    if let Some(NodeKeyRecord::Held { shared, .. }) = state.node_keys.get_mut(&name) {
        *shared = now.cloned();
    }
}

pub(super) fn removed(state: &mut State, name: &str, id: Option<NodeId>, by: &str, at: Time) {
    if let Some(node) = id.and_then(|id| state.nodes.remove(&id)) {
        state.index.node_names.remove(&node.facts.name);
        state.past_nodes.insert(node.id, node.facts.name);
    }
    let is_past = |record: &NodeKeyRecord| match record {
        NodeKeyRecord::Held { .. } => false,
        NodeKeyRecord::Removed { since, .. } => at.since(*since) > NodeKeyRecord::REMOVED_KEPT,
    };
    state.node_keys.retain(|_, record| !is_past(record));
    let record = NodeKeyRecord::Removed { since: at, by: by.to_owned() };
    state.node_keys.insert(name.to_owned(), record);
}
