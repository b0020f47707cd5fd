//! Suspending by hand, what agents say about it, and what takes too long.

use tutti_model::{
    Attempt, AttemptPhase, Bytes, Job, LeaseId, Moved, Node, NodeId, Order, Part, PartReport,
    Refusal, ReportedPhase, SleepStep, Span, State, StopCause, SuspendCause, Suspension, Task,
    TaskId, Time, WakePart, is_other_size,
};

use super::jobs::is_kept;
use super::stranded::stranded;
use super::{Decision, View, own_job};
use crate::command::{Actor, Reply};
use crate::effects::find_attempt;
use crate::event::Event;
use crate::reject::{CantSuspend, Rejected};

/// Of a reason that an agent gives, so much goes on record.
const WHY_CHARS_MAX: usize = 300;
/// For so long a refusal counts for those who ask again.
const REFUSED_LATELY: Span = Span::secs(10);

/// The tasks that a person means, as far as they were ever started.
fn meant(job: &Job, target: TaskId) -> Result<Vec<(TaskId, &Task)>, Rejected> {
    if target.index.is_some() && !job.has_task(target.index) {
        return Err(Rejected::NoSuchTask(target));
    }
    if job.is_over() || job.ended(target.index).is_some() {
        return Err(Rejected::AlreadyEnded(job.id));
    }
    let of = |(id, _): &(TaskId, _)| target.index.is_none() || *id == target;
    Ok(job.live_tasks().filter(of).collect())
}

/// What can't be suspended is left alone if others of the array can.
pub(super) fn suspend(view: View<'_>, actor: &Actor, target: TaskId) -> Decision {
    let job = own_job(view, actor, target.job)?;
    let (mut events, mut touched, mut refused) = (Vec::new(), 0, None);
    // Several may share a node, and its memory.
    let mut kept = std::collections::BTreeMap::new();
    for (id, task) in meant(job, target)? {
        let Some(attempt) = task.attempt() else {
            touched += u64::from(is_kept(task));
            continue;
        };
        let lease = attempt.lease(id);
        let by = actor.user.clone();
        match &attempt.phase {
            _ if attempt.kept.is_some() => touched += 1,
            AttemptPhase::Suspending { pause } | AttemptPhase::Suspended { pause, .. } => {
                touched += 1;
                events.extend((!pause.stays).then_some(Event::SuspensionHeld { lease, by }));
            }
            _ => match may_suspend(view.state, job, attempt, view.now, &mut kept) {
                Ok(moved) => {
                    touched += 1;
                    let why = SuspendCause::Asked { by };
                    events.push(Event::Suspending { lease, why, stays: true, moved });
                }
                Err(why) => {
                    refused.get_or_insert(Rejected::CantSuspend { task: id, why });
                }
            },
        }
    }
    match (touched, refused) {
        (0, Some(rejected)) => Err(rejected),
        (0, None) => Err(Rejected::NotRunning(target)),
        _ => Ok((Reply::Tasks(touched), events)),
    }
}

/// What it takes of each node's memory, if it can be suspended at all.
pub(crate) fn may_suspend(
    state: &State,
    job: &Job,
    attempt: &Attempt,
    now: Time,
    kept: &mut std::collections::BTreeMap<NodeId, u64>,
) -> Result<Vec<Moved>, CantSuspend> {
    if !matches!(attempt.phase, AttemptPhase::Running { .. }) {
        return Err(CantSuspend::NotRunning);
    }
    // What its agent still says about the last time must not be taken for this one.
    if let Some(Refusal { node, why }) = refused_lately(attempt, now) {
        return Err(CantSuspend::Refused { node: state.node_name(*node), why: why.clone() });
    }
    if job.spec.gpu_share.is_some() {
        return Err(CantSuspend::Share);
    }
    if job.spec.exclusive {
        return Err(CantSuspend::Exclusive);
    }
    let mut moved = Vec::new();
    for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
        let name = || state.node_name(part.node);
        let node = state.node(part.node).ok_or(CantSuspend::NotRunning)?;
        if !node.facts.can_suspend {
            let why = node.facts.suspend_note.clone();
            let why = why.unwrap_or_else(|| "its agent does not say that it can".to_owned());
            return Err(CantSuspend::Node { node: name(), why });
        }
        let taken = kept.entry(node.id).or_default();
        let spoken_for = taken.saturating_add(kept_for_others(state, node.id));
        let free = Bytes(node.free_mem().0.saturating_sub(spoken_for));
        let bytes = match part.gpu_mem {
            Some(_) => part.bytes_when_out(gpu_memory(node, part)),
            // It has only just begun. Its agent looks before anything is moved.
            None => gpu_memory(node, part).min(free),
        };
        if bytes > free {
            let free = Bytes(free.0 >> 20 << 20);
            return Err(CantSuspend::Memory { node: name(), needs: bytes, free });
        }
        *taken += bytes.0;
        moved.push(Moved { node: part.node, bytes });
    }
    Ok(moved)
}

