//! Every task of an array is in exactly one place: waiting, live, or ended.

use tutti_model::{IndexRanges, State, Tasks};

pub(super) fn check(state: &State) -> Result<(), String> {
    for job in state.jobs.values() {
        let (Tasks::Array(array), Some(spec)) = (&job.tasks, &job.spec.array) else { continue };
        let unstarted = array.never_started.as_deref().map(|(indices, _)| indices);
        let parts = array.waiting.len()
            + array.live.len() as u64
            + array.ended.len() as u64
            + unstarted.map_or(0, IndexRanges::len);
        let strangers = array.live.keys().chain(array.ended.keys()).any(|&i| {
            !spec.indices.contains(i)
                || array.waiting.contains(i)
                || (array.live.contains_key(&i) && array.ended.contains_key(&i))
        });
        let tally = array.tally.completed + array.tally.failed + array.tally.cancelled;
        let ended = array.ended.len() as u64 + unstarted.map_or(0, IndexRanges::len);
        if parts != spec.indices.len() || strangers || tally != ended {
            return Err(format!("job {}: {parts} of {} tasks", job.id, spec.indices.len()));
        }
    }
    Ok(())
}
