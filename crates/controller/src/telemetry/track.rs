//! The history of one device or host: seconds for an hour, minutes for a week. A minute has the
//! mean and the largest of its seconds.

use super::ring::Ring;
use super::series::{Cell, Layout};

pub const SECONDS: usize = 3600;
pub const MINUTES: usize = 7 * 24 * 60;
const IN_MINUTE: u64 = 60;

/// A kept minute: its mean, then its largest.
#[derive(Clone, Debug)]
pub struct Track {
    layout: &'static Layout,
    pub seconds: Ring,
    pub minutes: Ring,
    /// What the file has, by the last second and the last minute of it.
    pub saved: (u64, u64),
}

impl Track {
    pub fn new(layout: &'static Layout) -> Track {
        Track {
            layout,
            seconds: Ring::new(layout.width, SECONDS),
            minutes: Ring::new(2 * layout.width, MINUTES),
            saved: (0, 0),
        }
    }

    /// Makes minutes of the seconds before `now`, which is in seconds.
    pub fn close(&mut self, now: u64) {
        let Some((oldest, newest)) = self.seconds.range() else { return };
        let first = self.minutes.newest().map_or(0, |last| last + 1).max(oldest / IN_MINUTE);
        let until = (now / IN_MINUTE).min(newest / IN_MINUTE + 1);
        for minute in first..until {
            if let Some(row) = self.fold(minute) {
                self.minutes.put(minute, &row);
            }
        }
    }

    /// The mean and the largest of what is known of a minute's seconds.
    fn fold(&self, minute: u64) -> Option<Vec<u8>> {
        let seconds = minute * IN_MINUTE..(minute + 1) * IN_MINUTE;
        let rows: Vec<&[u8]> = seconds.filter_map(|second| self.seconds.get(second)).collect();
        (!rows.is_empty()).then(|| fold(self.layout, &rows))
    }

    /// A minute that is not closed yet is made of the seconds that are there.
    fn minute(&self, minute: u64) -> Option<std::borrow::Cow<'_, [u8]>> {
        match self.minutes.get(minute) {
            Some(row) => Some(row.into()),
            None => self.fold(minute).map(Into::into),
        }
    }

    /// Mean and largest of what is known from one second to before another.
    pub fn between(&self, cell: &Cell, from: u64, until: u64, fine: bool) -> Option<Point> {
        let mut sum = Sum::default();
        if fine {
            for second in from..until {
                let value = self.seconds.get(second).and_then(|row| cell.read(row));
                sum.add(value, value);
            }
        } else {
            for minute in from / IN_MINUTE..until.div_ceil(IN_MINUTE) {
                if let Some(row) = self.minute(minute) {
                    let (mean, max) = row.split_at(self.layout.width);
                    sum.add(cell.read(mean), cell.read(max));
                }
            }
        }
        sum.point()
    }

    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The newest moment of which anything is known, in seconds.
    pub fn newest(&self) -> u64 {
        let minute = self.minutes.newest().map_or(0, |minute| minute * IN_MINUTE);
        self.seconds.newest().unwrap_or(0).max(minute)
    }

    /// Takes over what another knows of the same, as far as this one is empty.
    pub fn put_on_top(mut self, newer: &Track) -> Track {
        for (mine, theirs) in
            [(&mut self.seconds, &newer.seconds), (&mut self.minutes, &newer.minutes)]
        {
            let Some((oldest, newest)) = theirs.range() else { continue };
            for slot in oldest..=newest {
                if let Some(row) = theirs.get(slot) {
                    mine.put(slot, row);
                }
            }
        }
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub mean: f64,
    pub max: f64,
}

#[derive(Default)]
struct Sum {
    sum: f64,
    count: u32,
    max: Option<f64>,
}

impl Sum {
    fn add(&mut self, mean: Option<f64>, max: Option<f64>) {
        if let Some(mean) = mean {
            self.sum += mean;
            self.count += 1;
        }
        self.max = match (self.max, max) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }

