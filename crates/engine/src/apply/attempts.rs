//! One try at running a task, from its lease to its end.

use tutti_model::{
    Accusation, Attempt, AttemptPhase, LeaseId, NodeId, Part, PartPlacement, PartState, Phase,
    Rank, Restarts, SavedPoint, Span, State, StopCause, TaskId, Time,
};

use super::{
    accounts, change_task, claims, current_attempt, current_part, current_task, health, task_mut,
    with_node,
};
use crate::event::{Event, Fruit, RetryCause};
use crate::index;

pub(super) fn placed(state: &mut State, lease: LeaseId, parts: &[PartPlacement], at: Time) {
    let LeaseId { task, generation } = lease;
    state.next_generation = state.next_generation.max(generation.0 + 1);
    let Some(job) = state.job(task.job) else { return };
    let charge = accounts::charge_of(state, &job.spec, parts);
    let parts = in_rank_order(parts);
    for part in &parts {
        with_node(state, part.node, |n| index::take(&mut n.used, lease, part));
    }
    claims::drop_of(state, task);
    index::start_waiting_task(state, task);
    change_task(state, task, |t| {
        t.attempts += 1;
        let between = t.between_attempts(at);
        if !between.is_zero() {
            t.past_mut().between = between;
        }
        t.first_started_at.get_or_insert(at);
        t.phase = Phase::Active(Box::new(Attempt {
            number: t.attempts,
            generation,
            placed_at: at,
            phase: AttemptPhase::Starting,
            master_port: None,
            parts,
            charge,
            saved_at: None,
            saved: None,
            advanced: false,
            let_go: false,
            accusations: Vec::new(),
            disregarded: Vec::new(),
            naps: Vec::new(),
            away: Span(0),
            kept: None,
        }));
    });
    accounts::charge_begins(state, task, at);
}

fn in_rank_order(parts: &[PartPlacement]) -> Vec<Part> {
    let mut first_rank = 0;
    let part = |p: &PartPlacement| {
        let part = Part {
            node: p.node,
            gpus: p.gpus.clone(),
            cpus: p.cpus,
            mem: p.mem,
            share: p.share,
            first_rank: Rank(first_rank),
            ranks: p.ranks,
            phase: PartState::Sent,
            port: None,
            gpu_mem: None,
            port_owner: None,
            asleep: None,
        };
        first_rank += p.ranks;
        part
    };
    parts.iter().map(part).collect()
}

/// Moves one part of a current attempt, and frees what it held once it is over.
pub(super) fn set_part(state: &mut State, lease: LeaseId, node: NodeId, phase: PartState) {
    let Some(part) = current_part(state, lease, node) else { return };
    let freed = phase.is_over() && !part.phase.is_over();
    part.phase = phase;
    if freed {
        let part = part.clone();
        with_node(state, node, |n| index::give_back(&mut n.used, lease, &part));
        index::note_ending(state, lease.task);
    }
}

/// The first part's node is where the gang meets.
pub(super) fn note_port(state: &mut State, lease: LeaseId, node: NodeId, port: u16) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    attempt.parts.iter_mut().filter(|p| p.node == node).for_each(|p| p.port = Some(port));
    if attempt.parts.first().is_some_and(|p| p.node == node) {
        attempt.master_port = Some(port);
    }
}

/// An attempt runs from the moment its last part does.
pub(super) fn note_running(state: &mut State, lease: LeaseId, at: Time) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    let under_way =
        |p: &Part| matches!(p.phase, PartState::Running { .. } | PartState::Done { .. });
    if attempt.phase == AttemptPhase::Starting && attempt.parts.iter().all(under_way) {
        change_attempt(state, lease, |a| a.phase = AttemptPhase::Running { since: at });
    }
}

pub(super) fn stopping(state: &mut State, lease: LeaseId, why: &StopCause, at: Time) {
    change_attempt(state, lease, |attempt| {
        attempt.away = attempt.away(at);
        let kept = attempt.kept_asleep().map(Box::new);
        // What is over is kept for nobody.
        let over = matches!(
            why,
            StopCause::Cancelled { .. }
                | StopCause::TimeLimit
                | StopCause::Watched { again: false, .. }
        );
        attempt.kept = attempt.kept.take().or(kept).filter(|_| !over);
        attempt.phase = AttemptPhase::Stopping {
            since: at,
            running_since: attempt.running_since(at),
            why: why.clone(),
        };
    });
}

