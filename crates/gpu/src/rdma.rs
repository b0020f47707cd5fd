//! InfiniBand and RoCE adapters, and which of them are near to a GPU.

use std::fs;
use std::path::Path;

use crate::files;
use crate::pci::{self, Place};

/// One port of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// "mlx5_0".
    pub device: String,
    pub number: u16,
    /// Else Ethernet.
    pub infiniband: bool,
    pub up: bool,
    /// Gigabits per second; 0 if it is not known.
    pub gbits: u32,
    pub place: Place,
}

impl Port {
    /// As NCCL and UCX name it: "mlx5_0:1".
    pub fn name(&self) -> String {
        format!("{}:{}", self.device, self.number)
    }
}

/// All ports of this machine.
pub fn ports(root: &Path) -> Vec<Port> {
    let mut all = Vec::new();
    for link in files::entries(&root.join("sys/class/infiniband")) {
        let Some(device) = files::name(&link) else { continue };
        let place = fs::canonicalize(&link).map(|path| pci::at_path(&path)).unwrap_or_default();
        for (number, port) in files::numbered(&link.join("ports"), "") {
            let read = |file: &str| files::text(&port.join(file)).unwrap_or_default();
            all.push(Port {
                device: device.clone(),
                number: u16::try_from(number).unwrap_or(u16::MAX),
                infiniband: read("link_layer") == "InfiniBand",
                // "4: ACTIVE"
                up: read("state").contains("ACTIVE"),
                gbits: gbits(&read("rate")),
                place: place.clone(),
            });
        }
    }
    // mlx5_10 comes after mlx5_9.
    all.sort_by_key(|port| (by_number(&port.device), port.number));
    all
}

/// Ports that gangs may use: those that are up. Where there is InfiniBand, Ethernet adapters are for
/// storage or management.
pub fn usable(ports: &[Port]) -> Vec<&Port> {
    let up = || ports.iter().filter(|port| port.up);
    let infiniband = up().any(|port| port.infiniband);
    up().filter(|port| port.infiniband || !infiniband).collect()
}

/// Of these ports the ones that no other is nearer to; all of them if nobody knows where the GPU is.
pub fn nearest<'p>(gpu: &Place, ports: &[&'p Port]) -> Vec<&'p Port> {
    let nearness = |port: &&Port| match pci::nearness(&port.place, gpu) {
        // Not known is farthest.
        (None, shared) => (true, None, shared),
        (kind, shared) => (false, kind, shared),
    };
    let best = ports.iter().map(nearness).min();
    ports.iter().filter(|port| Some(nearness(port)) == best).copied().collect()
}

/// "400 Gb/sec (4X NDR)"; "2.5 Gb/sec (1X SDR)" is 2.
fn gbits(rate: &str) -> u32 {
    let number = rate.split_once(" Gb/sec").and_then(|(n, _)| n.trim().parse::<f64>().ok());
    number.map_or(0, |n| n as u32)
}

/// "mlx5_10" as its name and its number.
fn by_number(device: &str) -> (String, u32) {
    let digits = device.chars().rev().take_while(char::is_ascii_digit).count();
    let (name, number) = device.split_at(device.len() - digits);
    (name.to_owned(), number.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers() {
        for (rate, wanted) in
            [("400 Gb/sec (4X NDR)", 400), ("2.5 Gb/sec (1X SDR)", 2), ("", 0), ("fast", 0)]
        {
            assert_eq!(gbits(rate), wanted, "{rate}");
        }
    }

    #[test]
    fn devices_are_ordered_by_number() {
        let mut names = ["mlx5_10", "bnxt_re0", "mlx5_2", "mlx5_bond_0"];
        names.sort_by_key(|name| by_number(name));
        assert_eq!(names, ["bnxt_re0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]);
    }
}
