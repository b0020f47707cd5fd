//! When time alone could change the plan: somebody has waited long enough, a reservation begins, a
//! running task may be moved again.

use std::collections::BTreeSet;
use std::ops::Bound;

use tutti_model::{AttemptPhase, Span, State, Task, TaskId, Time};

use crate::event::Event;

/// Moments at which a pass may find something new. What follows from the queue is looked up there;
/// what follows from running tasks is noted when they start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agenda {
    moments: BTreeSet<Time>,
}

impl Agenda {
    pub fn of(state: &State) -> Agenda {
        let mut agenda = Agenda::default();
        state.index.active.iter().for_each(|&task| agenda.note_task(state, task));
        agenda
    }

    /// After the event was applied.
    pub fn note(&mut self, state: &State, event: &Event) {
        match event {
            Event::Placed { task, .. } => self.note_task(state, *task),
            Event::PartRunning { lease, .. } | Event::PartWoken { lease, .. } => {
                self.note_task(state, lease.task)
            }
            Event::PolicyChanged { .. } => *self = Agenda::of(state),
            _ => {}
        }
    }

    fn note_task(&mut self, state: &State, id: TaskId) {
        let Some(job) = state.job(id.job) else { return };
        let Some(task) = job.task(id.index) else { return };
        if job.spec.elastic.is_some() {
            self.note_start(task, state.policy.resize_every);
        }
        if task.preempted_at.is_some() {
            self.note_start(task, state.policy.preemption.not_again_within);
        }
    }

    /// The task is left alone for so long after it has started.
    fn note_start(&mut self, task: &Task, left_alone: Span) {
        let Some(attempt) = task.attempt() else { return };
        self.moments.insert(attempt.took_at().plus(left_alone));
        if let AttemptPhase::Running { since } = attempt.phase {
            self.moments.insert(since.plus(left_alone));
        }
    }

    /// A pass has seen everything up to now.
    pub fn passed(&mut self, now: Time) {
        self.moments = self.moments.split_off(&Time(now.0 + 1));
    }

    /// The first moment after `since` at which a pass could find something new.
    pub fn next(&self, state: &State, since: Time) -> Option<Time> {
        let noted = self.moments.range((Bound::Excluded(since), Bound::Unbounded)).next().copied();
        let policy = &state.policy;
        let waits = [policy.patience, policy.starve_after];
        let waited = waits.into_iter().filter_map(|span| first_to_wait(state, span, since));
        let reserved = policy.reservations.iter().flat_map(|r| [r.from, r.until]);
        let asleep = suspended_too_long(state, policy.patience, since);
        noted.into_iter().chain(asleep).chain(waited).chain(reserved.filter(|t| *t > since)).min()
    }
}

/// When the next suspended task will have been so for longer than `span`.
fn suspended_too_long(state: &State, span: Span, since: Time) -> Option<Time> {
    let over = state.index.asleep.iter().map(|(at, _)| at.plus(span).plus(Span(1)));
    over.into_iter().find(|at| *at > since)
}

/// When the next task will have waited for longer than `span`.
fn first_to_wait(state: &State, span: Span, since: Time) -> Option<Time> {
    let over = |waiting_since: Time| waiting_since.plus(span).plus(Span(1));
    let oldest = Time(since.0.saturating_sub(span.0));
    let from = (oldest, TaskId::single(tutti_model::JobId(0)));
    let mut waiting = state.index.waiting.range(from..).map(|(at, _)| over(*at));
    waiting.find(|at| *at > since)
}
