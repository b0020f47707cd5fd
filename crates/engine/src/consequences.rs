//! What must follow from an event at once, in the same batch: a gang that lost a rank is stopped, an
//! attempt that is over is retried or ended, jobs that wait in vain are cancelled.

use tutti_model::{
    Attempt, AttemptPhase, Blame, Claim, EndReason, Ended, ExitStatus, Job, JobId, LeaseId, NodeId,
    Outcome, PartError, PartState, Phase, Rank, RankExit, Span, State, StopCause, Task, TaskId,
    Tasks, Time,
};

use crate::decide::{ended_waiting, never_ran};
use crate::effects::find_attempt;
use crate::event::{Event, RetryCause};
use crate::index::{DependencyState, dependency};
use crate::settings::Settings;

/// Exit code of a job that was stopped by its time limit and left no failing exit of its own.
const TIMED_OUT: i32 = 124;

pub fn consequences(state: &State, settings: &Settings, event: &Event, now: Time) -> Vec<Event> {
    match event {
        Event::PartRunning { lease, .. }
        | Event::PartDone { lease, .. }
        | Event::PartLost { lease, .. } => of_attempt(state, settings, *lease, now),
        Event::NodeLost { node } => {
            let mut events =
                claims_lost(state, |_, claim| claim.parts.iter().any(|p| p.node == *node));
            events.extend(parts_lost(state, *node));
            events
        }
        Event::JobHeld { job, .. } => claims_lost(state, |task, _| task.job == *job),
        Event::TaskEnded { task, .. } => of_ended_job(state, task.job, now),
        Event::WaitingEnded { job, .. } => of_ended_job(state, *job, now),
        _ => Vec::new(),
    }
}

fn parts_lost(state: &State, node: NodeId) -> Vec<Event> {
    let leases = state.node(node).into_iter().flat_map(|n| n.used.leases.iter());
    leases.map(|&lease| Event::PartLost { lease, node }).collect()
}

/// Claims that can't come true: nothing is kept for a held job, nor on a node that is gone.
fn claims_lost(state: &State, lost: impl Fn(TaskId, &Claim) -> bool) -> Vec<Event> {
    let claims = state.claims.iter().filter(|(task, claim)| lost(**task, claim));
    claims.map(|(&task, _)| Event::Unclaimed { task }).collect()
}

fn of_attempt(state: &State, settings: &Settings, lease: LeaseId, now: Time) -> Vec<Event> {
    let Some(attempt) = find_attempt(state, lease) else { return Vec::new() };
    if attempt.is_over() {
        return resolve(state, settings, lease, attempt, now);
    }
    if matches!(attempt.phase, AttemptPhase::Stopping { .. }) {
        return Vec::new();
    }
    first_trouble(attempt).map(|why| Event::Stopping { lease, why }).into_iter().collect()
}

/// The reason to stop a gang whose other ranks still run.
fn first_trouble(attempt: &Attempt) -> Option<StopCause> {
    let lost = attempt.parts.iter().find(|p| p.phase == PartState::Lost);
    let launch = launch_error(attempt);
    lost.map(|p| StopCause::NodeLost { node: p.node })
        .or_else(|| {
            launch.map(|(node, e)| StopCause::LaunchFailed { node, error: e.message.clone() })
        })
        .or_else(|| first_failure(attempt).map(|e| StopCause::RankFailed { rank: e.rank }))
}

fn launch_error(attempt: &Attempt) -> Option<(NodeId, &PartError)> {
    attempt.parts.iter().find_map(|p| match &p.phase {
        PartState::Done { error: Some(e), .. } => Some((p.node, e)),
        _ => None,
    })
}

/// The failed rank that ended first; the one already blamed, if any.
fn first_failure(attempt: &Attempt) -> Option<&RankExit> {
    let failed = || {
        let exits = attempt.parts.iter().flat_map(|p| p.phase.exits());
        exits.filter(|e| !e.status.is_success())
    };
    let blamed = match &attempt.phase {
        AttemptPhase::Stopping { why: StopCause::RankFailed { rank }, .. } => Some(*rank),
        _ => None,
    };
    blamed
        .and_then(|rank| failed().find(|e| e.rank == rank))
        .or_else(|| failed().min_by_key(|e| (e.at, e.rank)))
}

/// Every part is over: what becomes of the task?
fn resolve(
    state: &State,
    settings: &Settings,
    lease: LeaseId,
    attempt: &Attempt,
    now: Time,
) -> Vec<Event> {
    let Some(job) = state.job(lease.task.job) else { return Vec::new() };
    let Some(task) = job.task(lease.task.index) else { return Vec::new() };
    let end = Ending { settings, job, task, lease, attempt, now };
    vec![end.event()]
}

struct Ending<'a> {
    settings: &'a Settings,
    job: &'a Job,
    task: &'a Task,
    lease: LeaseId,
    attempt: &'a Attempt,
    now: Time,
}

