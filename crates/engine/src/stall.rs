//! Jobs that make no steps any more. A hang looks as busy as work; only the job's own word tells
//! them apart, so nothing is said of a job that does not report, or not often enough to have a pace.

use std::cmp::Reverse;

use tutti_model::{
    Attempt, AttemptPhase, Job, LeaseId, Link, NodeId, Part, Rank, Span, StallAction, StopCause,
    TaskId, Time,
};

use crate::decide::View;
use crate::effects::find_attempt;
use crate::event::Event;
use crate::live::Level;

/// A save that takes longer than those before it is still a save.
const SAVES: u64 = 4;
/// A pause that ended well before may well come again, and last longer.
const PAUSES: u64 = 2;

/// A running task that makes no steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// Since the last step of the rank that is furthest behind.
    pub idle: Span,
    /// The usual time of a step.
    pub pace: Span,
    /// The one rank that is behind all others, if it is one.
    pub rank: Option<Rank>,
    pub node: Option<NodeId>,
}

/// How far an attempt is, if enough is known to judge it.
struct Standing {
    /// The last step of the rank that is furthest behind.
    stepped: Time,
    pace: Span,
    behind: Option<(Rank, NodeId)>,
    /// From when it counts as stalled, and from when it is started again.
    after: Span,
    restart_after: Option<Span>,
}

pub(crate) fn stalled(view: View<'_>, task: TaskId) -> Option<Stalled> {
    let job = view.state.job(task.job)?;
    let lease = job.task(task.index)?.attempt()?.lease(task);
    let at = standing(view, lease)?;
    let ((rank, node), idle) = (at.behind.unzip(), view.now.since(at.stepped));
    (idle >= at.after).then_some(Stalled { idle, pace: at.pace, rank, node })
}

/// Stops the attempts that have stalled for so long that they are started again.
pub(crate) fn restarts(view: View<'_>) -> Vec<Event> {
    let stop = |lease: LeaseId| {
        let at = standing(view, lease)?;
        let ((rank, node), idle) = (at.behind.unzip(), view.now.since(at.stepped));
        let why = StopCause::Stalled { rank, node, idle: Span(idle.0 / 1000 * 1000) };
        (idle >= at.restart_after?).then_some(Event::Stopping { lease, why })
    };
    view.live.levels().leases().filter_map(stop).collect()
}

/// When the next attempt is started again, if it makes no step until then.
pub(crate) fn next_restart(view: View<'_>) -> Option<Time> {
    let due = |lease: LeaseId| {
        let at = standing(view, lease)?;
        Some(at.stepped.plus(at.restart_after?))
    };
    view.live.levels().leases().filter_map(due).min()
}

fn standing(view: View<'_>, lease: LeaseId) -> Option<Standing> {
    let attempt = find_attempt(view.state, lease)?;
    let job = view.state.job(lease.task.job)?;
    let rule = job.spec.stall.unwrap_or_default();
    if rule.action == StallAction::Off || !may_be_judged(view, attempt, rule.action) {
        return None;
    }
    let too_old = Span(view.settings.node_timeout.0 / 2);
    // Without a pace, a rank may be compiling its first step, or report only once in a while.
    let runs = |l: &Level<'_>| !attempt.parts.iter().any(|p| has_ended(p, l.rank.rank));
    let known = view.live.levels().ranks(lease).filter(|l| l.rank.pace.is_some() && runs(l));
    let known: Vec<Level<'_>> = known.collect();
    let last = known.iter().min_by_key(|l| (l.rank.step, Reverse(l.stepped), l.rank.rank))?;
    if known.iter().any(|l| view.now.since(l.heard) > too_old) {
        return None;
    }
    let pace = known.iter().filter_map(|l| l.rank.pace).max()?;
    let alone =
        known.len() > 1 && known.iter().filter(|l| l.rank.step == last.rank.step).count() == 1;
    let usual = usual_after(view, lease, pace);
    let after = rule.after.unwrap_or(usual);
    let restart_after = match rule.action {
        StallAction::Restart => Some(after),
        StallAction::Auto if has_saved(job, lease, attempt) => {
            Some(rule.after.unwrap_or(usual.max(view.settings.stall_restart)))
        }
        _ => None,
    };
    let behind = alone.then_some((last.rank.rank, last.node));
    // While it was suspended it could make none.
    let stepped = last.stepped.max(attempt.woke_at().unwrap_or_default());
    Some(Standing { stepped, pace, behind, after, restart_after })
}

/// All of it runs, and its nodes are there to tell. Once some of it has ended well, the rest may have
/// other things to do than steps, unless somebody wants it started again in any case.
fn may_be_judged(view: View<'_>, attempt: &Attempt, action: StallAction) -> bool {
    let up = |node| view.state.node(node).is_some_and(|n| n.link == Link::Up);
    let whole = |p: &Part| p.phase.exits().is_empty() && up(p.node);
    let in_any_case = action == StallAction::Restart;
    matches!(attempt.phase, AttemptPhase::Running { .. })
        && !attempt.is_hardly_awake(view.now)
        && attempt
            .parts
            .iter()
            .all(|p| whole(p) || in_any_case && (p.phase.is_over() || up(p.node)))
}

fn has_ended(part: &Part, rank: Rank) -> bool {
    part.phase.exits().iter().any(|exit| exit.rank == rank)
}

fn has_saved(job: &Job, lease: LeaseId, attempt: &Attempt) -> bool {
    let before = job.task(lease.task.index).is_some_and(|t| t.past().saved.is_some());
    before || attempt.saved_at.is_some()
}

/// Several times a step, longer than a save, and longer than any pause that ended by itself.
fn usual_after(view: View<'_>, lease: LeaseId, pace: Span) -> Span {
    let (levels, settings) = (view.live.levels(), view.settings);
    let saves = levels.parts(lease).filter_map(|(_, part)| part.saved.as_ref()?.save_ms);
    let times = |span: u64, n: u64| Span(span.saturating_mul(n));
    times(pace.0, settings.stall_paces.into())
        .max(settings.stall_floor)
        .max(times(saves.max().unwrap_or(0), SAVES))
        .max(times(levels.longest_pause(lease).0, PAUSES))
}

#[cfg(test)]
mod tests;