/// A point that nobody described counts as further than all before it: its owner says so.
pub(super) fn saved(state: &mut State, lease: LeaseId, point: Option<&SavedPoint>, at: Time) {
    let Some(task) = current_task(state, lease) else { return };
    let best = task.past().best_saved;
    let further = point.is_none_or(|p| best.is_none_or(|best| p.step > best));
    if let Some(point) = point {
        let past = task.past_mut();
        past.best_saved = best.max(Some(point.step));
        // What a person registered stands until the job itself is as far.
        let registered = |known: &SavedPoint| known.node.is_none() && known.step > point.step;
        if !past.saved.as_ref().is_some_and(registered) {
            past.saved = Some(point.clone());
        }
        past.learn(point);
    }
    let Some(attempt) = task.attempt_mut() else { return };
    // An agent that was away reports it late.
    let saved_at = point.and_then(|p| p.at).unwrap_or(at);
    attempt.saved_at = attempt.saved_at.max(Some(saved_at));
    attempt.saved = point.cloned().or_else(|| attempt.saved.take());
    attempt.advanced |= further;
    if further {
        health::went_well(state, lease.task, at);
    }
}

/// A restart goes on from it, unless something newer is known.
pub(super) fn registered(state: &mut State, task: TaskId, point: &SavedPoint) {
    let Some(job) = state.jobs_mut(task.job) else { return };
    let Some(task) = task_mut(job, task.index) else { return };
    let past = task.past_mut();
    past.learn(point);
    let further = past.best_saved.is_none_or(|best| point.step > best);
    if past.saved.as_ref().is_none_or(|known| known.step <= point.step) {
        past.saved = Some(point.clone());
        past.best_saved = past.best_saved.max(Some(point.step));
    }
    if let Some(attempt) = task.attempt_mut() {
        attempt.advanced |= further;
    }
}

pub(super) fn let_go(state: &mut State, lease: LeaseId) {
    if let Some(attempt) = current_attempt(state, lease) {
        attempt.let_go = true;
    }
}

/// A part has one voice: what it said first.
pub(super) fn accused(state: &mut State, lease: LeaseId, accusation: &Accusation) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    if attempt.accusations.iter().all(|a| a.by != accusation.by) {
        attempt.accusations.push(accusation.clone());
    }
}

pub(super) fn requeued(state: &mut State, lease: LeaseId, event: &Event, at: Time) {
    let Event::Requeued { cause, avoid, not_before, step, fruit, failed_on, why, kept, .. } = event
    else {
        return;
    };
    let (cause, not_before) = (*cause, *not_before);
    let attempt = current_attempt(state, lease).map(|a| (a.served(at), a.lasted(at), a.advanced));
    let Some((served, lasted, advanced)) = attempt else { return };
    accounts::charge_ends(state, lease.task, at);
    if let Some(node) = failed_on {
        health::failed(state, lease.task, *node, cause == RetryCause::NodeFailure, at);
    }
    change_task(state, lease.task, |t| {
        // What became safe was paid for; from here on it counts anew.
        if advanced {
            t.past_mut().spent = Restarts::default();
            t.past_mut().failed_on.clear();
            t.avoid.clear();
        }
        let past = t.past.get_or_insert_default();
        for count in [&mut t.restarts, &mut past.spent] {
            match cause {
                RetryCause::NodeFailure => count.node_failure += 1,
                RetryCause::Preemption => count.preemption += 1,
                RetryCause::JobFailure => count.job_failure += 1,
                RetryCause::Resize | RetryCause::Eviction | RetryCause::Health => {}
            }
        }
        // Counted, and paid for by nobody.
        t.restarts.health += u32::from(cause == RetryCause::Health);
        if cause == RetryCause::Preemption {
            t.preempted_at = Some(at);
        }
        match fruit {
            Fruit::Unknown => {}
            Fruit::Further => past.fruitless = 0,
            Fruit::None => past.fruitless += 1,
        }
        past.best_step = past.best_step.max(*step);
        past.stopped.clone_from(why);
        past.failed_on.extend(*failed_on);
        past.kept.clone_from(kept);
        t.served = t.served.saturating_add(served);
        t.last_ran = Some(lasted);
        // Nothing is kept warm for what waits for a person.
        let lost =
            matches!(cause, RetryCause::NodeFailure | RetryCause::Eviction | RetryCause::Health);
        t.lost_node = lost && kept.is_none();
        t.avoid.extend(*avoid);
        t.keep_naps(at);
        t.phase = Phase::Pending { since: at, not_before };
    });
    accounts::learn_progress(state, lease.task);
}

/// For changes that move the attempt in the indexes.
pub(super) fn change_attempt(state: &mut State, lease: LeaseId, change: impl FnOnce(&mut Attempt)) {
    if current_attempt(state, lease).is_none() {
        return;
    }
    change_task(state, lease.task, |task| {
        if let Some(attempt) = task.attempt_mut() {
            change(attempt);
        }
    });
}
