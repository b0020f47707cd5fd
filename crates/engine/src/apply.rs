//! The only way state changes: one record after another, live, on replay and in simulation.
//!
//! `apply` is total. Whether an event makes sense was settled by `decide`; here a record about
//! something that is not there changes nothing.

use std::sync::Arc;

use tutti_model::{
    ArrayTasks, Attempt, AttemptPhase, Ended, Generation, Job, JobId, JobSpec, LeaseId, Link, Node,
    NodeFacts, NodeId, Part, PartPlacement, PartState, Phase, Rank, State, StopCause, Task, TaskId,
    Tasks, Time, Token,
};

use crate::event::{Event, Record, RetryCause};
use crate::index;

pub fn apply(state: &mut State, record: &Record) {
    state.seq = record.seq;
    state.at = record.at;
    let at = record.at;
    match &record.event {
        Event::ControllerStarted { epoch } => state.epoch = *epoch,
        Event::JobSubmitted { job, user, spec, key } => {
            job_submitted(state, *job, user, spec, key.as_deref(), at);
        }
        Event::JobHeld { job, .. } => set_held(state, *job, true),
        Event::JobReleased { job, .. } => set_held(state, *job, false),
        Event::PriorityChanged { job, priority, .. } => {
            index::change_job(state, *job, |j| j.priority = *priority);
        }
        Event::WaitingEnded { job, ended } => waiting_ended(state, *job, ended),
        Event::JobsForgotten { jobs } => jobs.iter().for_each(|&j| forget_job(state, j)),
        Event::KeysForgotten { before } => state.keys.retain(|_, (_, at)| *at >= *before),
        Event::Placed { task, generation, parts } => placed(state, *task, *generation, parts, at),
        Event::PartPrepared { lease, node, port } => {
            set_part(state, *lease, *node, PartState::Prepared { port: *port });
            note_master_port(state, *lease, *node, *port);
        }
        Event::PartRunning { lease, node, exits } => {
            set_part(state, *lease, *node, PartState::Running { exits: exits.clone() });
            note_running(state, *lease, at);
        }
        Event::PartDone { lease, node, exits, error } => {
            let done = PartState::Done { exits: exits.clone(), error: error.clone() };
            set_part(state, *lease, *node, done);
            note_running(state, *lease, at);
        }
        Event::PartLost { lease, node } => set_part(state, *lease, *node, PartState::Lost),
        Event::Stopping { lease, why } => stopping(state, *lease, why, at),
        Event::Requeued { lease, cause, avoid, not_before } => {
            requeued(state, *lease, *cause, *avoid, *not_before, at);
        }
        Event::Ready { task } => change_task(state, *task, |t| {
            if let Phase::Pending { not_before, .. } = &mut t.phase {
                *not_before = Time(0);
            }
        }),
        Event::TaskEnded { task, ended } => task_ended(state, *task, ended),
        Event::NodeJoined { node, facts } => node_joined(state, *node, facts, at),
        Event::NodeUp { node, facts, stale } => {
            with_node(state, *node, |n| {
                n.facts = (**facts).clone();
                n.link = Link::Up;
                n.stale = stale.iter().copied().collect();
            });
        }
        Event::NodeAway { node } => with_node(state, *node, |n| n.link = Link::Away { since: at }),
        Event::NodeLost { node } => with_node(state, *node, |n| {
            n.link = Link::Lost { since: at };
            n.stale.clear();
        }),
        Event::StaleGone { node, lease } => with_node(state, *node, |n| {
            n.stale.remove(lease);
        }),
        Event::NodeDrained { node, drain } => {
            with_node(state, *node, |n| n.drain = Some(drain.clone()));
        }
        Event::NodeResumed { node, .. } => with_node(state, *node, |n| n.drain = None),
        Event::TokenAdded { token } => {
            state.tokens.insert(token.id.clone(), token.clone());
        }
        Event::TokenUsed { id, .. } => token_used(state, id),
        Event::TokenRevoked { id, .. } => {
            state.tokens.remove(id);
        }
    }
}

