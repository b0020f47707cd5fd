//! Keeps what follows from the state beside it: the queue, who is active, who waits for whom.
//!
//! Small steps while records are applied, a full rebuild on load; an invariant holds the two
//! against each other.

use tutti_model::{
    Attempt, AttemptPhase, DependOn, Dependency, Endpoint, Index, IndexRanges, Job, JobId, Lane,
    LeaseId, Outcome, Part, Phase, QueueKey, Revision, State, Task, TaskId, Tasks, Time, Used,
};

use crate::texts;

/// Rebuilds every index, after a snapshot was read.
pub fn rebuild(state: &mut State) {
    state.index = Default::default();
    for node in state.nodes.values_mut() {
        node.used = Used::default();
        state.index.node_names.insert(node.facts.name.clone(), node.id);
    }
    let ids: Vec<JobId> = state.jobs.keys().copied().collect();
    for &id in &ids {
        take_leases(state, id);
        job_added(state, id);
        enter_ended(state, id);
    }
    let State { endpoints, index, .. } = state;
    endpoints.values().for_each(|endpoint| specs_added(index, endpoint));
}

/// What the specs of an endpoint's revisions take.
pub fn specs_added(index: &mut Index, endpoint: &Endpoint) {
    for Revision { spec, texts, .. } in endpoint.revisions.values() {
        let own = spec.bytes_beside(texts);
        index.spec_bytes.add(&endpoint.user, &endpoint.team, own, texts);
    }
}

pub fn specs_removed(index: &mut Index, endpoint: &Endpoint) {
    for Revision { spec, texts, .. } in endpoint.revisions.values() {
        let own = spec.bytes_beside(texts);
        index.spec_bytes.remove(&endpoint.user, &endpoint.team, own, texts);
    }
}

fn spec_added(index: &mut Index, job: &Job) {
    let own = job.spec.bytes_beside(&job.texts);
    index.spec_bytes.add(&job.user, &job.team, own, &job.texts);
}

fn spec_removed(index: &mut Index, job: &Job) {
    let own = job.spec.bytes_beside(&job.texts);
    index.spec_bytes.remove(&job.user, &job.team, own, &job.texts);
}

fn take_leases(state: &mut State, id: JobId) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    for (task, t) in job.live_tasks() {
        let Some(attempt) = t.attempt() else { continue };
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            if let Some(node) = state.nodes.get_mut(&part.node) {
                take(&mut node.used, attempt.lease(task), part);
            }
        }
    }
}

pub fn take(used: &mut Used, lease: LeaseId, part: &Part) {
    for &gpu in &part.gpus {
        used.gpus.entry(gpu).or_default().leases.insert(lease, part.share);
    }
    used.cpus += part.cpus;
    used.mem.0 += part.mem.0;
    used.leases.insert(lease);
}

pub fn give_back(used: &mut Used, lease: LeaseId, part: &Part) {
    for gpu in &part.gpus {
        if let Some(holders) = used.gpus.get_mut(gpu) {
            holders.leases.remove(&lease);
            if holders.leases.is_empty() {
                used.gpus.remove(gpu);
            }
        }
    }
    used.cpus -= part.cpus;
    used.mem.0 -= part.mem.0;
    used.leases.remove(&lease);
}

/// A new or reloaded job: its dependencies and everything of it that waits or runs.
pub fn job_added(state: &mut State, id: JobId) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    add_dependencies(state, &job);
    if !job.is_over() {
        spec_added(&mut state.index, &job);
    }
    add_all(state, &job);
}

pub fn job_removed(state: &mut State, id: JobId) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    remove_all(state, &job);
    drop_dependencies(state, &job);
    match job.ended_at() {
        Some(at) if state.index.ended.remove(&(at, id)) => {
            state.index.ended_specs.remove(job.spec.bytes_beside(&job.texts), &job.texts);
        }
        _ => spec_removed(&mut state.index, &job),
    }
}

/// Changes something that moves the whole job in the queue.
pub fn change_job(state: &mut State, id: JobId, change: impl FnOnce(&mut Job)) {
    let Some(before) = state.jobs.get(&id).cloned() else { return };
    remove_all(state, &before);
    let counts = !before.is_over();
    if counts {
        spec_removed(&mut state.index, &before);
    }
    drop(before);
    if let Some(job) = state.jobs_mut(id) {
        change(job);
    }
    if let Some(after) = state.jobs.get(&id).cloned() {
        add_all(state, &after);
        // Also if it is over now: it leaves when that is noted.
        if counts {
            spec_added(&mut state.index, &after);
        }
    }
}

