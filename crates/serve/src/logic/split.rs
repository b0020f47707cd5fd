//! Parts of the requests by revision.

use tutti_model::Share;

/// A smooth weighted choice: after any number of requests each revision has had its part to within one
/// request, and they are spread evenly rather than in runs.
#[derive(Clone, Debug, Default)]
pub struct Split {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    revision: u32,
    milli: i64,
    credit: i64,
}

impl Split {
    /// Credits of revisions that stay are kept, so that frequent updates do not favour the largest.
    pub fn update(&mut self, shares: &[Share]) {
        let credit = |revision| {
            let old = self.parts.iter().find(|part| part.revision == revision);
            old.map_or(0, |part| part.credit)
        };
        self.parts = shares
            .iter()
            .map(|share| Part {
                revision: share.revision,
                milli: i64::from(share.milli),
                credit: credit(share.revision),
            })
            .collect();
    }

    /// Replicas are all alike.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Listed with more than nothing, or as what is left when nothing else is there.
    pub fn lists(&self, revision: u32) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| part.revision == revision)
    }

    /// Whose turn it is.
    pub fn next(&mut self) -> Option<u32> {
        let total: i64 = self.parts.iter().map(|part| part.milli).sum();
        for part in &mut self.parts {
            part.credit += part.milli;
        }
        let with_part = self.parts.iter_mut().filter(|part| part.milli > 0);
        let best = with_part.max_by_key(|part| (part.credit, std::cmp::Reverse(part.revision)))?;
        best.credit -= total;
        Some(best.revision)
    }

    /// The same revision for the same value, each for its part of all values.
    pub fn of_hash(&self, hash: u64) -> Option<u32> {
        let total: u64 = self.parts.iter().map(|part| part.milli as u64).sum();
        let mut at = hash.checked_rem(total)?;
        for part in &self.parts {
            let milli = part.milli as u64;
            if at < milli {
                return Some(part.revision);
            }
            at -= milli;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[(u32, u32)]) -> Split {
        let mut split = Split::default();
        let shares: Vec<Share> =
            parts.iter().map(|&(revision, milli)| Share { revision, milli }).collect();
        split.update(&shares);
        split
    }

    #[test]
    fn every_thousand_has_exactly_its_parts() {
        let mut split = split(&[(1, 950), (2, 50)]);
        for _ in 0..3 {
            let got = (0..1000).filter(|_| split.next() == Some(2)).count();
            assert_eq!(got, 50);
        }
    }

    #[test]
    fn parts_are_spread_not_in_runs() {
        let mut split = split(&[(1, 900), (2, 100)]);
        let turns: Vec<u32> = (0..100).filter_map(|_| split.next()).collect();
        for ten in turns.chunks(10) {
            assert_eq!(ten.iter().filter(|&&r| r == 2).count(), 1, "{ten:?}");
        }
    }

    #[test]
    fn updates_in_between_change_nothing() {
        let mut often = split(&[(1, 900), (2, 100)]);
        let mut got = 0;
        for _ in 0..1000 {
            often.update(&[Share { revision: 1, milli: 900 }, Share { revision: 2, milli: 100 }]);
            got += usize::from(often.next() == Some(2));
        }
        assert_eq!(got, 100);
    }

    #[test]
    fn nothing_listed_is_nobodys_turn() {
        assert_eq!(split(&[]).next(), None);
        assert_eq!(split(&[(1, 0)]).next(), None);
        assert_eq!(split(&[(1, 0)]).of_hash(7), None);
        assert!(split(&[]).lists(3) && !split(&[(1, 1000)]).lists(3));
    }

    #[test]
    fn hashes_fall_into_their_parts() {
        let split = split(&[(1, 700), (2, 300)]);
        let second = (0..10_000u64).filter(|&h| split.of_hash(h) == Some(2)).count();
        assert_eq!(second, 3000);
    }
}
