//! One try at running a task, from its lease to its end.

use tutti_model::{
    Attempt, AttemptPhase, LeaseId, NodeId, Part, PartPlacement, PartState, Phase, Rank, State,
    StopCause, Time,
};

use super::{accounts, change_task, claims, current_attempt, current_part, with_node};
use crate::event::RetryCause;
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
    }
}

/// The first part's node is where the gang meets.
pub(super) fn note_master_port(state: &mut State, lease: LeaseId, node: NodeId, port: u16) {
    let Some(attempt) = current_attempt(state, lease) else { return };
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
        attempt.phase = AttemptPhase::Stopping {
            since: at,
            running_since: attempt.running_since(),
            why: why.clone(),
        };
    });
}

pub(super) fn saved(state: &mut State, lease: LeaseId, at: Time) {
    if let Some(attempt) = current_attempt(state, lease) {
        attempt.saved_at = Some(at);
    }
}

pub(super) fn requeued(
    state: &mut State,
    lease: LeaseId,
    cause: RetryCause,
    avoid: Option<NodeId>,
    not_before: Time,
    at: Time,
) {
    let attempt = current_attempt(state, lease).map(|a| (a.served(at), a.lasted(at)));
    let Some((served, lasted)) = attempt else { return };
    accounts::charge_ends(state, lease.task, at);
    change_task(state, lease.task, |t| {
        match cause {
            RetryCause::NodeFailure => t.restarts.node_failure += 1,
            RetryCause::Preemption => {
                t.restarts.preemption += 1;
                t.preempted_at = Some(at);
            }
            RetryCause::JobFailure => t.restarts.job_failure += 1,
            RetryCause::Resize => {}
        }
        t.served = t.served.saturating_add(served);
        t.last_ran = Some(lasted);
        t.lost_node = cause == RetryCause::NodeFailure;
        t.avoid.extend(avoid);
        t.phase = Phase::Pending { since: at, not_before };
    });
    accounts::learn_progress(state, lease.task);
}

/// For changes that move the attempt in the indexes.
fn change_attempt(state: &mut State, lease: LeaseId, change: impl FnOnce(&mut Attempt)) {
    if current_attempt(state, lease).is_none() {
        return;
    }
    change_task(state, lease.task, |task| {
        if let Some(attempt) = task.attempt_mut() {
            change(attempt);
        }
    });
}
