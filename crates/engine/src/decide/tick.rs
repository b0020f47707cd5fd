//! What time alone brings about.

use std::sync::Arc;

use tutti_model::{
    Attempt, AttemptPhase, Epoch, LeaseId, Link, Node, NodeId, Part, PartState, StopCause, TaskId,
    Time,
};

use super::{View, forget, ledger, suspend};
use crate::command::Reply;
use crate::event::Event;
use crate::serve;
use crate::stall;

/// A controller took over: nobody is connected yet, and everybody has time to come back.
pub(super) fn start(view: View<'_>) -> (Reply, Vec<Event>) {
    let mut events = vec![Event::ControllerStarted { epoch: Epoch(view.state.epoch.0 + 1) }];
    if view.state.epoch == Epoch(0) && view.settings.policy != *view.state.policy {
        let (policy, by) = (Arc::new(view.settings.policy.clone()), "controller".to_owned());
        events.push(Event::PolicyChanged { policy, by });
    }
    let up = view.state.nodes.values().filter(|n| n.link == Link::Up);
    events.extend(up.map(|n| Event::NodeAway { node: n.id }));
    (Reply::Done, events)
}

pub(super) fn tick(view: View<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    events.extend(lost_nodes(view).into_iter().map(|node| Event::NodeLost { node }));
    events.extend(overdue(view));
    events.extend(suspend::overdue(view));
    events.extend(stall::restarts(view));
    let slow = held_back(view).filter(|(at, _)| *at <= view.now);
    events.extend(slow.map(|(_, lease)| Event::LetGo { lease }));
    events.extend(due(view).into_iter().map(|task| Event::Ready { task }));
    events.extend(forget::by_the_clock(view));
    events.extend(old_keys(view));
    events.extend(ledger::day_turned(view));
    events
}

fn lost_nodes(view: View<'_>) -> Vec<NodeId> {
    let settings = view.settings;
    let silent = |n: &&Node| {
        let heard = view.live.last_heard(n.id).unwrap_or(view.now);
        let gone = settings.gone_timeout.filter(|_| matches!(n.link, Link::Away { .. }));
        view.now.since(heard) >= gone.unwrap_or(settings.node_timeout)
    };
    let candidates = view.state.nodes.values().filter(|n| !matches!(n.link, Link::Lost { .. }));
    candidates.filter(silent).map(|n| n.id).collect()
}

/// Attempts that ran for as long as they may, or never got to run.
fn overdue(view: View<'_>) -> Vec<Event> {
    let limits = view.state.index.limits.iter().take_while(|(at, _)| *at <= view.now);
    let timed_out = limits.filter_map(|(_, id)| {
        let lease = attempt_of(view, *id)?.lease(*id);
        Some(Event::Stopping { lease, why: StopCause::TimeLimit })
    });
    let never_ran = view.state.index.active.iter().filter_map(|id| {
        let attempt = attempt_of(view, *id)?;
        let starting = attempt.phase == AttemptPhase::Starting;
        let late = view.now.since(attempt.placed_at) >= view.settings.start_within;
        let why = if starting && late { never_ready(view, attempt)? } else { return None };
        Some(Event::Stopping { lease: attempt.lease(*id), why })
    });
    timed_out.chain(never_ran).collect()
}

/// Gangs that are to return but are not gone yet, and until when their room is kept.
fn held_back(view: View<'_>) -> impl Iterator<Item = (Time, LeaseId)> {
    view.state.index.ending.iter().filter_map(move |&id| {
        let attempt = attempt_of(view, id).filter(|a| a.will_return())?;
        let AttemptPhase::Stopping { since, .. } = attempt.phase else { return None };
        Some((since.plus(view.settings.hold_back), attempt.lease(id)))
    })
}

fn attempt_of<'a>(view: View<'a>, id: TaskId) -> Option<&'a Attempt> {
    view.state.job(id.job)?.task(id.index)?.attempt()
}

/// Blames the part that is furthest behind.
fn never_ready(view: View<'_>, attempt: &Attempt) -> Option<StopCause> {
    let behind = |p: &&Part| match p.phase {
        PartState::Sent => 0,
        PartState::Prepared { .. } => 1,
        _ => 2,
    };
    let part = attempt.parts.iter().min_by_key(behind)?;
    let error = format!("it was not ready after {}", view.settings.start_within);
    Some(StopCause::LaunchFailed { node: part.node, error, ran: false })
}

/// Tasks whose wait after a failure is over.
fn due(view: View<'_>) -> Vec<TaskId> {
    let upto = view.now;
    let back_off = view.state.index.back_off.iter();
    back_off.take_while(|(at, _)| *at <= upto).map(|(_, task)| *task).collect()
}

/// Once an hour is often enough: keys are small, and each round looks at all of them.
fn old_keys(view: View<'_>) -> Option<Event> {
    let before = Time(view.now.0.saturating_sub(view.settings.keys_kept_for.0));
    let any = || view.state.keys.values().any(|(_, at)| *at < before);
    (view.live.hour_turned() && any()).then_some(Event::KeysForgotten { before })
}

/// The next moment at which a tick would find something to do.
pub(crate) fn next_due(view: View<'_>) -> Option<Time> {
    let back_off = view.state.index.back_off.first().map(|(at, _)| *at);
    let limit = view.state.index.limits.first().map(|(at, _)| *at);
    let held = held_back(view).map(|(at, _)| at).min();
    let moving = suspend::next_deadline(view);
    let known = back_off.into_iter().chain(limit).chain(held).chain(moving);
    known.chain(stall::next_restart(view)).chain(serve::next_due(view)).min()
}
