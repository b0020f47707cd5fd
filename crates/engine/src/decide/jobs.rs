//! What people do to jobs that exist.

use tutti_model::{
    Attempt, AttemptPhase, EndReason, Ended, Generation, Job, JobId, Outcome, Phase, Priority,
    Restarts, Role, SavedPoint, Span, StopCause, Task, TaskId, Tasks, Time, WatchRule,
};

use super::{Decision, View, done, need_role, own_job};
use crate::command::{Actor, Reply};
use crate::event::Event;
use crate::reject::Rejected;

pub(super) fn cancel(view: View<'_>, actor: &Actor, target: TaskId, at_once: bool) -> Decision {
    let job = own_job(view, actor, target.job)?;
    let how = Cancel { actor, at_once };
    let mut events = Vec::new();
    let mut touched = 0;
    match target.index {
        None => {
            if job.is_over() {
                return Err(Rejected::AlreadyEnded(job.id));
            }
            if let Tasks::Array(array) = &job.tasks
                && !array.waiting.is_empty()
            {
                touched += array.waiting.len();
                let ended = never_ran(cancelled_by(actor), view.now);
                events.push(Event::WaitingEnded { job: job.id, ended });
            }
            for (id, task) in job.live_tasks() {
                touched += cancel_task(how, id, task, view.now, &mut events);
            }
        }
        Some(_) => {
            if !job.has_task(target.index) {
                return Err(Rejected::NoSuchTask(target));
            }
            if job.ended(target.index).is_some() {
                return Err(Rejected::AlreadyEnded(job.id));
            }
            match job.task(target.index) {
                Some(task) => touched += cancel_task(how, target, task, view.now, &mut events),
                None => {
                    touched += 1;
                    let ended = never_ran(cancelled_by(actor), view.now);
                    events.push(Event::TaskEnded { task: target, ended });
                }
            }
        }
    }
    Ok((Reply::Tasks(touched), events))
}

fn cancelled_by(actor: &Actor) -> EndReason {
    EndReason::Cancelled { by: actor.user.clone() }
}

#[derive(Clone, Copy)]
struct Cancel<'a> {
    actor: &'a Actor,
    /// Killed, without time to save.
    at_once: bool,
}

fn cancel_task(
    how: Cancel<'_>,
    id: TaskId,
    task: &Task,
    now: Time,
    events: &mut Vec<Event>,
) -> u64 {
    let Cancel { actor, at_once } = how;
    match &task.phase {
        Phase::Ended(_) => 0,
        Phase::Pending { .. } => {
            let ended = ended_waiting(task, cancelled_by(actor), now);
            events.push(Event::TaskEnded { task: id, ended });
            1
        }
        // A cancel outranks any other reason to stop: it must not be started again.
        Phase::Active(attempt) => {
            let why = StopCause::Cancelled { by: actor.user.clone(), at_once };
            events.push(Event::Stopping { lease: attempt.lease(id), why });
            1
        }
    }
}

/// What an alert says.
#[derive(Clone, Copy)]
pub(super) struct Alarm<'a> {
    pub rule: WatchRule,
    pub text: &'a str,
    pub again: bool,
}

/// Only what runs is stopped by an alert: what is on its way out or asleep is no more as it was.
pub(super) fn intervene(
    view: View<'_>,
    id: TaskId,
    generation: Option<Generation>,
    alarm: Alarm<'_>,
) -> (Reply, Vec<Event>) {
    let Alarm { rule, text, again } = alarm;
    let event = view.state.job(id.job).and_then(|job| match &job.task(id.index)?.phase {
        Phase::Active(attempt) => {
            let meant = generation.is_none_or(|g| g == attempt.generation)
                && matches!(attempt.phase, AttemptPhase::Running { .. });
            let why = StopCause::Watched { rule, text: text.to_owned(), again };
            meant.then(|| Event::Stopping { lease: attempt.lease(id), why })
        }
        Phase::Pending { .. } if generation.is_none() && !again => {
            let reason = EndReason::Watched { rule, text: text.to_owned() };
            let ended = ended_waiting(job.task(id.index)?, reason, view.now);
            let ended = Ended { outcome: Outcome::Failed, exit_code: Some(1), ..ended };
            Some(Event::TaskEnded { task: id, ended })
        }
        _ => None,
    });
    (Reply::Tasks(u64::from(event.is_some())), event.into_iter().collect())
}

