//! The machine around the devices, from `/proc` and `/sys`. The root directory can be another, so
//! that recorded machines are fixtures.

mod infiniband;
mod parse;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tutti_model::{Bytes, HostSample};

use super::rate::Rate;
use infiniband::Infiniband;
use parse::{CpuTimes, Traffic};

pub struct Host {
    root: PathBuf,
    data_dir: PathBuf,
    cpu: Option<CpuTimes>,
    rates: Rates,
    /// Whether a block device, or an interface, is counted: those that sit on others are not.
    disks: BTreeMap<String, bool>,
    interfaces: BTreeMap<String, bool>,
    infiniband: Infiniband,
    text: String,
}

#[derive(Default)]
struct Rates {
    disk_read: Rate,
    disk_write: Rate,
    net_rx: Rate,
    net_tx: Rate,
}

impl Host {
    pub fn new(root: PathBuf, data_dir: PathBuf) -> Host {
        Host {
            infiniband: Infiniband::new(root.join("sys/class/infiniband")),
            root,
            data_dir,
            cpu: None,
            rates: Rates::default(),
            disks: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            text: String::new(),
        }
    }

    /// `clock` is the time since any fixed moment. Rates are 0 at the first reading.
    pub fn read(&mut self, clock: Duration) -> HostSample {
        let (mem_total, mem_available) = parse::memory(self.file("proc/meminfo"));
        let load1 = parse::load(self.file("proc/loadavg"));
        let cpu = self.cpu();
        let disk = self.disk_traffic();
        let net = self.net_traffic();
        let (disk_total, disk_free) = self.space();
        HostSample {
            cpu,
            load1,
            mem_total,
            mem_available,
            disk_total,
            disk_free,
            disk_read: self.rates.disk_read.of(disk.rx, clock),
            disk_write: self.rates.disk_write.of(disk.tx, clock),
            net_rx: self.rates.net_rx.of(net.rx, clock),
            net_tx: self.rates.net_tx.of(net.tx, clock),
            nics: self.infiniband.read(clock),
        }
    }

    /// Empty where there is no such file: then its values are 0, as on a machine without it.
    fn file(&mut self, path: &str) -> &str {
        use std::io::Read;
        self.text.clear();
        let read = fs::File::open(self.root.join(path))
            .and_then(|mut file| file.read_to_string(&mut self.text));
        if read.is_err() {
            self.text.clear();
        }
        &self.text
    }

    fn cpu(&mut self) -> f32 {
        let Some(now) = parse::cpu(self.file("proc/stat")) else { return 0.0 };
        let before = self.cpu.replace(now);
        before.map_or(0.0, |before| now.busy_since(before))
    }

    fn disk_traffic(&mut self) -> Traffic {
        self.file("proc/diskstats");
        let mut sum = Traffic::default();
        for (name, traffic) in parse::disks(&self.text) {
            let block = self.root.join("sys/block");
            // A partition has no entry there, and what has no device sits on other disks.
            let real = || block.join(name).join("device").exists();
            if counts(&mut self.disks, name, real) {
                sum += traffic;
            }
        }
        sum
    }

    /// What has hardware behind it; in a container that has none of it, all but loopback.
    fn net_traffic(&mut self) -> Traffic {
        self.file("proc/net/dev");
        let (mut hardware, mut any, mut all) = (Traffic::default(), false, Traffic::default());
        for (name, traffic) in parse::interfaces(&self.text).filter(|(name, _)| *name != "lo") {
            all += traffic;
            let class = self.root.join("sys/class/net");
            if counts(&mut self.interfaces, name, || class.join(name).join("device").exists()) {
                any = true;
                hardware += traffic;
            }
        }
        if any { hardware } else { all }
    }

    fn space(&self) -> (Bytes, Bytes) {
        let Ok(found) = nix::sys::statvfs::statvfs(&self.data_dir) else {
            return (Bytes(0), Bytes(0));
        };
        let unit = found.fragment_size();
        (Bytes(found.blocks() * unit), Bytes(found.blocks_available() * unit))
    }
}

/// Asked of the file system once for each name.
fn counts(known: &mut BTreeMap<String, bool>, name: &str, real: impl FnOnce() -> bool) -> bool {
    if let Some(counts) = known.get(name) {
        return *counts;
    }
    let counts = real();
    known.insert(name.to_owned(), counts);
    counts
}

#[cfg(test)]
mod tests;
