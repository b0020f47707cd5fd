//! The PCI tree: where a device hangs, and how far two devices are from each other.
//!
//! ```text
//! pci0000:15                host bridge     ─┐ same: HostBridge or nearer
//! └ 0000:15:01.0            root port        │ same: a switch, or several
//!   └ 0000:16:00.0          switch           │
//!     ├ 0000:17:00.0        its ports        │
//!     │ └ 0000:18:00.0      adapter         ─┘
//!     └ 0000:17:01.0
//!       └ 0000:1b:00.0      GPU
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use tutti_model::LinkKind;

use crate::files;

/// Where a device hangs, as far as the kernel says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// "0000:1b:00.0", in lower case.
    pub address: Option<String>,
    pub numa: Option<u16>,
    pub cpus: Option<String>,
    /// From the host bridge down to the device itself; empty if it is not known.
    pub way: Vec<String>,
}

/// The one way in which addresses are written here. NVML has eight digits for the domain.
pub fn address(domain: u32, bus: u32, device: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

pub fn devices(root: &Path) -> PathBuf {
    root.join("sys/bus/pci/devices")
}

pub fn at_address(root: &Path, address: &str) -> Place {
    let address = address.to_ascii_lowercase();
    let link = devices(root).join(&address);
    let place = fs::canonicalize(link).map(|path| at_path(&path)).unwrap_or_default();
    Place { address: Some(address), ..place }
}

/// `path` leads to the device or to something below it, without links.
pub fn at_path(path: &Path) -> Place {
    let Some(device) = path.ancestors().find(|p| is_device(p)) else { return Place::default() };
    // -1: the firmware does not say.
    let numa = files::number::<i32>(&device.join("numa_node")).and_then(|n| u16::try_from(n).ok());
    Place {
        address: files::name(device),
        numa,
        cpus: files::text(&device.join("local_cpulist")),
        way: way(device),
    }
}

fn is_device(path: &Path) -> bool {
    files::name(path).is_some_and(|name| is_address(&name))
}

/// "0000:1b:00.0"; domains of some hosts have five digits.
fn is_address(name: &str) -> bool {
    let hex = |text: &str, n: usize| {
        text.len() >= n && text.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
    };
    let mut parts = name.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    hex(domain, 4)
        && hex(bus, 2)
        && rest.split_once('.').is_some_and(|(d, f)| hex(d, 2) && hex(f, 1))
}

fn way(device: &Path) -> Vec<String> {
    let names = device.components().filter_map(|c| c.as_os_str().to_str());
    names.skip_while(|name| !is_host_bridge(name)).map(str::to_owned).collect()
}

/// "pci0000:15".
fn is_host_bridge(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

/// As `nvidia-smi topo` has it. None if nobody knows where one of them is.
pub fn distance(a: &Place, b: &Place) -> Option<LinkKind> {
    if a.way.is_empty() || b.way.is_empty() {
        return None;
    }
    let shared = shared(a, b);
    let below = (a.way.len() - shared).max(b.way.len() - shared);
    Some(match shared {
        0 if a.numa.is_some() && a.numa == b.numa => LinkKind::SameNuma,
        0 => LinkKind::System,
        1 => LinkKind::HostBridge,
        // A port of the switch, and the device.
        _ if below <= 2 => LinkKind::OneSwitch,
        _ => LinkKind::SwitchTree,
    })
}

/// How many steps two devices have in common.
pub fn shared(a: &Place, b: &Place) -> usize {
    a.way.iter().zip(&b.way).take_while(|(a, b)| a == b).count()
}

/// The smaller the nearer; equals are equally near.
pub fn nearness(a: &Place, b: &Place) -> (Option<LinkKind>, std::cmp::Reverse<usize>) {
    (distance(a, b), std::cmp::Reverse(shared(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(way: &str, numa: Option<u16>) -> Place {
        let way: Vec<String> =
            way.split('/').filter(|w| !w.is_empty()).map(str::to_owned).collect();
        Place { address: way.last().cloned(), numa, cpus: None, way }
    }

    #[test]
    fn distances_are_those_of_nvidia_smi() {
        let gpu = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0";
        for (other, numa, kind) in [
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
                0,
                LinkKind::OneSwitch,
            ),
            (
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0",
                0,
                LinkKind::SwitchTree,
            ),
            ("pci0000:15/0000:15:02.0/0000:26:00.0", 0, LinkKind::HostBridge),
            ("pci0000:37/0000:37:01.0/0000:3b:00.0", 0, LinkKind::SameNuma),
            ("pci0000:97/0000:97:01.0/0000:9b:00.0", 1, LinkKind::System),
        ] {
            let (a, b) = (place(gpu, Some(0)), place(other, Some(numa)));
            assert_eq!(distance(&a, &b), Some(kind), "{other}");
            assert_eq!(distance(&b, &a), Some(kind), "{other}");
        }
        assert_eq!(distance(&place(gpu, None), &place("", None)), None);
        let far = place("pci0000:37/0000:3b:00.0", None);
        assert_eq!(distance(&place(gpu, None), &far), Some(LinkKind::System));
    }

    #[test]
    fn addresses_are_told_from_other_names() {
        for (name, is) in [
            ("0000:1b:00.0", true),
            ("10000:01:00.0", true),
            ("pci0000:15", false),
            ("mlx5_0", false),
            ("0000:1B:00.0", false),
            ("0000:1b:00", false),
        ] {
            assert_eq!(is_address(name), is, "{name}");
        }
        assert_eq!(address(0, 0x1b, 0), "0000:1b:00.0");
    }
}