    fn point(&self) -> Option<Point> {
        let mean = (self.count > 0).then(|| self.sum / f64::from(self.count))?;
        // Rounding must not put the mean above the largest.
        Some(Point { mean, max: self.max.unwrap_or(mean).max(mean) })
    }
}

fn fold(layout: &Layout, rows: &[&[u8]]) -> Vec<u8> {
    let mut folded = vec![0; 2 * layout.width];
    let (mean, max) = folded.split_at_mut(layout.width);
    for cell in &layout.cells {
        let mut sum = Sum::default();
        for row in rows {
            let value = cell.read(row);
            sum.add(value, value);
        }
        let point = sum.point();
        cell.write(point.map(|p| p.mean), mean);
        cell.write(point.map(|p| p.max), max);
    }
    folded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tutti_model::GpuSample;

    use super::super::series::{self, GPU};
    use super::*;

    fn sample(watts: f64) -> Vec<u8> {
        let power_mw = Some((watts * 1000.0) as u32);
        series::row(GPU, &GpuSample { power_mw, ..GpuSample::default() })
    }

    fn power() -> &'static Cell {
        Layout::gpu().cell("power").unwrap()
    }

    proptest! {
        /// Minutes say the mean and the largest of the seconds they are made of.
        #[test]
        fn minutes_agree_with_their_seconds(watts in prop::collection::vec(prop::option::of(0f64..700.0), 1..300)) {
            let mut track = Track::new(Layout::gpu());
            let start = 6_000u64;
            for (at, watts) in watts.iter().enumerate() {
                if let Some(watts) = watts {
                    track.seconds.put(start + at as u64, &sample(*watts));
                }
            }
            track.close(start + 60 * 10);
            for minute in 0..6usize {
                let seconds: Vec<f64> = watts.iter().skip(minute * 60).take(60).flatten().copied().collect();
                let from = start + minute as u64 * 60;
                let point = track.between(power(), from, from + 60, false);
                prop_assert_eq!(point.is_some(), !seconds.is_empty());
                if let Some(point) = point {
                    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
                    let max = seconds.iter().copied().fold(0.0, f64::max);
                    prop_assert!((point.mean - mean).abs() < 0.5, "{} {}", point.mean, mean);
                    prop_assert!((point.max - max).abs() < 0.5, "{} {}", point.max, max);
                    prop_assert!(point.max >= point.mean);
                }
            }
        }
    }

    #[test]
    fn a_minute_that_is_not_over_shows_what_is_there() {
        let mut track = Track::new(Layout::gpu());
        track.seconds.put(120, &sample(100.0));
        track.seconds.put(130, &sample(300.0));
        track.close(150);
        assert_eq!(track.minutes.newest(), None);
        let point = track.between(power(), 120, 180, false).unwrap();
        assert_eq!((point.mean, point.max), (200.0, 300.0));
        track.close(180);
        assert_eq!(track.minutes.newest(), Some(2));
        let fine = track.between(power(), 125, 180, true).unwrap();
        assert_eq!((fine.mean, fine.max), (300.0, 300.0));
    }

    /// A gap longer than what is kept, and a close long after.
    #[test]
    fn closing_late_makes_no_minutes_of_nothing() {
        let mut track = Track::new(Layout::gpu());
        track.seconds.put(60, &sample(1.0));
        track.close(1_000_000_000);
        assert_eq!(track.minutes.range(), Some((1, 1)));
        track.seconds.put(900_000_000, &sample(2.0));
        track.close(1_000_000_000);
        assert_eq!(track.minutes.newest(), Some(15_000_000));
    }

    #[test]
    fn a_gpu_takes_what_the_guide_says() {
        let mut track = Track::new(Layout::gpu());
        let row = sample(5.0);
        let minute = [row.clone(), row.clone()].concat();
        (0..2 * MINUTES as u64).for_each(|slot| track.minutes.put(slot, &minute));
        (0..2 * SECONDS as u64).for_each(|slot| track.seconds.put(slot, &row));
        assert_eq!(track.seconds.size() + track.minutes.size(), 57_600 + 322_560);
    }
}
