//! Jobs come, wait, end and are forgotten.

use std::sync::Arc;

use tutti_model::{
    ArrayTasks, DEFAULT_TEAM, Ended, Job, JobId, JobSpec, JobUpdate, LimitByPolicy, Phase,
    ReplicaOf, Span, State, Task, TaskId, Tasks, TextRefs, Time,
};

use super::{accounts, claims, health};
use crate::{index, texts};

pub(super) struct Submitter<'a> {
    pub user: &'a str,
    pub team: Option<&'a str>,
    pub key: Option<&'a str>,
    pub replica_of: Option<&'a ReplicaOf>,
}

pub(super) fn submitted(
    state: &mut State,
    id: JobId,
    who: &Submitter<'_>,
    (spec, texts): (&Arc<JobSpec>, &TextRefs),
    at: Time,
) {
    let (spec, texts) = &texts::whole(state, spec, texts);
    let tasks = match &spec.array {
        None => Tasks::One(Task::pending(at)),
        Some(array) => {
            Tasks::Array(ArrayTasks { waiting: array.indices.clone(), ..ArrayTasks::default() })
        }
    };
    // A journal from before there were teams names none.
    let team = who.team.or(spec.team.as_deref()).unwrap_or(DEFAULT_TEAM);
    let rank = accounts::learn_submission(state, id, who.user, spec);
    let job = Job {
        id,
        rank,
        spec: spec.clone(),
        user: who.user.to_owned(),
        team: team.to_owned(),
        submitted_at: at,
        priority: spec.priority,
        held: spec.hold,
        replica_of: who.replica_of.cloned().map(Box::new),
        texts: texts.clone(),
        cut: TextRefs::default(),
        asked: None,
        tasks,
    };
    if let Some(key) = who.key {
        state.keys.insert((who.user.to_owned(), key.to_owned()), (id, at));
    }
    accounts::learn_shape(state, spec);
    state.next_job = state.next_job.max(id.0 + 1);
    state.jobs.insert(id, Arc::new(job));
    index::job_added(state, id);
}

/// Of another size it has other kin.
pub(super) fn updated(
    state: &mut State,
    id: JobId,
    update: &JobUpdate,
    team: Option<&str>,
    default_time: Option<&LimitByPolicy>,
) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    let mut spec = update.applied(&job.spec);
    if let Some(LimitByPolicy { time, of }) = default_time {
        (spec.time, spec.default_time_of) = (*time, of.clone());
    }
    let mut rank = job.rank;
    if update.changes_demand() {
        accounts::learn_shape(state, &spec);
        rank = accounts::learn_other_size(state, &job, &spec);
    }
    let asked = job.asked.clone().unwrap_or_else(|| texts::digest_of(&job.spec));
    drop(job);
    index::change_spec(state, id, |job| {
        (job.spec, job.rank, job.asked) = (Arc::new(spec), rank, Some(asked));
        if let Some(team) = team {
            team.clone_into(&mut job.team);
        }
    });
}

/// All tasks of the array that never started end together.
pub(super) fn waiting_ended(state: &mut State, id: JobId, ended: &Ended) {
    let waits = |j: &Job| matches!(&j.tasks, Tasks::Array(a) if !a.waiting.is_empty());
    if !state.job(id).is_some_and(waits) {
        return;
    }
    claims::drop_of_waiting(state, id);
    index::change_job(state, id, |job| {
        if let Tasks::Array(array) = &mut job.tasks {
            let indices = std::mem::take(&mut array.waiting);
            array.tally.add(ended.outcome, indices.len());
            array.never_started = Some(Box::new((indices, ended.clone())));
        }
    });
    index::note_over(state, id);
}

pub(super) fn forget(state: &mut State, id: JobId) {
    index::job_removed(state, id);
    if let Some(job) = state.jobs.remove(&id) {
        texts::drop_unused(state, job.texts.iter());
    }
}

pub(super) fn task_ended(state: &mut State, task: TaskId, ended: &Ended, at: Time) {
    if state.job(task.job).is_none_or(|j| j.ended(task.index).is_some()) {
        return;
    }
    claims::drop_of(state, task);
    accounts::learn_run(state, task, ended);
    accounts::charge_ends(state, task, at);
    health::ended(state, task, ended, at);
    index::remove_task(state, task);
    let last_ran = state.job(task.job).and_then(|j| last_ran(j.task(task.index)?, at));
    let known = state.job(task.job).and_then(|j| j.task(task.index));
    let (away, between, output_dropped) = known.map_or_else(Default::default, |t| {
        (t.away(at), t.between_attempts(at), t.past().output_dropped)
    });
    if let Some(job) = state.jobs_mut(task.job) {
        let ended = Ended { last_ran, away, between, output_dropped, ..ended.clone() };
        match (&mut job.tasks, task.index) {
            (Tasks::One(t), None) => {
                t.keep_naps(at);
                t.phase = Phase::Ended(ended);
            }
            (Tasks::Array(array), Some(i)) => {
                array.waiting.remove(i);
                array.live.remove(&i);
                array.tally.add(ended.outcome, 1);
                array.ended.insert(i, ended);
            }
            _ => {}
        }
    }
    index::add_task(state, task);
    index::note_over(state, task.job);
}

/// Of the attempt that ends now, or of the one before the wait that ends now.
fn last_ran(task: &Task, at: Time) -> Option<Span> {
    task.attempt().map_or(task.last_ran, |attempt| Some(attempt.lasted(at)))
}
