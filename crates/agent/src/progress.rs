//! What the ranks of a part say of themselves, folded into where they are. No socket and no clock
//! here: `shim::progress` brings the lines and the time.

mod line;
pub mod place;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use tutti_model::{Fault, PartProgress, ProgressLine, Rank, RankProgress, SavedPoint, Span};

pub use line::read_line;

/// The pace is the median of so many steps.
const STEPS_KEPT: usize = 16;
/// Fewer say nothing about what is usual.
const STEPS_NEEDED: usize = 3;
/// A launcher may start more processes than the part has ranks; but not without end.
const RANKS_MIN: usize = 64;

/// How much a line matters to those far away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    Nothing,
    /// Can wait a moment for the next one.
    Level,
    /// A checkpoint, or a fault: said at once.
    Urgent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} ranks report on this node")]
pub struct TooManyRanks(usize);

#[derive(Debug)]
pub struct Fold {
    ranks: BTreeMap<Rank, Steps>,
    ranks_max: usize,
    /// With the rank that said where it is.
    saved: Option<(SavedPoint, Instant, Rank)>,
    fault: Option<Fault>,
    /// Since when nothing grows older.
    paused: Option<Instant>,
}

/// One rank.
#[derive(Debug)]
struct Steps {
    step: u64,
    at: Instant,
    loss: Option<f64>,
    tokens: Option<u64>,
    /// How long each of the last steps took, in microseconds.
    took: VecDeque<u64>,
}

impl Fold {
    /// For a part of so many ranks.
    pub fn new(ranks: u32) -> Fold {
        let ranks_max = (ranks as usize).max(RANKS_MIN);
        Fold { ranks: BTreeMap::new(), ranks_max, saved: None, fault: None, paused: None }
    }

    /// The part can't do anything for a while, and nobody shall hold it against it.
    pub fn pause(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }

    pub fn go_on(&mut self, now: Instant) {
        let Some(since) = self.paused.take() else { return };
        let lost = now.saturating_duration_since(since);
        self.ranks.values_mut().for_each(|steps| steps.at += lost);
        if let Some((_, at, _)) = &mut self.saved {
            *at += lost;
        }
    }

    /// Takes in what `rank` said.
    pub fn take(
        &mut self,
        rank: Rank,
        line: ProgressLine,
        now: Instant,
    ) -> Result<News, TooManyRanks> {
        let mut news = self.take_steps(rank, &line, now)?;
        if let Some(step) = line.saved {
            let (path, save_ms) = (line.path, line.save_ms);
            let point = SavedPoint { step, at: None, path, save_ms, node: None };
            news = news.max(self.take_saved(rank, point, now));
        }
        if let (None, Some(fault)) = (&self.fault, line.fault) {
            self.fault = Some(fault);
            news = News::Urgent;
        }
        Ok(news)
    }

    fn take_steps(
        &mut self,
        rank: Rank,
        line: &ProgressLine,
        now: Instant,
    ) -> Result<News, TooManyRanks> {
        if !self.ranks.contains_key(&rank) {
            // Loss and tokens belong to a step.
            let Some(step) = line.step else { return Ok(News::Nothing) };
            if self.ranks.len() >= self.ranks_max {
                return Err(TooManyRanks(self.ranks_max));
            }
            let first = Steps { step, at: now, loss: None, tokens: None, took: VecDeque::new() };
            self.ranks.insert(rank, first);
        }
        let known = self.ranks.get_mut(&rank).expect("made above");
        if let Some(step) = line.step {
            known.reach(step, now);
        }
        known.loss = line.loss.or(known.loss);
        known.tokens = line.tokens.or(known.tokens);
        let says = line.step.is_some() || line.loss.is_some() || line.tokens.is_some();
        Ok(if says { News::Level } else { News::Nothing })
    }

    /// Several ranks may say the same, and late: the newest stays. The rank that said where it is
    /// may say that it is elsewhere now.
    fn take_saved(&mut self, rank: Rank, point: SavedPoint, now: Instant) -> News {
        match &mut self.saved {
            Some((known, ..)) if point.step < known.step => News::Nothing,
            Some((known, _, by)) if point.step == known.step => {
                known.save_ms = known.save_ms.max(point.save_ms);
                match (&known.path, point.path) {
                    (None, Some(path)) => (known.path, *by) = (Some(path), rank),
                    (Some(was), Some(path)) if *by == rank && *was != path => {
                        known.path = Some(path);
                        return News::Urgent;
                    }
                    _ => {}
                }
                News::Level
            }
            _ => {
                self.saved = Some((point, now, rank));
                News::Urgent
            }
        }
    }

    /// None until somebody has said something that counts.
    pub fn level(&self, now: Instant) -> Option<PartProgress> {
        if self.ranks.is_empty() && self.saved.is_none() && self.fault.is_none() {
            return None;
        }
        let now = self.paused.unwrap_or(now);
        let rank = |(&rank, steps): (&Rank, &Steps)| RankProgress {
            rank,
            step: steps.step,
            loss: steps.loss,
            tokens: steps.tokens,
            age: since(steps.at, now),
            pace: steps.pace(),
        };
        Some(PartProgress {
            ranks: self.ranks.iter().map(rank).collect(),
            saved: self.saved.as_ref().map(|(point, ..)| point.clone()),
            saved_age: self.saved.as_ref().map_or(Span(0), |(_, at, _)| since(*at, now)),
            fault: self.fault.clone(),
        })
    }
}

impl Steps {
    /// One that reports every tenth step counts as ten equal ones. Going back, to a checkpoint say,
    /// is no step.
    fn reach(&mut self, step: u64, now: Instant) {
        if step == self.step {
            return;
        }
        if let Some(steps) = step.checked_sub(self.step) {
            let all = now.saturating_duration_since(self.at).as_micros();
            let each = u64::try_from(all / u128::from(steps)).unwrap_or(u64::MAX);
            let count = usize::try_from(steps).unwrap_or(STEPS_KEPT).min(STEPS_KEPT);
            self.took.extend(std::iter::repeat_n(each, count));
            let surplus = self.took.len().saturating_sub(STEPS_KEPT);
            self.took.drain(..surplus);
        }
        (self.step, self.at) = (step, now);
    }

    fn pace(&self) -> Option<Span> {
        if self.took.len() < STEPS_NEEDED {
            return None;
        }
        let mut sorted: Vec<u64> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        // A step takes some time, however little.
        Some(Span(sorted[sorted.len() / 2].div_ceil(1000).max(1)))
    }
}

fn since(at: Instant, now: Instant) -> Span {
    let ms = now.saturating_duration_since(at).as_millis();
    Span(u64::try_from(ms).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
