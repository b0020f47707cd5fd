//! What is wrong with devices and machines, decided from what was read elsewhere: lines of the
//! kernel's log, samples, exit codes of checks. Nothing here reads or waits.
//!
//! ```text
//! kernel log ─► klog ─► events ──► xid, judge ─┐
//! samples ────────────────► rules ─────────────┼─► Seen: a finding and for how long it stands
//! operator's checks ──────► checks ────────────┘
//! ```

pub mod checks;
pub mod events;
pub mod judge;
pub mod klog;
pub mod rules;
pub mod xid;

use serde::{Deserialize, Serialize};
use tutti_model::{Finding, GpuIndex, Span};

/// Something that was seen just now.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub finding: Finding,
    pub keep: Keep,
}

/// How long a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// For so long after it was last seen.
    For(Span),
    /// Until somebody resolves it, or the machine was started anew.
    UntilReboot,
    /// Until somebody resolves it.
    UntilResolved,
}

/// Which of a machine's GPUs sits where. MIG instances of one GPU share an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    by_address: Vec<(String, GpuIndex)>,
}

impl Addresses {
    pub fn add(&mut self, pci: &str, gpu: GpuIndex) {
        self.by_address.push((slot(pci), gpu));
    }

    pub fn gpus_at(&self, pci: &str) -> Vec<GpuIndex> {
        let wanted = slot(pci);
        self.by_address.iter().filter(|(at, _)| *at == wanted).map(|(_, gpu)| *gpu).collect()
    }

    pub fn address_of(&self, gpu: GpuIndex) -> Option<&str> {
        self.by_address.iter().find(|(_, g)| *g == gpu).map(|(at, _)| at.as_str())
    }
}

/// Domain, bus and device, in lower case and without the function: the kernel's log has
/// "0000:1b:00", NVML "00000000:1B:00.0".
fn slot(pci: &str) -> String {
    let pci = pci.trim().to_ascii_lowercase();
    let pci = pci.strip_prefix("pci:").unwrap_or(&pci);
    let without = pci.split_once('.').map_or(pci, |(at, _)| at);
    match without.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && rest.contains(':') => {
            format!("{}:{rest}", &domain[domain.len() - 4..])
        }
        _ => without.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_same_however_they_are_written() {
        let mut addresses = Addresses::default();
        addresses.add("00000000:1B:00.0", GpuIndex(3));
        for text in ["0000:1b:00", "PCI:0000:1b:00", "0000:1B:00.0"] {
            assert_eq!(addresses.gpus_at(text), [GpuIndex(3)], "{text}");
        }
        assert!(addresses.gpus_at("0000:1c:00").is_empty());
        assert_eq!(addresses.address_of(GpuIndex(3)), Some("0000:1b:00"));
    }
}
