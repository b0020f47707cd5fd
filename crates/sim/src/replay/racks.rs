//! Over how many racks a gang is spread, and over how few it could have been.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{Demand, Node, NodeId, Place, Policy, Spread, State};

/// Knows the racks of an empty cluster.
pub(super) struct Racks {
    /// By rack, the GPUs of each of its nodes.
    racks: BTreeMap<Place, Vec<u32>>,
    place: BTreeMap<NodeId, Place>,
    /// GPUs of all nodes, most first.
    nodes: Vec<u32>,
    needed: BTreeMap<Demand, Needed>,
}

/// The fewest racks and nodes that hold a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub racks: u32,
    pub nodes: u32,
}

impl Racks {
    pub fn new(policy: &Policy, state: &State) -> Racks {
        let gpus = |n: &Node| n.facts.gpus.len() as u32;
        let mut racks: BTreeMap<Place, Vec<u32>> = BTreeMap::new();
        let mut place = BTreeMap::new();
        for node in state.nodes.values() {
            let at = policy.topology.place_of(node);
            racks.entry(at.clone()).or_default().push(gpus(node));
            place.insert(node.id, at);
        }
        let mut nodes: Vec<u32> = state.nodes.values().map(gpus).collect();
        nodes.sort_unstable_by(|a, b| b.cmp(a));
        Racks { racks, place, nodes, needed: BTreeMap::new() }
    }

    pub fn spanned(&self, nodes: impl Iterator<Item = NodeId>) -> u32 {
        let places: BTreeSet<_> = nodes.filter_map(|n| self.place.get(&n)).collect();
        places.len() as u32
    }

    pub fn needed(&mut self, demand: &Demand) -> Needed {
        if let Some(known) = self.needed.get(demand) {
            return *known;
        }
        // What a rack holds of it, in parts or in GPUs.
        let (want, of_node): (u64, Box<dyn Fn(u32) -> u64>) = match demand.spread {
            Spread::Nodes { nodes, gpus_each } => {
                (nodes.into(), Box::new(move |gpus| u64::from(gpus >= gpus_each)))
            }
            Spread::Gpus { total } => (total.into(), Box::new(u64::from)),
        };
        let mut by_rack: Vec<u64> =
            self.racks.values().map(|nodes| nodes.iter().map(|&g| of_node(g)).sum()).collect();
        by_rack.sort_unstable_by(|a, b| b.cmp(a));
        let by_node = self.nodes.iter().map(|&g| of_node(g));
        let needed =
            Needed { racks: fewest(by_rack.into_iter(), want), nodes: fewest(by_node, want) };
        self.needed.insert(demand.clone(), needed);
        needed
    }
}

/// How many of these, taken in order, come to `want`.
fn fewest(sizes: impl Iterator<Item = u64>, want: u64) -> u32 {
    let mut held = 0;
    let mut count = 0;
    for size in sizes {
        if held >= want {
            break;
        }
        held += size;
        count += 1;
    }
    count.max(1)
}
