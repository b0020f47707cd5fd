//! Jobs as the controller remembers them.
//!
//! ```text
//!  Job ─► Task ─► Attempt ─► Part
//!            └──► Ended
//! ```

mod attempt;
mod end;
mod task;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    DEFAULT_CLASS, IndexRanges, JobId, JobSpec, Priority, ReplicaOf, TaskId, TextDigest, TextRefs,
    Time,
};

pub use attempt::*;
pub use end::*;
pub use task::*;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub user: String,
    /// Who pays. Settled at submission.
    #[serde(default = "default_team")]
    pub team: String,
    pub submitted_at: Time,
    /// Starts as the spec's; an operator may change it.
    pub priority: Priority,
    pub held: bool,
    /// What was learned of jobs like it; smaller goes first. Kept by `apply`.
    #[serde(default)]
    pub rank: u64,
    /// It serves an endpoint, which has submitted it and decides when it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<Box<ReplicaOf>>,
    /// What of its spec is stored by hash.
    #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
    pub texts: TextRefs,
    /// It is over, and of these texts only the beginning is kept.
    #[serde(default, skip_serializing_if = "TextRefs::is_empty")]
    pub cut: TextRefs,
    /// The hash of what was submitted, if it was changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<TextDigest>,
    pub tasks: Tasks,
}

fn default_team() -> String {
    crate::DEFAULT_TEAM.to_owned()
}

/// The tasks of a job. An array costs one record until its tasks start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Tasks {
    One(Task),
    Array(ArrayTasks),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArrayTasks {
    /// Never started yet.
    pub waiting: IndexRanges,
    /// Started at least once and not ended.
    pub live: BTreeMap<u32, Task>,
    pub ended: BTreeMap<u32, Ended>,
    /// Tasks that ended together before they ever started: one record, however many.
    pub never_started: Option<Box<(IndexRanges, Ended)>>,
    pub tally: Tally,
}

/// Ended tasks of an array, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
}

impl Tally {
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::Completed => self.completed += count,
            Outcome::Failed => self.failed += count,
            Outcome::Cancelled => self.cancelled += count,
        }
    }
}

impl ArrayTasks {
    pub fn ended_task(&self, index: u32) -> Option<&Ended> {
        self.ended.get(&index).or_else(|| {
            let (indices, ended) = self.never_started.as_deref()?;
            indices.contains(index).then_some(ended)
        })
    }
}

/// The eight words for where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Pending,
    Starting,
    Running,
    Suspended,
    Stopping,
    Completed,
    Failed,
    Cancelled,
}

impl JobState {
    /// In the order of a life.
    pub const ALL: [JobState; 8] = [
        JobState::Pending,
        JobState::Starting,
        JobState::Running,
        JobState::Suspended,
        JobState::Stopping,
        JobState::Completed,
        JobState::Failed,
        JobState::Cancelled,
    ];

    /// The state that is called so.
    pub fn named(word: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.as_str() == word)
    }

    pub fn is_final(self) -> bool {
        matches!(self, JobState::Completed | JobState::Failed | JobState::Cancelled)
    }
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Suspended => "suspended",
            JobState::Stopping => "stopping",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

impl From<Outcome> for JobState {
    fn from(o: Outcome) -> JobState {
        match o {
            Outcome::Completed => JobState::Completed,
            Outcome::Failed => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        }
    }
}

impl Job {
    pub fn class(&self) -> &str {
        self.spec.class.as_deref().unwrap_or(DEFAULT_CLASS)
    }
    /// The task with this id, if it has a record of its own (a waiting array task has none).
    pub fn task(&self, index: Option<u32>) -> Option<&Task> {
        match (&self.tasks, index) {
            (Tasks::One(t), None) => Some(t),
            (Tasks::Array(a), Some(i)) => a.live.get(&i),
            _ => None,
        }
    }

    /// Whether the job has such a task at all, started or not.
    pub fn has_task(&self, index: Option<u32>) -> bool {
        match (&self.tasks, index) {
            (Tasks::One(_), None) => true,
            (Tasks::Array(a), Some(i)) => {
                a.waiting.contains(i) || a.live.contains_key(&i) || a.ended_task(i).is_some()
            }
            _ => false,
        }
    }

    pub fn task_state(&self, index: Option<u32>) -> Option<JobState> {
        match (&self.tasks, index) {
            (Tasks::One(t), None) => Some(t.state()),
            (Tasks::Array(a), Some(i)) => {
                if let Some(t) = a.live.get(&i) {
                    Some(t.state())
                } else if let Some(e) = a.ended_task(i) {
                    Some(e.outcome.into())
                } else {
                    a.waiting.contains(i).then_some(JobState::Pending)
                }
            }
            _ => None,
        }
    }

    pub fn ended(&self, index: Option<u32>) -> Option<&Ended> {
        match (&self.tasks, index) {
            (Tasks::One(Task { phase: Phase::Ended(e), .. }), None) => Some(e),
            (Tasks::Array(a), Some(i)) => a.ended_task(i),
            _ => None,
        }
    }

    /// Tasks that hold or may get a lease, started ones only.
    pub fn live_tasks(&self) -> Box<dyn Iterator<Item = (TaskId, &Task)> + '_> {
        match &self.tasks {
            Tasks::One(t) if matches!(t.phase, Phase::Ended(_)) => Box::new(std::iter::empty()),
            Tasks::One(t) => Box::new(std::iter::once((TaskId::single(self.id), t))),
            Tasks::Array(a) => {
                Box::new(a.live.iter().map(|(&i, t)| (TaskId::of_array(self.id, i), t)))
            }
        }
    }

    pub fn is_over(&self) -> bool {
        match &self.tasks {
            Tasks::One(t) => matches!(t.phase, Phase::Ended(_)),
            Tasks::Array(a) => a.waiting.is_empty() && a.live.is_empty(),
        }
    }

    /// The outcome of the whole job once it is over: the worst of its tasks.
    pub fn outcome(&self) -> Option<Outcome> {
        if !self.is_over() {
            return None;
        }
        match &self.tasks {
            Tasks::One(Task { phase: Phase::Ended(e), .. }) => Some(e.outcome),
            Tasks::One(_) => None,
            Tasks::Array(a) => Some(if a.tally.failed > 0 {
                Outcome::Failed
            } else if a.tally.cancelled > 0 {
                Outcome::Cancelled
            } else {
                Outcome::Completed
            }),
        }
    }

    /// Where the job as a whole stands: running if any task runs, else the most advanced of them.
    pub fn state(&self) -> JobState {
        if let Some(outcome) = self.outcome() {
            return outcome.into();
        }
        match &self.tasks {
            Tasks::One(t) => t.state(),
            Tasks::Array(a) => {
                let any = |s| a.live.values().any(|t| t.state() == s);
                [JobState::Running, JobState::Starting, JobState::Stopping, JobState::Suspended]
                    .into_iter()
                    .find(|&s| any(s))
                    .unwrap_or(JobState::Pending)
            }
        }
    }

    pub fn ended_at(&self) -> Option<Time> {
        match &self.tasks {
            Tasks::One(Task { phase: Phase::Ended(e), .. }) => Some(e.ended_at),
            Tasks::One(_) => None,
            Tasks::Array(a) if self.is_over() => {
                let unstarted = a.never_started.as_deref().map(|(_, e)| e.ended_at);
                a.ended.values().map(|e| e.ended_at).chain(unstarted).max()
            }
            Tasks::Array(_) => None,
        }
    }
}
