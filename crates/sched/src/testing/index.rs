//! What the engine keeps beside the state, built the slow and simple way.

use std::sync::Arc;

use tutti_model::*;

/// Derives the index and what nodes have in use from the jobs.
pub(crate) fn reindex(state: &mut State) {
    state.index = Index::default();
    for node in state.nodes.values_mut() {
        node.used = Used::default();
        state.index.node_names.insert(node.facts.name.clone(), node.id);
    }
    let jobs: Vec<Arc<Job>> = state.jobs.values().cloned().collect();
    for job in &jobs {
        let ready = !job.held && crate::verdict::unmet(state, job).is_empty();
        if let Tasks::Array(array) = &job.tasks
            && ready
            && !array.waiting.is_empty()
        {
            enqueue(state, job, TaskId::single(job.id), None, job.submitted_at);
        }
        for dep in &job.spec.after {
            state.index.dependents.entry(dep.job).or_default().insert(job.id);
        }
        for (id, task) in job.live_tasks() {
            match &task.phase {
                Phase::Pending { not_before, .. } if not_before.0 > 0 => {
                    state.index.back_off.insert((*not_before, id));
                }
                Phase::Pending { not_before, .. }
                    if ready && not_before.0 == 0 && task.kept().is_none() =>
                {
                    enqueue(state, job, id, Some(task), task.waits_since().unwrap_or_default());
                }
                Phase::Active(attempt) => hold(state, job, id, attempt),
                _ => {}
            }
        }
    }
}

fn enqueue(state: &mut State, job: &Job, id: TaskId, task: Option<&Task>, since: Time) {
    let key = QueueKey::of(&state.policy, job, id.index, task);
    state.index.queue.insert(Lane::of(job), key);
    state.index.waiting.insert((since, id));
}

fn hold(state: &mut State, job: &Job, task: TaskId, attempt: &Attempt) {
    state.index.active.insert(task);
    if let AttemptPhase::Running { since } = attempt.phase {
        state.index.limits.extend(job.spec.time.map(|limit| (since.plus(limit), task)));
        if job.spec.elastic.is_some() {
            state.index.elastic.insert(task);
        }
    }
    match &attempt.phase {
        AttemptPhase::Suspended { since, pause } if !pause.stays => {
            state.index.asleep.insert((*since, task));
        }
        AttemptPhase::Suspending { .. } | AttemptPhase::Waking { .. } => {
            state.index.moving.insert(task);
        }
        _ => {}
    }
    let lease = attempt.lease(task);
    for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
        let Some(node) = state.nodes.get_mut(&part.node) else { continue };
        for &gpu in &part.gpus {
            node.used.gpus.entry(gpu).or_default().leases.insert(lease, part.share);
        }
        node.used.cpus += part.cpus;
        node.used.mem.0 += part.mem.0;
        node.used.leases.insert(lease);
    }
}

/// Lets everybody pay for what runs since it was placed.
pub(crate) fn charge_running(state: &mut State) {
    let active: Vec<TaskId> = state.index.active.iter().copied().collect();
    for task in active {
        let job = state.jobs[&task.job].clone();
        let Some(attempt) = job.task(task.index).and_then(Task::attempt) else { continue };
        // What is suspended pays nothing.
        if !attempt.is_suspended() {
            change_rate(state, task, attempt.placed_at, 1);
        }
    }
}

/// Adds what a task's attempt is charged to what its team and user pay, or takes it off.
pub(crate) fn change_rate(state: &mut State, task: TaskId, at: Time, sign: i64) {
    let State { jobs, nodes, policy, ledger, .. } = state;
    let job = &jobs[&task.job];
    let Some(attempt) = job.task(task.index).and_then(Task::attempt) else { return };
    let parts = attempt.parts.iter().map(PartPlacement::from);
    let charge = |p: PartPlacement| policy.charge(&nodes[&p.node].facts, &p, job.spec.exclusive);
    let charge: u64 = parts.map(charge).sum();
    let account = Account { line: policy.line_of(&job.team), user: &job.user };
    ledger.change(&account, at, policy.half_life, sign * charge as i64);
}
