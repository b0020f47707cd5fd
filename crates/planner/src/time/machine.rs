//! What a GPU and its trainer reach, ready for products and quotients.

use crate::collective::Network;
use crate::efficiency::{Profile, Traits, matmul_tflops, profile, traits};
use crate::{Precision, Setup};

pub(super) struct Machine {
    pub network: Network,
    pub profile: Profile,
    pub traits: Traits,
    /// FLOP/s of large products in the workload's precision and in bf16.
    pub matmul_rate: f64,
    pub bf16_rate: f64,
    /// Bytes of a value that enters a product.
    pub value_bytes: f64,
    /// Bytes per second of streams.
    pub memory_rate: f64,
    /// FLOP/s of flash attention, forward and backward.
    pub flash_rate: f64,
    pub flash_back_rate: f64,
}

impl Machine {
    pub(super) fn new(setup: &Setup) -> Machine {
        let gpu = &setup.cluster.gpu;
        let profile = profile(gpu);
        let precision = setup.workload.precision;
        let bf16_rate = matmul_tflops(gpu, Precision::Bf16) * 1e12;
        let value_bytes = match precision {
            Precision::Fp16 | Precision::Bf16 => 2.0,
            Precision::Fp8 | Precision::Mxfp8 => 1.0,
            Precision::Nvfp4 => 0.5,
        };
        Machine {
            network: Network::new(setup.cluster),
            profile,
            traits: traits(setup.stack),
            matmul_rate: matmul_tflops(gpu, precision) * 1e12,
            bf16_rate,
            value_bytes,
            memory_rate: gpu.copy_gbps.unwrap_or(gpu.hbm_gbps * profile.hbm) * 1e9,
            flash_rate: bf16_rate * profile.flash / profile.gemm,
            flash_back_rate: bf16_rate * profile.flash_back / profile.gemm,
        }
    }

    /// Seconds to move so many bytes through the GPU's memory.
    pub(super) fn stream(&self, bytes: f64) -> f64 {
        bytes / self.memory_rate
    }
}
