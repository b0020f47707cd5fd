//! What time alone brings about.

use tutti_model::{AttemptPhase, Epoch, JobId, Link, NodeId, Phase, StopCause, TaskId, Time};

use super::View;
use crate::command::Reply;
use crate::event::Event;

/// A controller took over: nobody is connected yet, and everybody has time to come back.
pub(super) fn start(view: View<'_>) -> (Reply, Vec<Event>) {
    let mut events = vec![Event::ControllerStarted { epoch: Epoch(view.state.epoch.0 + 1) }];
    let up = view.state.nodes.values().filter(|n| n.link == Link::Up);
    events.extend(up.map(|n| Event::NodeAway { node: n.id }));
    (Reply::Done, events)
}

pub(super) fn tick(view: View<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    events.extend(lost_nodes(view).into_iter().map(|node| Event::NodeLost { node }));
    events.extend(time_limits(view));
    events.extend(due(view).into_iter().map(|task| Event::Ready { task }));
    let old = forgettable(view);
    if !old.is_empty() {
        events.push(Event::JobsForgotten { jobs: old });
    }
    events.extend(old_keys(view));
    events
}

fn lost_nodes(view: View<'_>) -> Vec<NodeId> {
    let silent = |id: NodeId| {
        let heard = view.live.last_heard(id).unwrap_or(view.now);
        view.now.since(heard) >= view.settings.node_timeout
    };
    let candidates = view.state.nodes.values().filter(|n| !matches!(n.link, Link::Lost { .. }));
    candidates.filter(|n| silent(n.id)).map(|n| n.id).collect()
}

fn time_limits(view: View<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    for &id in &view.state.index.active {
        let Some(job) = view.state.job(id.job) else { continue };
        let (Some(limit), Some(task)) = (job.spec.time, job.task(id.index)) else { continue };
        let Phase::Active(attempt) = &task.phase else { continue };
        if let AttemptPhase::Running { since } = attempt.phase
            && view.now.since(since) >= limit
        {
            events.push(Event::Stopping { lease: attempt.lease(id), why: StopCause::TimeLimit });
        }
    }
    events
}

/// Tasks whose wait after a failure is over.
fn due(view: View<'_>) -> Vec<TaskId> {
    let upto = view.now;
    let back_off = view.state.index.back_off.iter();
    back_off.take_while(|(at, _)| *at <= upto).map(|(_, task)| *task).collect()
}

/// Ended jobs that are too old or too many, unless somebody still waits for them.
fn forgettable(view: View<'_>) -> Vec<JobId> {
    let index = &view.state.index;
    let surplus = index.ended.len().saturating_sub(view.settings.jobs_kept);
    let too_old = |at: Time| view.now.since(at) >= view.settings.keep_jobs_for;
    index
        .ended
        .iter()
        .enumerate()
        .take_while(|(n, (at, _))| *n < surplus || too_old(*at))
        .map(|(_, (_, id))| *id)
        .filter(|id| !index.dependents.contains_key(id))
        .take(1000)
        .collect()
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
    let limits = view.state.index.active.iter().filter_map(|id| {
        let job = view.state.job(id.job)?;
        let limit = job.spec.time?;
        match &job.task(id.index)?.attempt()?.phase {
            AttemptPhase::Running { since } => Some(since.plus(limit)),
            _ => None,
        }
    });
    back_off.into_iter().chain(limits).min()
}
