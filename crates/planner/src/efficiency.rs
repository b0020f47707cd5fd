//! How close software comes to what the hardware promises: one profile per GPU generation, one set of traits per trainer.

use crate::catalogue::gpus::{Family, family};
use crate::{Gpu, Precision, Stack};

/// Shares of the peaks that a generation reaches, and what its links need besides bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Profile {
    /// Of the bf16, fp8 and fp4 peak, by large products in a long run, hot and beside everything else.
    pub gemm: f64,
    pub gemm8: f64,
    pub gemm4: f64,
    /// What is left of that under trainers that keep the GPU busy all the time, and of what they hide. Under those the other
    /// generations were measured; for this one the figures keep plans below the best that was ever published.
    pub hot: f64,
    pub overlap: f64,
    /// Of the memory's bandwidth, by a copy and by streams in a long run.
    pub copy: f64,
    pub hbm: f64,
    /// Of the bf16 peak, by flash attention forward: today's kernels, and those of 2023, which were written for Ampere.
    pub flash: f64,
    pub flash_2023: f64,
    /// Power of the head's width, of 128, that narrower heads lose by.
    pub narrow: f64,
    /// Of the time to move a product's operands, what its arithmetic does not hide, and seconds to fill and drain.
    pub operands_seen: f64,
    pub ramp: f64,
    /// Of the link's bandwidth inside of an island, by large all-reduces.
    pub island: f64,
    /// Of the NIC's bandwidth.
    pub nic: f64,
    /// Seconds that a collective takes before its bytes move.
    pub start: f64,
    /// Seconds for each step of a ring inside of an island and between nodes.
    pub hop: f64,
    pub far_hop: f64,
}

const AMPERE: Profile = Profile {
    gemm: 0.865,
    gemm8: 0.87,
    gemm4: 0.87,
    hot: 0.84,
    overlap: 0.25,
    copy: 0.88,
    hbm: 0.73,
    flash: 0.62,
    flash_2023: 0.52,
    narrow: 0.1,
    operands_seen: 0.48,
    ramp: 3e-6,
    island: 0.79,
    nic: 0.90,
    start: 40e-6,
    hop: 6.4e-6,
    far_hop: 6e-6,
};

const HOPPER: Profile = Profile {
    gemm: 0.715,
    gemm8: 0.62,
    gemm4: 0.62,
    hot: 1.0,
    overlap: 1.0,
    copy: 0.89,
    hbm: 0.75,
    flash: 0.58,
    flash_2023: 0.285,
    narrow: 0.35,
    operands_seen: 0.48,
    ramp: 3e-6,
    island: 0.86,
    nic: 0.73,
    start: 15e-6,
    hop: 2e-6,
    far_hop: 5e-6,
};

/// The H100 of 96 GB and 500 W: less power, lower clocks.
const HOPPER_500W: Profile =
    Profile { gemm: 0.43, gemm8: 0.40, flash: 0.40, flash_2023: 0.345, ..HOPPER };

const BLACKWELL: Profile = Profile {
    gemm: 0.68,
    gemm8: 0.64,
    gemm4: 0.48,
    flash: 0.55,
    flash_2023: 0.25,
    island: 0.78,
    ..HOPPER
};

pub(crate) fn profile(gpu: &Gpu) -> Profile {
    match family(&gpu.name) {
        Family::Ampere => AMPERE,
        Family::Hopper if gpu.name.contains("HBM2e") => HOPPER_500W,
        Family::Hopper => HOPPER,
        Family::Blackwell | Family::Rubin => BLACKWELL,
        Family::Volta => Profile { gemm: 0.75, flash: 0.35, flash_2023: 0.3, ..AMPERE },
        Family::Ada => Profile { gemm: 0.65, gemm8: 0.6, ..AMPERE },
        Family::Cdna2 => Profile { gemm: 0.55, flash: 0.35, flash_2023: 0.28, ..AMPERE },
        Family::Cdna3 => CDNA3,
        Family::Cdna4 => Profile { gemm: 0.57, gemm8: 0.5, gemm4: 0.4, flash: 0.38, ..CDNA3 },
        // Between the generations that are known.
        Family::Unknown => Profile { gemm: 0.62, gemm8: 0.55, gemm4: 0.45, flash: 0.4, ..HOPPER },
    }
}

/// All-to-all links of AMD's make slow rings.
const CDNA3: Profile =
    Profile { gemm: 0.48, gemm8: 0.42, flash: 0.32, flash_2023: 0.26, island: 0.65, ..HOPPER };

/// What a GPU computes in when it is asked for a precision: the nearest that it has.
pub(crate) fn precision_on(gpu: &Gpu, asked: Precision) -> Precision {
    match asked {
        Precision::Nvfp4 if gpu.fp4_tflops.is_none() => precision_on(gpu, Precision::Mxfp8),
        Precision::Fp8 | Precision::Mxfp8 if gpu.fp8_tflops.is_none() => Precision::Bf16,
        asked => asked,
    }
}