/// The same where what it waits for may change, too.
pub fn change_spec(state: &mut State, id: JobId, change: impl FnOnce(&mut Job)) {
    if let Some(before) = state.jobs.get(&id).cloned() {
        drop_dependencies(state, &before);
    }
    change_job(state, id, change);
    if let Some(job) = state.jobs.get(&id).cloned() {
        add_dependencies(state, &job);
    }
}

fn add_dependencies(state: &mut State, job: &Job) {
    if !job.is_over() {
        for dep in &job.spec.after {
            state.index.dependents.entry(dep.job).or_default().insert(job.id);
        }
    }
}

fn add_all(state: &mut State, job: &Job) {
    add_waiting(state, job);
    job.live_tasks().for_each(|(id, task)| add_one(state, job, id, task));
}

fn remove_all(state: &mut State, job: &Job) {
    remove_waiting(state, job);
    job.live_tasks().for_each(|(id, task)| remove_one(state, job, id, task));
}

/// Called after the last task of a job may have ended: those that waited for it can go on.
pub fn note_over(state: &mut State, id: JobId) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    let Some(at) = job.ended_at().filter(|_| job.is_over()) else { return };
    if !state.index.ended.contains(&(at, id)) {
        spec_removed(&mut state.index, &job);
    }
    enter_ended(state, id);
    texts::drop_unused(state, job.texts.iter());
}

/// A job that is over stands among those that are.
fn enter_ended(state: &mut State, id: JobId) {
    let Some(job) = state.jobs.get(&id).cloned() else { return };
    let Some(at) = job.ended_at().filter(|_| job.is_over()) else { return };
    if state.index.ended.insert((at, id)) {
        texts::cut_ended(state, id);
        if let Some(job) = state.jobs.get(&id) {
            let own = job.spec.bytes_beside(&job.texts);
            state.index.ended_specs.add(own, &job.texts);
        }
    }
    drop_dependencies(state, &job);
    let waiting: Vec<JobId> =
        state.index.dependents.get(&id).into_iter().flatten().copied().collect();
    for dependent in waiting {
        if let Some(job) = state.jobs.get(&dependent).cloned() {
            add_all(state, &job);
        }
    }
}

fn drop_dependencies(state: &mut State, job: &Job) {
    for dep in &job.spec.after {
        if let Some(set) = state.index.dependents.get_mut(&dep.job) {
            set.remove(&job.id);
            if set.is_empty() {
                state.index.dependents.remove(&dep.job);
            }
        }
    }
}

/// Takes a task out of the indexes before it changes.
pub fn remove_task(state: &mut State, id: TaskId) {
    let Some(job) = state.jobs.get(&id.job).cloned() else { return };
    if let Some(task) = job.task(id.index) {
        remove_one(state, &job, id, task);
    } else if id.index.is_some() {
        // It may be among an array's waiting tasks, whose entry goes when the last of them does.
        remove_waiting(state, &job);
    }
}

/// Puts a task back after it changed.
pub fn add_task(state: &mut State, id: TaskId) {
    let Some(job) = state.jobs.get(&id.job).cloned() else { return };
    if let Some(task) = job.task(id.index) {
        add_one(state, &job, id, task);
    }
    if id.index.is_some() {
        add_waiting(state, &job);
    }
}

/// Gives a waiting array task a record of its own, just before it is placed.
pub fn start_waiting_task(state: &mut State, id: TaskId) {
    let Some(index) = id.index else { return };
    let Some(job) = state.jobs.get(&id.job).cloned() else { return };
    remove_waiting(state, &job);
    let submitted_at = job.submitted_at;
    drop(job);
    if let Some(Job { tasks: Tasks::Array(array), .. }) = state.jobs_mut(id.job)
        && array.waiting.remove(index)
    {
        array.live.insert(index, Task::pending(submitted_at));
    }
    if let Some(job) = state.jobs.get(&id.job).cloned() {
        add_waiting(state, &job);
    }
}

/// A part of the task's attempt is over.
pub fn note_ending(state: &mut State, id: TaskId) {
    let attempt = state.job(id.job).and_then(|j| j.task(id.index)).and_then(Task::attempt);
    match attempt.map(|a| a.is_ending() && !a.is_over()) {
        Some(true) => state.index.ending.insert(id),
        _ => state.index.ending.remove(&id),
    };
}

