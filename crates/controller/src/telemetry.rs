//! What nodes do, as their agents see it once a second. In memory and in a file of its own, never
//! in the journal; nothing here waits for the engine, and the engine waits for nothing here.
//!
//! ```text
//!  agents ─► links ─► Store ─► newest sample of each node ─► api, /metrics
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use tutti_model::{NodeSample, Span, Time};

#[derive(Default)]
pub struct Store {
    nodes: RwLock<BTreeMap<String, Newest>>,
}

/// A node's newest sample.
#[derive(Clone, Debug)]
pub struct Newest {
    pub sample: Arc<NodeSample>,
    /// When it came, by our clock.
    pub heard: Time,
}

impl Newest {
    pub fn age(&self, now: Time) -> Span {
        now.since(self.heard)
    }
}

impl Store {
    pub fn push(&self, node: &str, sample: NodeSample, now: Time) {
        let newest = Newest { sample: Arc::new(sample), heard: now };
        let mut nodes = self.nodes.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        match nodes.get_mut(node) {
            Some(known) => *known = newest,
            None => drop(nodes.insert(node.to_owned(), newest)),
        }
    }

    pub fn newest(&self, node: &str) -> Option<Newest> {
        let nodes = self.nodes.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        nodes.get(node).cloned()
    }
}
