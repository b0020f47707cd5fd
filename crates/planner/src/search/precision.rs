//! Precisions that a GPU computes in.

use super::NoPlan;
use crate::catalogue::gpus::{Family, family};
use crate::{Gpu, Precision};

/// The one that plans are made in where nobody says otherwise.
pub fn usual_precision(gpu: &Gpu) -> Precision {
    if has(gpu, Precision::Bf16) { Precision::Bf16 } else { Precision::Fp16 }
}

fn has(gpu: &Gpu, precision: Precision) -> bool {
    match precision {
        Precision::Fp16 => true,
        Precision::Bf16 => family(&gpu.name) != Family::Volta,
        Precision::Fp8 => gpu.fp8_tflops.is_some(),
        // Scales of few values each came into the hardware together with four bits.
        Precision::Mxfp8 => gpu.fp8_tflops.is_some() && gpu.fp4_tflops.is_some(),
        Precision::Nvfp4 => gpu.fp4_tflops.is_some(),
    }
}

/// Whether the GPU has it. A plan in another precision than was asked for would be an answer to another question.
pub(crate) fn check(gpu: &Gpu, asked: Precision) -> Result<(), NoPlan> {
    if has(gpu, asked) {
        return Ok(());
    }
    let narrow = match asked {
        Precision::Mxfp8 | Precision::Nvfp4 if has(gpu, Precision::Fp8) => Precision::Fp8,
        _ => usual_precision(gpu),
    };
    Err(NoPlan::Precision { gpu: gpu.name.clone(), asked, instead: narrow })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ask, work};
    use crate::{Task, Workload, catalogue, names, search};

    #[test]
    fn what_a_gpu_does_not_have_is_refused_with_what_it_has() {
        let arch = names::find("llama-3.1-8b").unwrap();
        let says = |on: &str, precision: Precision| {
            let cluster = catalogue::find(on).unwrap();
            let workload = Workload { precision, ..work(Task::Pretrain, 4096, 64) };
            search(&ask(&arch, &workload, &cluster)).err().map(|e| e.to_string())
        };
        for (on, precision, sentence) in [
            ("8xa100", Precision::Fp8, "A100-SXM4-80GB has no fp8; use bf16"),
            ("8xh100", Precision::Nvfp4, "H100-SXM5-80GB has no nvfp4; use fp8"),
            ("8xh100", Precision::Mxfp8, "H100-SXM5-80GB has no mxfp8; use fp8"),
            ("8xv100", Precision::Bf16, "V100-SXM2-32GB has no bf16; use fp16"),
            ("8xv100", Precision::Mxfp8, "V100-SXM2-32GB has no mxfp8; use fp16"),
        ] {
            assert_eq!(says(on, precision).as_deref(), Some(sentence));
        }
        for precision in [Precision::Bf16, Precision::Fp8, Precision::Mxfp8, Precision::Nvfp4] {
            assert_eq!(says("8xb200", precision), None);
        }
        assert_eq!(usual_precision(&catalogue::gpu("v100").unwrap()), Precision::Fp16);
    }
}
