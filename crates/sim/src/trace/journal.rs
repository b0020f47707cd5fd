//! The past of our own cluster, from its journal: the same jobs, to be run again under other rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use tutti_engine::{Engine, Event, Record, Settings};
use tutti_model::{Ended, Job, JobSpec, Policy, Span, State, TaskId, Tasks, Time};

use super::{Trace, TraceJob};
use crate::cluster::Cluster;

/// Fed with what a journal holds, snapshot first.
///
/// A task took as long as its last attempt did; of tasks that still run, as long as they have. What
/// never ran is left out. Dependencies, holds and array limits are not replayed: each task is a job
/// that comes when it was submitted.
pub struct History {
    engine: Engine,
    tasks: BTreeMap<TaskId, TraceJob>,
    skipped: usize,
}

impl Default for History {
    fn default() -> Self {
        let engine = Engine::new(Settings::default());
        History { engine, tasks: BTreeMap::new(), skipped: 0 }
    }
}

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
                let ran = e.started_at.map(|at| e.ended_at.since(at));
                note(&mut self.tasks, &mut self.skipped, job, index, ran);
            }
        }
        self.engine = Engine::restore(state, Settings::default());
    }

    /// Records up to the snapshot's are skipped.
    pub fn record(&mut self, record: &Record) {
        if record.seq <= self.engine.state().seq {
            return;
        }
        match &record.event {
            Event::TaskEnded { task, ended } => self.note_end(*task, ended.ended_at),
            Event::WaitingEnded { .. } => self.skipped += 1,
            _ => {}
        }
        self.engine.replay(record);
    }

    fn note_end(&mut self, task: TaskId, at: Time) {
        let Some(job) = self.engine.state().job(task.job) else { return };
        let since = job.task(task.index).and_then(|t| t.attempt()?.running_since());
        let ran = since.map(|since| at.since(since));
        note(&mut self.tasks, &mut self.skipped, job, task.index, ran);
    }

    /// The jobs, the nodes and the policy as they were at the end.
    pub fn finish(mut self) -> (Trace, Cluster, Arc<Policy>) {
        let state = self.engine.state();
        for job in state.jobs.values() {
            for (task, live) in job.live_tasks() {
                let since = live.attempt().and_then(|a| a.running_since());
                let ran = since.map(|since| state.at.since(since));
                note(&mut self.tasks, &mut self.skipped, job, task.index, ran);
            }
        }
        let nodes = state.nodes.values().map(|n| n.facts.clone()).collect();
        let trace = Trace::sorted(self.tasks.into_values().collect(), self.skipped);
        (trace, Cluster { nodes }, state.policy.clone())
    }
}

fn note(
    tasks: &mut BTreeMap<TaskId, TraceJob>,
    skipped: &mut usize,
    job: &Job,
    index: Option<u32>,
    ran: Option<Span>,
) {
    let Some(run) = ran.filter(|r| r.0 > 0) else {
        *skipped += 1;
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
        env: BTreeMap::new(),
        ..JobSpec::clone(&job.spec)
    };
    let (name, user) = (id.to_string(), job.user.clone());
    tasks.insert(id, TraceJob { name, submit: job.submitted_at, run, user, spec });
}
