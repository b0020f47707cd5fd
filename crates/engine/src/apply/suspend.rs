//! Attempts leave their GPUs and come back to others, under the same lease.

use tutti_model::{
    Accusation, Attempt, AttemptPhase, Bytes, LeaseId, Moved, NAPS_MAX, Nap, NodeId, Part,
    PartPlacement, Pause, Refusal, SleepStep, State, StopCause, SuspendCause, Time, WakePart,
};

use super::{accounts, attempts, claims, current_attempt, current_part, current_task, with_node};
use crate::index;

/// What its processes have on its GPUs.
pub(super) fn part_holds(state: &mut State, lease: LeaseId, node: NodeId, bytes: Bytes) {
    if let Some(part) = current_part(state, lease, node) {
        part.gpu_mem = Some(bytes);
    }
}

pub(super) fn suspending(
    state: &mut State,
    lease: LeaseId,
    why: &SuspendCause,
    stays: bool,
    moved: &[Moved],
    at: Time,
) {
    reshape(state, lease, |attempt| {
        let AttemptPhase::Running { since } = attempt.phase else { return };
        let pause = Pause {
            at,
            ran: at.since(since),
            why: why.clone(),
            stays,
            kept_by: None,
            released_at: None,
        };
        attempt.phase = AttemptPhase::Suspending { pause };
        for Moved { node, bytes } in moved {
            let mut parts = attempt.parts.iter_mut().filter(|p| !p.phase.is_over());
            parts.find(|p| p.node == *node).into_iter().for_each(|p| p.go_out(*bytes));
        }
        let bytes = attempt.asleep_bytes();
        let (why, none) = (why.clone(), None);
        attempt.naps.push(Nap {
            why,
            since: at,
            out_at: none,
            back_at: none,
            until: none,
            bytes,
            refused: None,
            attempt: attempt.number,
            cut_at: none,
        });
        if attempt.naps.len() > NAPS_MAX {
            attempt.naps.remove(0);
        }
    });
}

/// In a suspension that is undone, a part that got out after all must come back as well.
pub(super) fn part_suspended(
    state: &mut State,
    lease: LeaseId,
    node: NodeId,
    bytes: Bytes,
    at: Time,
) {
    reshape(state, lease, |attempt| {
        let undone = matches!(attempt.phase, AttemptPhase::Waking { .. });
        let Some(part) = attempt.parts.iter_mut().find(|p| p.node == node) else { return };
        if part.sleep_step() == Some(SleepStep::Going) && !part.phase.is_over() {
            part.is_out(bytes);
            if undone {
                let own = part.gpus.clone();
                part.come_back(&own);
            }
        }
    });
    settle(state, lease, at);
}

pub(super) fn waking(
    state: &mut State,
    lease: LeaseId,
    parts: &[WakePart],
    refused: Option<&Refusal>,
    at: Time,
) {
    claims::drop_of(state, lease.task);
    let was_out = current_attempt(state, lease).is_some_and(|a| a.is_suspended());
    let words = refused.map(|r| format!("{}: {}", state.node_name(r.node), r.why));
    reshape(state, lease, |attempt| {
        let Some(pause) = attempt.pause().cloned() else { return };
        let then = match (&pause.why, refused) {
            (SuspendCause::Preempted { for_job }, Some(_)) => {
                Some(StopCause::Preempted { for_job: *for_job, not_suspended: words })
            }
            _ => None,
        };
        attempt.phase = AttemptPhase::Waking { since: at, pause, then };
        for WakePart { node, gpus } in parts {
            let part = attempt.parts.iter_mut().find(|p| p.node == *node);
            let is_out = |p: &&mut Part| {
                matches!(p.sleep_step(), Some(SleepStep::Out | SleepStep::Lent))
                    && !p.phase.is_over()
            };
            part.filter(is_out).into_iter().for_each(|p| p.come_back(gpus));
        }
        if let Some(nap) = attempt.naps.last_mut() {
            nap.back_at = Some(at);
            nap.refused = refused.cloned();
        }
    });
    if was_out {
        charge_again(state, lease, at);
    }
    settle(state, lease, at);
}

pub(super) fn part_woken(state: &mut State, lease: LeaseId, node: NodeId, at: Time) {
    reshape(state, lease, |attempt| {
        if matches!(attempt.phase, AttemptPhase::Waking { .. }) {
            let part = attempt.parts.iter_mut().find(|p| p.node == node && !p.phase.is_over());
            part.into_iter().for_each(Part::wake_up);
        }
    });
    settle(state, lease, at);
}

