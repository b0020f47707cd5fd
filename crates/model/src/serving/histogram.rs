//! Counts of durations by size, that can be added up over routers and subtracted over time.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::Span;

/// Upper bounds of the buckets in milliseconds, each about 1.5 times the last; the last bucket has none.
pub const BUCKETS_MS: [u64; 28] = [
    1, 2, 3, 5, 7, 10, 15, 22, 33, 50, 75, 110, 160, 240, 360, 540, 800, 1_200, 1_800, 2_700,
    4_000, 6_000, 9_000, 13_500, 20_000, 30_000, 60_000, 120_000,
];

/// Durations seen since some beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Histogram {
    /// By bucket; shorter than the table while the long ones are empty, and never longer.
    #[serde(deserialize_with = "as_many_as_buckets")]
    pub counts: Vec<u64>,
    /// Of all durations, in microseconds.
    pub sum_us: u64,
}

/// Routers of other versions may have other tables. What is beyond this one is longer than all of it.
fn as_many_as_buckets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    let mut counts = Vec::<u64>::deserialize(from)?;
    if counts.len() > BUCKETS_MS.len() {
        let beyond = counts.drain(BUCKETS_MS.len()..).fold(0, u64::saturating_add);
        counts.push(beyond);
    }
    Ok(counts)
}

impl Histogram {
    pub fn add(&mut self, micros: u64) {
        let at = BUCKETS_MS.partition_point(|bound| bound * 1000 < micros);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.sum_us = self.sum_us.saturating_add(micros);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn mean_ms(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum_us as f64 / 1000.0 / count as f64)
    }

    /// The duration that this part of all does not exceed, interpolated inside its bucket.
    pub fn quantile(&self, part: f64) -> Option<Span> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let wanted = (part.clamp(0.0, 1.0) * total as f64).max(1.0);
        let mut before = 0.0;
        for (at, &count) in self.counts.iter().enumerate() {
            let upto = before + count as f64;
            if upto >= wanted && count > 0 {
                let bound = |at: usize| BUCKETS_MS.get(at).copied();
                let last = BUCKETS_MS[BUCKETS_MS.len() - 1];
                let low = at.checked_sub(1).map_or(0, |below| bound(below).unwrap_or(last));
                let high = bound(at).unwrap_or(2 * low);
                let share = (wanted - before) / count as f64;
                return Some(Span(low + ((high - low) as f64 * share).round() as u64));
            }
            before = upto;
        }
        None
    }

    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// What was added since `earlier`; all of it if that is not a beginning of this one.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let shrunk = |(at, then): (usize, &u64)| self.counts.get(at).is_none_or(|now| now < then);
        if earlier.counts.iter().enumerate().any(shrunk) {
            return self.clone();
        }
        let before = |at: usize| earlier.counts.get(at).copied().unwrap_or(0);
        let counts = self.counts.iter().enumerate().map(|(at, n)| n - before(at)).collect();
        Histogram { counts, sum_us: self.sum_us.saturating_sub(earlier.sum_us) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_the_right_bucket() {
        let mut seen = Histogram::default();
        (0..90).for_each(|_| seen.add(4_000));
        (0..10).for_each(|_| seen.add(700_000));
        let median = seen.quantile(0.5).unwrap().0;
        assert!((3..=5).contains(&median), "{median}");
        let late = seen.quantile(0.99).unwrap().0;
        assert!((540..=800).contains(&late), "{late}");
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn more_buckets_than_there_are_belong_to_the_last() {
        let read = |counts: &[u64]| -> Histogram {
            serde_json::from_value(serde_json::json!({ "counts": counts, "sum_us": 1 })).unwrap()
        };
        assert_eq!(read(&[1, 0, 2]).counts, [1, 0, 2]);
        let full = vec![1; BUCKETS_MS.len() + 1];
        assert_eq!(read(&full).counts, full, "a bucket for what is longer than all");
        let long = read(&[&full[..], &[4, 5]].concat());
        assert_eq!((long.counts.len(), long.counts.last()), (full.len(), Some(&10)));
        let most = Histogram { counts: vec![1; 100], sum_us: 0 }.quantile(1.0);
        assert_eq!(most, Some(Span::secs(240)), "whoever made it");
    }

    #[test]
    fn what_is_added_later_is_the_difference() {
        let mut early = Histogram::default();
        early.add(10_000);
        let mut late = early.clone();
        late.add(5_000_000);
        let mut only = Histogram::default();
        only.add(5_000_000);
        assert_eq!(late.since(&early).count(), 1);
        assert_eq!(late.since(&early).quantile(1.0), only.quantile(1.0));
        assert_eq!(early.since(&late), early, "a router that was restarted counts from nothing");
        early.merge(&only);
        assert_eq!(early, late);
    }
}