/// Somebody was stopped to make room for them, or will have ended.
fn kept_for_others(state: &State, node: NodeId) -> u64 {
    let parts = state.claims.values().flat_map(|claim| &claim.parts);
    parts.filter(|part| part.node == node).map(|part| part.mem.0).sum()
}

fn refused_lately(attempt: &Attempt, now: Time) -> Option<&Refusal> {
    let nap = attempt.naps.last()?;
    let lately = nap.until.is_some_and(|until| now.since(until) < REFUSED_LATELY);
    nap.refused.as_ref().filter(|_| lately)
}

/// All that the part's GPUs could hold.
fn gpu_memory(node: &Node, part: &Part) -> Bytes {
    let gpus = node.facts.gpus.iter().filter(|g| part.gpus.contains(&g.index));
    Bytes(gpus.map(|g| g.mem.0).sum())
}

/// It goes on when it is its turn and its GPUs are free.
pub(super) fn wake(view: View<'_>, actor: &Actor, target: TaskId) -> Decision {
    let job = own_job(view, actor, target.job)?;
    let (mut events, mut touched) = (Vec::new(), 0);
    for (id, task) in meant(job, target)? {
        let by = actor.user.clone();
        let Some(attempt) = task.attempt() else {
            touched += u64::from(is_kept(task));
            events.extend(is_kept(task).then_some(Event::TaskReleased { task: id, by }));
            continue;
        };
        let pause = attempt.pause();
        if pause.is_none() && attempt.kept.is_none() {
            continue;
        }
        touched += 1;
        let stays = attempt.kept.is_some() || pause.is_some_and(|pause| pause.stays);
        let lease = attempt.lease(id);
        events.extend(stays.then_some(Event::SuspensionReleased { lease, by }));
    }
    if touched == 0 {
        return Err(Rejected::NotSuspended(target));
    }
    Ok((Reply::Tasks(touched), events))
}

/// What a report says about where a part is on its way out or back.
pub(super) fn heard(view: View<'_>, node: NodeId, part: &Part, report: &PartReport) -> Vec<Event> {
    let lease = report.lease;
    let Some(attempt) = find_attempt(view.state, lease) else { return Vec::new() };
    if !matches!(report.phase, ReportedPhase::Running { .. }) {
        return Vec::new();
    }
    let mut events = Vec::new();
    events.extend(grown(view.state, attempt, part, report));
    let (step, said) = (part.sleep_step(), &report.suspension);
    match (&attempt.phase, step, said) {
        (
            AttemptPhase::Suspending { .. } | AttemptPhase::Waking { .. },
            Some(SleepStep::Going),
            Some(Suspension::Suspended { bytes }),
        ) => {
            let bytes = credible(view.state, node, *bytes);
            events.push(Event::PartSuspended { lease, node, bytes });
        }
        (
            AttemptPhase::Suspending { .. },
            Some(SleepStep::Going),
            Some(Suspension::Refused { why }),
        ) => {
            events.push(undo(attempt, lease, node, clip(why)));
            events.push(Event::PartWoken { lease, node });
        }
        (
            AttemptPhase::Waking { .. },
            Some(SleepStep::Coming),
            Some(Suspension::Refused { why }),
        ) => {
            events.push(Event::Stopping { lease, why: not_woken(node, &clip(why)) });
        }
        // One that could not leave its GPUs runs, whatever it says about that.
        (AttemptPhase::Waking { .. }, Some(SleepStep::Coming), None)
        | (
            AttemptPhase::Waking { .. },
            Some(SleepStep::Going),
            None | Some(Suspension::Refused { .. }),
        ) => events.push(Event::PartWoken { lease, node }),
        _ => {}
    }
    events
}

/// No more than the host has, whatever its agent says.
fn credible(state: &State, node: NodeId, bytes: Bytes) -> Bytes {
    state.node(node).map_or(bytes, |n| bytes.min(n.facts.mem))
}

fn clip(text: &str) -> String {
    text.chars().take(WHY_CHARS_MAX).collect()
}

