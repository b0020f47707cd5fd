//! What this machine is made of: its GPUs, how they are joined, which processors and adapters are near
//! them, and which device files a job must open to use them. Or an imagined one.
//!
//! NVML is loaded when it is asked for, so the same binary runs where no driver is installed. AMD's and
//! Intel's GPUs, adapters and the PCI tree are read from the kernel's files below a root directory that
//! tests bring themselves. One device that does not answer hides no other: it becomes a problem of the
//! machine. This crate says what is there, what it does ([`sample`]), how fast it is ([`speed`]) and what is wrong
//! with it ([`health`]); it gives nothing to anybody.
//!
//! ```text
//! NVML ─────► nvml ─► nvidia ─┐
//! /sys, /proc, /dev ──────────┼─► Readings ─► assemble ─► Found { gpus, hardware }
//!                             │   (raw)       (pure)
//! /sys/class/infiniband ► rdma┘               simulated::gpus(8, "h100") ─► the same, imagined
//! ```

pub mod active;
mod amd;
mod assemble;
pub mod cuda;
mod drm;
mod files;
pub mod health;
pub mod holdings;
mod host;
mod intel;
pub mod memory;
mod model_name;
mod nvidia;
mod nvml;
pub mod pci;
pub mod rdma;
mod readings;
pub mod sample;
pub mod simulated;
pub mod speed;

use std::path::Path;

pub use assemble::{Found, assemble};
pub use model_name::short_model;
pub use nvml::{Answer, Answers, Instance, NvmlFailure};
pub use readings::{Card, FarEnd, Readings, Slice};

/// The machine that this process runs on. Never fails: what does not answer is a problem in the result,
/// and logged, because a node that silently offers no GPUs is hard to understand.
pub fn discover() -> Found {
    let found = discover_with(nvml::ask(), Path::new("/"));
    for problem in &found.hardware.problems {
        let pci = problem.pci.as_deref().unwrap_or("-");
        tracing::error!(pci, kind = ?problem.kind, "{}", problem.message);
    }
    found
}

/// A machine of which NVML gave these answers, and whose kernel has these files.
pub fn discover_with(nvml: Result<Answers, NvmlFailure>, root: &Path) -> Found {
    let mut readings =
        Readings { ports: rdma::ports(root), numa: host::numa(root), ..Readings::default() };
    nvidia::read(nvml, root, &mut readings);
    amd::read(root, &mut readings);
    intel::read(root, &mut readings);
    assemble(&readings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_found_whatever_it_is() {
        // With a driver this lists real devices; every GPU has its facts either way.
        let found = discover();
        let of_gpus: Vec<_> = found.gpus.iter().map(|g| g.index).collect();
        let of_facts: Vec<_> = found.hardware.gpus.iter().map(|g| g.index).collect();
        assert_eq!(of_gpus, of_facts);
    }
}
