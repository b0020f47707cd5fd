//! What a GPU and its trainer reach, ready for products and quotients.

use crate::collective::Network;
use crate::efficiency::{
    Profile, Traits, matmul_tflops, precision_on, profile, stream_gbps, traits,
};
use crate::{Precision, Setup};

pub(super) struct Machine {
    pub network: Network,
    pub profile: Profile,
    pub traits: Traits,
    /// FLOP/s of large products in the workload's precision and in bf16.
    pub matmul_rate: f64,
    pub bf16_rate: f64,
    pub precision: Precision,
    /// Bytes of a value that enters a product.
    pub value_bytes: f64,
    /// Bytes per second of streams.
    pub memory_rate: f64,
    /// FLOP/s of flash attention forward.
    pub flash_rate: f64,
}

impl Machine {
    pub(super) fn new(setup: &Setup) -> Machine {
        let gpu = &setup.cluster.gpu;
        let profile = profile(gpu);
        let mut traits = traits(setup.stack);
        let mut hot = 1.0;
        if traits.busy {
            hot = profile.hot;
            traits.hides_tensor *= profile.overlap;
            traits.hides_data *= profile.overlap;
            traits.hides_transfers *= profile.overlap;
        }
        let flash = if traits.flash_2023 { profile.flash_2023 } else { profile.flash };
        let precision = precision_on(gpu, setup.workload.precision);
        let bf16_rate = matmul_tflops(gpu, Precision::Bf16) * hot * 1e12;
        let value_bytes = match precision {
            Precision::Fp16 | Precision::Bf16 => 2.0,
            Precision::Fp8 | Precision::Mxfp8 => 1.0,
            Precision::Nvfp4 => 0.5,
        };
        Machine {
            network: Network::new(setup.cluster),
            profile,
            traits,
            matmul_rate: matmul_tflops(gpu, precision) * hot * 1e12,
            bf16_rate,
            precision,
            value_bytes,
            memory_rate: stream_gbps(gpu) * 1e9,
            flash_rate: bf16_rate * flash * traits.flash / profile.gemm,
        }
    }

    /// Seconds to move so many bytes through the GPU's memory.
    pub(super) fn stream(&self, bytes: f64) -> f64 {
        bytes / self.memory_rate
    }
}
