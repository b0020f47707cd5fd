//! What became of each attempt, and what happened to jobs and nodes: a past of bounded size, for
//! people who look back. The state knows only how things are.
//!
//! Kept by the engine thread from the records, like [`crate::reads`]. After a restart it goes back as
//! far as the journal is replayed; of what is older it has what the snapshot's state still knows.
//!
//! ```text
//! records ─┬─► Stay    of each attempt: where, from when until when, how it ended  ─► timeline, job
//!          ├─► Happened of each job: held, moved, saved, accused                    ─► job
//!          └─► Befell   of each node: away, lost, drained, findings                 ─► node
//! ```

mod nodes;
mod seed;

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::{Event, Record, RetryCause};
use tutti_model::{
    Accusation, AttemptPhase, Ended, Generation, GpuIndex, JobId, LeaseId, NodeId, PartPlacement,
    Priority, State, StopCause, SuspendCause, TaskId, Time,
};

pub use nodes::{Befell, Fate};

/// Attempts that are over and still known; beyond it the oldest are forgotten.
const STAYS_MAX: usize = 50_000;
/// Of each job the newest so many.
const MOMENTS_MAX: usize = 64;

/// Starts of controllers that are remembered.
const STARTS_MAX: usize = 200;

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Stay {
    pub task: TaskId,
    /// 0 where it is not known any more.
    pub attempt: u32,
    pub parts: Vec<(NodeId, Vec<GpuIndex>)>,
    pub placed: Time,
    pub running: Option<Time>,
    pub ended: Option<Time>,
    /// When it gave its GPUs up, and when it had them again.
    pub naps: Vec<(Time, Option<Time>)>,
    pub stopped: Option<StopCause>,
    pub end: End,
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Open,
    Ended(Box<Ended>),
    Requeued(RetryCause),
}

/// Something about a job that is no attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    pub at: Time,
    pub index: Option<u32>,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Held { by: String },
    Released { by: String },
    Priority { priority: Priority, by: String },
    Updated { words: String, by: String },
    Saved { step: u64 },
    Accused(Accusation),
    Suspended { why: SuspendCause },
    Woken,
    Claimed { victims: Vec<TaskId> },
}

#[derive(Debug, Default)]
pub struct Chronicle {
    open: BTreeMap<LeaseId, Stay>,
    over: VecDeque<Stay>,
    /// More were over than are known.
    forgot: bool,
    jobs: BTreeMap<JobId, VecDeque<Happened>>,
    nodes: BTreeMap<NodeId, nodes::Past>,
    /// When controllers started, newest last: all nodes are away then.
    starts: VecDeque<Time>,
}

impl Chronicle {
    /// `state` is as it is after the record, and may be a few records further.
    pub fn note(&mut self, state: &State, record: &Record) {
        let at = record.at;
        match &record.event {
            Event::ControllerStarted { .. } => {
                if self.starts.len() >= STARTS_MAX {
                    self.starts.pop_front();
                }
                self.starts.push_back(at);
            }
            Event::Placed { task, generation, parts } => {
                self.placed(state, *task, *generation, parts, at);
            }
            Event::PartRunning { lease, .. } => self.running(state, *lease, at),
            Event::Stopping { lease, why } => {
                if let Some(stay) = self.open.get_mut(lease) {
                    stay.stopped = Some(why.clone());
                }
            }
            Event::Suspending { lease, why, .. } => self.sleeps(*lease, why, at),
            Event::PartWoken { lease, .. } => self.wakes(state, *lease, at),
            Event::Requeued { lease, cause, why, .. } => {
                self.close(*lease, at, End::Requeued(*cause), why.as_deref());
            }
            Event::TaskEnded { task, ended } => self.ended(*task, ended),
            Event::JobsForgotten { jobs } => {
                jobs.iter().for_each(|job| drop(self.jobs.remove(job)))
            }
            event => match happened(event) {
                Some((task, what)) => self.happened(task, at, what),
                None => self.note_node(event, at),
            },
        }
    }

    pub fn has_started_at(&self, at: Time) -> bool {
        self.starts.contains(&at)
    }

    fn placed(
        &mut self,
        state: &State,
        task: TaskId,
        generation: Generation,
        parts: &[PartPlacement],
        at: Time,
    ) {
        let known = state.job(task.job).and_then(|job| job.task(task.index));
        let stay = Stay {
            task,
            attempt: known.map_or(0, |task| task.attempts),
            parts: parts.iter().map(|part| (part.node, part.gpus.clone())).collect(),
            placed: at,
            running: None,
            ended: None,
            naps: Vec::new(),
            stopped: None,
            end: End::Open,
        };
        self.open.insert(LeaseId { task, generation }, stay);
    }

