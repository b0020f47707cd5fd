//! Memory: filled with numbers and read back, each bit both ways round; and copied as fast as it goes.

use tutti_model::{ActiveFigures, ActivePart, Bytes, Wrong};

use super::api::{Address, Arg, Attribute, Context};
use super::numbers::{Fill, compare};
use super::{Card, Trouble};
use crate::cuda::CudaError;

/// At most so much, and at most this part of what is free.
const MOST: u64 = 2 << 30;
const PART_OF_FREE: u64 = 4;
/// Less says nothing: it would be answered from caches.
const LEAST: u64 = 256 << 20;
const GRAIN: u64 = 4 << 20;
/// Copies in one measurement, and measurements; the best counts.
const COPIES: u32 = 8;
const ROUNDS: u32 = 5;
/// Words that are read back to the host at each of so many places.
const SAMPLE_WORDS: usize = 16 << 10;
const SAMPLES: u64 = 8;
const SEED: u32 = 0x7u32.wrapping_mul(0x1357_9BDF);

pub(super) fn measure(card: &Card<'_>, figures: &mut ActiveFigures) -> Result<(), Trouble> {
    let step = |what: &str| {
        card.say(ActivePart::Memory, what);
        let step = what.to_owned();
        move |source| Trouble { part: ActivePart::Memory, step: step.clone(), source }
    };
    let failed = step("taking memory");
    let bytes = room(&card.context).map_err(&failed)?;
    let base = card.context.allocate(bytes).map_err(&failed)?;
    let half = bytes / 2;
    figures.memory = Bytes(bytes);
    for fill in [Fill::new(SEED), Fill::new(SEED).inverse()] {
        let failed = step("filling memory and reading it back");
        let wrong = fill_and_verify(card, base, bytes, fill).map_err(failed)?;
        merge(&mut figures.memory_wrong, wrong);
    }
    let failed = step("copying memory");
    let (other, fill) = (base + half, Fill::new(SEED ^ 1));
    card.fill(base, half, fill).map_err(&failed)?;
    let seconds = fastest(&card.context, other, base, half).map_err(&failed)?;
    let wrong = verify(card, other, half, fill).map_err(&failed)?;
    merge(&mut figures.memory_wrong, wrong);
    figures.memory_rate = rate(half, seconds);
    figures.memory_peak = peak(&card.context).map_err(&failed)?;
    card.context.free(base).map_err(&failed)
}

/// Bytes a second that copies of what `fill` puts there read and write.
pub(crate) fn copy_rate(
    context: &Context<'_>,
    fill: impl FnOnce(Address, u64) -> Result<(), CudaError>,
) -> Result<u64, CudaError> {
    let bytes = room(context)?;
    let buffer = context.buffer(bytes)?;
    let (base, half) = (buffer.address(), bytes / 2);
    fill(base, bytes)?;
    let seconds = fastest(context, base + half, base, half)?;
    Ok(rate(half, seconds))
}

/// Each byte is read once and written once.
fn rate(bytes: u64, seconds: f64) -> u64 {
    (2.0 * bytes as f64 / seconds) as u64
}

/// How much is measured with.
fn room(context: &Context<'_>) -> Result<u64, CudaError> {
    let free = context.free_memory()?;
    amount(free).ok_or_else(|| CudaError::Driver {
        call: "cuMemGetInfo",
        code: 2,
        name: "not enough memory is free".to_owned(),
        words: format!("{} MiB: is somebody using it?", free >> 20),
    })
}

/// How much of what is free is used; none if that is too little.
fn amount(free: u64) -> Option<u64> {
    let bytes = (free / PART_OF_FREE).min(MOST) / GRAIN * GRAIN;
    (bytes >= LEAST).then_some(bytes)
}

fn fill_and_verify(card: &Card<'_>, at: u64, bytes: u64, fill: Fill) -> Result<Wrong, CudaError> {
    card.fill(at, bytes, fill)?;
    let mut wrong = verify(card, at, bytes, fill)?;
    // The GPU must not be its own only witness.
    let mut words = vec![0u32; SAMPLE_WORDS];
    for sample in 0..SAMPLES {
        let from = sample * (bytes / SAMPLES) / 4;
        card.context.download(&mut words, at + from * 4)?;
        merge(&mut wrong, compare(&words, from as u32, fill));
    }
    Ok(wrong)
}

/// The GPU reads all of it and counts what is not as it was filled.
pub(super) fn verify(card: &Card<'_>, at: u64, bytes: u64, fill: Fill) -> Result<Wrong, CudaError> {
    let of = |out: u64| {
        [
            Arg::Address(at),
            Arg::Number((bytes / 16) as u32),
            Arg::Number(fill.seed),
            Arg::Number(fill.times),
            Arg::Number(fill.plus),
            Arg::Address(out),
        ]
    };
    let launch = |out| card.context.launch(card.kernels.verify, (card.blocks, 1), &of(out));
    let (count, first) = counted(card, launch)?;
    let first = if count == 0 { String::new() } else { format!("word {first}") };
    Ok(Wrong { count, first })
}

/// Runs a kernel that counts at the address that it is given; how many, and the first.
pub(super) fn counted(
    card: &Card<'_>,
    launch: impl FnOnce(u64) -> Result<(), CudaError>,
) -> Result<(u64, u64), CudaError> {
    let out = card.context.allocate(16)?;
    card.context.upload(out, &[0, u64::MAX])?;
    launch(out)?;
    let mut counted = [0u64; 2];
    card.context.download(&mut counted, out)?;
    card.context.free(out)?;
    Ok((counted[0], counted[1]))
}

/// The shortest time for one copy, in seconds.
fn fastest(
    context: &Context<'_>,
    to: Address,
    from: Address,
    bytes: u64,
) -> Result<f64, CudaError> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let copies = || (0..COPIES).try_for_each(|_| context.copy(to, from, bytes));
        let seconds = context.timed(copies)?;
        best = best.min(seconds / f64::from(COPIES));
    }
    Ok(best)
}

pub(crate) fn peak(context: &Context<'_>) -> Result<Option<u64>, CudaError> {
    let khz = context.attribute(Attribute::MemoryClockKhz)?;
    let bits = context.attribute(Attribute::MemoryBusBits)?;
    Ok(allowed(khz, bits))
}

/// Two transfers at each tick.
fn allowed(khz: u32, bits: u32) -> Option<u64> {
    let rate = u64::from(khz) * 1000 * 2 * u64::from(bits) / 8;
    (rate > 0).then_some(rate)
}

pub(super) fn merge(into: &mut Wrong, more: Wrong) {
    if into.count == 0 {
        into.first = more.first;
    }
    into.count += more.count;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_what_is_free_and_never_too_much() {
        assert_eq!(amount(140 << 30), Some(2 << 30));
        assert_eq!(amount(4 << 30), Some(1 << 30));
        assert_eq!(amount((1 << 30) + 12345), Some(256 << 20));
        assert_eq!(amount(500 << 20), None);
    }

    #[test]
    fn what_a_card_allows() {
        // An H200: 6144 bits at 3201 MHz.
        assert_eq!(allowed(3_201_000, 6144), Some(4_916_736_000_000));
        assert_eq!(allowed(0, 6144), None);
    }
}
