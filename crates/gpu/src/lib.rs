//! The GPUs of this machine: found through NVML, or imagined.
//!
//! NVML is loaded when it is asked for, so the same binary runs where no driver is installed.
//! This crate only says what is there; it does not watch health, and gives nothing to anybody.
//!
//! ```text
//! discover() ─► Source: Nvml ─► Vec<Gpu>        simulated(8, "h100") ─► Vec<Gpu>
//! ```

mod model_name;
mod nvml;

use tutti_model::{Bytes, Gpu, GpuIndex};

pub use model_name::short_model;
pub use nvml::Nvml;

/// One device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The driver's name for it: "NVIDIA H100 80GB HBM3".
    pub name: String,
    pub uuid: String,
    pub mem: Bytes,
}

/// Where devices are found; tests bring their own.
pub trait Source {
    fn devices(&self) -> Result<Vec<Device>, GpuError>;
}

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// No driver here. Not a fault: many nodes have no GPU.
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver(#[source] nvml_wrapper::error::NvmlError),
    #[error("the NVIDIA driver does not answer: {what}")]
    Driver {
        what: &'static str,
        #[source]
        source: nvml_wrapper::error::NvmlError,
    },
}

/// The GPUs of this machine; none where there is no driver. A driver that is there but fails is
/// logged, because a node that silently offers no GPUs is hard to understand.
pub fn discover() -> Vec<Gpu> {
    match discover_from(&Nvml) {
        Ok(gpus) => gpus,
        Err(GpuError::NoDriver(why)) => {
            tracing::debug!("no GPUs: {why}");
            Vec::new()
        }
        Err(error @ GpuError::Driver { .. }) => {
            tracing::error!(error = &error as &dyn std::error::Error, "no GPUs are offered");
            Vec::new()
        }
    }
}

pub fn discover_from(source: &dyn Source) -> Result<Vec<Gpu>, GpuError> {
    let devices = source.devices()?;
    Ok(devices
        .into_iter()
        .enumerate()
        .map(|(i, d)| Gpu {
            index: GpuIndex(i as u16),
            model: short_model(&d.name),
            uuid: d.uuid,
            mem: d.mem,
            island: None,
        })
        .collect())
}

/// `n` imagined GPUs, with the memory that the real ones have.
pub fn simulated(n: u16, model: &str) -> Vec<Gpu> {
    let model = short_model(model);
    (0..n)
        .map(|i| Gpu {
            index: GpuIndex(i),
            uuid: format!("SIM-{model}-{i}"),
            mem: model_name::known_memory(&model),
            model: model.clone(),
            island: None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Vec<&'static str>);
    impl Source for Fake {
        fn devices(&self) -> Result<Vec<Device>, GpuError> {
            let device =
                |name: &&str| Device { name: (*name).into(), uuid: "GPU-1".into(), mem: Bytes(1) };
            Ok(self.0.iter().map(device).collect())
        }
    }

    #[test]
    fn devices_become_gpus_in_order() {
        let gpus = discover_from(&Fake(vec!["NVIDIA H200", "NVIDIA A100-SXM4-40GB"])).unwrap();
        let seen: Vec<_> = gpus.iter().map(|g| (g.index.0, g.model.as_str())).collect();
        assert_eq!(seen, [(0, "h200"), (1, "a100")]);
    }

    #[test]
    fn simulated_gpus_say_so() {
        let gpus = simulated(2, "h100");
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[1].uuid, "SIM-h100-1");
        assert_eq!(gpus[1].mem, Bytes::gib(80));
    }

    #[test]
    fn no_driver_is_no_gpu() {
        // On a machine with a driver this lists real devices; it must not fail either way.
        discover();
    }
}
