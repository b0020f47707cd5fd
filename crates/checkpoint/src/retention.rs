//! Which checkpoints to keep: a pure choice, made before anything is touched.

use serde::{Deserialize, Serialize};

/// What is kept, beside what is pinned and the newest complete one, which always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// So many of the newest complete ones.
    pub last: usize,
    /// And every step that is a multiple of this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub step: u64,
    pub pinned: bool,
    /// All its files are there. One that is not complete counts for nothing.
    pub complete: bool,
}

impl Keep {
    /// The steps to remove, oldest first.
    pub fn doomed(&self, all: &[Candidate]) -> Vec<u64> {
        let mut complete: Vec<u64> = all.iter().filter(|c| c.complete).map(|c| c.step).collect();
        complete.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&newest) = complete.first() else { return Vec::new() };
        let recent = &complete[..self.last.clamp(1, complete.len())];
        let is_kept = |c: &Candidate| {
            // Newer than the newest complete one: somebody may still be able to mend it.
            let ahead = c.step > newest;
            let milestone = self.every.is_some_and(|n| n > 0 && c.step.is_multiple_of(n));
            c.pinned || ahead || recent.contains(&c.step) || (c.complete && milestone)
        };
        let mut doomed: Vec<u64> = all.iter().filter(|c| !is_kept(c)).map(|c| c.step).collect();
        doomed.sort_unstable();
        doomed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(steps: &[u64]) -> Vec<Candidate> {
        steps.iter().map(|&step| Candidate { step, pinned: false, complete: true }).collect()
    }

    #[test]
    fn the_last_few_and_milestones() {
        let all = complete(&[100, 200, 300, 400, 500, 600]);
        assert_eq!(Keep { last: 2, every: None }.doomed(&all), [100, 200, 300, 400]);
        assert_eq!(Keep { last: 1, every: Some(300) }.doomed(&all), [100, 200, 400, 500]);
        assert_eq!(Keep { last: 0, every: None }.doomed(&all), [100, 200, 300, 400, 500]);
        assert_eq!(Keep { last: 9, every: Some(0) }.doomed(&all), Vec::<u64>::new());
    }

    #[test]
    fn pins_hold_and_the_damaged_do_not_count() {
        let mut all = complete(&[100, 200, 300, 400]);
        all[0].pinned = true;
        all[3].complete = false;
        assert_eq!(Keep { last: 1, every: None }.doomed(&all), [200]);
        all.iter_mut().for_each(|c| c.complete = false);
        assert_eq!(Keep { last: 1, every: None }.doomed(&all), Vec::<u64>::new());
    }

    proptest! {
        #[test]
        fn the_newest_complete_one_is_never_doomed(
            found in proptest::collection::btree_map(0u64..50, (any::<bool>(), any::<bool>()), 0..12),
            last in 0usize..4,
            every in proptest::option::of(0u64..5),
        ) {
            let all: Vec<Candidate> = found
                .into_iter()
                .map(|(step, (pinned, complete))| Candidate { step, pinned, complete })
                .collect();
            let doomed = Keep { last, every }.doomed(&all);
            let newest = all.iter().filter(|c| c.complete).map(|c| c.step).max();
            for step in &doomed {
                prop_assert!(newest.is_some_and(|n| *step < n));
                prop_assert!(all.iter().any(|c| c.step == *step && !c.pinned));
            }
        }
    }
}
