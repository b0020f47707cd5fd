//! A device through NVML. The library is loaded once and stays: what it hands out points into it.

use std::sync::OnceLock;

use nvml_wrapper::enum_wrappers::device::{Clock, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as raw;
use tutti_model::Bytes;

use super::gpm::Gpm;
use super::{Activity, Card, Field, Number, Refusal, Told, Users};

type Handle = Device<'static>;

struct NvmlCard {
    /// The GPU or the MIG instance: memory and processes are its own.
    own: Handle,
    /// The whole GPU: sensors, clocks and errors are its.
    whole: Handle,
    gpm: Gpm,
    is_instance: bool,
}

/// The device with this UUID, "GPU-..." or "MIG-...".
pub fn open(uuid: &str) -> Told<Box<dyn Card>> {
    let nvml = library().ok_or(Refusal::NotNow)?;
    let own = nvml.device_by_uuid(uuid).map_err(refusal)?;
    let is_instance = uuid.starts_with("MIG-");
    let whole = if is_instance {
        own.mig_parent_device().map_err(refusal)?
    } else {
        nvml.device_by_uuid(uuid).map_err(refusal)?
    };
    let instance = if is_instance { Some(gpu_instance(&own).map_err(refusal)?) } else { None };
    Ok(Box::new(NvmlCard { own, whole, gpm: Gpm::new(nvml, instance), is_instance }))
}

/// None while there is no driver; it is looked for again next time.
fn library() -> Option<&'static Nvml> {
    static NVML: OnceLock<Nvml> = OnceLock::new();
    if let Some(nvml) = NVML.get() {
        return Some(nvml);
    }
    match Nvml::init() {
        Ok(nvml) => Some(NVML.get_or_init(|| nvml)),
        Err(error) => {
            tracing::warn!(%error, "NVML can't be started: no telemetry of NVIDIA GPUs");
            None
        }
    }
}

fn gpu_instance(device: &Handle) -> Result<u32, NvmlError> {
    let sym = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle lives as long as `device`, and `id` is a place for the one number written.
    nvml_try(unsafe { sym(device.handle(), &mut id) })?;
    Ok(id)
}

pub(super) fn refusal(error: NvmlError) -> Refusal {
    match error {
        NvmlError::GpuLost => Refusal::Lost,
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::InvalidArg
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::FunctionNotFound
        // Codes that are newer than the wrapper: of arguments and versions.
        | NvmlError::UnexpectedVariant(_) => Refusal::NotSupported,
        _ => Refusal::NotNow,
    }
}

impl Card for NvmlCard {
    fn number(&mut self, which: Number) -> Told<u64> {
        let whole = &self.whole;
        // Several instances would each have all of it, and sums would be wrong.
        if self.is_instance && matches!(which, Number::PowerMw | Number::PowerLimitMw) {
            return Err(Refusal::NotSupported);
        }
        match which {
            Number::PowerMw => whole.power_usage().map(u64::from),
            Number::PowerLimitMw => whole.enforced_power_limit().map(u64::from),
            Number::Temperature => whole.temperature(TemperatureSensor::Gpu).map(u64::from),
            Number::SmClock => whole.clock_info(Clock::SM).map(u64::from),
            Number::MemClock => whole.clock_info(Clock::Memory).map(u64::from),
            Number::Throttle => throttle(whole),
        }
        .map_err(refusal)
    }

    fn utilization(&mut self) -> Told<(u8, u8)> {
        let told = self.own.utilization_rates().map_err(refusal)?;
        Ok((told.gpu.min(100) as u8, told.memory.min(100) as u8))
    }

    fn memory(&mut self) -> Told<(Bytes, Bytes)> {
        let told = self.own.memory_info().map_err(refusal)?;
        Ok((Bytes(told.used), Bytes(told.free)))
    }

    fn fields(&mut self, wanted: &[Field]) -> Told<Vec<Told<u64>>> {
        if !self.is_instance {
            return fields(&self.whole, wanted).map_err(refusal);
        }
        let shared = |f: &Field| f.id != raw::field_id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION;
        let told = fields(&self.whole, wanted).map_err(refusal)?;
        let of_instance = |(f, told)| if shared(f) { told } else { Err(Refusal::NotSupported) };
        Ok(wanted.iter().zip(told).map(of_instance).collect())
    }

    fn activity(&mut self) -> Told<Activity> {
        self.gpm.activity(&self.whole)
    }

    fn pcie_throughput(&mut self) -> Told<(u64, u64)> {
        if self.is_instance {
            return Err(Refusal::NotSupported);
        }
        let told = |counter| self.whole.pcie_throughput(counter).map_err(refusal);
        // In KB.
        let (tx, rx) = (told(PcieUtilCounter::Send)?, told(PcieUtilCounter::Receive)?);
        Ok((u64::from(tx) * 1000, u64::from(rx) * 1000))
    }

    fn users(&mut self, which: Users) -> Told<Vec<(u32, Bytes)>> {
        let told = match which {
            Users::Compute => self.own.running_compute_processes(),
            Users::Graphics => self.own.running_graphics_processes(),
            Users::Mps => self.own.mps_running_compute_processes(),
        };
        let user = |process: ProcessInfo| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, Bytes(bytes)),
            UsedGpuMemory::Unavailable => (process.pid, Bytes(0)),
        };
        Ok(told.map_err(refusal)?.into_iter().map(user).collect())
    }
}

/// All bits, also those that the wrapper has no names for.
fn throttle(device: &Handle) -> Result<u64, NvmlError> {
    let lib = device.nvml().lib();
    let sym = nvml_sym(lib.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref())?;
    let mut reasons = 0;
    // SAFETY: the handle lives as long as `device`, and `reasons` is a place for the number written.
    nvml_try(unsafe { sym(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

/// The wrapper's function of this name knows no scopes.
fn fields(device: &Handle, wanted: &[Field]) -> Result<Vec<Told<u64>>, NvmlError> {
    let sym = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let ask = |field: &Field| raw::nvmlFieldValue_t {
        fieldId: field.id,
        scopeId: field.scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: raw::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        nvmlReturn: raw::nvmlReturn_enum_NVML_SUCCESS,
        value: raw::nvmlValue_t { ullVal: 0 },
    };
    let mut values: Vec<raw::nvmlFieldValue_t> = wanted.iter().map(ask).collect();
    // SAFETY: the handle lives as long as `device`, and `values` has as many places as are named.
    nvml_try(unsafe { sym(device.handle(), values.len() as i32, values.as_mut_ptr()) })?;
    Ok(values.iter().map(number).collect())
}

fn number(told: &raw::nvmlFieldValue_t) -> Told<u64> {
    nvml_try(told.nvmlReturn).map_err(refusal)?;
    // SAFETY: the type says which member was written, and all of them are plain numbers that were
    // zero before.
    Ok(unsafe {
        match told.valueType {
            raw::nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE => told.value.dVal as u64,
            raw::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => u64::from(told.value.uiVal),
            raw::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => told.value.siVal.max(0) as u64,
            raw::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => u64::from(told.value.usVal),
            raw::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                told.value.sllVal.max(0) as u64
            }
            _ => told.value.ullVal,
        }
    })
}
