//! What must follow from an event at once, in the same batch: a gang that lost a rank is stopped, an
//! attempt that is over is retried or ended, jobs that wait in vain are cancelled.

mod blame;
mod ending;

use tutti_model::{
    Attempt, AttemptPhase, Bytes, Claim, EndReason, Job, JobId, LeaseId, Link, Node, NodeId,
    PartPlacement, Phase, State, StopCause, SuspendCause, TaskId, Tasks, Time,
};

use crate::decide::{View, ended_waiting, never_ran};
use crate::effects::find_attempt;
use crate::event::Event;
use crate::health;
use crate::index::{DependencyState, dependency};

pub(crate) use ending::gets_further;

pub(crate) fn consequences(view: View<'_>, event: &Event) -> Vec<Event> {
    let View { state, now, .. } = view;
    match event {
        Event::PartRunning { lease, .. }
        | Event::PartDone { lease, .. }
        | Event::PartLost { lease, .. }
        | Event::Waking { lease, .. }
        | Event::PartWoken { lease, .. } => ending::of_attempt(view, *lease),
        Event::Accused { lease, .. } => {
            let mut events = ending::of_attempt(view, *lease);
            events.extend(confirmed_loss(state, *lease));
            events
        }
        Event::NodeAway { node } => {
            let leases = state.node(*node).into_iter().flat_map(|n| n.used.leases.iter());
            leases.filter_map(|&lease| confirmed_loss(state, lease)).collect()
        }
        Event::NodeLost { node } => {
            let mut events =
                claims_lost(state, |_, claim| claim.parts.iter().any(|p| p.node == *node));
            events.extend(parts_lost(state, *node));
            events.extend(taken_out(view, *node));
            events
        }
        Event::NodeRemoved { node: Some(node), .. } => {
            claims_lost(state, |_, claim| claim.parts.iter().any(|p| p.node == *node))
        }
        Event::PartSuspended { lease, .. } => too_large(state, *lease).into_iter().collect(),
        Event::NodeDrained { node, drain } if drain.auto => suspended_there(state, *node),
        Event::Requeued { failed_on: Some(node), .. } => {
            taken_out(view, *node).into_iter().collect()
        }
        // What is kept is kept for what it was.
        Event::JobHeld { job, .. } => claims_lost(state, |task, _| task.job == *job),
        Event::JobUpdated { job, update, .. } if !update.only_renames() => {
            claims_lost(state, |task, _| task.job == *job)
        }
        Event::TaskEnded { task, ended } => {
            let mut events = of_ended_job(state, task.job, now);
            let struck = |n: &&NodeId| {
                let last = state.node(**n).and_then(|n| n.strikes.last());
                last.is_some_and(|s| s.at == now)
            };
            events.extend(ended.nodes.iter().filter(struck).filter_map(|n| taken_out(view, *n)));
            events
        }
        Event::WaitingEnded { job, .. } => of_ended_job(state, *job, now),
        _ => Vec::new(),
    }
}

/// A rank is accused, and the agent of its node is gone as well: two who do not know of each other
/// say the same. There is no need to wait until the node counts as lost.
fn confirmed_loss(state: &State, lease: LeaseId) -> Option<Event> {
    let attempt = find_attempt(state, lease)?;
    let part = attempt.part_of(blame::suspect(attempt)?.fault.rank)?;
    let away = matches!(state.node(part.node)?.link, Link::Away { .. });
    (away && !part.phase.is_over()).then_some(Event::PartLost { lease, node: part.node })
}

/// Too much went wrong on this node.
fn taken_out(view: View<'_>, node: NodeId) -> Option<Event> {
    let drain = health::take_out(view.state, view.settings, node, view.now)?;
    Some(Event::NodeDrained { node, drain })
}

fn parts_lost(state: &State, node: NodeId) -> Vec<Event> {
    let leases = state.node(node).into_iter().flat_map(|n| n.used.leases.iter());
    leases.map(|&lease| Event::PartLost { lease, node }).collect()
}