    fn running(&mut self, state: &State, lease: LeaseId, at: Time) {
        let Some(stay) = self.open.get_mut(&lease) else { return };
        let attempt = state.job(lease.task.job).and_then(|job| job.task(lease.task.index));
        let phase = attempt.and_then(|task| task.attempt()).map(|attempt| &attempt.phase);
        if stay.running.is_none() && !matches!(phase, Some(AttemptPhase::Starting)) {
            stay.running = Some(at);
        }
    }

    fn sleeps(&mut self, lease: LeaseId, why: &SuspendCause, at: Time) {
        if let Some(stay) = self.open.get_mut(&lease) {
            stay.naps.push((at, None));
        }
        self.happened(lease.task, at, What::Suspended { why: why.clone() });
    }

    fn wakes(&mut self, state: &State, lease: LeaseId, at: Time) {
        let attempt = state.job(lease.task.job).and_then(|job| job.task(lease.task.index));
        let phase = attempt.and_then(|task| task.attempt()).map(|attempt| &attempt.phase);
        if matches!(phase, Some(AttemptPhase::Waking { .. })) {
            return;
        }
        if let Some((_, back @ None)) = self.open.get_mut(&lease).and_then(|s| s.naps.last_mut()) {
            *back = Some(at);
            self.happened(lease.task, at, What::Woken);
        }
    }

    fn ended(&mut self, task: TaskId, ended: &Ended) {
        let generation = |n| LeaseId { task, generation: Generation(n) };
        let lease = self.open.range(generation(0)..=generation(u64::MAX)).next_back();
        let Some(lease) = lease.map(|(lease, _)| *lease) else { return };
        self.close(lease, ended.ended_at, End::Ended(Box::new(ended.clone())), None);
    }

    fn close(&mut self, lease: LeaseId, at: Time, end: End, why: Option<&StopCause>) {
        let Some(mut stay) = self.open.remove(&lease) else { return };
        stay.ended = Some(at);
        stay.end = end;
        stay.stopped = why.cloned().or(stay.stopped);
        if let Some((_, back @ None)) = stay.naps.last_mut() {
            *back = Some(at);
        }
        self.keep(stay);
    }

    fn keep(&mut self, stay: Stay) {
        if self.over.len() >= STAYS_MAX {
            self.over.pop_front();
            self.forgot = true;
        }
        self.over.push_back(stay);
    }

    fn happened(&mut self, task: TaskId, at: Time, what: What) {
        let moments = self.jobs.entry(task.job).or_default();
        if moments.len() >= MOMENTS_MAX {
            moments.pop_front();
        }
        moments.push_back(Happened { at, index: task.index, what });
    }

    /// Attempts of a task that are known, oldest first.
    pub fn stays_of(&self, task: TaskId) -> Vec<&Stay> {
        let over = self.over.iter().filter(|stay| stay.task == task);
        let generation = |n| LeaseId { task, generation: Generation(n) };
        let open = self.open.range(generation(0)..=generation(u64::MAX)).map(|(_, stay)| stay);
        over.chain(open).collect()
    }

    /// Attempts that were there after `from`: those that are over, oldest end first, then the others.
    /// The newest `max` of them.
    pub fn stays_since(&self, from: Time, max: usize) -> Vec<&Stay> {
        let over = self.over.iter().rev().take_while(|stay| stay.ended >= Some(from));
        let open = self.open.values().take(max);
        let mut stays: Vec<&Stay> = open.collect();
        stays.reverse();
        let room = max - stays.len();
        stays.extend(over.take(room));
        stays.reverse();
        stays
    }

    /// Older attempts were there once.
    pub fn forgot(&self) -> bool {
        self.forgot
    }

    /// What happened to a task, or to its job as a whole.
    pub fn moments_of(&self, task: TaskId) -> impl Iterator<Item = &Happened> {
        let all = self.jobs.get(&task.job).into_iter().flatten();
        all.filter(move |moment| moment.index.is_none() || moment.index == task.index)
    }
}

fn happened(event: &Event) -> Option<(TaskId, What)> {
    Some(match event {
        Event::JobHeld { job, by } => (TaskId::single(*job), What::Held { by: by.clone() }),
        Event::JobReleased { job, by } => (TaskId::single(*job), What::Released { by: by.clone() }),
        Event::PriorityChanged { job, priority, by } => {
            (TaskId::single(*job), What::Priority { priority: *priority, by: by.clone() })
        }
        Event::JobUpdated { job, update, by, .. } => {
            (TaskId::single(*job), What::Updated { words: update.words(), by: by.clone() })
        }
        Event::Saved { lease, point: Some(point) } => {
            (lease.task, What::Saved { step: point.step })
        }
        Event::Accused { lease, accusation } => (lease.task, What::Accused(accusation.clone())),
        Event::Claimed { task, victims, .. } => (*task, What::Claimed { victims: victims.clone() }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
