//! The tree of network domains: which nodes are near each other.

use std::collections::BTreeMap;

use tutti_model::{Place, Topology};

/// A domain of some level, numbered so that neighbours in the tree have neighbouring numbers.
pub(crate) type DomainNo = u32;

/// The levels above a node, narrowest first.
pub(crate) const LEVELS: [Topology; 4] =
    [Topology::Rack, Topology::Rail, Topology::Site, Topology::Any];

/// Where one node stands: its domain at each of [`LEVELS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    rack: DomainNo,
    rail: DomainNo,
    site: DomainNo,
}

impl Path {
    pub fn at(&self, level: Topology) -> DomainNo {
        match level {
            Topology::Site => self.site,
            Topology::Rail => self.rail,
            Topology::Any => 0,
            _ => self.rack,
        }
    }
}

/// Numbers for the places of all nodes.
pub(crate) fn paths(places: &[Place]) -> Vec<Path> {
    let number = |key: fn(&Place) -> Place| -> BTreeMap<Place, DomainNo> {
        let mut known: BTreeMap<Place, DomainNo> = places.iter().map(|p| (key(p), 0)).collect();
        known.values_mut().zip(0..).for_each(|(number, n)| *number = n);
        known
    };
    let (racks, rails, sites) = (number(rack), number(rail), number(site));
    let path =
        |p: &Place| Path { rack: racks[&rack(p)], rail: rails[&rail(p)], site: sites[&site(p)] };
    places.iter().map(path).collect()
}

fn rack(p: &Place) -> Place {
    p.clone()
}

fn rail(p: &Place) -> Place {
    Place { rack: None, ..p.clone() }
}

fn site(p: &Place) -> Place {
    Place { rack: None, rail: None, ..p.clone() }
}
