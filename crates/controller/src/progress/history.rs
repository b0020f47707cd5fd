//! A curve of fixed size, however long it gets: when it is full, every second point goes, and from
//! then on only every second one is kept.

use tutti_wire::api::ProgressPoint;

const POINTS_MAX: usize = 512;

#[derive(Debug)]
pub struct History {
    points: Vec<ProgressPoint>,
    /// The newest, whether or not it is kept.
    last: Option<ProgressPoint>,
    /// One of so many is kept.
    every: u64,
    offered: u64,
}

impl Default for History {
    fn default() -> Self {
        History { points: Vec::new(), last: None, every: 1, offered: 0 }
    }
}

impl History {
    /// The same step again only corrects the newest point.
    pub fn push(&mut self, point: ProgressPoint) {
        if self.last.is_some_and(|last| last.step == point.step) {
            self.last =
                self.last.map(|last| ProgressPoint { loss: point.loss.or(last.loss), ..last });
            return;
        }
        if let Some(last) = self.last.replace(point) {
            self.keep(last);
        }
    }

    fn keep(&mut self, point: ProgressPoint) {
        if self.offered.is_multiple_of(self.every) {
            if self.points.len() >= POINTS_MAX {
                let mut even = false;
                self.points.retain(|_| {
                    even = !even;
                    even
                });
                self.every *= 2;
            }
            if self.offered.is_multiple_of(self.every) {
                self.points.push(point);
            }
        }
        self.offered += 1;
    }

    pub fn last_step(&self) -> Option<u64> {
        self.last.map(|last| last.step)
    }

    pub fn points(&self) -> Vec<ProgressPoint> {
        self.points.iter().copied().chain(self.last).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::Time;

    fn point(step: u64) -> ProgressPoint {
        ProgressPoint { at: Time(step * 10), step, loss: Some(1.0) }
    }

    #[test]
    fn a_long_history_stays_small_even_and_whole() {
        let mut history = History::default();
        for step in 0..100_000 {
            history.push(point(step));
            let points = history.points();
            if step % 997 != 0 {
                continue;
            }
            assert!(points.len() <= POINTS_MAX + 1);
            assert_eq!((points[0].step, points.last().unwrap().step), (0, step));
            let gaps: Vec<u64> = points.windows(2).map(|w| w[1].step - w[0].step).collect();
            let kept = &gaps[..gaps.len().saturating_sub(1)];
            assert!(kept.iter().all(|gap| *gap == history.every), "{gaps:?}");
        }
        assert!(history.points().len() > POINTS_MAX / 2);
    }

    #[test]
    fn one_step_is_one_point() {
        let mut history = History::default();
        history.push(ProgressPoint { loss: None, ..point(1) });
        history.push(ProgressPoint { at: Time(99), ..point(1) });
        history.push(ProgressPoint { at: Time(99), loss: None, ..point(1) });
        assert_eq!(history.points(), [point(1)]);
        // Back to a checkpoint.
        history.push(point(2));
        history.push(point(1));
        let steps: Vec<u64> = history.points().iter().map(|p| p.step).collect();
        assert_eq!(steps, [1, 2, 1]);
    }
}
