//! The keys that nodes are known by: who may be a node, and who may no longer.

use tutti_model::{Drain, LeaseId, NodeId, NodeKeyRecord, Role, SharedKey, State};

use super::{Decision, View, done, need_role};
use crate::command::Actor;
use crate::event::Event;
use crate::health::NOBODY;
use crate::reject::Rejected;

/// Whether who proved to hold this key may be the node; and what is new about that.
pub(super) fn admitted(
    state: &State,
    name: &str,
    key: Option<&str>,
) -> Result<Option<Event>, Rejected> {
    match (state.node_keys.get(name), key) {
        (Some(NodeKeyRecord::Removed { by, .. }), _) => {
            Err(Rejected::NodeRemoved { node: name.to_owned(), by: by.clone() })
        }
        (Some(NodeKeyRecord::Held { key: held, .. }), Some(shown)) if held != shown => {
            Err(Rejected::OtherKey(name.to_owned()))
        }
        (None, Some(key)) => {
            Ok(Some(Event::NodeKeyKnown { name: name.to_owned(), key: key.to_owned() }))
        }
        _ => Ok(None),
    }
}

/// The name was signed for this very key.
pub(super) fn holds(state: &State, name: &str, shown: &str) -> bool {
    matches!(state.node_keys.get(name), Some(NodeKeyRecord::Held { key, .. }) if key == shown)
}

/// Somebody is this node, or may become it at any moment.
pub(super) fn is_given(state: &State, name: &str) -> bool {
    let held = matches!(state.node_keys.get(name), Some(NodeKeyRecord::Held { .. }));
    held || state.node_named(name).is_some()
}

pub(super) fn remove(view: View<'_>, actor: &Actor, name: &str, force: bool) -> Decision {
    need_role(actor, Role::Admin)?;
    let state = view.state;
    if !is_given(state, name) {
        return Err(Rejected::NoSuchNode(name.to_owned()));
    }
    let node = state.node_named(name);
    let used: Vec<LeaseId> = node.into_iter().flat_map(|n| n.used.leases.iter().copied()).collect();
    if !force && !used.is_empty() {
        return Err(Rejected::NodeBusy { node: name.to_owned(), leases: used.len() });
    }
    let id = node.map(|n| n.id);
    // As when it is lost, but before it is gone: the parts are still its own then.
    let lost = |node| used.iter().map(move |&lease| Event::PartLost { lease, node });
    let mut events: Vec<Event> = id.into_iter().flat_map(lost).collect();
    let stale = node.into_iter().flat_map(|n| n.stale.iter().copied());
    events.push(Event::NodeRemoved {
        name: name.to_owned(),
        node: id,
        leases: used.iter().copied().chain(stale).collect(),
        by: actor.user.clone(),
    });
    done(events)
}

/// It is not known which of the two is the machine that joined. So nothing new starts there before a
/// person has looked.
pub(super) fn shared(view: View<'_>, id: NodeId, first: &str, second: &str) -> Decision {
    let Some(node) = view.state.node(id) else { return done(Vec::new()) };
    let record = view.state.node_keys.get(&node.facts.name);
    if record.is_none_or(|record| record.shared().is_some()) {
        return done(Vec::new());
    }
    let (first, second) = (first.to_owned(), second.to_owned());
    let reason = format!("two agents hold its key, at {first} and at {second}");
    let shared = SharedKey { since: view.now, first, second };
    let mut events = vec![Event::NodeKeyShared { node: id, shared }];
    // One that was taken out by itself comes back by itself.
    if node.drain.as_ref().is_none_or(|drain| drain.auto) {
        let by = NOBODY.to_owned();
        let drain = Drain { by, reason, since: view.now, auto: false, finding: None };
        events.push(Event::NodeDrained { node: id, drain });
    }
    done(events)
}