/// It takes more memory than was expected, and whoever it was suspended for has none left: it is
/// stopped after all, or neither would ever run.
fn too_large(state: &State, lease: LeaseId) -> Option<Event> {
    let attempt = find_attempt(state, lease).filter(|a| a.is_suspended())?;
    let SuspendCause::Preempted { for_job } = attempt.pause()?.why else { return None };
    let short = |part: &PartPlacement| {
        let here = attempt.part_on(part.node).is_some();
        let free = |n: &Node| Bytes(n.free_mem().0.saturating_add(leaving(state, n)));
        here && state.node(part.node).is_some_and(|n| free(n) < part.mem)
    };
    let mut claims = state.claims.iter().filter(|(task, _)| task.job == for_job);
    let is_short = claims.any(|(_, claim)| claim.parts.iter().any(short));
    let words =
        format!("it took more host memory than was expected, and job {for_job} has none left");
    let why = StopCause::Preempted { for_job, not_suspended: Some(words) };
    is_short.then_some(Event::Stopping { lease, why })
}

/// Memory of a node that those who are told to go give back.
fn leaving(state: &State, node: &Node) -> u64 {
    let goes = |lease: &LeaseId| {
        let attempt = find_attempt(state, *lease)?;
        let stops = matches!(attempt.phase, AttemptPhase::Stopping { .. });
        attempt.part_on(node.id).filter(|p| stops && !p.phase.is_over()).map(|p| p.mem.0)
    };
    node.used.leases.iter().filter_map(goes).sum()
}

/// A node that was taken out because too much goes wrong there is no place to wake on. On one that
/// somebody drains, what is suspended wakes and goes on to its end, as what runs does.
fn suspended_there(state: &State, node: NodeId) -> Vec<Event> {
    let leases = state.node(node).into_iter().flat_map(|n| n.used.leases.iter().copied());
    let asleep = |l: &LeaseId| find_attempt(state, *l).is_some_and(Attempt::is_suspended);
    let why = || StopCause::Evicted { node, by: health::NOBODY.to_owned() };
    leases.filter(asleep).map(|lease| Event::Stopping { lease, why: why() }).collect()
}

/// Claims that can't come true: nothing is kept for a held job, nor on a node that is gone.
fn claims_lost(state: &State, lost: impl Fn(TaskId, &Claim) -> bool) -> Vec<Event> {
    let claims = state.claims.iter().filter(|(task, claim)| lost(**task, claim));
    claims.map(|(&task, _)| Event::Unclaimed { task }).collect()
}

/// Cancels what waited for an ending that can no longer come.
fn of_ended_job(state: &State, id: JobId, now: Time) -> Vec<Event> {
    if !state.job(id).is_some_and(Job::is_over) {
        return Vec::new();
    }
    let dependents = state.index.dependents.get(&id).into_iter().flatten();
    let mut events = Vec::new();
    for job in dependents.filter_map(|&d| state.job(d)) {
        let unmet =
            |dep: &&tutti_model::Dependency| dependency(state, dep) == DependencyState::Unmet;
        let Some(dep) = job.spec.after.iter().find(unmet) else { continue };
        events.extend(give_up(job, EndReason::DependencyUnmet { job: dep.job }, now));
    }
    events
}

fn give_up(job: &Job, reason: EndReason, now: Time) -> Option<Event> {
    match &job.tasks {
        Tasks::One(task) if matches!(task.phase, Phase::Pending { .. }) => Some(Event::TaskEnded {
            task: TaskId::single(job.id),
            ended: ended_waiting(task, reason, now),
        }),
        Tasks::Array(array) if !array.waiting.is_empty() => {
            Some(Event::WaitingEnded { job: job.id, ended: never_ran(reason, now) })
        }
        _ => None,
    }
}
