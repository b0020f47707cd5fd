//! The tree of network domains: which nodes are near each other.

use std::collections::BTreeMap;

use tutti_model::{Place, Topology};

/// A domain of some level, numbered so that neighbours in the tree have neighbouring numbers.
pub(crate) type DomainNo = u32;

/// The levels above a node, narrowest first.
pub(crate) const LEVELS: [Topology; 4] =
    [Topology::Rack, Topology::Rail, Topology::Site, Topology::Any];

/// Where one node stands: its domain at each of [`LEVELS`]. Nodes that can't reach each other share
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    rack: DomainNo,
    rail: DomainNo,
    site: DomainNo,
    reach: DomainNo,
}

impl Path {
    pub fn at(&self, level: Topology) -> DomainNo {
        match level {
            Topology::Site => self.site,
            Topology::Rail => self.rail,
            Topology::Any => self.reach,
            _ => self.rack,
        }
    }
}

/// From where a node is reached, and its place.
pub(crate) type Spot<'n> = (Option<&'n str>, Place);

/// Numbers for the places of all nodes.
pub(crate) fn paths(places: &[Spot<'_>]) -> Vec<Path> {
    let number = |key: fn(&Place) -> Place| -> BTreeMap<Spot<'_>, DomainNo> {
        let mut known: BTreeMap<Spot<'_>, DomainNo> =
            places.iter().map(|(reach, p)| ((*reach, key(p)), 0)).collect();
        known.values_mut().zip(0..).for_each(|(number, n)| *number = n);
        known
    };
    let (racks, rails, sites) = (number(rack), number(rail), number(site));
    let reaches = number(|_| Place::default());
    let path = |(reach, p): &Spot<'_>| Path {
        rack: racks[&(*reach, rack(p))],
        rail: rails[&(*reach, rail(p))],
        site: sites[&(*reach, site(p))],
        reach: reaches[&(*reach, Place::default())],
    };
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