/// Until it is resumed, if somebody wants it so.
pub(super) fn stays(state: &mut State, lease: LeaseId, by: Option<&String>, at: Time) {
    attempts::change_attempt(state, lease, |attempt| {
        if let Some(pause) = attempt.pause_mut() {
            pause.stays = by.is_some();
            pause.kept_by = by.cloned();
            pause.released_at = by.is_none().then_some(at);
        }
        // It may be on its way out by now.
        if by.is_none() {
            attempt.kept = None;
        }
    });
}

/// What ranks say of each other while some of them stand still proves nothing.
pub(super) fn disregarded(state: &mut State, lease: LeaseId, accusation: &Accusation) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    attempt.disregarded.retain(|old| old.by != accusation.by);
    attempt.disregarded.push(accusation.clone());
}

/// The last part that is out lets the GPUs go; the last that is back lets the clock run on.
pub(super) fn settle(state: &mut State, lease: LeaseId, at: Time) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    let all = |step: Option<SleepStep>| {
        let mut live = attempt.parts.iter().filter(|p| !p.phase.is_over()).peekable();
        live.peek().is_some() && live.all(|p| p.sleep_step() == step)
    };
    match &attempt.phase {
        AttemptPhase::Suspending { .. } if all(Some(SleepStep::Out)) => lend(state, lease, at),
        AttemptPhase::Waking { .. } if all(None) => go_on(state, lease, at),
        _ => {}
    }
}

fn lend(state: &mut State, lease: LeaseId, at: Time) {
    accounts::charge_ends(state, lease.task, at);
    reshape(state, lease, |attempt| {
        let AttemptPhase::Suspending { pause } = attempt.phase.clone() else { return };
        attempt.phase = AttemptPhase::Suspended { since: at, pause };
        attempt.charge = 0;
        let bytes = attempt.asleep_bytes();
        attempt.parts.iter_mut().filter(|p| !p.phase.is_over()).for_each(Part::lend);
        if let Some(nap) = attempt.naps.last_mut() {
            nap.out_at = Some(at);
            nap.bytes = bytes;
        }
    });
    if let Some(task) = current_task(state, lease)
        && let Some(SuspendCause::Preempted { .. }) =
            task.attempt().and_then(|a| a.pause()).map(|p| &p.why)
    {
        task.preempted_at = Some(at);
    }
}

/// It runs as if nothing had happened: what it had done counts, the break does not.
fn go_on(state: &mut State, lease: LeaseId, at: Time) {
    attempts::change_attempt(state, lease, |attempt| {
        let AttemptPhase::Waking { pause, then, .. } = attempt.phase.clone() else { return };
        if let Some(nap) = attempt.naps.last_mut() {
            nap.until = Some(at);
        }
        let away = at.since(pause.at);
        // One that is stopped next is away until then.
        if then.is_none() {
            attempt.away.0 = attempt.away.0.saturating_add(away.0);
        }
        attempt.saved_at = attempt.saved_at.map(|saved| saved.min(pause.at).plus(away));
        // One that could not be suspended is stopped next.
        if then.is_none() {
            attempt.phase = AttemptPhase::Running { since: Time(at.0.saturating_sub(pause.ran.0)) };
        }
    });
}

fn charge_again(state: &mut State, lease: LeaseId, at: Time) {
    let Some(job) = state.job(lease.task.job) else { return };
    let attempt = job.task(lease.task.index).and_then(|t| t.attempt());
    let live = attempt.into_iter().flat_map(|a| &a.parts).filter(|p| !p.phase.is_over());
    // Its GPU state is still in the host's memory, but not for long.
    let awake = |p: &Part| {
        let mem = p.asleep.as_deref().map_or(p.mem, |a| a.mem);
        PartPlacement { mem, ..PartPlacement::from(p) }
    };
    let parts: Vec<PartPlacement> = live.map(awake).collect();
    let charge = accounts::charge_of(state, &job.spec, &parts);
    if let Some(attempt) = current_attempt(state, lease) {
        attempt.charge = charge;
    }
    accounts::charge_begins(state, lease.task, at);
}

/// Changes what the parts of an attempt hold, on the books of their nodes as well.
fn reshape(state: &mut State, lease: LeaseId, change: impl FnOnce(&mut Attempt)) {
    let Some(attempt) = current_attempt(state, lease) else { return };
    let before = attempt.parts.clone();
    attempts::change_attempt(state, lease, change);
    let after = current_attempt(state, lease).map(|a| a.parts.clone()).unwrap_or_default();
    for part in before.iter().filter(|p| !p.phase.is_over()) {
        with_node(state, part.node, |n| index::give_back(&mut n.used, lease, part));
    }
    for part in after.iter().filter(|p| !p.phase.is_over()) {
        with_node(state, part.node, |n| index::take(&mut n.used, lease, part));
    }
}
