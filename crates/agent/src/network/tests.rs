use std::fs;
use std::os::unix::fs::symlink;

use tutti_model::GpuFacts;

use super::*;
use crate::testing::TempDir;

fn address(interface: &str, ip: &str, mask: &str) -> Address {
    let (ip, mask) = (ip.parse().unwrap(), mask.parse().ok());
    Address { interface: interface.into(), ip, mask }
}

fn machine() -> [Address; 4] {
    [
        address("lo", "127.0.0.1", "255.0.0.0"),
        address("eth0", "192.168.1.7", "255.255.255.0"),
        address("ib0", "10.4.3.2", "255.255.0.0"),
        address("ib0", "fe80::1", ""),
    ]
}

const GPUS: [&str; 3] = ["sw0/0000:01:00.0", "sw0/0000:02:00.0", "sw1/0000:41:00.0"];

/// The GPUs of the fixture, and one of which nobody knows where it is.
fn hardware() -> Hardware {
    let pci = |i: u16| GPUS.get(usize::from(i))?.rsplit('/').next().map(str::to_owned);
    let gpu = |i: u16| GpuFacts { index: GpuIndex(i), pci: pci(i), ..GpuFacts::default() };
    Hardware { gpus: (0..4).map(gpu).collect(), ..Hardware::default() }
}

/// Two switches with two GPUs and one adapter each, and an Ethernet adapter for storage.
fn fixture(root: &Path) {
    let pci = |bus: &str| root.join("sys/devices/pci0000:00").join(bus);
    for bus in GPUS {
        let address = bus.rsplit('/').next().unwrap();
        fs::create_dir_all(pci(bus)).unwrap();
        fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
        symlink(pci(bus), root.join("sys/bus/pci/devices").join(address)).unwrap();
    }
    for (name, bus, state, layer) in [
        ("mlx5_0", "sw0/0000:03:00.0", "4: ACTIVE", "InfiniBand"),
        ("mlx5_1", "sw1/0000:43:00.0", "4: ACTIVE", "InfiniBand"),
        ("mlx5_2", "sw1/0000:44:00.0", "1: DOWN", "InfiniBand"),
        ("mlx5_3", "sw2/0000:61:00.0", "4: ACTIVE", "Ethernet"),
    ] {
        let device = pci(bus).join("infiniband").join(name);
        let port = device.join("ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), format!("{state}\n")).unwrap();
        fs::write(port.join("link_layer"), format!("{layer}\n")).unwrap();
        fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
        symlink(&device, root.join("sys/class/infiniband").join(name)).unwrap();
    }
}

fn variables(network: &Network, gpus: &[u16]) -> BTreeMap<&'static str, String> {
    let gpus: Vec<GpuIndex> = gpus.iter().copied().map(GpuIndex).collect();
    network.variables(&gpus, false).into_iter().collect()
}

#[test]
fn the_interface_is_the_one_with_the_address() {
    let root = TempDir::new("network");
    let found = |own: &str| {
        let network = Network::discover(root.path(), &machine(), own.parse().unwrap(), None);
        network.interface.map(|i| (i.name, i.network.unwrap_or_default()))
    };
    assert_eq!(found("10.4.3.2"), Some(("ib0".into(), "10.4.0.0/16".into())));
    assert_eq!(found("192.168.1.7"), Some(("eth0".into(), "192.168.1.0/24".into())));
    assert_eq!(found("127.0.77.3"), Some(("lo".into(), "127.0.0.0/8".into())));
    assert_eq!(found("10.4.3.3"), None);
}

#[test]
fn without_adapters_everything_goes_over_the_interface() {
    let root = TempDir::new("network");
    let lo = Network::discover(root.path(), &machine(), [127, 0, 77, 1].into(), None);
    let wanted = [
        ("GLOO_SOCKET_IFNAME", "lo".to_owned()),
        ("NCCL_SOCKET_IFNAME", "=lo".to_owned()),
        ("UCX_NET_DEVICES", "lo".to_owned()),
    ];
    assert_eq!(variables(&lo, &[]), BTreeMap::from(wanted));
    assert_eq!(Network::default().variables(&[], false), []);
}

#[test]
fn adapters_that_are_up_and_near_are_used() {
    let root = TempDir::new("network");
    fixture(root.path());
    let own = [10, 4, 3, 2].into();
    let network = Network::discover(root.path(), &machine(), own, Some(&hardware()));
    for (gpus, adapters) in [
        (&[0, 1][..], "mlx5_0:1"),
        (&[2], "mlx5_1:1"),
        (&[0, 2], "mlx5_0:1,mlx5_1:1"),
        (&[], "mlx5_0:1,mlx5_1:1"),
        // Nobody knows where this one is.
        (&[0, 3], "mlx5_0:1,mlx5_1:1"),
    ] {
        let env = variables(&network, gpus);
        assert_eq!(env["NCCL_IB_HCA"], format!("={adapters}"), "{gpus:?}");
        assert_eq!(env["UCX_NET_DEVICES"], adapters, "{gpus:?}");
        assert_eq!(env["NCCL_SOCKET_IFNAME"], "=ib0");
        assert!(!env.contains_key("NCCL_TOPO_FILE"));
    }
}

#[test]
fn files_of_the_operator_and_the_user_come_first() {
    let root = TempDir::new("network");
    fixture(root.path());
    let etc = root.path().join("etc/tutti");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("nccl-topo.xml"), "<system/>").unwrap();
    let discover = || Network::discover(root.path(), &machine(), [10, 4, 3, 2].into(), None);
    let topo = etc.join("nccl-topo.xml").display().to_string();
    assert_eq!(variables(&discover(), &[])["NCCL_TOPO_FILE"], topo);

    let names = |network: &Network, own: bool| {
        let all = network.variables(&[], own).into_iter();
        all.map(|(name, _)| name).collect::<Vec<_>>()
    };
    let others = ["GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"];
    assert_eq!(names(&discover(), true), others);
    fs::write(root.path().join("etc/nccl.conf"), "NCCL_DEBUG=WARN").unwrap();
    assert_eq!(names(&discover(), false), others);
}