/// The data sheet's TFLOP/s in the precision that products are computed in.
pub(crate) fn peak_tflops(gpu: &Gpu, asked: Precision) -> f64 {
    let peak = match precision_on(gpu, asked) {
        Precision::Fp16 | Precision::Bf16 => None,
        Precision::Fp8 | Precision::Mxfp8 => gpu.fp8_tflops,
        Precision::Nvfp4 => gpu.fp4_tflops,
    };
    peak.unwrap_or(gpu.bf16_tflops)
}

/// TFLOP/s of the largest products in the precision that they are computed in. What was measured of it, hot and without a rest,
/// stands in for what its kind does, and tells of the other precisions as well.
pub(crate) fn matmul_tflops(gpu: &Gpu, asked: Precision) -> f64 {
    let p = profile(gpu);
    let share = match precision_on(gpu, asked) {
        Precision::Fp16 | Precision::Bf16 => p.gemm,
        Precision::Fp8 | Precision::Mxfp8 => p.gemm8,
        Precision::Nvfp4 => p.gemm4,
    };
    let usual = gpu.bf16_tflops * p.gemm;
    peak_tflops(gpu, asked) * share * gpu.matmul_tflops.map_or(1.0, |measured| measured / usual)
}

/// GB/s of streams.
pub(crate) fn stream_gbps(gpu: &Gpu) -> f64 {
    let p = profile(gpu);
    gpu.copy_gbps.map_or(gpu.hbm_gbps, |measured| measured / p.copy) * p.hbm
}

/// What a trainer does well and what it does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Traits {
    /// Attention's scores go through memory.
    pub written_attention: bool,
    /// Dropout's masks are kept.
    pub dropout: bool,
    /// Sharded weights are kept once, in fp32.
    pub one_copy: bool,
    /// Bytes of each weight's gradient and of its optimiser as they are kept.
    pub gradient_kept: f64,
    pub optimizer_kept: f64,
    /// Selective recomputation means [`crate::split::Modules`].
    pub modules: bool,
    /// Otherwise: what remains of a layer's activations under selective recomputation.
    pub selective_keeps: f64,
    /// Bytes of each logit.
    pub logit_bytes: f64,
    /// What the allocator loses between blocks, of everything that comes and goes.
    pub fragmentation: f64,
    /// How many times over fused streams the memory-bound parts move their bytes.
    pub streams: f64,
    /// Kernels that the host launches per layer and pass, and seconds for each. 0: CUDA graphs.
    pub launches: f64,
    pub launch: f64,
    /// Leaves a GPU no pause.
    pub busy: bool,
    /// Shares of communication that computation hides, where there is enough of it.
    pub hides_tensor: f64,
    pub hides_data: f64,
    pub hides_experts: f64,
    pub hides_transfers: f64,
    /// Pieces in which a layer's sharded weights are gathered.
    pub gathers: f64,
    /// More kernels of a layer with experts than of others, and seconds for each: what depends on where tokens go cannot be
    /// replayed from a graph.
    pub routing: f64,
    pub routing_launch: f64,
    /// Seconds that a pass stands still until the host knows how many tokens each expert has.
    pub routing_stall: f64,
    /// How fast the products of many experts at once are beside one large product.
    pub grouped: f64,
    /// Bytes of a gradient on the wire.
    pub gradient_bytes: f64,
    /// Bytes that each score moves where attention is written out, and the share of a product's rate that is reached.
    pub score_bytes: f64,
    pub written_rate: f64,
    /// Whether its flash attention is that of 2023, and how fast it is beside what the profile says.
    pub flash_2023: bool,
    pub flash: f64,
    /// How much longer attention takes over many context-parallel ranks, for work that is not spread evenly.
    pub context_waste: f64,
    /// Tokens of a sequence at which flash attention is half as fast as for long ones.
    pub flash_short: f64,
    /// Backward over forward for what is bound by memory.
    pub streams_back: f64,
    /// Share of the forward streams that selective recomputation does again.
    pub selective_again: f64,
    /// Bytes moved for each value that is cast to a narrower format.
    pub cast_bytes: f64,
    /// Bytes moved for each logit, both directions.
    pub loss_bytes: f64,
    /// Bytes moved for each weight by the optimiser.
    pub optimizer_bytes: f64,
    /// How much longer products take with adapters beside them.
    pub adapters: f64,
    /// Of everything else, for stragglers, data and the host's pauses.
    pub pauses: f64,
    /// Seconds of each step on the host.
    pub per_step: f64,
}

