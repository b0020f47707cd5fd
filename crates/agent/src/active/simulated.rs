//! Checks of imagined GPUs: nothing is computed, and all is right, unless a fire drill says otherwise.

use std::collections::BTreeMap;

use tutti_gpu::active::Asked;
use tutti_model::{ActiveFigures, ActiveOutcome, ActivePart, ActiveSum, Finding, GpuIndex, Wrong};

use super::{Measured, Measurer};

/// Which imagined GPUs give wrong answers.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    wrong: BTreeMap<GpuIndex, ActivePart>,
}

impl Simulated {
    /// A GPU is wrong while a drill with the name of such a check stands on it.
    pub fn new(findings: &[Finding]) -> Simulated {
        let parts = [ActivePart::Memory, ActivePart::Matmul, ActivePart::AllReduce];
        let drilled = |f: &Finding| {
            let part = parts.into_iter().find(|part| f.drill && f.check == part.check())?;
            Some((f.gpu?, part))
        };
        Simulated { wrong: findings.iter().filter_map(drilled).collect() }
    }

    fn outcome(&self, gpu: GpuIndex) -> ActiveOutcome {
        let wrong = Wrong { count: 1, first: "a fire drill".to_owned() };
        let mut figures = ActiveFigures::default();
        match self.wrong.get(&gpu) {
            Some(ActivePart::Memory) => figures.memory_wrong = wrong,
            Some(ActivePart::Matmul) => figures.matmul.wrong = wrong,
            Some(ActivePart::AllReduce) | None => {}
        }
        ActiveOutcome::Done(figures)
    }
}

impl Measurer for Simulated {
    fn measure(&self, gpus: &[Asked]) -> Measured {
        let outcomes = gpus.iter().map(|asked| (asked.gpu, self.outcome(asked.gpu))).collect();
        let drilled = gpus.iter().find(|a| self.wrong.get(&a.gpu) == Some(&ActivePart::AllReduce));
        let sum = match drilled {
            Some(asked) => {
                ActiveSum::Failed { gpu: Some(asked.gpu), why: "a fire drill".to_owned() }
            }
            None => ActiveSum::NotApplicable { why: "the devices are simulated".to_owned() },
        };
        Measured { outcomes, sum }
    }
}
