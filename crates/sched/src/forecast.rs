//! When a waiting task will start: the coming ends of what runs, one after another, with the very
//! pass after each, until it starts.

mod all;

use std::collections::BTreeSet;

use tutti_model::{
    AttemptPhase, DependOn, Forecast, Job, Phase, Policy, Span, State, TaskId, Time, Verdict,
};

use crate::explain::Case;
use crate::imagine::{STARTS, World};
use crate::pass::WhatIf;
use crate::verdict::unmet;

pub use all::forecasts;

/// How long it takes a program to stop if its job does not say.
const GRACE: Span = Span::secs(30);

/// What is assumed of run times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As such jobs took before, else as long as they may.
    Usual,
    /// As long as they may.
    Limits,
}

/// None if nobody knows: a time limit is missing, nodes must come back, somebody must release it,
/// or it is further off than is looked ahead.
pub(crate) fn forecast(case: &Case<'_>) -> Option<Forecast> {
    if !time_alone_helps(case) {
        return None;
    }
    let late = start(case, Pace::Limits);
    let early = match case.state.learned.runs.is_empty() {
        true => late,
        false => start(case, Pace::Usual),
    };
    // One that ends sooner can let another one in first: later for this one, by a little.
    let early = early.into_iter().chain(late).min()?;
    Some(Forecast { early, late })
}

fn time_alone_helps(case: &Case<'_>) -> bool {
    match case.verdict {
        Verdict::Held { .. } | Verdict::NodesUnavailable(_) => false,
        Verdict::Dependencies { .. } => {
            unmet(case.state, case.job).iter().all(|dep| dep.on != DependOn::Failed)
        }
        _ => true,
    }
}

/// What will happen by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Nodes become free for others; the next pass sees it.
    ReservationOver,
    BackOffOver(TaskId),
    End(TaskId),
}

fn start(case: &Case<'_>, pace: Pace) -> Option<Time> {
    let mut world = World::new(case.state, case.policy, case.passes());
    let mut events = events(case.state, case.policy, case.now, pace);
    let growth = growth(events.len(), case.passes());
    let (mut at, mut passed, mut started) = (case.now, 0, 0);
    while started < STARTS {
        let only = Some(case.task);
        let what_if = WhatIf { peaceful: true, only, ..WhatIf::default() };
        let plan = world.plan(at, what_if)?;
        if case.starts(&plan) {
            return Some(at);
        }
        let placed: Vec<TaskId> = plan.placements.iter().map(|p| p.task).collect();
        started += placed.len();
        world.carry_out(plan, at);
        let ends = placed.into_iter().filter_map(|id| {
            let takes = usual(&world.state, world.state.job(id.job)?, pace, Span(0))?;
            Some((at.plus(takes), Event::End(id)))
        });
        events.extend(ends.collect::<Vec<_>>());
        at = next(&mut world, &mut events, 1 + passed * growth / 100, &mut passed)?;
    }
    None
}

/// Lets so many events happen, and all at the same time as the last. None if nothing comes.
fn next(
    world: &mut World,
    events: &mut BTreeSet<(Time, Event)>,
    batch: usize,
    passed: &mut usize,
) -> Option<Time> {
    let mut last = None;
    let mut count = 0;
    while let Some(&(at, event)) = events.first() {
        if count >= batch && last != Some(at) {
            break;
        }
        events.pop_first();
        match event {
            Event::End(task) => world.end(task, at),
            Event::BackOffOver(task) => world.wake(task),
            Event::ReservationOver => {}
        }
        last = Some(at);
        count += 1;
    }
    *passed += count;
    last
}

/// By how many per cent of what has passed a step grows, so that the passes that may be run reach
/// beyond all events: the near future is seen end by end, the far one roughly.
fn growth(events: usize, passes: usize) -> usize {
    let steps = |growth: usize| {
        let (mut passed, mut steps) = (0, 0);
        while passed < events {
            passed += 1 + passed * growth / 100;
            steps += 1;
        }
        steps
    };
    let choices = [0, 1, 2, 5, 10, 20, 40, 80, 160, 320];
    choices.into_iter().find(|&growth| 2 * steps(growth) <= passes).unwrap_or(640)
}

fn events(state: &State, policy: &Policy, now: Time, pace: Pace) -> BTreeSet<(Time, Event)> {
    let active = state.index.active.iter();
    let ends = active.filter_map(|&id| Some((end_of(state, id, pace, now)?, Event::End(id))));
    let back_off = state.index.back_off.iter().map(|&(at, id)| (at, Event::BackOffOver(id)));
    let over = policy.reservations.iter().map(|r| (r.until, Event::ReservationOver));
    let all = ends.chain(back_off).chain(over.filter(|(at, _)| *at > now));
    all.map(|(at, event)| (at.max(now), event)).collect()
}

fn end_of(state: &State, id: TaskId, pace: Pace, now: Time) -> Option<Time> {
    let job = state.job(id.job)?;
    let Phase::Active(attempt) = &job.task(id.index)?.phase else { return None };
    match &attempt.phase {
        AttemptPhase::Stopping { since, .. } => {
            Some(since.plus(job.spec.grace.unwrap_or(GRACE)).max(now))
        }
        AttemptPhase::Suspended { .. } => None,
        AttemptPhase::Suspending { pause } | AttemptPhase::Waking { pause, .. } => {
            let left = usual(state, job, pace, pause.ran)?.0.saturating_sub(pause.ran.0);
            Some(now.plus(Span(left)))
        }
        AttemptPhase::Starting => Some(now.plus(usual(state, job, pace, Span(0))?)),
        AttemptPhase::Running { since } => {
            Some(since.plus(usual(state, job, pace, now.since(*since))?))
        }
    }
}

/// How long such a job runs if it has run for so long already. Past the usual, the longest run
/// that is known; past that, its limit.
fn usual(state: &State, job: &Job, pace: Pace, ran: Span) -> Option<Span> {
    let limit = job.spec.time;
    if pace == Pace::Limits {
        return limit;
    }
    let known = [state.learned.median_run(job), state.learned.longest_run(job)];
    let learned = known.into_iter().flatten().find(|span| *span > ran);
    match (learned, limit) {
        (Some(learned), Some(limit)) => Some(learned.min(limit)),
        (learned, limit) => learned.or(limit),
    }
}

#[cfg(test)]
mod tests;
