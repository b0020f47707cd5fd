//! Who pays for what, and what the cluster learns from it.

use std::sync::Arc;

use tutti_model::{
    Account, Demand, Ended, Job, JobId, JobSpec, Like, Outcome, PartPlacement, Policy, RunKey,
    Shape, Span, State, TaskId, Time,
};

use crate::index;

/// An array counts as so many jobs of its kind at most: one large array is not the whole future.
const ARRAY_COUNTS_MAX: u64 = 1000;

/// Thousandths of a weighted GPU.
pub(super) fn charge_of(state: &State, spec: &JobSpec, parts: &[PartPlacement]) -> u64 {
    let of_part = |part: &PartPlacement| {
        let node = state.node(part.node)?;
        Some(state.policy.charge(&node.facts, part, spec.exclusive))
    };
    parts.iter().filter_map(of_part).sum()
}

pub(super) fn charge_begins(state: &mut State, task: TaskId, at: Time) {
    change_rate(state, task, at, 1);
}

pub(super) fn charge_ends(state: &mut State, task: TaskId, at: Time) {
    change_rate(state, task, at, -1);
}

/// Adds the charge of a task's attempt to what its team and user pay, or takes it off.
fn change_rate(state: &mut State, task: TaskId, at: Time, sign: i64) {
    let State { jobs, policy, ledger, .. } = state;
    let Some(job) = jobs.get(&task.job) else { return };
    let Some(attempt) = job.task(task.index).and_then(|t| t.attempt()) else { return };
    let charge = i64::try_from(attempt.charge).unwrap_or(i64::MAX);
    let account = Account { line: policy.line_of(&job.team), user: &job.user };
    ledger.change(&account, at, policy.half_life, sign * charge);
}

/// What runs is from now on paid by the new tree of teams, and the past fades as the new policy
/// says from now on, not from the beginning.
pub(super) fn policy_changed(state: &mut State, policy: &Arc<Policy>, at: Time) {
    let paying: Vec<TaskId> = state.index.active.iter().copied().collect();
    paying.iter().for_each(|&task| charge_ends(state, task, at));
    state.ledger.settle(at, state.policy.half_life);
    state.policy = Arc::clone(policy);
    paying.iter().for_each(|&task| charge_begins(state, task, at));
    index::rebuild(state);
}

pub(super) fn learn_shape(state: &mut State, spec: &JobSpec) {
    let shape = Shape::of(&Demand::of(spec));
    for _ in 0..spec.task_count().min(ARRAY_COUNTS_MAX) {
        state.learned.mix.note(&shape);
    }
}

/// Only what ran to its own end says how long such jobs take.
pub(super) fn learn_run(state: &mut State, task: TaskId, ended: &Ended) {
    if ended.outcome != Outcome::Completed {
        return;
    }
    let State { jobs, learned, .. } = state;
    let Some(job) = jobs.get(&task.job) else { return };
    let Some(record) = job.task(task.index) else { return };
    let Some(attempt) = record.attempt() else { return };
    let Some(ran) = attempt.ran(ended.ended_at) else { return };
    learned.note_run(RunKey::of(job), ran);
    let served = record.served.saturating_add(attempt.served(ended.ended_at));
    let gpus = Demand::of(&job.spec).total_gpus();
    if gpus > 0 {
        let user = job.user.clone();
        let like = Like { user: &user, gpus };
        learned.service.ended(like, task.job, Span(served / gpus));
        rank_anew(state, like, task.job);
    }
}

/// A new job: what is known of jobs like it gives it its rank. Work without GPUs is not ranked.
pub(super) fn learn_submission(state: &mut State, id: JobId, user: &str, spec: &JobSpec) -> u64 {
    let gpus = Demand::of(spec).total_gpus();
    if gpus == 0 {
        return 0;
    }
    let like = Like { user, gpus };
    state.learned.service.submitted(like, id);
    state.learned.service.rank(like, id)
}

/// A job that never started is to be of another size: it leaves the kin that it had. Answers with its
/// rank among those that it has now.
pub(super) fn learn_other_size(state: &mut State, job: &Job, spec: &JobSpec) -> u64 {
    let gpus = |spec: &JobSpec| Demand::of(spec).total_gpus();
    let old = Like { user: &job.user, gpus: gpus(&job.spec) };
    let new = Like { user: &job.user, gpus: gpus(spec) };
    if new.gpus > 0 && new.is_like(&old) {
        return state.learned.service.rank(new, job.id);
    }
    state.learned.service.left(old, job.id);
    learn_submission(state, job.id, &job.user, spec)
}

/// An attempt is over and the task waits again: how long it has run tells about its kin.
pub(super) fn learn_progress(state: &mut State, task: TaskId) {
    let State { jobs, learned, .. } = state;
    let Some(job) = jobs.get(&task.job) else { return };
    let gpus = Demand::of(&job.spec).total_gpus();
    let served = job.task(task.index).map_or(0, |t| t.served);
    if gpus == 0 {
        return;
    }
    let user = job.user.clone();
    let like = Like { user: &user, gpus };
    if learned.service.ran(like, task.job, Span(served / gpus)) {
        rank_anew(state, like, task.job);
    }
}

fn rank_anew(state: &mut State, like: Like<'_>, job: JobId) {
    for (id, rank) in state.learned.service.ranks_of_kin(like, job) {
        if state.job(id).is_some_and(|j| j.rank != rank && !j.is_over()) {
            index::change_job(state, id, |j| j.rank = rank);
        }
    }
}