/// How a task ends that waits, whether or not it ran before.
pub(crate) fn ended_waiting(task: &Task, reason: EndReason, now: Time) -> Ended {
    Ended {
        started_at: task.first_started_at,
        attempts: task.attempts,
        restarts: task.restarts,
        ..never_ran(reason, now)
    }
}

pub(crate) fn never_ran(reason: EndReason, now: Time) -> Ended {
    Ended {
        outcome: Outcome::Cancelled,
        exit_code: None,
        reason,
        started_at: None,
        ended_at: now,
        attempts: 0,
        restarts: Restarts::default(),
        nodes: Vec::new(),
        gpus: 0,
        last_ran: None,
        between: Span(0),
        away: Span::default(),
        output_dropped: 0,
    }
}

fn not_over(job: &Job) -> Result<(), Rejected> {
    if job.is_over() { Err(Rejected::AlreadyEnded(job.id)) } else { Ok(()) }
}

pub(super) fn hold(view: View<'_>, actor: &Actor, id: JobId) -> Decision {
    let job = own_job(view, actor, id)?;
    not_over(job)?;
    if job.held {
        return done(Vec::new());
    }
    done(vec![Event::JobHeld { job: id, by: actor.user.clone() }])
}

pub(super) fn release(view: View<'_>, actor: &Actor, id: JobId) -> Decision {
    let job = own_job(view, actor, id)?;
    not_over(job)?;
    let by = || actor.user.clone();
    let mut events = Vec::new();
    events.extend(job.held.then(|| Event::JobReleased { job: id, by: by() }));
    let kept = job.live_tasks().filter(|(_, task)| is_kept(task));
    events.extend(kept.map(|(task, _)| Event::TaskReleased { task, by: by() }));
    // On its way there: it is being stopped, and would be held when it has.
    let leaving = job.live_tasks().filter_map(|(id, task)| Some((id, task.attempt()?)));
    let leaving = leaving.filter(|(_, attempt)| attempt.kept.is_some());
    events
        .extend(leaving.map(|(id, a)| Event::SuspensionReleased { lease: a.lease(id), by: by() }));
    done(events)
}

/// It waits because it was lost while a person kept it suspended.
pub(super) fn is_kept(task: &Task) -> bool {
    matches!(task.phase, Phase::Pending { .. }) && task.kept().is_some()
}

pub(super) fn set_priority(
    view: View<'_>,
    actor: &Actor,
    id: JobId,
    priority: Priority,
) -> Decision {
    let job = own_job(view, actor, id)?;
    not_over(job)?;
    // Anybody may step back in the queue; only an admin lets somebody jump it.
    if priority > job.priority {
        need_role(actor, Role::Admin)?;
    }
    done(vec![Event::PriorityChanged { job: id, priority, by: actor.user.clone() }])
}

const PATH_CHARS_MAX: usize = 4096;

/// A path or a URL, as the next attempt is to find it.
pub(super) fn register(
    view: View<'_>,
    actor: &Actor,
    task: TaskId,
    step: u64,
    path: &str,
) -> Decision {
    let job = own_job(view, actor, task.job)?;
    // What an array's task that is over came to is not kept.
    let Some(known) = job.task(task.index) else { return Err(Rejected::NoSuchTask(task)) };
    let bad = |problem: &str| Rejected::BadSpec { key: "path", problem: problem.to_owned() };
    if !path.starts_with('/') && !path.contains("://") {
        return Err(bad("give an absolute path or a URL: the job may look from elsewhere"));
    }
    if path.chars().count() > PATH_CHARS_MAX || path.chars().any(char::is_control) {
        return Err(bad("it is too long, or has control characters"));
    }
    let mut points = known.past().points.iter();
    if points.any(|p| p.step == step && p.path.as_deref() == Some(path)) {
        return done(Vec::new());
    }
    let point =
        SavedPoint { step, at: Some(view.now), path: Some(path.into()), save_ms: None, node: None };
    done(vec![Event::Registered { task, point }])
}

pub(super) fn saved(view: View<'_>, actor: &Actor, task: TaskId) -> Decision {
    let job = own_job(view, actor, task.job)?;
    if !job.has_task(task.index) {
        return Err(Rejected::NoSuchTask(task));
    }
    // What is being stopped may well save its work on the way out.
    let runs = |a: &&Attempt| {
        matches!(a.phase, AttemptPhase::Running { .. } | AttemptPhase::Stopping { .. })
    };
    let attempt = job.task(task.index).and_then(|t| t.attempt()).filter(runs);
    let attempt = attempt.ok_or(Rejected::NotRunning(task))?;
    done(vec![Event::Saved { lease: attempt.lease(task), point: None }])
}
