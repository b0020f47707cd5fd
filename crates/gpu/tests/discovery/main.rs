//! Machines from their recorded trees: what is found, how it is joined, and what is missing.

mod amd;
mod intel;
mod nvidia;
mod tree;

use tutti_gpu::Found;
use tutti_model::{GpuIndex, LinkKind};

/// The kind of link between two GPUs, as the matrix would show it.
fn link(found: &Found, a: u16, b: u16) -> LinkKind {
    let pair = |l: &&tutti_model::GpuLink| (l.a, l.b) == (GpuIndex(a), GpuIndex(b));
    found.hardware.links.iter().find(pair).map_or(LinkKind::System, |l| l.kind)
}

/// Each adapter with the GPUs that it is nearest to.
fn nearest(found: &Found) -> Vec<(&str, Vec<u16>)> {
    let gpus = |nic: &tutti_model::Nic| nic.nearest.iter().map(|g| g.0).collect();
    found.hardware.nics.iter().map(|nic| (nic.name.as_str(), gpus(nic))).collect()
}

fn islands(found: &Found) -> Vec<Option<u16>> {
    found.gpus.iter().map(|g| g.island).collect()
}
