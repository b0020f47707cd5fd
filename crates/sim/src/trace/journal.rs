//! The past of our own cluster, from its journal: the same jobs, to be run again under other rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use tutti_engine::{Engine, Event, Record, Settings};
use tutti_model::{
    Ended, IndexRanges, Job, JobSpec, Phase, Policy, Shared, Span, State, Task, TaskId, Tasks, Time,
};

use super::{Manner, Trace, TraceJob};
use crate::cluster::Cluster;

/// Fed with what a journal holds, snapshot first.
///
/// A task took as long as its last attempt did; of tasks that still run, as long as they have. What
/// never was placed is left out. Dependencies, holds and array limits are not replayed: each task
/// is a job that comes when it was submitted.
pub struct History {
    engine: Engine,
    tasks: BTreeMap<TaskId, TraceJob>,
    /// Tasks that ended and never were placed.
    skipped: usize,
}

impl Default for History {
    fn default() -> Self {
        let engine = Engine::new(Settings::default());
        History { engine, tasks: BTreeMap::new(), skipped: 0 }
    }
}

/// What took no time at all still was there.
const SHORTEST: Span = Span(1);

impl History {
    pub fn snapshot(&mut self, state: State) {
        self.tasks.clear();
        self.skipped = 0;
        for job in state.jobs.values() {
            let ended: Vec<(Option<u32>, &Ended)> = match &job.tasks {
                Tasks::One(_) => job.ended(None).into_iter().map(|e| (None, e)).collect(),
                Tasks::Array(a) => a.ended.iter().map(|(&i, e)| (Some(i), e)).collect(),
            };
            for (index, e) in ended {
                self.note(job, index, ran(e));
            }
            if let Tasks::Array(a) = &job.tasks {
                self.skipped += a.never_started.as_ref().map_or(0, |n| count(&n.0));
            }
        }
        self.engine = Engine::restore(state, Settings::default());
    }

    /// Records up to the snapshot's are skipped.
    pub fn record(&mut self, record: &Record) {
        if record.seq <= self.engine.state().seq {
            return;
        }
        if let Event::WaitingEnded { job, .. } = &record.event
            && let Some(Tasks::Array(a)) = self.engine.state().job(*job).map(|j| &j.tasks)
        {
            self.skipped += count(&a.waiting);
        }
        self.engine.replay(record);
        if let Event::TaskEnded { task, .. } = &record.event
            && let Some(job) = self.engine.state().job(task.job).cloned()
            && let Some(ended) = job.ended(task.index)
        {
            self.note(&job, task.index, ran(ended));
        }
    }

    /// The time of the last record.
    pub fn at(&self) -> Time {
        self.engine.state().at
    }

    /// The jobs, the nodes and the policy as they were at the end. What runs, runs until `now`.
    pub fn finish(mut self, now: Time) -> (Trace, Cluster, Arc<Policy>) {
        let jobs: Vec<Arc<Job>> = self.engine.state().jobs.values().cloned().collect();
        for job in &jobs {
            for (task, live) in job.live_tasks() {
                self.note(job, task.index, ran_so_far(live, now));
            }
            if let Tasks::Array(a) = &job.tasks {
                self.skipped += count(&a.waiting);
            }
        }
        let state = self.engine.state();
        let nodes = state.nodes.values().map(|n| n.facts.clone()).collect();
        let trace = Trace::dated(self.tasks.into_values().collect(), self.skipped);
        (trace, Cluster { nodes }, state.policy.clone())
    }

    fn note(&mut self, job: &Job, index: Option<u32>, ran: Option<Span>) {
        let Some(run) = ran.map(|r| r.max(SHORTEST)) else {
            self.skipped += 1;
            return;
        };
        let id = TaskId { job: job.id, index };
        let spec = JobSpec {
            team: Some(job.team.clone()),
            priority: job.priority,
            after: Vec::new(),
            array: None,
            hold: false,
            stdin: false,
            env: Shared::default(),
            ..JobSpec::clone(&job.spec)
        };
        let (name, user) = (id.to_string(), job.user.clone());
        let (submit, manner) = (job.submitted_at, Manner::default());
        self.tasks.insert(id, TraceJob { name, submit, run, user, spec, manner });
    }
}

/// Older snapshots do not say how long the last attempt lasted: there, all of them count.
fn ran(ended: &Ended) -> Option<Span> {
    ended.last_ran.or_else(|| Some(ended.ended_at.since(ended.started_at?)))
}

fn ran_so_far(task: &Task, now: Time) -> Option<Span> {
    match &task.phase {
        Phase::Active(attempt) => Some(attempt.lasted(now)),
        Phase::Pending { since, .. } => {
            task.last_ran.or_else(|| Some(since.since(task.first_started_at?)))
        }
        Phase::Ended(ended) => ran(ended),
    }
}

fn count(indices: &IndexRanges) -> usize {
    usize::try_from(indices.len()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
