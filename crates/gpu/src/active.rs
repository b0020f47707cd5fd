//! Active checks: NVIDIA GPUs are told to do something whose answer is known. Finds memory and processors
//! that silently give wrong answers, and cards that are slower than they must be.
//!
//! ```text
//! measure (a process of its own: `tutti __cuda --check`)     this machine's agent, or `doctor`
//!   memory ─► product ─┐ one thread for each GPU
//!   memory ─► product ─┼─► all-reduce ─► Lines ────────────► ActiveReport ─► judge ─► Seen
//! ```
//!
//! Only [`measure`] touches a GPU. It may hang, so nobody calls it in a process that has to go on.
//! What follows from figures is decided in [`judge`], without a GPU.

pub(crate) mod api;
pub mod judge;
pub(crate) mod memory;
pub mod numbers;
mod product;
mod ptx;
mod sum;

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tutti_model::{ActiveFigures, ActiveOutcome, ActivePart, ActiveSum, GpuIndex, count};

use crate::cuda::{CudaError, GpuUuid};
use api::{Api, Arg, Attribute, Context, Kernel};
use numbers::Fill;
use product::Factors;

/// Which GPU, by its number on the node and by the driver's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub gpu: GpuIndex,
    pub uuid: String,
}

/// What is said while it goes on, so that it is known where somebody hangs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Line {
    /// No part: it is only being prepared, which others can hold up as well.
    Step {
        gpu: Option<GpuIndex>,
        part: Option<ActivePart>,
        what: String,
    },
    Gpu {
        gpu: GpuIndex,
        outcome: ActiveOutcome,
    },
    Sum {
        sum: ActiveSum,
    },
}

/// Hears of it as it goes on.
pub type Say<'a> = &'a (dyn Fn(Line) + Sync);

/// Something that did not work, and where.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
struct Trouble {
    part: ActivePart,
    step: String,
    source: CudaError,
}

impl Trouble {
    fn outcome(&self) -> ActiveOutcome {
        let why = self.to_string();
        match blames_gpu(&self.source) {
            true => ActiveOutcome::Failed { what: self.part, why },
            false => ActiveOutcome::NotRun { why },
        }
    }
}

/// Whether an error speaks against the GPU, and not against the way it was asked: memory errors, links,
/// and kernels that are known to be right and end with an error.
fn blames_gpu(error: &CudaError) -> bool {
    const ECC: i32 = 214;
    const NVLINK: i32 = 220;
    const CONTAINED: i32 = 226;
    const ILLEGAL_ADDRESS: i32 = 700;
    const LAUNCH_TIMEOUT: i32 = 702;
    const FROM_HARDWARE_STACK_TO_LAUNCH_FAILED: std::ops::RangeInclusive<i32> = 714..=719;
    error.code().is_some_and(|code| {
        matches!(code, ECC | NVLINK | CONTAINED | ILLEGAL_ADDRESS | LAUNCH_TIMEOUT)
            || FROM_HARDWARE_STACK_TO_LAUNCH_FAILED.contains(&code)
    })
}

/// A GPU that is being checked.
struct Card<'a> {
    gpu: GpuIndex,
    context: Context<'a>,
    kernels: Kernels,
    blocks: u32,
    say: Say<'a>,
}

#[derive(Clone, Copy)]
struct Kernels {
    fill: Kernel,
    verify: Kernel,
    compare: Kernel,
    add: Kernel,
    matmul: Kernel,
    /// None: the card has no tensor cores that are known here.
    tensor: Option<Kernel>,
}

/// Blocks for each multiprocessor: enough to keep its memory busy.
const BLOCKS_EACH: u32 = 16;
/// Tensor cores as they are used here came with this.
const TENSOR_CAPABILITY: (u32, u32) = (8, 0);

impl<'a> Card<'a> {
    fn say(&self, part: ActivePart, what: &str) {
        let (gpu, part) = (Some(self.gpu), Some(part));
        (self.say)(Line::Step { gpu, part, what: what.to_owned() });
    }

    fn open(api: &'a Api, at: usize, asked: &Asked, say: Say<'a>) -> Result<Card<'a>, Trouble> {
        let part = ActivePart::Memory;
        let gpu = asked.gpu;
        let step = |what: &str| {
            let step = what.to_owned();
            say(Line::Step { gpu: Some(gpu), part: None, what: step.clone() });
            move |source| Trouble { part, step, source }
        };
        let failed = step("opening the GPU");
        let context = api.open(at as i32).map_err(failed)?;
        let failed = step("asking what it is");
        let (major, minor, sms) = is(&context, asked).map_err(failed)?;
        let failed = step("translating the kernels");
        let tensor = (major, minor) >= TENSOR_CAPABILITY;
        let kernels = Kernels::load(&context, tensor).map_err(failed)?;
        Ok(Card { gpu, context, kernels, blocks: sms.max(1) * BLOCKS_EACH, say })
    }

    fn fill(&self, at: u64, bytes: u64, fill: Fill) -> Result<(), CudaError> {
        let args = [
            Arg::Address(at),
            Arg::Number((bytes / 16) as u32),
            Arg::Number(fill.seed),
            Arg::Number(fill.times),
            Arg::Number(fill.plus),
        ];
        self.context.launch(self.kernels.fill, (self.blocks, 1), &args)
    }
}

