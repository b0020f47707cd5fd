//! Ended jobs leave the state: by the clock, or once they are kept elsewhere.

use tutti_model::{Job, JobId, State, Time};

use super::View;
use crate::command::Reply;
use crate::event::Event;
use crate::settings::Settings;

/// So many go in one event: each is applied while everybody waits.
const FORGOTTEN_MAX: usize = 1000;

/// Ended jobs that are too old or too many, oldest end first, unless somebody still waits for them.
pub fn forgettable<'a>(
    state: &'a State,
    settings: &Settings,
    now: Time,
) -> impl Iterator<Item = JobId> + 'a {
    let index = &state.index;
    let surplus = index.ended.len().saturating_sub(settings.jobs_kept);
    let mut bytes = index.ended_specs.bytes.saturating_sub(settings.ended_bytes_kept.0);
    let keep = settings.keep_jobs_for;
    let due = move |(n, (at, id)): &(usize, &(Time, JobId))| {
        let due = *n < surplus || bytes > 0 || now.since(*at) >= keep;
        let takes = |job: &Job| job.spec.bytes();
        bytes = bytes.saturating_sub(state.job(*id).filter(|_| bytes > 0).map_or(0, takes));
        due
    };
    let due = index.ended.iter().enumerate().take_while(due);
    due.map(|(_, (_, id))| *id).filter(|id| !index.dependents.contains_key(id))
}

pub(super) fn by_the_clock(view: View<'_>) -> Option<Event> {
    if view.settings.archived {
        return None;
    }
    let old = forgettable(view.state, view.settings, view.now).take(FORGOTTEN_MAX).collect();
    forgotten(old)
}

/// A job may have got a dependent since it was written down; then it stays, and is named again.
pub(super) fn forget(view: View<'_>, jobs: &[JobId]) -> (Reply, Vec<Event>) {
    let over = |id: &JobId| view.state.job(*id).is_some_and(Job::is_over);
    let free = |id: &JobId| !view.state.index.dependents.contains_key(id);
    let jobs: Vec<JobId> = jobs.iter().copied().filter(|id| over(id) && free(id)).collect();
    let count = jobs.len() as u64;
    (Reply::Tasks(count), forgotten(jobs).into_iter().collect())
}

fn forgotten(jobs: Vec<JobId>) -> Option<Event> {
    (!jobs.is_empty()).then_some(Event::JobsForgotten { jobs })
}
