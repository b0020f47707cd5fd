//! The device that a rank computes on.

use crate::config::{ConfigError, Device, Precision};
use crate::tensor::{self, Device as Burn, FloatDType};

/// `local_rank` is which of the node's devices it is, when the rank sees more than its own.
pub fn open(device: Device, local_rank: usize, precision: Precision) -> Result<Burn, ConfigError> {
    let (name, opened) = match device {
        Device::Cpu => ("cpu", tensor::cpu()),
        Device::Cuda => ("cuda", cuda(local_rank)?),
    };
    // The CPU stores bf16 but multiplies it one by one: that would be no use to anyone.
    let slow = device == Device::Cpu;
    if precision == Precision::Bf16 && (slow || !tensor::supports(&opened, FloatDType::BF16)) {
        return Err(ConfigError::NoBf16 { device: name });
    }
    Ok(opened)
}

#[cfg(feature = "cuda")]
fn cuda(local_rank: usize) -> Result<Burn, ConfigError> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    Ok(tensor::cuda(index(visible.as_deref(), local_rank)))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_local_rank: usize) -> Result<Burn, ConfigError> {
    Err(ConfigError::NoCuda)
}

/// A rank that sees one device alone takes it; one that sees all of them takes its own.
#[cfg(any(feature = "cuda", test))]
fn index(visible: Option<&str>, local_rank: usize) -> usize {
    match visible.map(|list| list.split(',').count()) {
        Some(count) if local_rank >= count => 0,
        _ => local_rank,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_takes_its_own_device() {
        assert_eq!(index(None, 3), 3);
        assert_eq!(index(Some("0,1,2,3"), 3), 3);
        assert_eq!(index(Some("GPU-1234"), 3), 0);
    }

    #[test]
    fn bf16_on_the_cpu_is_refused_with_a_way_out() {
        let error = open(Device::Cpu, 0, Precision::Bf16).unwrap_err().to_string();
        assert!(
            error.contains("--device cpu has no bf16") && error.contains("--dtype f32"),
            "{error}"
        );
        assert!(open(Device::Cpu, 0, Precision::F32).is_ok());
    }
}
