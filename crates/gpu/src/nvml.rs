//! NVIDIA devices through NVML, which the driver brings and which is loaded here at run time.

use nvml_wrapper::error::NvmlError;
use tutti_model::Bytes;

use crate::{Device, GpuError, Source};

pub struct Nvml;

impl Source for Nvml {
    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        let nvml = nvml_wrapper::Nvml::init().map_err(|e| match e {
            NvmlError::LibloadingError(_)
            | NvmlError::LibraryNotFound
            | NvmlError::DriverNotLoaded => GpuError::NoDriver(e),
            source => GpuError::Driver { what: "starting NVML", source },
        })?;
        let driver = |what| move |source| GpuError::Driver { what, source };
        let count = nvml.device_count().map_err(driver("counting devices"))?;
        (0..count)
            .map(|i| {
                let device = nvml.device_by_index(i).map_err(driver("opening a device"))?;
                Ok(Device {
                    name: device.name().map_err(driver("reading a device's name"))?,
                    uuid: device.uuid().map_err(driver("reading a device's UUID"))?,
                    mem: Bytes(
                        device.memory_info().map_err(driver("reading a device's memory"))?.total,
                    ),
                })
            })
            .collect()
    }
}