fn add_one(state: &mut State, job: &Job, id: TaskId, task: &Task) {
    match &task.phase {
        Phase::Active(attempt) => {
            state.index.active.insert(id);
            state.index.limits.extend(limit(job, id, attempt));
            if is_elastic_run(job, attempt) {
                state.index.elastic.insert(id);
            }
            match &attempt.phase {
                AttemptPhase::Suspended { since, pause } if !pause.stays => {
                    state.index.asleep.insert((*since, id));
                }
                AttemptPhase::Suspending { .. } | AttemptPhase::Waking { .. } => {
                    state.index.moving.insert(id);
                }
                _ => {}
            }
            if attempt.is_ending() && !attempt.is_over() {
                state.index.ending.insert(id);
            }
        }
        Phase::Pending { not_before, .. } if *not_before > Time(0) => {
            state.index.back_off.insert((*not_before, id));
        }
        Phase::Pending { .. } if task.kept().is_none() && may_start(state, job) => {
            let key = QueueKey::of(&state.policy, job, id.index, Some(task));
            state.index.queue.insert(Lane::of(job), key);
            state.index.waiting.extend(task.waits_since().map(|since| (since, id)));
        }
        Phase::Pending { .. } | Phase::Ended(_) => {}
    }
}

fn remove_one(state: &mut State, job: &Job, id: TaskId, task: &Task) {
    match &task.phase {
        Phase::Active(attempt) => {
            state.index.active.remove(&id);
            state.index.elastic.remove(&id);
            state.index.ending.remove(&id);
            state.index.moving.remove(&id);
            if let AttemptPhase::Suspended { since, .. } = attempt.phase {
                state.index.asleep.remove(&(since, id));
            }
            if let Some(limit) = limit(job, id, attempt) {
                state.index.limits.remove(&limit);
            }
        }
        Phase::Pending { not_before, .. } => {
            state.index.back_off.remove(&(*not_before, id));
            let since = task.waits_since().unwrap_or_default();
            if state.index.waiting.remove(&(since, id)) {
                let key = QueueKey::of(&state.policy, job, id.index, Some(task));
                state.index.queue.remove(&Lane::of(job), &key);
            }
        }
        Phase::Ended(_) => {}
    }
}

/// When a running attempt is told to stop because of its time limit.
fn limit(job: &Job, id: TaskId, attempt: &Attempt) -> Option<(Time, TaskId)> {
    Some((out_of_time_at(job, attempt)?, id))
}

/// The one place that knows: the controller and the nodes stop it by this.
pub(crate) fn out_of_time_at(job: &Job, attempt: &Attempt) -> Option<Time> {
    match attempt.phase {
        AttemptPhase::Running { since } => Some(since.plus(job.spec.runs_for()?)),
        _ => None,
    }
}

fn is_elastic_run(job: &Job, attempt: &Attempt) -> bool {
    job.spec.elastic.is_some() && matches!(attempt.phase, AttemptPhase::Running { .. })
}

fn add_waiting(state: &mut State, job: &Job) {
    if has_waiting(job) && may_start(state, job) {
        let key = QueueKey::of(&state.policy, job, None, None);
        state.index.queue.insert(Lane::of(job), key);
        state.index.waiting.insert((job.submitted_at, TaskId::single(job.id)));
    }
}

fn remove_waiting(state: &mut State, job: &Job) {
    let rest = (job.submitted_at, TaskId::single(job.id));
    if has_waiting(job) && state.index.waiting.remove(&rest) {
        let key = QueueKey::of(&state.policy, job, None, None);
        state.index.queue.remove(&Lane::of(job), &key);
    }
}

fn has_waiting(job: &Job) -> bool {
    matches!(&job.tasks, Tasks::Array(a) if !IndexRanges::is_empty(&a.waiting))
}

/// Not held, and everything it waits for has ended as it should.
fn may_start(state: &State, job: &Job) -> bool {
    !job.held && job.spec.after.iter().all(|dep| dependency(state, dep) == DependencyState::Met)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DependencyState {
    Open,
    Met,
    /// The job ended in another way; this can never be met.
    Unmet,
}

pub fn dependency(state: &State, dep: &Dependency) -> DependencyState {
    // A job that was forgotten had no dependents left to care.
    let Some(outcome) = state.job(dep.job).map(Job::outcome) else { return DependencyState::Unmet };
    match (outcome, dep.on) {
        (None, _) => DependencyState::Open,
        (Some(_), DependOn::Any)
        | (Some(Outcome::Completed), DependOn::Ok)
        | (Some(Outcome::Failed), DependOn::Failed) => DependencyState::Met,
        _ => DependencyState::Unmet,
    }
}
