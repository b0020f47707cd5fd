//! Streams of agents. No agent can delay another, or the engine.
//!
//! ```text
//!  engine thread ── deliver ─► Links ─► Link: bounded queue ─► writer task ─► agent
//!                                             requests ◄────── reader task ◄─ agent
//! ```
//! Sending never waits: an agent that does not read loses its stream and reconciles when it comes
//! back. Reading waits for room in the engine's queue, each link for itself.

mod hello;
mod holders;
mod keys;
mod link;
mod pump;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::watch;
use tokio::time::Instant;
use tutti_engine::Effect;
use tutti_model::NodeId;
use tutti_wire::stream::ToAgent;

use crate::lock::lock;
pub use hello::{AgentConfig, Certified, OLDER_COPY, serve, turn_away};
pub use keys::GangKeys;
pub use link::{Answer, Answers, Link, LinkGone};

use holders::StreamTurns;

/// The streams that are open now, by node.
pub struct Links {
    by_node: RwLock<HashMap<NodeId, Arc<Link>>>,
    keys: GangKeys,
    turns: Mutex<StreamTurns>,
    /// Why agents were turned away the last time, by node; until they are taken.
    refused: Mutex<BTreeMap<String, String>>,
    /// Counts changes, for those who wait for a node to come back.
    changes: watch::Sender<u64>,
}

impl Links {
    pub fn new(keys: GangKeys) -> Links {
        let (by_node, turns, refused) = Default::default();
        Links { by_node, keys, turns, refused, changes: watch::Sender::new(0) }
    }

    pub fn get(&self, node: NodeId) -> Option<Arc<Link>> {
        self.read().get(&node).cloned()
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Orders for a node without a stream are dropped; its next hello brings them again.
    pub fn deliver(&self, effects: Vec<Effect>) {
        let links = self.read();
        for Effect::Tell { node, mut order } in effects {
            match links.get(&node) {
                Some(link) => {
                    self.keys.put_on(&mut order);
                    link.send(ToAgent::Order(order));
                }
                None => tracing::debug!(%node, lease = %order.lease(), "no stream for an order"),
            }
        }
    }

    /// Names are those of certificates of this cluster, so they are not many.
    fn note_refused(&self, name: &str, why: &str) {
        lock(&self.refused).insert(name.to_owned(), why.to_owned());
    }

    /// Nodes that were turned away and have not been taken since, and why.
    pub fn refused(&self) -> BTreeMap<String, String> {
        lock(&self.refused).clone()
    }

    /// From now on this is the stream of the node; an older one is closed.
    pub fn attach(&self, node: NodeId, link: Arc<Link>) {
        lock(&self.refused).remove(link.name());
        link.welcome(node);
        let old = self.write().insert(node, link);
        if let Some(old) = old {
            old.close("the agent opened a newer stream");
        }
        self.changes.send_modify(|n| *n += 1);
    }

    /// Does nothing if a newer stream has taken the place.
    pub fn detach(&self, node: NodeId, session: u64) {
        let mut links = self.write();
        if links.get(&node).is_some_and(|l| l.session == session) {
            links.remove(&node);
        }
        drop(links);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Ends this very stream; the agent comes back with a hello.
    pub fn close(&self, node: NodeId, session: u64, why: &'static str) {
        if let Some(link) = self.read().get(&node).filter(|l| l.session == session) {
            link.close(why);
        }
    }

    /// Tells whoever has a stream by this name why, after what it was told before, and hangs up.
    pub fn dismiss(&self, name: &str, reason: &str) {
        for link in self.read().values().filter(|link| link.name() == name) {
            link.send(ToAgent::Refused { reason: reason.to_owned() });
        }
    }

    /// Waits for as long as this node opens streams too often.
    async fn turn_of(&self, name: &str) {
        loop {
            let wait = crate::lock::lock(&self.turns).take(name, Instant::now());
            match wait {
                None => return,
                Some(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    pub fn close_all(&self, why: &'static str) {
        self.read().values().for_each(|link| link.close(why));
    }

    // A panic elsewhere leaves the map whole: every change is one insert or remove.
    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<NodeId, Arc<Link>>> {
        self.by_node.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<NodeId, Arc<Link>>> {
        self.by_node.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
