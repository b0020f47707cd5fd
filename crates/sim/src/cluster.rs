//! The cluster of a simulation: from a file, a list of shapes, a trace or a running cluster, and
//! with what-if changes.
//!
//! ```toml
//! [[nodes]]
//! count = 16
//! shape = "dgx-h100"        # or gpus = "h100:8", cpus = 224, mem = "2TiB", gpu_mem = "80GiB"
//! name = "a"                # a1, a2, ...
//! rack = "r1"               # or racks_of = 4: every four nodes share a rack
//! rail = "pod1"
//! site = "north"
//! labels = { nvme = "yes" }
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tutti_model::{Bytes, Gpu, GpuIndex, GpuRequest, NodeFacts, TopologyMap};

use crate::shape::{ALL_GPUS_MAX, BadShape, Lot};

/// Where a list of shapes notes the rack.
pub(crate) const RACK: &str = "rack";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cluster {
    pub nodes: Vec<NodeFacts>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadCluster {
    #[error("line {line}: {problem}")]
    File { line: usize, problem: String },
    #[error("nodes[{index}]: {problem}")]
    Entry { index: usize, problem: String },
    #[error("nodes[{index}]")]
    Shape { index: usize, source: BadShape },
    #[error("two nodes are called '{0}'")]
    SameName(String),
    #[error("there are no nodes")]
    NoNodes,
    #[error("no node is in rack '{wanted}'; {}", racks_in_words(.racks))]
    NoSuchRack { wanted: String, racks: Vec<String> },
    #[error("{0} GPUs, and a simulation takes at most 1,048,576")]
    TooManyGpus(u64),
}

fn racks_in_words(racks: &[String]) -> String {
    match racks {
        [] => "neither labels nor the policy's topology say that there are racks".to_owned(),
        _ => format!("the racks are {}", racks.join(", ")),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nodes: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    count: Option<u32>,
    shape: Option<String>,
    gpus: Option<GpuRequest>,
    gpu_mem: Option<Bytes>,
    cpus: Option<u32>,
    mem: Option<Bytes>,
    name: Option<String>,
    rack: Option<String>,
    racks_of: Option<u32>,
    rail: Option<String>,
    site: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl Cluster {
    /// Reads the file described above.
    pub fn from_toml(text: &str) -> Result<Cluster, BadCluster> {
        let file: File = toml::from_str(text).map_err(|e| {
            let upto = e.span().map_or(0, |s| s.start.min(text.len()));
            let line = text.as_bytes()[..upto].iter().filter(|b| **b == b'\n').count() + 1;
            BadCluster::File { line, problem: e.message().to_owned() }
        })?;
        let mut cluster = Cluster::default();
        let mut gpus = 0;
        for (index, entry) in file.nodes.into_iter().enumerate() {
            let lot = entry.lot(index)?;
            // Before they are made: the sum may be more than fits into memory.
            gpus += lot.all_gpus();
            if gpus > ALL_GPUS_MAX {
                return Err(BadCluster::TooManyGpus(gpus));
            }
            cluster.nodes.extend(entry.nodes(index, &lot));
        }
        cluster.checked()
    }

    /// Names must be different, and somebody must be there.
    pub fn checked(self) -> Result<Cluster, BadCluster> {
        let mut names = BTreeSet::new();
        if let Some(node) = self.nodes.iter().find(|n| !names.insert(n.name.as_str())) {
            return Err(BadCluster::SameName(node.name.clone()));
        }
        if self.nodes.is_empty() { Err(BadCluster::NoNodes) } else { Ok(self) }
    }

    /// What if this rack were gone?
    pub fn remove_rack(&mut self, rack: &str, topology: &TopologyMap) -> Result<(), BadCluster> {
        let of = |n: &NodeFacts| topology.place(n).rack;
        if !self.nodes.iter().any(|n| of(n).as_deref() == Some(rack)) {
            let racks: BTreeSet<String> = self.nodes.iter().filter_map(of).collect();
            let racks = racks.into_iter().collect();
            return Err(BadCluster::NoSuchRack { wanted: rack.to_owned(), racks });
        }
        self.nodes.retain(|n| of(n).as_deref() != Some(rack));
        Ok(())
    }

    /// What if there were these as well? One that names a rack stands with the others there.
    pub fn add(&mut self, nodes: Vec<NodeFacts>, topology: &TopologyMap) {
        let known = |n: &NodeFacts| {
            let place = topology.place(n);
            place.rack.map(|rack| (rack, (place.rail, place.site)))
        };
        let known: BTreeMap<String, _> = self.nodes.iter().filter_map(known).collect();
        for mut node in nodes {
            if let Some(rack) = node.labels.remove(RACK) {
                let (rail, site) = known.get(&rack).cloned().unwrap_or_default();
                let labels = [
                    (&topology.rack_label, Some(rack)),
                    (&topology.rail_label, rail),
                    (&topology.site_label, site),
                ];
                for (label, value) in labels {
                    node.labels.extend(value.map(|v| (label.clone(), v)));
                }
            }
            self.nodes.push(node);
        }
    }

    pub fn gpus(&self) -> u64 {
        self.nodes.iter().map(|n| n.gpus.len() as u64).sum()
    }
}

impl Entry {
    fn lot(&self, index: usize) -> Result<Lot, BadCluster> {
        let bad = |problem: &str| BadCluster::Entry { index, problem: problem.to_owned() };
        let count = self.count.unwrap_or(1);
        if !(1..=1_000_000).contains(&count) {
            return Err(bad("count must be 1 to 1,000,000"));
        }
        if self.rack.is_some() && self.racks_of.is_some() {
            return Err(bad("rack and racks_of exclude each other"));
        }
        if self.racks_of == Some(0) {
            return Err(bad("racks_of must be at least 1"));
        }
        let kind = match (&self.shape, &self.gpus) {
            (Some(shape), None) => shape.clone(),
            (None, Some(gpus)) => gpus.to_string(),
            _ => return Err(bad("needs either shape or gpus, such as gpus = \"h100:8\"")),
        };
        let lot = Lot::kind(&kind).map_err(|source| BadCluster::Shape { index, source })?;
        Ok(Lot {
            count,
            gpu_mem: self.gpu_mem.unwrap_or(lot.gpu_mem),
            cpus: self.cpus.unwrap_or(lot.cpus),
            mem: self.mem.unwrap_or(lot.mem),
            ..lot
        })
    }

    fn nodes(&self, index: usize, lot: &Lot) -> Vec<NodeFacts> {
        let prefix = match &self.name {
            Some(name) => name.clone(),
            None if index == 0 => format!("{}-", lot.kind),
            None => format!("{}-{}-", lot.kind, index + 1),
        };
        let nodes = lot.nodes(&prefix).enumerate();
        nodes.map(|(n, facts)| self.labelled(facts, &prefix, n as u32)).collect()
    }

    fn labelled(&self, mut facts: NodeFacts, prefix: &str, n: u32) -> NodeFacts {
        let counted = self.racks_of.map(|of| format!("{prefix}r{}", n / of + 1));
        let rack = self.rack.clone().or(counted);
        let places = [("rack", rack), ("rail", self.rail.clone()), ("site", self.site.clone())];
        facts.labels = self.labels.clone();
        for (key, value) in places {
            facts.labels.extend(value.map(|v| (key.to_owned(), v)));
        }
        facts
    }
}

/// Makes the facts that an agent would send.
pub struct NodeBuilder {
    facts: NodeFacts,
}

impl NodeBuilder {
    pub fn new(name: &str) -> NodeBuilder {
        let facts = NodeFacts {
            name: name.to_owned(),
            address: "127.0.0.1".to_owned(),
            cpus: 128,
            mem: Bytes::gib(2048),
            gpus: Vec::new(),
            simulated: true,
            isolation: "simulated".to_owned(),
            agent_version: String::new(),
            labels: BTreeMap::new(),
            ..NodeFacts::default()
        };
        NodeBuilder { facts }
    }

    pub fn gpus(mut self, model: &str, count: u16, gib_each: u64) -> NodeBuilder {
        let gpu = |i| Gpu {
            index: GpuIndex(i),
            model: model.to_owned(),
            uuid: format!("{}-{i}", self.facts.name),
            mem: Bytes::gib(gib_each),
            island: Some(0),
        };
        self.facts.gpus = (0..count).map(gpu).collect();
        self
    }

    pub fn host(mut self, cpus: u32, mem: Bytes) -> NodeBuilder {
        (self.facts.cpus, self.facts.mem) = (cpus, mem);
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> NodeBuilder {
        self.facts.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn build(self) -> NodeFacts {
        self.facts
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::Place;

    use super::*;

    #[test]
    fn a_cluster_file_is_read() {
        let text = r#"
            [[nodes]]
            count = 4
            shape = "dgx-h100"
            name = "a"
            racks_of = 2
            site = "north"

            [[nodes]]
            gpus = "l4:4"
            cpus = 32
            mem = "256GiB"
            labels = { nvme = "yes" }
        "#;
        let cluster = Cluster::from_toml(text).unwrap();
        assert_eq!((cluster.nodes.len(), cluster.gpus()), (5, 36));
        let racks: Vec<_> = cluster.nodes.iter().map(|n| n.labels.get("rack").cloned()).collect();
        let rack = |n: &str| Some(n.to_owned());
        assert_eq!(racks, [rack("ar1"), rack("ar1"), rack("ar2"), rack("ar2"), None]);
        assert_eq!((cluster.nodes[4].cpus, cluster.nodes[4].mem), (32, Bytes::gib(256)));
        let mut smaller = cluster.clone();
        let labels = TopologyMap::default();
        smaller.remove_rack("ar1", &labels).unwrap();
        assert_eq!(smaller.gpus(), 20);
        let missing = smaller.remove_rack("ar1", &labels).unwrap_err().to_string();
        assert_eq!(missing, "no node is in rack 'ar1'; the racks are ar2");
    }

    fn place(rack: &str, rail: &str) -> Place {
        Place { rack: Some(rack.to_owned()), rail: Some(rail.to_owned()), site: None }
    }

    /// Two nodes in each of two racks that only the policy knows.
    fn by_policy() -> (Cluster, TopologyMap) {
        let nodes = crate::shape::parse_lots("4xh100:8", "").unwrap();
        let at = |n: usize| if n < 2 { place("r1", "p1") } else { place("r2", "p2") };
        let names = nodes.iter().enumerate().map(|(n, f)| (f.name.clone(), at(n)));
        let map = TopologyMap { nodes: names.collect(), ..TopologyMap::default() };
        (Cluster { nodes }, map)
    }

    #[test]
    fn racks_of_the_policy_can_go_and_grow() {
        let (mut cluster, map) = by_policy();
        cluster.add(crate::shape::parse_lots("1xh100:8@r2", "added-").unwrap(), &map);
        assert_eq!(map.place(&cluster.nodes[4]), place("r2", "p2"));
        cluster.remove_rack("r2", &map).unwrap();
        assert_eq!(cluster.gpus(), 16);
        let missing = cluster.remove_rack("r2", &map).unwrap_err().to_string();
        assert_eq!(missing, "no node is in rack 'r2'; the racks are r1");
        let nowhere = cluster.remove_rack("r1", &TopologyMap::default()).unwrap_err().to_string();
        assert!(nowhere.ends_with("say that there are racks"), "{nowhere}");
    }

    #[test]
    fn an_added_rack_goes_by_the_label_of_the_policy() {
        let map = TopologyMap { rack_label: "cabinet".to_owned(), ..TopologyMap::default() };
        let mut cluster = Cluster::default();
        cluster.add(crate::shape::parse_lots("1xh100:8@c7", "").unwrap(), &map);
        assert_eq!(map.place(&cluster.nodes[0]).rack.as_deref(), Some("c7"));
    }

    #[test]
    fn a_bad_cluster_file_says_where() {
        for (text, part) in [
            ("[[nodes]]\nshape = 3\n", "line 2: "),
            ("[[nodes]]\nshape = \"p5\"\ncolour = \"red\"\n", "line 3: "),
            ("[[nodes]]\n", "nodes[0]: needs either shape or gpus"),
            ("[[nodes]]\nshape = \"p5\"\ncount = 0\n", "nodes[0]: count"),
            ("nodes = []\n", "there are no nodes"),
            ("[[nodes]]\ngpus = \"h100:1000\"\ncount = 9000\n", "9000000 GPUs"),
            (
                "[[nodes]]\nshape=\"p5\"\nname=\"a\"\n[[nodes]]\nshape=\"p5\"\nname=\"a\"\n",
                "two nodes",
            ),
        ] {
            let error = Cluster::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