/// What it has on its GPUs matters where it may be moved out of them.
fn grown(state: &State, attempt: &Attempt, part: &Part, report: &PartReport) -> Option<Event> {
    let bytes = report.gpu_mem?;
    let can = state.node(part.node).is_some_and(|n| n.facts.can_suspend);
    let news = can && attempt.pause().is_none() && is_other_size(part.gpu_mem, bytes);
    news.then_some(Event::PartHolds { lease: report.lease, node: part.node, bytes })
}

/// All or none: whoever is out comes back to its own GPUs.
fn undo(attempt: &Attempt, lease: LeaseId, node: NodeId, why: String) -> Event {
    let live = attempt.parts.iter().filter(|p| !p.phase.is_over());
    let parts = live.map(|p| WakePart { node: p.node, gpus: p.gpus.clone() }).collect();
    Event::Waking { lease, parts, refused: Some(Refusal { node, why }) }
}

/// The work since its last checkpoint is lost with its processes.
fn not_woken(node: NodeId, why: &str) -> StopCause {
    StopCause::LaunchFailed { node, error: format!("it could not be woken: {why}"), ran: true }
}

/// What to tell a node whose part is not where it should be, beyond what moves it on.
pub(super) fn correction(state: &State, node: NodeId, report: &PartReport) -> Option<Order> {
    let lease = report.lease;
    let attempt = find_attempt(state, lease)?;
    let part = attempt.part_on(node).filter(|p| !p.phase.is_over())?;
    match (&attempt.phase, part.sleep_step(), &report.suspension) {
        // An order that came late, or a refusal that is on record.
        (AttemptPhase::Running { .. }, None, Some(said)) if *said != Suspension::Waking => {
            Some(Order::Wake { lease, gpus: part.gpus.clone() })
        }
        // Its GPUs are others' by now.
        (AttemptPhase::Suspended { .. }, Some(SleepStep::Lent), None) => {
            Some(Order::Suspend { lease })
        }
        _ => None,
    }
}

/// Whether the report shows that the order is being carried out.
pub(super) fn is_under_way(order: &Order, report: &PartReport) -> bool {
    match order {
        Order::Suspend { .. } => report.suspension == Some(Suspension::Suspending),
        Order::Wake { .. } => report.suspension == Some(Suspension::Waking),
        _ => false,
    }
}

/// Attempts that do not get out of their GPUs, or back.
pub(super) fn overdue(view: View<'_>) -> Vec<Event> {
    let lost = stranded(view).filter(|(at, ..)| *at <= view.now);
    let mut events: Vec<Event> =
        lost.map(|(_, lease, why)| Event::Stopping { lease, why }).collect();
    let late = deadlines(view).filter(|(at, ..)| *at <= view.now);
    events.extend(late.filter_map(|(at, lease, attempt)| {
        let slow = |p: &&Part| !p.phase.is_over() && p.asleep.is_some();
        let not_out = |p: &&Part| p.sleep_step() == Some(SleepStep::Going);
        let part = attempt.parts.iter().filter(slow).find(not_out);
        let node = part.or_else(|| attempt.parts.iter().find(slow))?.node;
        let took = at.since(begun(attempt)?).short();
        Some(match &attempt.phase {
            AttemptPhase::Waking { then: Some(why), .. } => {
                Event::Stopping { lease, why: why.clone() }
            }
            AttemptPhase::Waking { .. } => {
                let why = not_woken(node, &format!("it did not run after {took}"));
                Event::Stopping { lease, why }
            }
            _ => undo(attempt, lease, node, format!("it was not out of its GPUs after {took}")),
        })
    }));
    events
}

pub(super) fn next_deadline(view: View<'_>) -> Option<Time> {
    let moving = deadlines(view).map(|(at, ..)| at);
    moving.chain(stranded(view).map(|(at, ..)| at)).min()
}

fn begun(attempt: &Attempt) -> Option<Time> {
    match &attempt.phase {
        AttemptPhase::Suspending { pause } => Some(pause.at),
        AttemptPhase::Waking { since, .. } => Some(*since),
        _ => None,
    }
}

fn deadlines(view: View<'_>) -> impl Iterator<Item = (Time, LeaseId, &Attempt)> {
    view.state.index.moving.iter().filter_map(move |&id| {
        let attempt = view.state.job(id.job)?.task(id.index)?.attempt()?;
        // All nodes move theirs at the same time.
        let parts = attempt.parts.iter().filter_map(|p| p.asleep.as_deref());
        let bytes = parts.map(|a| a.bytes.0).max().unwrap_or(0);
        let more = bytes.saturating_mul(1000) / view.settings.suspend_rate.0.max(1);
        let within = Span(view.settings.suspend_within.0.saturating_add(more));
        Some((begun(attempt)?.plus(within), attempt.lease(id), attempt))
    })
}