const CURRENT: Traits = Traits {
    written_attention: false,
    dropout: false,
    one_copy: false,
    gradient_kept: 4.0,
    optimizer_kept: 12.0,
    modules: true,
    selective_keeps: 1.0,
    logit_bytes: 6.0,
    fragmentation: 0.03,
    streams: 1.0,
    launches: 20.0,
    launch: 1.5e-6,
    busy: true,
    hides_tensor: 0.6,
    hides_data: 0.95,
    hides_experts: 0.3,
    hides_transfers: 0.8,
    gathers: 1.0,
    routing: 30.0,
    routing_launch: 4e-6,
    routing_stall: 30e-6,
    grouped: 0.8,
    gradient_bytes: 2.0,
    score_bytes: 12.0,
    written_rate: 0.6,
    flash_2023: false,
    flash: 1.0,
    context_waste: 0.1,
    flash_short: 256.0,
    streams_back: 1.6,
    selective_again: 0.3,
    cast_bytes: 3.0,
    loss_bytes: 16.0,
    optimizer_bytes: 30.0,
    adapters: 1.08,
    pauses: 0.02,
    per_step: 0.002,
};

/// Experts of one rank one after the other, by kernels that the host launches, and nothing of the exchange hidden.
const RECENT: Traits = Traits {
    hides_experts: 0.0,
    routing_launch: 6e-6,
    routing_stall: 100e-6,
    grouped: 0.6,
    ..CURRENT
};

const FUSED: Traits = Traits {
    // Apex keeps gradients in bf16, and of the masters what bf16 leaves out.
    gradient_kept: 2.0,
    optimizer_kept: 10.0,
    modules: false,
    streams: 0.9,
    launches: 25.0,
    launch: 5e-6,
    hides_tensor: 0.66,
    hides_data: 0.5,
    hides_transfers: 0.63,
    flash_2023: true,
    flash: 1.3,
    selective_again: 0.0,
    cast_bytes: 2.6,
    loss_bytes: 30.0,
    adapters: 1.0,
    pauses: 0.01,
    ..RECENT
};

const UNFUSED: Traits = Traits {
    written_attention: true,
    dropout: true,
    modules: false,
    logit_bytes: 8.0,
    streams: 1.0,
    launches: 35.0,
    launch: 5e-6,
    busy: false,
    hides_tensor: 0.0,
    hides_data: 0.0,
    hides_experts: 0.0,
    hides_transfers: 0.0,
    gathers: 12.0,
    gradient_bytes: 3.1,
    score_bytes: 15.8,
    written_rate: 0.6,
    streams_back: 1.3,
    selective_again: 0.0,
    pauses: 0.006,
    ..RECENT
};

const FSDP: Traits = Traits {
    one_copy: true,
    modules: false,
    selective_keeps: 0.455,
    logit_bytes: 12.2,
    fragmentation: 0.115,
    streams: 1.75,
    launches: 45.0,
    launch: 5e-6,
    busy: false,
    hides_tensor: 0.0,
    hides_data: 0.4,
    gradient_bytes: 4.0,
    flash_2023: true,
    flash: 0.71,
    context_waste: 0.8,
    selective_again: 0.2,
    cast_bytes: 2.9,
    loss_bytes: 22.0,
    pauses: 0.01,
    ..RECENT
};

const COMPILED_2024: Traits = Traits {
    one_copy: true,
    modules: false,
    selective_keeps: 0.455,
    logit_bytes: 11.1,
    fragmentation: 0.115,
    streams: 1.35,
    launches: 25.0,
    launch: 4e-6,
    busy: false,
    hides_tensor: 0.7,
    hides_data: 0.9,
    gradient_bytes: 4.0,
    flash_2023: true,
    flash: 1.0,
    context_waste: 0.84,
    selective_again: 0.2,
    cast_bytes: 6.0,
    pauses: 0.01,
    ..RECENT
};

const COMPILED: Traits = Traits { streams: 1.1, flash_2023: false, ..COMPILED_2024 };

pub(crate) fn traits(stack: Stack) -> Traits {
    match stack {
        Stack::Current => CURRENT,
        Stack::Recent => RECENT,
        Stack::Fused => FUSED,
        Stack::Unfused => UNFUSED,
        Stack::Fsdp => FSDP,
        Stack::Compiled => COMPILED,
        Stack::Compiled2024 => COMPILED_2024,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;

    #[test]
    fn a_precision_that_a_gpu_lacks_is_the_nearest_that_it_has_everywhere() {
        use Precision::{Bf16, Fp8, Mxfp8, Nvfp4};
        for (kind, asked, computed) in [
            ("dgx-h100", Nvfp4, Fp8),
            ("dgx-h100", Mxfp8, Fp8),
            ("dgx-a100", Nvfp4, Bf16),
            ("dgx-a100", Fp8, Bf16),
        ] {
            let gpu = catalogue::find(kind).unwrap().gpu;
            assert_eq!(
                matmul_tflops(&gpu, asked),
                matmul_tflops(&gpu, computed),
                "{kind} {asked:?}"
            );
            assert_eq!(peak_tflops(&gpu, asked), peak_tflops(&gpu, computed), "{kind} {asked:?}");
        }
        let gpu = catalogue::find("dgx-b200").unwrap().gpu;
        assert!(matmul_tflops(&gpu, Nvfp4) > matmul_tflops(&gpu, Fp8));
    }
}
