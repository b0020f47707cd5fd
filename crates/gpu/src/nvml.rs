//! What NVML says about NVIDIA devices. The driver brings the library; it is loaded here at run time.
//!
//! Only asking happens here. What follows from the answers is concluded in `nvidia`, so that it can be
//! tested without a GPU.

use std::os::raw::c_uint;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use nvml_wrapper_sys::bindings as raw;
use tutti_model::{Bytes, Fabric, FabricState};

use crate::pci;
use crate::readings::FarEnd;

#[derive(Debug, thiserror::Error)]
pub enum NvmlFailure {
    /// No driver here. Not a fault: many nodes have no GPU.
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver(#[source] NvmlError),
    #[error("the NVIDIA driver does not answer: {what}")]
    Driver {
        what: &'static str,
        #[source]
        source: NvmlError,
    },
}

/// All that the driver said.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub driver: Option<String>,
    pub cuda: Option<String>,
    pub devices: Vec<Answer>,
    /// Why each device that has not answered did not. Which one it was, the bus knows.
    pub silent: Vec<String>,
    /// Addresses of devices that the operator has told the driver to leave alone.
    pub excluded: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub name: String,
    pub uuid: String,
    pub mem: Bytes,
    pub pci: String,
    /// N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    pub nvlinks: Vec<FarEnd>,
    pub fabric: Option<Fabric>,
    /// None if MIG is off.
    pub instances: Option<Vec<Instance>>,
    /// What could not be read of a device that answers otherwise.
    pub unread: Vec<String>,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// "NVIDIA H200 MIG 1g.18gb".
    pub name: String,
    pub uuid: String,
    pub mem: Bytes,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// Loads the library and asks everything once.
pub fn ask() -> Result<Answers, NvmlFailure> {
    let nvml = Nvml::init().map_err(|e| match e {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
            NvmlFailure::NoDriver(e)
        }
        source => NvmlFailure::Driver { what: "starting NVML", source },
    })?;
    let counting = |source| NvmlFailure::Driver { what: "counting devices", source };
    let count = nvml.device_count().map_err(counting)?;
    let mut answers = Answers {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok().map(cuda_version),
        excluded: excluded(&nvml),
        ..Answers::default()
    };
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| answer(&device)) {
            Ok(device) => answers.devices.push(device),
            Err(error) => answers.silent.push(format!("device {index}: {error}")),
        }
    }
    Ok(answers)
}

/// None if the driver knows no such thing.
fn excluded(nvml: &Nvml) -> Vec<String> {
    let Ok(sym) = nvml_sym(nvml.lib().nvmlGetExcludedDeviceInfoByIndex.as_ref()) else {
        return Vec::new();
    };
    let one = |index| {
        // SAFETY: zeros are a valid value of this plain struct.
        let mut info: raw::nvmlExcludedDeviceInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the library outlives this call, and `info` is the struct that it fills.
        nvml_try(unsafe { sym(index, &mut info) }).ok()?;
        let pci = info.pciInfo;
        Some(pci::address(pci.domain, pci.bus, pci.device))
    };
    (0..nvml.excluded_device_count().unwrap_or(0)).filter_map(one).collect()
}

fn cuda_version(version: i32) -> String {
    format!("{}.{}", cuda_driver_version_major(version), cuda_driver_version_minor(version))
}

fn answer(device: &Device<'_>) -> Result<Answer, NvmlError> {
    let pci = device.pci_info()?;
    let mut unread = Vec::new();
    let instances = match instances(device) {
        Ok(instances) => instances,
        Err(error) => {
            unread.push(format!("its MIG instances: {error}"));
            None
        }
    };
    Ok(Answer {
        name: device.name()?,
        uuid: device.uuid()?,
        mem: Bytes(device.memory_info()?.total),
        pci: pci::address(pci.domain, pci.bus, pci.device),
        minor: device.minor_number().ok(),
        nvlinks: (0..raw::NVML_NVLINK_MAX_LINKS).filter_map(|n| far_end(device, n)).collect(),
        fabric: fabric(device),
        instances,
        unread,
    })
}

