//! How this node reaches the others: the interface with its address, its RDMA adapters, and which of
//! them is nearest to which GPU. Frameworks guess this, and guess wrong on machines with several
//! interfaces.
//!
//! Nothing is measured and nothing is set on the machine; a job's own variables always win.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use tutti_model::{Gpu, GpuIndex};

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

/// The operator's description of a machine that hides its PCI tree, such as a virtual one.
const TOPO_FILE: &str = "etc/tutti/nccl-topo.xml";
const NCCL_CONF: &str = "etc/nccl.conf";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// None: no interface has the node's address, as behind a translation of addresses.
    pub interface: Option<Interface>,
    adapters: Vec<Adapter>,
    /// Where each GPU hangs in the PCI tree, as far as that is known.
    gpus: BTreeMap<GpuIndex, PathBuf>,
    topo_file: Option<String>,
    has_nccl_conf: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Its network, as `10.0.0.0/24`: the same on all nodes even if interfaces are called otherwise.
    pub network: Option<String>,
}

/// One port of an RDMA adapter that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Adapter {
    /// `mlx5_0:1`.
    port: String,
    infiniband: bool,
    path: PathBuf,
}

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
    pub mask: Option<Ipv4Addr>,
}

impl Network {
    /// `root` is `/` but in tests.
    pub fn discover(root: &Path, addresses: &[Address], own: IpAddr, gpus: &[Gpu]) -> Network {
        let topo_file = root.join(TOPO_FILE);
        Network {
            interface: interface(addresses, own),
            adapters: adapters(root),
            gpus: gpu_paths(root, gpus),
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

    /// For each GPU the adapters that share most of its way to the processor; all of them if that
    /// is not known.
    fn nearest(&self, gpus: &[GpuIndex]) -> Vec<&str> {
        let mut near: Vec<&Adapter> = Vec::new();
        for gpu in gpus {
            let Some(path) = self.gpus.get(gpu) else { return self.all_adapters() };
            let shared = |a: &&Adapter| shared_way(&a.path, path);
            let most = self.adapters.iter().map(|a| shared(&a)).max().unwrap_or(0);
            near.extend(self.adapters.iter().filter(|a| shared(a) == most));
        }
        if gpus.is_empty() {
            return self.all_adapters();
        }
        let wanted = |a: &&Adapter| near.contains(a);
        self.adapters.iter().filter(wanted).map(|a| a.port.as_str()).collect()
    }

    fn all_adapters(&self) -> Vec<&str> {
        self.adapters.iter().map(|a| a.port.as_str()).collect()
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

/// Ports that are up. Where there is InfiniBand, Ethernet adapters are for storage or management.
fn adapters(root: &Path) -> Vec<Adapter> {
    let mut all = Vec::new();
    for device in entries(&root.join("sys/class/infiniband")) {
        let Some(name) = file_name(&device) else { continue };
        let Ok(path) = fs::canonicalize(&device) else { continue };
        for port in entries(&device.join("ports")) {
            let Some(number) = file_name(&port) else { continue };
            let read = |file: &str| fs::read_to_string(port.join(file)).unwrap_or_default();
            if read("state").contains("ACTIVE") {
                let infiniband = read("link_layer").trim() == "InfiniBand";
                let path = path.clone();
                all.push(Adapter { port: format!("{name}:{number}"), infiniband, path });
            }
        }
    }
    if all.iter().any(|a| a.infiniband) {
        all.retain(|a| a.infiniband);
    }
    all
}

/// The driver names GPUs by their place on the bus, and knows their uuids.
fn gpu_paths(root: &Path, gpus: &[Gpu]) -> BTreeMap<GpuIndex, PathBuf> {
    let mut paths = BTreeMap::new();
    for dir in entries(&root.join("proc/driver/nvidia/gpus")) {
        let text = fs::read_to_string(dir.join("information")).unwrap_or_default();
        let uuid = text.lines().find_map(|l| l.strip_prefix("GPU UUID:")).map(str::trim);
        let gpu = gpus.iter().find(|g| uuid == Some(g.uuid.as_str()));
        let Some((gpu, bus)) = gpu.zip(file_name(&dir)) else { continue };
        let device = root.join("sys/bus/pci/devices").join(bus.to_ascii_lowercase());
        if let Ok(path) = fs::canonicalize(device) {
            paths.insert(gpu.index, path);
        }
    }
    paths
}

/// How many steps two devices have in common.
fn shared_way(a: &Path, b: &Path) -> usize {
    a.components().zip(b.components()).take_while(|(a, b)| a == b).count()
}

/// Sorted; none if it is not there.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<PathBuf> = read.filter_map(|e| Some(e.ok()?.path())).collect();
    all.sort();
    all
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests;