/// Capability and multiprocessors of the GPU, if it is the one that was asked for.
fn is(context: &Context<'_>, asked: &Asked) -> Result<(u32, u32, u32), CudaError> {
    // The driver gives instances of a GPU the name of the whole one here.
    if let Some(wanted) = GpuUuid::parse(&asked.uuid) {
        let found = context.uuid()?;
        if found != wanted {
            let words = format!("asked for {wanted}, and the driver gave {found}");
            let name = "another GPU".to_owned();
            return Err(CudaError::Driver { call: "cuDeviceGetUuid", code: 101, name, words });
        }
    }
    let major = context.attribute(Attribute::CapabilityMajor)?;
    let minor = context.attribute(Attribute::CapabilityMinor)?;
    Ok((major, minor, context.attribute(Attribute::Multiprocessors)?))
}

impl Kernels {
    fn load(context: &Context<'_>, tensor: bool) -> Result<Kernels, CudaError> {
        let basic = context.load(&ptx::basic())?;
        let tensor = match tensor {
            true => Some(context.load(&ptx::tensor())?.kernel("tensor")?),
            false => None,
        };
        Ok(Kernels {
            fill: basic.kernel("fill")?,
            verify: basic.kernel("verify")?,
            compare: basic.kernel("compare")?,
            add: basic.kernel("add")?,
            matmul: basic.kernel("matmul")?,
            tensor,
        })
    }
}

/// Checks these GPUs. They must be all that this process sees (`CUDA_VISIBLE_DEVICES`), in this order.
/// Everything that is found is said; a driver that does not start is an error.
pub fn measure(asked: &[Asked], say: Say<'_>) -> Result<(), CudaError> {
    let what = "starting the CUDA driver".to_owned();
    say(Line::Step { gpu: None, part: None, what });
    let api = Api::start()?;
    if api.device_count()? as usize != asked.len() {
        let words = format!("{} asked for", count(asked.len() as u64, "GPU"));
        let name = format!("{} found", count(api.device_count()? as u64, "GPU"));
        return Err(CudaError::Driver { call: "cuDeviceGetCount", code: 101, name, words });
    }
    let factors = Factors::new();
    let (api, factors) = (&api, &factors);
    let cards: Vec<Option<Card<'_>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = asked
            .iter()
            .enumerate()
            .map(|(at, asked)| scope.spawn(move || one(api, at, asked, factors, say)))
            .collect();
        // A thread that panicked has said why on standard error; its GPU has no outcome.
        threads.into_iter().map(|thread| thread.join().unwrap_or(None)).collect()
    });
    let well: Vec<Card<'_>> = cards.into_iter().flatten().collect();
    say(Line::Sum { sum: sum::measure(&well, asked.len(), say) });
    Ok(())
}

/// One GPU alone. Comes back with it if more can be asked of it.
fn one<'a>(
    api: &'a Api,
    at: usize,
    asked: &Asked,
    factors: &Factors,
    say: Say<'a>,
) -> Option<Card<'a>> {
    let start = Instant::now();
    let done = Card::open(api, at, asked, say).and_then(|card| {
        let mut figures = ActiveFigures::default();
        memory::measure(&card, &mut figures)?;
        product::measure(&card, factors, &mut figures)?;
        figures.took_ms = start.elapsed().as_millis() as u64;
        Ok((card, figures))
    });
    let (card, outcome) = match done {
        Ok((card, figures)) => (Some(card), ActiveOutcome::Done(figures)),
        Err(trouble) => (None, trouble.outcome()),
    };
    say(Line::Gpu { gpu: asked.gpu, outcome });
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> CudaError {
        let (name, words) = ("X".to_owned(), "words".to_owned());
        CudaError::Driver { call: "cuLaunchKernel", code, name, words }
    }

    #[test]
    fn only_what_a_gpu_does_itself_is_held_against_it() {
        let of = |code| {
            let (part, step) = (ActivePart::Matmul, "multiplying".to_owned());
            Trouble { part, step, source: error(code) }.outcome()
        };
        for broken in [214, 220, 700, 715, 719] {
            let ActiveOutcome::Failed { what, why } = of(broken) else { panic!("{broken}") };
            assert_eq!(what, ActivePart::Matmul);
            assert!(why.starts_with("multiplying: cuLaunchKernel: X ("), "{why}");
        }
        for other in [2, 46, 100, 101, 218, 222, 802] {
            assert!(matches!(of(other), ActiveOutcome::NotRun { .. }), "{other}");
        }
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        let asked = Asked { gpu: GpuIndex(0), uuid: "GPU-none".into() };
        // Where there is a driver, it does not know this one, or sees another number of them.
        if let Err(error) = measure(&[asked], &|_| {}) {
            let known = matches!(
                error,
                CudaError::NoLibrary(_) | CudaError::Lacks(_) | CudaError::Driver { .. }
            );
            assert!(known, "{error}");
        }
    }
}