/// None for a link that is not there or not up.
fn far_end(device: &Device<'_>, number: u32) -> Option<FarEnd> {
    let link = device.link_wrapper_for(number);
    if !link.is_active().unwrap_or(false) {
        return None;
    }
    // An older driver does not know of types; then whatever it leads to has a PCI address or not.
    let remote = || link.remote_pci_info().ok().map(|p| pci::address(p.domain, p.bus, p.device));
    let kind = remote_type(device, number)
        .unwrap_or(raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU);
    Some(match kind {
        raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => FarEnd::Switch,
        raw::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => {
            remote().map_or(FarEnd::Other, FarEnd::Gpu)
        }
        _ => FarEnd::Other,
    })
}

/// The wrapper's function of this name always says that it does not know.
fn remote_type(device: &Device<'_>, link: u32) -> Result<c_uint, NvmlError> {
    let sym = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind: raw::nvmlIntNvLinkDeviceType_t = 0;
    // SAFETY: the handle lives as long as `device`, and `kind` is a place for the one value written.
    nvml_try(unsafe { sym(device.handle(), link, &mut kind) })?;
    Ok(kind)
}

/// None where the driver knows no fabrics.
fn fabric(device: &Device<'_>) -> Option<Fabric> {
    let sym = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref()).ok()?;
    let mut info =
        raw::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: the handle lives as long as `device`, and `info` is the struct that this function fills.
    nvml_try(unsafe { sym(device.handle(), &mut info) }).ok()?;
    Some(fabric_of(info.state.into(), info.status, info.clusterUuid, info.cliqueId))
}

fn fabric_of(state: u32, status: c_uint, cluster: [u8; 16], clique: u32) -> Fabric {
    let state = match state {
        raw::NVML_GPU_FABRIC_STATE_NOT_STARTED => FabricState::NotStarted,
        raw::NVML_GPU_FABRIC_STATE_IN_PROGRESS => FabricState::InProgress,
        raw::NVML_GPU_FABRIC_STATE_COMPLETED if status == raw::nvmlReturn_enum_NVML_SUCCESS => {
            FabricState::Completed
        }
        raw::NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Failed,
        _ => FabricState::NotSupported,
    };
    let joined = state == FabricState::Completed;
    // Without a fabric manager for several machines the cluster has no name.
    let named = joined && cluster.iter().any(|&b| b != 0);
    Fabric { state, cluster: named.then(|| uuid(cluster)), clique: joined.then_some(clique) }
}

fn uuid(bytes: [u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|b| format!("{b:02x}")).collect()
    };
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}

/// None if MIG is off, or if the device knows no MIG.
fn instances(device: &Device<'_>) -> Result<Option<Vec<Instance>>, NvmlError> {
    let on = match device.mig_mode() {
        Ok(mode) => mode.current == raw::NVML_DEVICE_MIG_ENABLE,
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => false,
        Err(error) => return Err(error),
    };
    if !on {
        return Ok(None);
    }
    let mut all = Vec::new();
    for index in 0..device.mig_device_count()? {
        match device.mig_device_by_index(index) {
            Ok(instance) => all.push(self::instance(&instance)?),
            // Most of the possible ones were never made.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(all))
}

fn instance(device: &Device<'_>) -> Result<Instance, NvmlError> {
    let lib = device.nvml().lib();
    let (mut gpu_instance, mut compute_instance): (c_uint, c_uint) = (0, 0);
    let gi = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let ci = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
    // SAFETY: the handle lives as long as `device`, and each call writes one number.
    unsafe {
        nvml_try(gi(device.handle(), &mut gpu_instance))?;
        nvml_try(ci(device.handle(), &mut compute_instance))?;
    }
    Ok(Instance {
        name: device.name()?,
        uuid: device.uuid()?,
        mem: Bytes(device.memory_info()?.total),
        gpu_instance,
        compute_instance,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_that_failed_is_not_joined() {
        let cluster = [0xab; 16];
        let joined = fabric_of(3, 0, cluster, 7);
        assert_eq!(joined.state, FabricState::Completed);
        assert_eq!(joined.cluster.as_deref(), Some("abababab-abab-abab-abab-abababababab"));
        assert_eq!(joined.clique, Some(7));
        assert_eq!(fabric_of(3, 0, [0; 16], 1).cluster, None);
        for (state, status, wanted) in [
            (3, 999, FabricState::Failed),
            (2, 0, FabricState::InProgress),
            (1, 0, FabricState::NotStarted),
            (0, 0, FabricState::NotSupported),
        ] {
            let fabric = fabric_of(state, status, cluster, 7);
            assert_eq!((fabric.state, fabric.clique), (wanted, None));
        }
    }

    #[test]
    fn cuda_versions_are_read() {
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12080), "12.8");
    }
}