fn job_submitted(
    state: &mut State,
    id: JobId,
    user: &str,
    spec: &Arc<JobSpec>,
    key: Option<&str>,
    at: Time,
) {
    let tasks = match &spec.array {
        None => Tasks::One(Task::pending(at)),
        Some(array) => {
            Tasks::Array(ArrayTasks { waiting: array.indices.clone(), ..ArrayTasks::default() })
        }
    };
    let job = Job {
        id,
        spec: spec.clone(),
        user: user.to_owned(),
        submitted_at: at,
        priority: spec.priority,
        held: spec.hold,
        tasks,
    };
    if let Some(key) = key {
        state.keys.insert((user.to_owned(), key.to_owned()), (id, at));
    }
    state.next_job = state.next_job.max(id.0 + 1);
    state.jobs.insert(id, Arc::new(job));
    index::job_added(state, id);
}

fn set_held(state: &mut State, job: JobId, held: bool) {
    index::change_job(state, job, |j| j.held = held);
}

/// All tasks of the array that never started end together.
fn waiting_ended(state: &mut State, id: JobId, ended: &Ended) {
    let waits = |j: &Job| matches!(&j.tasks, Tasks::Array(a) if !a.waiting.is_empty());
    if !state.job(id).is_some_and(waits) {
        return;
    }
    index::change_job(state, id, |job| {
        if let Tasks::Array(array) = &mut job.tasks {
            let indices = std::mem::take(&mut array.waiting);
            array.tally.add(ended.outcome, indices.len());
            array.never_started = Some(Box::new((indices, ended.clone())));
        }
    });
    index::note_over(state, id);
}

fn forget_job(state: &mut State, id: JobId) {
    index::job_removed(state, id);
    state.jobs.remove(&id);
}

fn placed(
    state: &mut State,
    task: TaskId,
    generation: Generation,
    parts: &[PartPlacement],
    at: Time,
) {
    state.next_generation = state.next_generation.max(generation.0 + 1);
    let mut first_rank = 0;
    let parts: Vec<Part> = parts
        .iter()
        .map(|p| {
            let part = Part {
                node: p.node,
                gpus: p.gpus.clone(),
                cpus: p.cpus,
                mem: p.mem,
                first_rank: Rank(first_rank),
                ranks: p.ranks,
                phase: PartState::Sent,
            };
            first_rank += p.ranks;
            part
        })
        .collect();
    let lease = LeaseId { task, generation };
    for part in &parts {
        with_node(state, part.node, |n| index::take(&mut n.used, lease, part));
    }
    index::start_waiting_task(state, task);
    change_task(state, task, |t| {
        t.attempts += 1;
        t.first_started_at.get_or_insert(at);
        t.phase = Phase::Active(Box::new(Attempt {
            number: t.attempts,
            generation,
            placed_at: at,
            phase: AttemptPhase::Starting,
            master_port: None,
            parts,
        }));
    });
}

/// Moves one part of a current attempt, and frees what it held once it is over.
fn set_part(state: &mut State, lease: LeaseId, node: NodeId, phase: PartState) {
    let Some(part) = current_part(state, lease, node) else { return };
    let freed = phase.is_over() && !part.phase.is_over();
    part.phase = phase;
    if freed {
        let part = part.clone();
        with_node(state, node, |n| index::give_back(&mut n.used, lease, &part));
    }
}

/// The first part's node is where the gang meets.
fn note_master_port(state: &mut State, lease: LeaseId, node: NodeId, port: u16) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    if attempt.parts.first().is_some_and(|p| p.node == node) {
        attempt.master_port = Some(port);
    }
}

