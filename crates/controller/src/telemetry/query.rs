//! History as curves: any step, from seconds while they are kept and from minutes before.

use tutti_model::Time;

use super::series::Cell;
use super::track::{MINUTES, Point, SECONDS};
use super::{Of, Store, lock};

/// From, until and step, in seconds; `until` is after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: u64,
    pub until: u64,
    pub step: u64,
}

impl Range {
    /// On whole steps, and neither finer nor longer than what is kept.
    pub fn new(from: Time, until: Time, step: Option<u64>, now: Time) -> Range {
        let (from, until, now) = (from.0 / 1000, until.0.div_ceil(1000), now.0 / 1000);
        let from = from.max(now.saturating_sub(MINUTES as u64 * 60));
        let in_seconds = from + SECONDS as u64 >= now;
        let step = step.unwrap_or(if in_seconds { 1 } else { 60 }).max(1);
        // Whole minutes are made of minutes.
        let step = if in_seconds && step < 60 { step } else { step.div_ceil(60) * 60 };
        let from = from / step * step;
        Range { from, until: until.max(from), step }
    }

    pub fn points(&self) -> u64 {
        (self.until - self.from).div_ceil(self.step)
    }

    fn is_fine(&self) -> bool {
        !self.step.is_multiple_of(60)
    }
}

/// A curve of one device or host.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub of: Of,
    pub cell: Cell,
    pub points: Vec<Option<Point>>,
}

impl Store {
    /// The chosen curves of one node. None if nothing was ever heard of it.
    pub fn curves(
        &self,
        node: &str,
        range: Range,
        wanted: impl Fn(Of, &Cell) -> bool,
    ) -> Option<Vec<Curve>> {
        let book = self.known(node)?;
        let book = lock(&book);
        let mut curves = Vec::new();
        for (of, track) in &book.tracks {
            for cell in track.layout().cells.iter().filter(|cell| wanted(*of, cell)) {
                let point = |at: u64| {
                    let from = range.from + at * range.step;
                    track.between(cell, from, from + range.step, range.is_fine())
                };
                let points = (0..range.points()).map(point).collect();
                curves.push(Curve { of: *of, cell: *cell, points });
            }
        }
        Some(curves)
    }

    /// The mean of a device's curve over a span of time.
    pub fn mean(&self, node: &str, of: Of, cell: &Cell, from: Time, until: Time) -> Option<Point> {
        let book = self.known(node)?;
        let book = lock(&book);
        let track = book.tracks.get(&of)?;
        let (from, until) = (from.0 / 1000, until.0.div_ceil(1000));
        // Short spans by seconds: minutes would mix in what was before and after.
        let newest = track.newest();
        let fine = until - from.min(until) <= SECONDS as u64 && from + SECONDS as u64 > newest;
        track.between(cell, from, until, fine)
    }
}
