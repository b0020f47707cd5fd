//! A thousand seeds of trouble. Each runs twice and must write the same journal.

use std::sync::atomic::{AtomicU64, Ordering};

use tutti_sim::{Storm, Summary, run};

const SEEDS: u64 = 1000;

fn one(seed: u64, storm: &Storm) -> Summary {
    let first = run(seed, storm).unwrap_or_else(|failure| panic!("{failure}"));
    let second = run(seed, storm).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(first, second, "seed {seed} ran differently the second time");
    assert!(first.records > 0 && first.jobs > 0, "seed {seed} did nothing: {first:?}");
    first
}

#[test]
fn every_seed_keeps_the_invariants_and_heals() {
    let storm = Storm::default();
    let (restarts, crashes) = (AtomicU64::new(0), AtomicU64::new(0));
    let (preempting, resizes) = (AtomicU64::new(0), AtomicU64::new(0));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, Into::into) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        break;
                    }
                    let summary = one(seed, &storm);
                    let count = |sum: &AtomicU64, n: u64| sum.fetch_add(n, Ordering::Relaxed);
                    count(&restarts, summary.restarts.into());
                    count(&crashes, summary.controller_crashes.into());
                    count(&preempting, summary.preempting_started);
                    count(&resizes, summary.resizes.into());
                }
            });
        }
    });
    // A storm that never breaks anything proves nothing.
    assert!(restarts.into_inner() > SEEDS, "too few restarts");
    assert!(crashes.into_inner() > SEEDS, "too few controller crashes");
    assert!(preempting.into_inner() > SEEDS / 2, "too few jobs started where others were stopped");
    assert!(resizes.into_inner() > SEEDS / 20, "too few elastic jobs changed their size");
}