/// An attempt runs from the moment its last part does.
fn note_running(state: &mut State, lease: LeaseId, at: Time) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    let under_way =
        |p: &Part| matches!(p.phase, PartState::Running { .. } | PartState::Done { .. });
    if attempt.phase == AttemptPhase::Starting && attempt.parts.iter().all(under_way) {
        attempt.phase = AttemptPhase::Running { since: at };
    }
}

fn stopping(state: &mut State, lease: LeaseId, why: &StopCause, at: Time) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    attempt.phase = AttemptPhase::Stopping {
        since: at,
        running_since: attempt.running_since(),
        why: why.clone(),
    };
}

fn requeued(
    state: &mut State,
    lease: LeaseId,
    cause: RetryCause,
    avoid: Option<NodeId>,
    not_before: Time,
    at: Time,
) {
    if current_attempt(state, lease).is_none() {
        return;
    }
    change_task(state, lease.task, |t| {
        match cause {
            RetryCause::NodeFailure => t.restarts.node_failure += 1,
            RetryCause::Preemption => t.restarts.preemption += 1,
            RetryCause::JobFailure => t.restarts.job_failure += 1,
        }
        t.avoid.extend(avoid);
        t.phase = Phase::Pending { since: at, not_before };
    });
}

fn task_ended(state: &mut State, task: TaskId, ended: &Ended) {
    if state.job(task.job).is_none_or(|j| j.ended(task.index).is_some()) {
        return;
    }
    index::remove_task(state, task);
    if let Some(job) = state.jobs_mut(task.job) {
        match (&mut job.tasks, task.index) {
            (Tasks::One(t), None) => t.phase = Phase::Ended(ended.clone()),
            (Tasks::Array(array), Some(i)) => {
                array.waiting.remove(i);
                array.live.remove(&i);
                array.ended.insert(i, ended.clone());
                array.tally.add(ended.outcome, 1);
            }
            _ => {}
        }
    }
    index::add_task(state, task);
    index::note_over(state, task.job);
}

fn node_joined(state: &mut State, id: NodeId, facts: &NodeFacts, at: Time) {
    state.next_node = state.next_node.max(id.0 + 1);
    state.index.node_names.insert(facts.name.clone(), id);
    let node = Node {
        id,
        facts: facts.clone(),
        link: Link::Away { since: at },
        drain: None,
        stale: Default::default(),
        joined_at: at,
        used: Default::default(),
    };
    state.nodes.insert(id, node);
}

fn token_used(state: &mut State, id: &str) {
    if let Some(Token { grant: tutti_model::Grant::Join { uses: Some(n), .. }, .. }) =
        state.tokens.get_mut(id)
    {
        *n = n.saturating_sub(1);
    }
}

fn with_node(state: &mut State, id: NodeId, change: impl FnOnce(&mut Node)) {
    if let Some(node) = state.nodes.get_mut(&id) {
        change(node);
    }
}

/// Changes a task that has a record of its own and keeps the indexes right.
fn change_task(state: &mut State, id: TaskId, change: impl FnOnce(&mut Task)) {
    index::remove_task(state, id);
    if let Some(task) = state.jobs_mut(id.job).and_then(|j| task_mut(j, id.index)) {
        change(task);
    }
    index::add_task(state, id);
}

fn task_mut(job: &mut Job, index: Option<u32>) -> Option<&mut Task> {
    match (&mut job.tasks, index) {
        (Tasks::One(t), None) => Some(t),
        (Tasks::Array(a), Some(i)) => a.live.get_mut(&i),
        _ => None,
    }
}

fn current_attempt(state: &mut State, lease: LeaseId) -> Option<&mut Attempt> {
    let task = task_mut(state.jobs_mut(lease.task.job)?, lease.task.index)?;
    task.attempt_mut().filter(|a| a.generation == lease.generation)
}

fn current_part(state: &mut State, lease: LeaseId, node: NodeId) -> Option<&mut Part> {
    current_attempt(state, lease)?.parts.iter_mut().find(|p| p.node == node)
}
