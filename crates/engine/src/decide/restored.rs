//! A journal that is older than what nodes have seen.
//!
//! What was given away after the copy was made can't be asked: nodes may come back later, or never.
//! So the numbers jump to where no cluster can have come by counting.

use tutti_model::{Epoch, PartReport};

use super::View;
use crate::event::Event;

/// At least so many jobs may have been submitted that the copy does not know.
const JOBS_MIN: u64 = 1000;

/// - The epoch counts starts, and becomes the time in seconds: nobody starts once a second for years.
/// - Generations count starts of tasks, and become the time in milliseconds, for the same reason.
/// - Jobs are numbers for people, so they jump less: one for every second since the copy was made.
pub(super) fn restored(view: View<'_>) -> Event {
    let (state, now) = (view.state, view.now);
    let seconds = now.since(state.at).0 / 1000;
    let jobs = state.next_job.max(1) + seconds.max(JOBS_MIN);
    Event::JournalRestored {
        epoch: Epoch((now.0 / 1000).max(state.epoch.0 + 1)),
        next_job: jobs.next_multiple_of(JOBS_MIN),
        next_generation: now.0.max(state.next_generation + 1),
    }
}

/// Further than this from what was given away is no number that a cluster gave, but a broken agent.
const SKIP_MAX: u64 = 1 << 40;

/// What a node has may be of numbers that the copy never gave: nobody else gets them.
pub(super) fn skipped(view: View<'_>, parts: &[PartReport]) -> Option<Event> {
    let beyond = |next: u64, used: &mut dyn Iterator<Item = u64>| {
        let next = next.max(1);
        let last = used.filter(|n| (next..next + SKIP_MAX).contains(n)).max();
        last.map_or(next, |last| last + 1)
    };
    let (job, generation) = (view.state.next_job.max(1), view.state.next_generation.max(1));
    let next_job = beyond(job, &mut parts.iter().map(|p| p.lease.task.job.0));
    let next_generation = beyond(generation, &mut parts.iter().map(|p| p.lease.generation.0));
    let any = next_job > job || next_generation > generation;
    any.then_some(Event::NumbersSkipped { next_job, next_generation })
}
