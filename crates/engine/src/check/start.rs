//! Whether a task may start now at all, wherever.

use tutti_model::{
    DependOn, Job, Outcome, PartPlacement, Phase, Reservation, Span, State, Task, TaskId, Tasks,
    Time,
};

use super::Violation;

pub(super) fn may_start(state: &State, job: &Job, id: TaskId) -> Result<(), Violation> {
    let waits = match (&job.tasks, id.index) {
        (Tasks::One(t), None) => pending_now(&t.phase),
        (Tasks::Array(a), Some(i)) => {
            a.waiting.contains(i) || a.live.get(&i).is_some_and(|t| pending_now(&t.phase))
        }
        _ => false,
    };
    if !waits {
        return Err(Violation::NotPending(id));
    }
    if job.is_held(id.index) {
        return Err(Violation::Held(id));
    }
    for dep in &job.spec.after {
        let outcome = state.job(dep.job).and_then(Job::outcome);
        let met = match dep.on {
            DependOn::Any => outcome.is_some(),
            DependOn::Ok => outcome == Some(Outcome::Completed),
            DependOn::Failed => outcome == Some(Outcome::Failed),
        };
        if !met {
            return Err(Violation::DependenciesOpen(id));
        }
    }
    Ok(())
}

fn pending_now(phase: &Phase) -> bool {
    matches!(phase, Phase::Pending { not_before: Time(0), .. })
}

pub(super) fn running_tasks(job: &Job) -> u32 {
    match &job.tasks {
        Tasks::One(_) => 0,
        Tasks::Array(a) => a.live.values().filter(|t| t.attempt().is_some()).count() as u32,
    }
}

pub(super) fn array_limit(job: &Job, running: u32) -> Result<(), Violation> {
    match job.spec.array.as_ref().and_then(|a| a.max_running) {
        Some(limit) if running > limit => Err(Violation::ArrayLimit(job.id, running, limit)),
        _ => Ok(()),
    }
}

/// It ends before a reservation for others begins, or is on none of its nodes.
pub(super) fn not_reserved(
    state: &State,
    job: &Job,
    id: TaskId,
    parts: &[PartPlacement],
    now: Time,
) -> Result<(), Violation> {
    not_reserved_until(state, job, id, parts, now, now.plus(expected(state, job)))
}

/// The same for one that has run for a while, and was suspended.
pub(super) fn not_reserved_again(
    state: &State,
    job: &Job,
    id: TaskId,
    parts: &[PartPlacement],
    now: Time,
) -> Result<(), Violation> {
    let ran = job.task(id.index).and_then(Task::attempt).and_then(|a| a.ran(now));
    let left = expected(state, job).0.saturating_sub(ran.unwrap_or_default().0);
    not_reserved_until(state, job, id, parts, now, now.plus(Span(left.max(1))))
}

fn not_reserved_until(
    state: &State,
    job: &Job,
    id: TaskId,
    parts: &[PartPlacement],
    now: Time,
    ends: Time,
) -> Result<(), Violation> {
    let policy = &state.policy;
    let theirs = |r: &Reservation| {
        r.team.as_ref().is_some_and(|team| policy.line_of(&job.team).contains(&team.as_str()))
    };
    let open = policy.reservations.iter().filter(|r| r.until > now && r.from < ends && !theirs(r));
    for reservation in open {
        let meant = |p: &&PartPlacement| {
            state.node(p.node).is_some_and(|n| reservation.nodes.contains(&n.facts.name))
        };
        if let Some(part) = parts.iter().find(meant) {
            return Err(Violation::Reserved(id, part.node, reservation.name.clone()));
        }
    }
    Ok(())
}

/// How long it will run at most, as far as the policy lets anybody believe.
fn expected(state: &State, job: &Job) -> Span {
    let rule = &state.policy.durations;
    let learned = || {
        let longest = state.learned.longest_run(job).filter(|_| rule.learn)?.0;
        Some(Span(longest + longest / 100 * u64::from(rule.margin_percent)))
    };
    // Even nothing takes a moment, and a reservation that is on now forbids that as well.
    let span = job.spec.time.or_else(learned).unwrap_or(rule.assumed);
    span.max(Span(1))
}
