//! Who holds memory on NVIDIA GPUs, as NVML says it at this moment.

use std::collections::BTreeMap;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::NvmlFailure;

/// Bytes by process, summed over all GPUs. A process whose share the driver does not tell counts
/// with 0. Inside a container the driver may not know the processes at all.
pub fn by_process() -> Result<BTreeMap<i32, u64>, NvmlFailure> {
    let nvml = nvml_wrapper::Nvml::init().map_err(start)?;
    let mut held = BTreeMap::new();
    for i in 0..nvml.device_count().map_err(driver("counting devices"))? {
        let device = nvml.device_by_index(i).map_err(driver("opening a device"))?;
        let lists = [device.running_compute_processes(), device.mps_running_compute_processes()];
        for list in lists {
            let list = match list {
                Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => continue,
                list => list.map_err(driver("listing a device's processes"))?,
            };
            for process in list {
                let bytes = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => bytes,
                    UsedGpuMemory::Unavailable => 0,
                };
                // Some drivers list a client of MPS in both.
                let known = held.entry((process.pid as i32, i)).or_insert(0);
                *known = bytes.max(*known);
            }
        }
    }
    let mut sum = BTreeMap::new();
    for ((pid, _), bytes) in held {
        *sum.entry(pid).or_insert(0) += bytes;
    }
    Ok(sum)
}

/// Bytes in use on these GPUs together, by whomever.
pub fn in_use(uuids: &[String]) -> Result<u64, NvmlFailure> {
    let nvml = nvml_wrapper::Nvml::init().map_err(start)?;
    let used = |uuid: &String| {
        let device = nvml.device_by_uuid(uuid.as_str()).map_err(driver("opening a device"))?;
        Ok(device.memory_info().map_err(driver("reading a device's memory"))?.used)
    };
    uuids.iter().map(used).sum()
}

fn driver(what: &'static str) -> impl Fn(NvmlError) -> NvmlFailure {
    move |source| NvmlFailure::Driver { what, source }
}

fn start(error: NvmlError) -> NvmlFailure {
    driver("starting NVML")(error)
}
