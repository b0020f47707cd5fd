//! What was read from drivers and the kernel, before anything is concluded from it.

use std::collections::BTreeSet;

use tutti_model::{Bytes, Fabric, HardwareProblem, NumaNode, Vendor};

use crate::pci::Place;
use crate::rdma::Port;

/// A whole machine.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    pub driver: Option<String>,
    pub runtime: Option<String>,
    /// Of each vendor in the order of its bus.
    pub cards: Vec<Card>,
    pub ports: Vec<Port>,
    pub numa: Vec<NumaNode>,
    pub control_files: Vec<String>,
    pub problems: Vec<HardwareProblem>,
}

/// One GPU, whole.
#[derive(Clone, Debug, Default)]
pub struct Card {
    pub vendor: Vendor,
    pub name: String,
    /// Short, as in job files.
    pub model: String,
    pub uuid: String,
    pub mem: Bytes,
    pub place: Place,
    pub device_files: Vec<String>,
    /// Where its NVLinks that are up end.
    pub nvlinks: Vec<FarEnd>,
    /// PCI addresses of the GPUs at the other ends of its xGMI links.
    pub xgmi: BTreeSet<String>,
    pub fabric: Option<Fabric>,
    /// Its MIG instances; None if MIG is off.
    pub slices: Option<Vec<Slice>>,
    /// It is there but does not answer: it keeps its number, so that the others keep theirs.
    pub dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// An NVSwitch.
    Switch,
    /// A GPU, by its PCI address.
    Gpu(String),
    /// A processor, or something that the driver does not name.
    Other,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// "1g.18gb".
    pub profile: String,
    pub mem: Bytes,
    pub device_files: Vec<String>,
}
