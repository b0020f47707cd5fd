//! A thousand seeds of trouble. Each runs twice and must write the same journal.

use std::sync::atomic::{AtomicU64, Ordering};

use tutti_sim::{Counts, Storm, Summary, run, run_again};

const SEEDS: u64 = 1000;

fn one(seed: u64, storm: &Storm) -> Summary {
    let first = run(seed, storm).unwrap_or_else(|failure| panic!("{failure}"));
    let second = run_again(seed, storm).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(first, second, "seed {seed} ran differently the second time");
    assert!(first.records > 0 && first.jobs > 0, "seed {seed} did nothing: {first:?}");
    first
}

#[test]
fn every_seed_keeps_the_invariants_and_heals() {
    let storm = Storm::default();
    let (restarts, crashes) = (AtomicU64::new(0), AtomicU64::new(0));
    let preempting = AtomicU64::new(0);
    let counts: [AtomicU64; 20] = Default::default();
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
                    let Counts { resizes, evictions, peer_faults, stalls, .. } = summary.counts;
                    let Counts { crash_loops, taken_out, broken, .. } = summary.counts;
                    let Counts { woken, refusals, not_woken, kept, days_dropped, .. } =
                        summary.counts;
                    let Counts { replicas_ready, replicas_failed, rolled_out, .. } = summary.counts;
                    let Counts { taken_back, endpoints_gone, endpoints_settled, removed, .. } =
                        summary.counts;
                    let updated = summary.counts.updated;
                    let all = [
                        resizes,
                        evictions,
                        peer_faults,
                        stalls,
                        crash_loops,
                        taken_out,
                        woken,
                        refusals,
                        not_woken,
                        broken,
                        kept,
                        days_dropped,
                        replicas_ready,
                        replicas_failed,
                        rolled_out,
                        taken_back,
                        endpoints_gone,
                        endpoints_settled,
                        removed,
                        updated,
                    ];
                    counts.iter().zip(all).for_each(|(sum, n)| {
                        count(sum, n.into());
                    });
                }
            });
        }
    });
    // A storm that never breaks anything proves nothing.
    assert!(restarts.into_inner() > SEEDS, "too few restarts");
    assert!(crashes.into_inner() > SEEDS, "too few controller crashes");
    assert!(preempting.into_inner() > SEEDS / 2, "too few jobs started where others were stopped");
    let enough = |of: usize, least: u64, what: &str| {
        let found = counts[of].load(Ordering::Relaxed);
        assert!(found > least, "only {found} {what}");
    };
    enough(0, SEEDS / 20, "elastic jobs changed their size");
    enough(1, SEEDS / 10, "tasks were evicted");
    enough(2, SEEDS, "gangs were stopped because of accusations");
    enough(3, SEEDS / 10, "stalled attempts were started again");
    enough(4, SEEDS / 20, "jobs ended because they failed in circles");
    enough(5, SEEDS / 50, "nodes were taken out");
    enough(6, SEEDS / 20, "suspended attempts went on");
    enough(7, SEEDS / 20, "suspensions were refused");
    enough(8, SEEDS / 200, "suspended attempts could not wake");
    enough(9, SEEDS / 2, "attempts left a broken GPU or node");
    enough(10, SEEDS / 50, "attempts were lost while a person kept them suspended");
    enough(11, SEEDS / 2, "days left the ledger");
    enough(12, SEEDS / 4, "replicas became ready");
    enough(13, SEEDS / 4, "replicas failed");
    enough(14, SEEDS / 20, "revisions took over");
    enough(15, SEEDS / 20, "revisions were taken back");
    enough(16, SEEDS / 4, "endpoints were stopped");
    enough(17, SEEDS / 4, "endpoints came to rest after the storm");
    enough(18, SEEDS / 4, "nodes were removed");
    enough(19, SEEDS / 2, "jobs were changed");
}
