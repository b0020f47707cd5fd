//! What devices and the machine around them do, once a second, at little cost.
//!
//! ```text
//!  Sampler::round ─┬─ Devices: NVML | sysfs | imagined ─► GpuSample, memory by process
//!                  ├─ Host: /proc, /sys ────────────────► HostSample
//!                  └─ Owners: pid ─► task ──────────────► NodeSample
//! ```
//! Everything is opened once. What a device does not support is asked once and then left alone.
//! A round may hang with its driver: it belongs on a thread of its own.

mod amd;
mod as_if;
mod host;
mod nvidia;
mod owners;
mod rate;
mod simulated;
mod tasks;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tutti_model::{
    Bytes, Gpu, GpuIndex, GpuProcess, GpuSample, Hardware, NodeSample, TaskId, Time, Vendor,
};

pub use amd::Amd;
pub use as_if::{AsIf, BadAsIf};
pub use host::Host;
pub use nvidia::{Card, Nvidia};
pub use owners::{Marks, Owners};
pub use simulated::Simulated;
pub use tasks::Tasks;

/// Memory that one process has on one GPU, before it is known whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    pub gpu: GpuIndex,
    pub pid: u32,
    pub mem: Bytes,
    /// Where the devices are imagined, so is the process, and this is whose.
    pub task: Option<TaskId>,
}

/// A GPU, and a task that it was given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub gpu: GpuIndex,
    pub task: TaskId,
    /// What the job wants an imagined GPU to do.
    pub as_if: Option<AsIf>,
}

/// The devices of one vendor.
pub trait Devices: Send {
    /// Adds a sample of each device, and what processes have on them. A device that does not
    /// answer has a sample without values.
    fn read(&mut self, round: Round<'_>, gpus: &mut Vec<GpuSample>, on: &mut Vec<DeviceProcess>);
}

/// When, and who has what.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    /// By the wall clock, for the record.
    pub at: Time,
    /// Since any fixed moment, for rates.
    pub clock: Duration,
    pub held: &'a [Held],
}

/// The devices that there are.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub gpus: Vec<Gpu>,
    pub hardware: Option<Box<Hardware>>,
    /// All of it is imagined.
    pub simulated: bool,
}

impl Machine {
    /// Real GPUs that samples speak of: there is nobody who reads Intel's.
    pub fn sampled(&self) -> BTreeSet<GpuIndex> {
        if self.simulated {
            return BTreeSet::new();
        }
        let amd = self.amd().map(|(gpu, _)| gpu);
        self.of(Vendor::Nvidia).map(|gpu| gpu.index).chain(amd).collect()
    }

    /// With their PCI addresses.
    fn amd(&self) -> impl Iterator<Item = (GpuIndex, String)> {
        let pci = |gpu: &Gpu| Some((gpu.index, self.facts(gpu.index)?.pci.clone()?));
        self.of(Vendor::Amd).filter_map(pci)
    }

    fn devices(&self, root: &Path) -> Vec<Box<dyn Devices>> {
        if self.simulated {
            return vec![Box::new(Simulated::new(&self.gpus))];
        }
        let mut devices: Vec<Box<dyn Devices>> = Vec::new();
        let nvidia: Vec<_> =
            self.of(Vendor::Nvidia).map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
        if !nvidia.is_empty() {
            devices.push(Box::new(Nvidia::new(Box::new(nvidia::open_nvml), nvidia)));
        }
        let amd: Vec<_> = self.amd().collect();
        if !amd.is_empty() {
            devices.push(Box::new(Amd::new(root, amd)));
        }
        devices
    }

    fn of(&self, vendor: Vendor) -> impl Iterator<Item = &Gpu> {
        let is = move |gpu: &&Gpu| {
            self.facts(gpu.index).map_or(Vendor::Nvidia, |facts| facts.vendor) == vendor
        };
        self.gpus.iter().filter(is)
    }

    fn facts(&self, index: GpuIndex) -> Option<&tutti_model::GpuFacts> {
        self.hardware.as_ref()?.gpus.iter().find(|facts| facts.index == index)
    }
}

/// Reads the whole machine.
pub struct Sampler {
    devices: Vec<Box<dyn Devices>>,
    host: Host,
    owners: Owners,
    tasks: Tasks,
}

impl Sampler {
    pub fn new(
        devices: Vec<Box<dyn Devices>>,
        host: Host,
        owners: Owners,
        tasks: Tasks,
    ) -> Sampler {
        Sampler { devices, host, owners, tasks }
    }

    /// For this machine. `data_dir` is where disk space matters; `marks` tell whose a process is.
    pub fn open(machine: &Machine, data_dir: PathBuf, marks: Marks) -> Sampler {
        let root = PathBuf::from("/");
        let devices = machine.devices(&root);
        let tasks = Tasks::new(root.clone(), marks.clone());
        let host = Host::new(root.clone(), data_dir);
        Sampler::new(devices, host, Owners::new(root, marks), tasks)
    }

    pub fn round(&mut self, round: Round<'_>) -> NodeSample {
        let mut gpus = Vec::new();
        let mut on = Vec::new();
        for devices in &mut self.devices {
            devices.read(round, &mut gpus, &mut on);
        }
        gpus.sort_by_key(|gpu| gpu.index);
        let processes = self.owners.join(on);
        let (host, tasks) = (self.host.read(round.clock), self.tasks.read(round.clock));
        NodeSample { at: round.at, gpus, host, processes, tasks }
    }
}

impl DeviceProcess {
    fn of(self, task: Option<TaskId>) -> GpuProcess {
        GpuProcess { gpu: self.gpu, pid: self.pid, mem: self.mem, task }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::GpuFacts;

    #[test]
    fn only_gpus_that_somebody_reads_are_sampled() {
        let gpu = |index| Gpu {
            index: GpuIndex(index),
            model: "x".into(),
            uuid: format!("GPU-{index}"),
            mem: Bytes::gib(80),
            island: None,
        };
        let facts = |(index, vendor)| GpuFacts {
            index: GpuIndex(index),
            vendor,
            pci: Some(format!("0000:0{index}:00.0")),
            ..GpuFacts::default()
        };
        let vendors = [(0, Vendor::Nvidia), (1, Vendor::Amd), (2, Vendor::Intel)];
        let hardware = Hardware { gpus: vendors.map(facts).to_vec(), ..Hardware::default() };
        let mut machine = Machine {
            gpus: (0..3).map(gpu).collect(),
            hardware: Some(Box::new(hardware)),
            simulated: false,
        };
        assert_eq!(machine.sampled(), [0, 1].map(GpuIndex).into());
        machine.simulated = true;
        assert!(machine.sampled().is_empty());
    }
}
