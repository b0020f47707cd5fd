//! A journal that is older than what nodes have seen.
//!
//! What was given away after the copy was made can't be asked: nodes may come back later, or never.
//! So the numbers jump to where no cluster can have come by counting.

use tutti_model::{Epoch, PartReport};

use super::View;
use crate::event::Event;
use crate::live::Numbers;

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

/// So many jobs at most may be known to nodes and not to the copy: one for every second of eleven days.
const SKIP_MAX: u64 = 1_000_000;

/// What a node has may be of numbers that the copy never gave: nobody else gets them. But a node does not
/// choose the numbers of a cluster. However many say whatever they like, jobs go no further than
/// [`SKIP_MAX`] from where this controller began, and generations no further than the time, where a
/// restored journal begins, too. What is beyond that is of a broken agent.
pub(super) fn skipped(view: View<'_>, parts: &[PartReport]) -> Option<Event> {
    let beyond = |next: u64, until: u64, used: &mut dyn Iterator<Item = u64>| {
        let last = used.filter(|n| (next..until).contains(n)).max();
        last.map_or(next, |last| last + 1)
    };
    let next = Numbers::next(view.state);
    let began = view.live.began().unwrap_or(next);
    let jobs_until = began.job.saturating_add(SKIP_MAX);
    let generations_until = began.generation.max(view.now.0).saturating_add(SKIP_MAX);
    let jobs = &mut parts.iter().map(|p| p.lease.task.job.0);
    let next_job = beyond(next.job, jobs_until, jobs);
    let generations = &mut parts.iter().map(|p| p.lease.generation.0);
    let next_generation = beyond(next.generation, generations_until, generations);
    let any = next_job > next.job || next_generation > next.generation;
    any.then_some(Event::NumbersSkipped { next_job, next_generation })
}
