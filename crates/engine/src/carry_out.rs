//! A checked plan as events, and which nodes an event changes.

use std::collections::BTreeMap;

use tutti_model::{
    ClaimCause, Generation, LeaseId, NewClaim, NodeId, Plan, PreemptMode, State, Stop, StopCause,
    SuspendCause, TaskId, Time, Victim,
};

use crate::decide::may_suspend;
use crate::event::Event;

/// Takes what is to be done out of the plan; its verdicts stay.
pub(crate) fn events(state: &State, plan: &mut Plan, now: Time) -> Vec<Event> {
    let mut events = Vec::new();
    let dropped = std::mem::take(&mut plan.dropped);
    events.extend(dropped.into_iter().map(|task| Event::Unclaimed { task }));
    for wake in std::mem::take(&mut plan.wakes) {
        let parts = wake.parts;
        let woken = lease_of(state, wake.task);
        events.extend(woken.map(|lease| Event::Waking { lease, parts, refused: None }));
    }
    let first = state.next_generation.max(1);
    for (placement, generation) in std::mem::take(&mut plan.placements).into_iter().zip(first..) {
        let (task, parts) = (placement.task, placement.parts);
        events.push(Event::Placed { task, generation: Generation(generation), parts });
    }
    for claim in std::mem::take(&mut plan.claims) {
        make_room(state, claim, now, &mut events);
    }
    events
}

/// Room is claimed before anybody is told to leave it.
fn make_room(state: &State, claim: NewClaim, now: Time, events: &mut Vec<Event>) {
    let NewClaim { task, parts, cause, victims } = claim;
    let nodes = parts.len() as u32;
    let named = victims.iter().map(|v| v.task).collect();
    events.push(Event::Claimed { task, parts, cause, victims: named });
    for Victim { task: victim, how, .. } in victims {
        let Some(lease) = lease_of(state, victim) else { continue };
        let why = match how {
            _ if victim == task => StopCause::Resized { nodes },
            Stop::Suspend { moved } => {
                let why = SuspendCause::Preempted { for_job: task.job };
                events.push(Event::Suspending { lease, why, stays: false, moved });
                continue;
            }
            Stop::Requeue => {
                let not_suspended = why_not_suspended(state, victim, now);
                StopCause::Preempted { for_job: task.job, not_suspended }
            }
            Stop::Shrink { keep } => {
                let nodes = keep.len() as u32;
                events.push(Event::Claimed {
                    task: victim,
                    parts: keep,
                    cause: ClaimCause::Resize,
                    victims: vec![victim],
                });
                StopCause::Resized { nodes }
            }
        };
        events.push(Event::Stopping { lease, why });
    }
}

/// Of a task that asks to be suspended, and is stopped.
fn why_not_suspended(state: &State, victim: TaskId, now: Time) -> Option<String> {
    let job = state.job(victim.job)?;
    let asks = job.spec.preempt.as_ref().is_some_and(|p| p.mode == PreemptMode::Suspend);
    let attempt = job.task(victim.index)?.attempt().filter(|_| asks)?;
    Some(match may_suspend(state, job, attempt, now, &mut BTreeMap::new()) {
        Err(why) => why.to_string(),
        Ok(_) => "its nodes have too little memory for all that would be suspended".to_owned(),
    })
}

fn lease_of(state: &State, task: TaskId) -> Option<LeaseId> {
    let attempt = state.job(task.job)?.task(task.index)?.attempt()?;
    Some(attempt.lease(task))
}

/// The nodes that the scheduler must look at again once this event is applied.
pub(crate) fn touched(state: &State, event: &Event, mut touch: impl FnMut(NodeId)) {
    let claim_of = |task: &TaskId, touch: &mut dyn FnMut(NodeId)| {
        let parts = state.claims.get(task).into_iter().flat_map(|c| &c.parts);
        parts.for_each(|p| touch(p.node));
    };
    let attempt = |lease: &LeaseId| {
        let job = state.job(lease.task.job);
        job.and_then(|j| j.task(lease.task.index)).and_then(|t| t.attempt())
    };
    let all_of = |lease: &LeaseId, touch: &mut dyn FnMut(NodeId)| {
        attempt(lease).into_iter().flat_map(|a| &a.parts).for_each(|p| touch(p.node));
    };
    match event {
        Event::Placed { task, parts, .. } | Event::Claimed { task, parts, .. } => {
            claim_of(task, &mut touch);
            parts.iter().for_each(|p| touch(p.node));
        }
        Event::Unclaimed { task } => claim_of(task, &mut touch),
        Event::TaskEnded { task, .. } => {
            claim_of(task, &mut touch);
            lease_of(state, *task).iter().for_each(|lease| all_of(lease, &mut touch));
        }
        Event::WaitingEnded { job, .. } => {
            let of_job = state.claims.keys().filter(|t| t.job == *job);
            of_job.for_each(|task| claim_of(task, &mut touch));
        }
        Event::Waking { lease, .. } => {
            claim_of(&lease.task, &mut touch);
            all_of(lease, &mut touch);
        }
        Event::Stopping { lease, .. }
        | Event::Requeued { lease, .. }
        | Event::Suspending { lease, .. }
        | Event::PartSuspended { lease, .. }
        | Event::PartWoken { lease, .. }
        | Event::SuspensionReleased { lease, .. }
        | Event::LetGo { lease } => {
            all_of(lease, &mut touch);
        }
        Event::PartDone { lease, node, .. } | Event::PartLost { lease, node, .. } => {
            touch(*node);
            // The first part that is over says that the others will be.
            let first = attempt(lease).filter(|a| !a.is_ending() || a.pause().is_some());
            first.into_iter().flat_map(|a| &a.parts).for_each(|p| touch(p.node));
        }
        Event::PartRunning { node, .. }
        | Event::NodeJoined { node, .. }
        | Event::NodeUp { node, .. }
        | Event::NodeAway { node }
        | Event::NodeLost { node }
        | Event::StaleGone { node, .. }
        | Event::NodeDrained { node, .. }
        | Event::NodeResumed { node, .. }
        | Event::FindingsChanged { node, .. }
        | Event::NodeReopened { node }
        | Event::NodeRemoved { node: Some(node), .. } => touch(*node),
        _ => {}
    }
}
