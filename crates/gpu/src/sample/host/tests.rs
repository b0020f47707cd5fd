use std::path::Path;

use super::*;

/// A machine of hand-made files, in the form that Linux 6 gives them.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let dir = std::env::temp_dir().join(format!("tutti-host-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Tree(dir)
    }
    fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn net(eth0: (u64, u64), veth: u64) -> String {
    let line = |name: &str, rx: u64, tx: u64| {
        format!("{name:>6}: {rx} 10 0 0 0 0 0 0 {tx} 10 0 0 0 0 0 0\n")
    };
    let heads = "Inter-|   Receive    |  Transmit\n face |bytes packets|bytes packets\n";
    let (lo, eth0) = (line("lo", 999, 999), line("eth0", eth0.0, eth0.1));
    format!("{heads}{lo}{eth0}{}", line("veth1", veth, veth))
}

fn disks(read: u64, written: u64) -> String {
    let counts = format!("100 0 {read} 50 200 0 {written} 70 0 90 120");
    format!("259 0 nvme0n1 {counts}\n259 1 nvme0n1p1 {counts}\n253 0 dm-0 {counts}\n")
}

fn machine(name: &str) -> Tree {
    let tree = Tree::new(name);
    tree.put("proc/stat", "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\nintr 5\n");
    tree.put("proc/loadavg", "3.50 2.00 1.00 2/345 6789\n");
    tree.put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    400 kB\n");
    tree.put("proc/diskstats", &disks(1000, 2000));
    tree.put("proc/net/dev", &net((1000, 5000), 7));
    tree.put("sys/block/nvme0n1/device/model", "x");
    tree.put("sys/block/dm-0/size", "1");
    tree.put("sys/class/net/eth0/device/vendor", "0x15b3");
    for (counter, value) in [
        ("port_rcv_data", "250"),
        ("port_xmit_data", "500"),
        ("symbol_error", "3"),
        ("link_downed", "1"),
    ] {
        tree.put(&format!("sys/class/infiniband/mlx5_0/ports/1/counters/{counter}"), value);
    }
    tree.put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    tree
}

#[test]
fn a_machine_is_read_and_its_rates_come_from_two_readings() {
    let tree = machine("rates");
    let mut host = Host::new(tree.path().into(), tree.path().into());
    let first = host.read(Duration::from_secs(10));
    assert_eq!((first.cpu, first.load1), (0.0, 3.5));
    assert_eq!((first.mem_total, first.mem_available), (Bytes(1_024_000), Bytes(409_600)));
    assert!(first.disk_total > first.disk_free && first.disk_free.0 > 0);
    assert_eq!((first.net_rx, first.disk_read, first.nics[0].rx), (0, 0, 0));

    tree.put("proc/stat", "cpu  130 0 60 850 60 0 0 0 0 0\n");
    tree.put("proc/diskstats", &disks(1010, 2040));
    tree.put("proc/net/dev", &net((3000, 9000), 70_000));
    tree.put("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1250");
    let second = host.read(Duration::from_secs(12));
    assert_eq!(second.cpu, 0.4, "40 of 100 ticks");
    assert_eq!((second.disk_read, second.disk_write), (5 * 512, 20 * 512), "only whole disks");
    assert_eq!((second.net_rx, second.net_tx), (1000, 2000), "only what has hardware");
    let nic = &second.nics[0];
    assert_eq!((nic.port.as_str(), nic.up, nic.rx, nic.tx), ("mlx5_0:1", true, 2000, 0));
    assert_eq!((nic.symbol_errors, nic.link_downed, nic.rcv_errors), (3, 1, 0));
}

#[test]
fn in_a_container_without_hardware_all_interfaces_count() {
    let tree = machine("container");
    fs::remove_dir_all(tree.path().join("sys/class/net")).unwrap();
    let mut host = Host::new(tree.path().into(), tree.path().into());
    host.read(Duration::ZERO);
    tree.put("proc/net/dev", &net((1100, 5000), 57));
    assert_eq!(host.read(Duration::from_secs(1)).net_rx, 150);
}

#[test]
fn a_machine_without_these_files_reads_as_zero() {
    let tree = Tree::new("bare");
    let mut host = Host::new(tree.path().into(), tree.path().join("nowhere"));
    assert_eq!(host.read(Duration::ZERO), HostSample::default());
}

/// The machine that runs the tests.
#[test]
fn a_real_machine_is_read() {
    let mut host = Host::new("/".into(), std::env::temp_dir());
    let sample = host.read(Duration::ZERO);
    assert!(sample.mem_total >= sample.mem_available && sample.mem_available.0 > 0);
    assert!(sample.disk_total.0 > 0);
    let busy = host.read(Duration::from_millis(1)).cpu;
    assert!((0.0..=1.0).contains(&busy), "{busy}");
}