impl Ending<'_> {
    fn event(&self) -> Event {
        let failure = first_failure(self.attempt);
        let code = failure.map(|e| e.status.code());
        if let AttemptPhase::Stopping { why, .. } = &self.attempt.phase {
            match why {
                StopCause::Cancelled { by } => {
                    let reason = EndReason::Cancelled { by: by.clone() };
                    return self.ended(Outcome::Cancelled, code, reason);
                }
                StopCause::TimeLimit => {
                    let code = code.unwrap_or(TIMED_OUT);
                    return self.ended(Outcome::Failed, Some(code), EndReason::TimeLimit);
                }
                StopCause::Preempted { .. } => {
                    return self.retry(RetryCause::Preemption, None, code, EndReason::Preemptions);
                }
                StopCause::Resized { .. } => return self.resized(),
                StopCause::LaunchFailed { node, .. } if launch_error(self.attempt).is_none() => {
                    return self.node_failure(*node, code);
                }
                _ => {}
            }
        }
        // A lost node explains whatever its peers died of.
        if let Some(part) = self.attempt.parts.iter().find(|p| p.phase == PartState::Lost) {
            return self.node_failure(part.node, code);
        }
        match (launch_error(self.attempt), failure) {
            (Some((node, e)), _) if e.blame == Blame::Node => self.node_failure(node, code),
            (Some((node, e)), _) => {
                let reason = EndReason::LaunchFailed { node, error: e.message.clone() };
                self.retry(RetryCause::JobFailure, None, code.or(Some(1)), reason)
            }
            (None, Some(e)) => self.rank_failure(e.rank, e.status),
            (None, None) => match self.unaccounted() {
                Some(node) => self.node_failure(node, code),
                None => self.ended(Outcome::Completed, Some(0), EndReason::Finished),
            },
        }
    }

    /// It was asked to go, so how its ranks went says nothing.
    fn resized(&self) -> Event {
        let (lease, cause) = (self.lease, RetryCause::Resize);
        Event::Requeued { lease, cause, avoid: None, not_before: Time(0) }
    }

    /// A node that says it is done without the exits of all its ranks.
    fn unaccounted(&self) -> Option<NodeId> {
        let short = |p: &&tutti_model::Part| p.phase.exits().len() < p.ranks as usize;
        self.attempt.parts.iter().find(short).map(|p| p.node)
    }

    fn node_failure(&self, node: NodeId, code: Option<i32>) -> Event {
        let reason = EndReason::NodeFailures { last: node };
        self.retry(RetryCause::NodeFailure, Some(node), code, reason)
    }

    fn rank_failure(&self, rank: Rank, status: ExitStatus) -> Event {
        let reason = EndReason::RankFailed { rank, signal: status.signal() };
        self.retry(RetryCause::JobFailure, None, Some(status.code()), reason)
    }

    /// Starts it again if the budget for this cause allows, else ends it for the reason.
    fn retry(
        &self,
        cause: RetryCause,
        avoid: Option<NodeId>,
        code: Option<i32>,
        reason: EndReason,
    ) -> Event {
        let (used, budget) = match cause {
            RetryCause::NodeFailure => {
                (self.task.restarts.node_failure, self.job.spec.retry.node_failure)
            }
            RetryCause::Preemption => {
                (self.task.restarts.preemption, self.job.spec.retry.preemption)
            }
            RetryCause::JobFailure => {
                (self.task.restarts.job_failure, self.job.spec.retry.job_failure)
            }
            RetryCause::Resize => return self.resized(),
        };
        if used >= budget {
            return self.ended(Outcome::Failed, code, reason);
        }
        let not_before = match self.wait(cause, used) {
            Span(0) => Time(0),
            wait => self.now.plus(wait),
        };
        Event::Requeued { lease: self.lease, cause, avoid, not_before }
    }

    /// A first node failure is nobody's fault and costs no wait; repeated failures wait longer.
    fn wait(&self, cause: RetryCause, used: u32) -> Span {
        let doublings = match cause {
            RetryCause::Preemption | RetryCause::Resize => return Span(0),
            RetryCause::NodeFailure if used == 0 => return Span(0),
            RetryCause::NodeFailure => used - 1,
            RetryCause::JobFailure => used,
        };
        let wait = self.settings.back_off.0.saturating_mul(1 << doublings.min(20));
        Span(wait).min(self.settings.back_off_max)
    }

    fn ended(&self, outcome: Outcome, exit_code: Option<i32>, reason: EndReason) -> Event {
        let ended = Ended {
            outcome,
            exit_code,
            reason,
            started_at: self.task.first_started_at,
            ended_at: self.now,
            attempts: self.task.attempts,
            restarts: self.task.restarts,
            nodes: self.attempt.parts.iter().map(|p| p.node).collect(),
            gpus: self.attempt.gpu_count(),
            last_ran: None,
        };
        Event::TaskEnded { task: self.lease.task, ended }
    }
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
