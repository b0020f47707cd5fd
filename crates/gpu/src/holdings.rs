//! What is held on one GPU at this moment: how much memory, and by whom. For whoever has to know that
//! a device is free before somebody else gets it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tutti_model::{Bytes, Gpu, GpuIndex, Hardware, Vendor};

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub used: Bytes,
    /// Processes that compute on it, as far as the driver names them.
    pub pids: BTreeSet<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum HoldingError {
    #[error("NVML does not answer")]
    Nvml(#[source] NvmlError),
    #[error("can't read {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the driver of this GPU does not tell")]
    Unknown,
}

/// Who is asked. A call may take as long as a driver takes.
pub trait Holdings: Debug + Send + Sync {
    fn of(&self, gpu: GpuIndex) -> Result<Holding, HoldingError>;
}

/// The drivers of this machine.
#[derive(Debug)]
pub struct Drivers {
    root: PathBuf,
    gpus: Vec<Known>,
    nvml: OnceLock<Nvml>,
}

#[derive(Debug)]
struct Known {
    index: GpuIndex,
    uuid: String,
    vendor: Vendor,
    pci: Option<String>,
}

impl Drivers {
    /// `root` is `/`, or a recorded tree.
    pub fn new(root: PathBuf, gpus: &[Gpu], hardware: &Hardware) -> Drivers {
        let known = |gpu: &Gpu| {
            let facts = hardware.gpus.iter().find(|facts| facts.index == gpu.index)?;
            let (vendor, pci) = (facts.vendor, facts.pci.clone());
            Some(Known { index: gpu.index, uuid: gpu.uuid.clone(), vendor, pci })
        };
        let gpus = gpus.iter().filter_map(known).collect();
        Drivers { root, gpus, nvml: OnceLock::new() }
    }

    /// Loaded when it is first needed; tried again while it fails.
    fn nvml(&self) -> Result<&Nvml, HoldingError> {
        if let Some(nvml) = self.nvml.get() {
            return Ok(nvml);
        }
        let nvml = Nvml::init().map_err(HoldingError::Nvml)?;
        Ok(self.nvml.get_or_init(|| nvml))
    }

    fn nvidia(&self, uuid: &str) -> Result<Holding, HoldingError> {
        let device = self.nvml()?.device_by_uuid(uuid).map_err(HoldingError::Nvml)?;
        let used = device.memory_info().map_err(HoldingError::Nvml)?.used;
        let pids = match device.running_compute_processes() {
            Ok(processes) => processes.into_iter().map(|p| p.pid).collect(),
            // Some instances do not tell who is on them; their memory still does.
            Err(NvmlError::NotSupported) => BTreeSet::new(),
            Err(error) => return Err(HoldingError::Nvml(error)),
        };
        Ok(Holding { used: Bytes(used), pids })
    }

    fn amd(&self, pci: &str) -> Result<Holding, HoldingError> {
        let path = self.root.join("sys/bus/pci/devices").join(pci).join("mem_info_vram_used");
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|source| HoldingError::File { path: path.clone(), source })?;
        let used = text.trim().parse().map_err(|_| HoldingError::Unknown)?;
        Ok(Holding { used: Bytes(used), pids: BTreeSet::new() })
    }
}

impl Holdings for Drivers {
    fn of(&self, gpu: GpuIndex) -> Result<Holding, HoldingError> {
        let known = self.gpus.iter().find(|known| known.index == gpu);
        match known.map(|k| (k.vendor, &k.uuid, &k.pci)) {
            Some((Vendor::Nvidia, uuid, _)) => self.nvidia(uuid),
            Some((Vendor::Amd, _, Some(pci))) => self.amd(pci),
            _ => Err(HoldingError::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::GpuFacts;

    use super::*;

    #[test]
    fn an_amd_card_tells_by_a_file_and_an_unknown_one_not_at_all() {
        let root = std::env::temp_dir().join(format!("tutti-holdings-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:05:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("mem_info_vram_used"), "104857600\n").unwrap();
        let facts = |index, vendor| GpuFacts {
            index: GpuIndex(index),
            vendor,
            pci: Some("0000:05:00.0".into()),
            ..GpuFacts::default()
        };
        let hardware = Hardware {
            gpus: vec![facts(0, Vendor::Amd), facts(1, Vendor::Intel)],
            ..Hardware::default()
        };
        let gpus = crate::simulated::gpus(2, "mi300x");
        let drivers = Drivers::new(root.clone(), &gpus, &hardware);
        assert_eq!(drivers.of(GpuIndex(0)).unwrap().used, Bytes(100 << 20));
        assert!(matches!(drivers.of(GpuIndex(1)), Err(HoldingError::Unknown)));
        std::fs::remove_file(device.join("mem_info_vram_used")).unwrap();
        assert!(matches!(drivers.of(GpuIndex(0)), Err(HoldingError::File { .. })));
        std::fs::remove_dir_all(root).unwrap();
    }
}
