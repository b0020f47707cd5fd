//! How this node reaches the others: the interface with its address, its RDMA adapters, and which of
//! them is nearest to which GPU. Frameworks guess this, and guess wrong on machines with several
//! interfaces.
//!
//! Nothing is measured and nothing is set on the machine; a job's own variables always win.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use tutti_gpu::pci::{self, Place};
use tutti_gpu::rdma::{self, Port};
use tutti_model::{GpuIndex, Hardware, LoopbackOf};

use crate::health::boot_id;

/// Set in every rank unless the job sets its own.
pub const VARIABLES: &[(&str, &str)] = &[
    (
        "NCCL_SOCKET_IFNAME",
        "the interface with the node's address, as `=eth0`; not set if NCCL has a configuration \
         file",
    ),
    (
        "NCCL_IB_HCA",
        "the RDMA adapters that are up, those nearest to the part's GPUs, as `=mlx5_0:1`; not set \
         without any, nor if NCCL has a configuration file",
    ),
    (
        "NCCL_TOPO_FILE",
        "`/etc/tutti/nccl-topo.xml` where the operator made one; not set if NCCL has a \
         configuration file",
    ),
    ("GLOO_SOCKET_IFNAME", "the interface with the node's address"),
    ("UCX_NET_DEVICES", "the RDMA adapters as in `NCCL_IB_HCA`, else the interface"),
];

/// Whose loopback this address is of, if it is a loopback address at all. Every network namespace has
/// its own.
pub fn loopback_of(address: &str) -> Option<LoopbackOf> {
    let loopback = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !loopback && address != "localhost" {
        return None;
    }
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let id = format!("{}/{}", boot_id(), namespace.display());
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    Some(LoopbackOf { host: host.unwrap_or_else(|_| "this machine".to_owned()), id })
}

/// The operator's description of a machine that hides its PCI tree, such as a virtual one.
const TOPO_FILE: &str = "etc/tutti/nccl-topo.xml";
const NCCL_CONF: &str = "etc/nccl.conf";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// None: no interface has the node's address, as behind a translation of addresses.
    pub interface: Option<Interface>,
    /// Ports of RDMA adapters that gangs may use.
    adapters: Vec<Port>,
    /// Where each GPU hangs in the PCI tree, as far as that is known.
    gpus: BTreeMap<GpuIndex, Place>,
    topo_file: Option<String>,
    has_nccl_conf: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Its network, as `10.0.0.0/24`: the same on all nodes even if interfaces are called otherwise.
    pub network: Option<String>,
}

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
    pub mask: Option<Ipv4Addr>,
}

impl Network {
    /// `root` is `/` but in tests. Ports are looked at now: they may have come up since the hardware
    /// was found.
    pub fn discover(
        root: &Path,
        addresses: &[Address],
        own: IpAddr,
        hardware: Option<&Hardware>,
    ) -> Network {
        let topo_file = root.join(TOPO_FILE);
        Network {
            interface: interface(addresses, own),
            adapters: rdma::usable(&rdma::ports(root)).into_iter().cloned().collect(),
            gpus: hardware.map(|hardware| places(root, hardware)).unwrap_or_default(),
            topo_file: topo_file.is_file().then(|| topo_file.display().to_string()),
            has_nccl_conf: root.join(NCCL_CONF).exists(),
        }
    }

    /// What a part with these GPUs is told. `own_conf`: the user has a configuration of NCCL.
    pub fn variables(&self, gpus: &[GpuIndex], own_conf: bool) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let adapters = self.nearest(gpus);
        if let Some(interface) = &self.interface {
            all.push(("GLOO_SOCKET_IFNAME", interface.name.clone()));
        }
        match (&self.interface, adapters.is_empty()) {
            (_, false) => all.push(("UCX_NET_DEVICES", adapters.join(","))),
            (Some(interface), true) => all.push(("UCX_NET_DEVICES", interface.name.clone())),
            (None, true) => {}
        }
        if own_conf || self.has_nccl_conf {
            return all;
        }
        if let Some(interface) = &self.interface {
            all.push(("NCCL_SOCKET_IFNAME", format!("={}", interface.name)));
        }
        if !adapters.is_empty() {
            all.push(("NCCL_IB_HCA", format!("={}", adapters.join(","))));
        }
        all.extend(self.topo_file.clone().map(|file| ("NCCL_TOPO_FILE", file)));
        all
    }

    /// For each GPU the adapters nearest to it; all of them if nobody knows where it is.
    fn nearest(&self, gpus: &[GpuIndex]) -> Vec<String> {
        let all: Vec<&Port> = self.adapters.iter().collect();
        let places: Option<Vec<&Place>> = gpus.iter().map(|gpu| self.gpus.get(gpu)).collect();
        let near: Vec<&Port> = match places {
            Some(places) if !places.is_empty() => {
                places.into_iter().flat_map(|place| rdma::nearest(place, &all)).collect()
            }
            _ => all.clone(),
        };
        all.into_iter().filter(|port| near.contains(port)).map(Port::name).collect()
    }
}

/// The addresses of this machine.
pub fn addresses() -> nix::Result<Vec<Address>> {
    let address = |i: nix::ifaddrs::InterfaceAddress| {
        let (address, mask) = (i.address?, i.netmask);
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
        let mask = mask.as_ref().and_then(|m| Some(m.as_sockaddr_in()?.ip()));
        Some(Address { interface: i.interface_name, ip, mask })
    };
    Ok(nix::ifaddrs::getifaddrs()?.filter_map(address).collect())
}

/// All of 127.0.0.0/8 is this machine, although its interface has only one of these addresses.
fn interface(addresses: &[Address], own: IpAddr) -> Option<Interface> {
    let exact = addresses.iter().find(|a| a.ip == own);
    let loopback = || addresses.iter().find(|a| own.is_loopback() && a.ip.is_loopback());
    let found = exact.or_else(loopback)?;
    let network = match (found.ip, found.mask) {
        (IpAddr::V4(ip), Some(mask)) => {
            let (network, bits) = (ip & mask, mask.to_bits().count_ones());
            Some(format!("{network}/{bits}"))
        }
        _ => None,
    };
    Some(Interface { name: found.interface.clone(), network })
}

fn places(root: &Path, hardware: &Hardware) -> BTreeMap<GpuIndex, Place> {
    let place = |gpu: &tutti_model::GpuFacts| {
        let place = pci::at_address(root, gpu.pci.as_deref()?);
        (!place.way.is_empty()).then_some((gpu.index, place))
    };
    hardware.gpus.iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests;
