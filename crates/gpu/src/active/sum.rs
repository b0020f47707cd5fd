//! A sum over all GPUs, in a ring: every link between neighbours carries data at once, each piece of the
//! sum is added up on its way round, and every GPU ends with the whole of it.

use std::time::Instant;

use tutti_model::{ActivePart, ActiveSum, GpuIndex, Wrong};

use super::api::Arg;
use super::memory::verify;
use super::numbers::Fill;
use super::{Card, Line, Say, blames_gpu};
use crate::cuda::CudaError;

/// On each GPU, and as much again for what arrives.
const BYTES: u64 = 256 << 20;
const SEED: u32 = 0x0A11_5EED;
const ROUNDS: u32 = 3;

/// What one GPU has.
struct Place {
    own: u64,
    arriving: u64,
}

struct Ring<'a> {
    cards: &'a [Card<'a>],
    places: Vec<Place>,
    /// One for each GPU.
    piece: u64,
}

/// Which GPU did not, if one can be named.
struct Stopped {
    gpu: Option<GpuIndex>,
    source: CudaError,
}

pub fn measure(cards: &[Card<'_>], asked: usize, say: Say<'_>) -> ActiveSum {
    if cards.len() < 2 {
        let why = match asked {
            0 | 1 => "there is one GPU".to_owned(),
            _ => format!("{} of {asked} GPUs could be used", cards.len()),
        };
        return ActiveSum::NotApplicable { why };
    }
    let (part, what) = (Some(ActivePart::AllReduce), "adding up over all GPUs".to_owned());
    say(Line::Step { gpu: None, part, what });
    match all(cards) {
        Ok(sum) => sum,
        Err(Stopped { gpu, source }) if blames_gpu(&source) => {
            ActiveSum::Failed { gpu, why: source.to_string() }
        }
        Err(Stopped { source, .. }) => ActiveSum::NotRun { why: source.to_string() },
    }
}

fn all(cards: &[Card<'_>]) -> Result<ActiveSum, Stopped> {
    let mut through_host = false;
    let mut places = Vec::new();
    for (at, card) in cards.iter().enumerate() {
        let next = &cards[(at + 1) % cards.len()];
        through_host |= !card.context.reach(&next.context).map_err(by(card))?;
        let take = || card.context.allocate(BYTES).map_err(by(card));
        places.push(Place { own: take()?, arriving: take()? });
    }
    let piece = BYTES / cards.len() as u64 / 16 * 16;
    let ring = Ring { cards, places, piece };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        ring.fill()?;
        let start = Instant::now();
        ring.turn()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    let (count, bytes) = (cards.len() as u64, piece * cards.len() as u64);
    // As NCCL's tests count it: what goes over each link.
    let moved = 2 * (count - 1) * bytes / count;
    let wrong = ring.verify()?;
    ring.leave()?;
    let gpus = cards.iter().map(|card| card.gpu).collect();
    Ok(ActiveSum::Done { gpus, rate: (moved as f64 / best) as u64, wrong, through_host })
}

fn by(card: &Card<'_>) -> impl FnOnce(CudaError) -> Stopped {
    let gpu = Some(card.gpu);
    move |source| Stopped { gpu, source }
}

impl Ring<'_> {
    fn bytes(&self) -> u64 {
        self.piece * self.cards.len() as u64
    }

    fn fill(&self) -> Result<(), Stopped> {
        for (rank, (card, place)) in self.cards.iter().zip(&self.places).enumerate() {
            let fill = Fill::of_rank(SEED, rank as u32);
            card.fill(place.own, self.bytes(), fill).map_err(by(card))?;
        }
        self.wait()
    }

    fn turn(&self) -> Result<(), Stopped> {
        let count = self.cards.len();
        for step in 0..count - 1 {
            self.pass(step, 0, |place, at| place.arriving + at)?;
            for (rank, (card, place)) in self.cards.iter().zip(&self.places).enumerate() {
                let at = self.piece * piece_of(rank + count - 1, step, 0, count) as u64;
                let args = [
                    Arg::Address(place.own + at),
                    Arg::Number((self.piece / 16) as u32),
                    Arg::Address(place.arriving + at),
                ];
                let added = card.context.launch(card.kernels.add, (card.blocks, 1), &args);
                added.map_err(by(card))?;
            }
            self.wait()?;
        }
        (0..count - 1).try_for_each(|step| self.pass(step, 1, |place, at| place.own + at))
    }

    /// Each GPU gives its neighbour the piece whose turn it is.
    fn pass(
        &self,
        step: usize,
        ahead: usize,
        to: impl Fn(&Place, u64) -> u64,
    ) -> Result<(), Stopped> {
        let count = self.cards.len();
        for (rank, card) in self.cards.iter().enumerate() {
            let next = (rank + 1) % count;
            let at = self.piece * piece_of(rank, step, ahead, count) as u64;
            let (from, to) = (self.places[rank].own + at, to(&self.places[next], at));
            let peer = &self.cards[next].context;
            card.context.copy_to(peer, to, from, self.piece).map_err(by(card))?;
        }
        self.wait()
    }

    fn wait(&self) -> Result<(), Stopped> {
        self.cards.iter().try_for_each(|card| card.context.wait().map_err(by(card)))
    }

    fn verify(&self) -> Result<Vec<(GpuIndex, Wrong)>, Stopped> {
        let fill = Fill::sum(SEED, self.cards.len() as u32);
        let of = |(card, place): (&Card<'_>, &Place)| {
            let wrong = verify(card, place.own, self.bytes(), fill).map_err(by(card))?;
            Ok((card.gpu, wrong))
        };
        let all: Result<Vec<_>, Stopped> = self.cards.iter().zip(&self.places).map(of).collect();
        Ok(all?.into_iter().filter(|(_, wrong)| !wrong.is_right()).collect())
    }

    fn leave(&self) -> Result<(), Stopped> {
        for (card, place) in self.cards.iter().zip(&self.places) {
            card.context.free(place.own).map_err(by(card))?;
            card.context.free(place.arriving).map_err(by(card))?;
        }
        Ok(())
    }
}

/// Which piece a GPU passes on at this step: at first its own, then what it has just got. On the
/// second way round it begins one further, with the piece that is whole.
fn piece_of(rank: usize, step: usize, ahead: usize, count: usize) -> usize {
    (rank + ahead + count - step % count) % count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ring with one number for each piece.
    #[test]
    fn every_gpu_ends_with_the_sum_of_every_piece() {
        for count in 2..=8usize {
            let mut own: Vec<Vec<u64>> =
                (0..count).map(|r| (0..count).map(|p| 1 << (r * 8 + p)).collect()).collect();
            let whole: Vec<u64> = (0..count).map(|p| own.iter().map(|v| v[p]).sum()).collect();
            for step in 0..count - 1 {
                let passed: Vec<(usize, u64)> = (0..count)
                    .map(|rank| piece_of(rank, step, 0, count))
                    .enumerate()
                    .map(|(rank, piece)| (piece, own[rank][piece]))
                    .collect();
                for rank in 0..count {
                    let piece = piece_of(rank + count - 1, step, 0, count);
                    let (sent, value) = passed[(rank + count - 1) % count];
                    assert_eq!(sent, piece);
                    own[rank][piece] += value;
                }
            }
            for step in 0..count - 1 {
                let before = own.clone();
                for rank in 0..count {
                    let piece = piece_of(rank, step, 1, count);
                    own[(rank + 1) % count][piece] = before[rank][piece];
                }
            }
            assert!(own.iter().all(|v| *v == whole), "{count}");
        }
    }
}
