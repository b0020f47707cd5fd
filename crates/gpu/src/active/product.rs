//! A matrix product whose answer is known exactly, again and again, on all of the GPU. The first answer is
//! checked by the host, and every other one must be the same bit for bit.

use std::time::{Duration, Instant};

use tutti_model::{ActiveFigures, ActivePart, ActiveProduct, Wrong};

use super::api::{Arg, Kernel};
use super::memory::{counted, merge};
use super::numbers::{Operands, check_product, half, median};
use super::ptx::TILE;
use super::{Card, Trouble};
use crate::cuda::CudaError;

/// Rows and columns.
pub const SIZE: usize = 4096;
/// So long, but not fewer runs and not more.
const FOR: Duration = Duration::from_millis(700);
const RUNS: std::ops::RangeInclusive<u32> = 4..=100;

/// What is multiplied, in the forms that kernels want. Made once for all GPUs.
pub struct Factors {
    operands: Operands,
    plain: (Vec<f32>, Vec<f32>),
    /// The second one with its rows as columns.
    half: (Vec<u16>, Vec<u16>),
}

impl Factors {
    pub fn new() -> Factors {
        let operands = Operands::new(SIZE);
        let plain = |values: &[i8]| -> Vec<f32> { values.iter().map(|v| f32::from(*v)).collect() };
        let plain = (plain(&operands.a), plain(&operands.b));
        let half = (operands.a.iter().map(|v| half(*v)).collect(), turned(&operands));
        Factors { operands, plain, half }
    }
}

pub fn measure(
    card: &Card<'_>,
    factors: &Factors,
    figures: &mut ActiveFigures,
) -> Result<(), Trouble> {
    let operands = &factors.operands;
    let step = |what: &str| {
        card.say(ActivePart::Matmul, what);
        let step = what.to_owned();
        move |source| Trouble { part: ActivePart::Matmul, step: step.clone(), source }
    };
    let failed = step("multiplying matrices");
    let (a, b) = &factors.plain;
    figures.matmul = again_and_again(card, card.kernels.matmul, operands, a, b).map_err(failed)?;
    let Some(kernel) = card.kernels.tensor else { return Ok(()) };
    let failed = step("multiplying matrices on tensor cores");
    let (a, b) = &factors.half;
    figures.tensor = Some(again_and_again(card, kernel, operands, a, b).map_err(failed)?);
    Ok(())
}

/// The second operand with its rows as columns, in half precision.
fn turned(operands: &Operands) -> Vec<u16> {
    let size = operands.size;
    let mut turned = vec![0; size * size];
    for (row, values) in operands.b.chunks_exact(size).enumerate() {
        for (column, value) in values.iter().enumerate() {
            turned[column * size + row] = half(*value);
        }
    }
    turned
}

fn again_and_again<T: Copy>(
    card: &Card<'_>,
    kernel: Kernel,
    operands: &Operands,
    a: &[T],
    b: &[T],
) -> Result<ActiveProduct, CudaError> {
    let size = operands.size;
    let context = &card.context;
    let upload = |values: &[T]| {
        let at = context.allocate(std::mem::size_of_val(values) as u64)?;
        context.upload(at, values).map(|()| at)
    };
    let (a, b) = (upload(a)?, upload(b)?);
    let bytes = (size * size * size_of::<f32>()) as u64;
    let (first, next) = (context.allocate(bytes)?, context.allocate(bytes)?);
    let multiply = |into: u64| {
        let tiles = size as u32 / TILE;
        let args = [Arg::Address(a), Arg::Address(b), Arg::Address(into), Arg::Number(size as u32)];
        context.launch(kernel, (tiles, tiles), &args)
    };
    multiply(first)?;
    let mut c = vec![0f32; size * size];
    context.download(&mut c, first)?;
    let mut wrong = check_product(operands, &c);
    let (start, mut times) = (Instant::now(), Vec::new());
    while (times.len() as u32) < *RUNS.start()
        || (start.elapsed() < FOR && (times.len() as u32) < *RUNS.end())
    {
        times.push(context.timed(|| multiply(next))?);
        merge(&mut wrong, differs(card, first, next, bytes, times.len())?);
    }
    for address in [a, b, first, next] {
        context.free(address)?;
    }
    let work = 2.0 * (size as f64).powi(3);
    let rate = (work / median(&mut times)) as u64;
    Ok(ActiveProduct { size: size as u32, runs: times.len() as u32 + 1, wrong, rate })
}

fn differs(card: &Card<'_>, a: u64, b: u64, bytes: u64, run: usize) -> Result<Wrong, CudaError> {
    let launch = |out| {
        let groups = Arg::Number((bytes / 16) as u32);
        let args = [Arg::Address(a), groups, Arg::Address(b), Arg::Address(out)];
        card.context.launch(card.kernels.compare, (card.blocks, 1), &args)
    };
    let (count, first) = counted(card, launch)?;
    if count == 0 {
        return Ok(Wrong::default());
    }
    Ok(Wrong {
        count,
        first: format!("number {first} of run {run} is not the one of the first run"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turned_operand_has_its_rows_as_columns() {
        let operands = Operands::of(2, vec![0; 4], vec![1, 2, 3, 0]);
        assert_eq!(turned(&operands), [1, 3, 2, 0].map(half));
    }

    #[test]
    fn tiles_fit() {
        assert_eq!(SIZE % TILE as usize, 0);
    }
}
