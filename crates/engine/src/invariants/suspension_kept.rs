//! What a person suspended does not run again before somebody resumes it, whatever becomes of its
//! nodes meanwhile. One that could not be suspended by hand goes on.
//!
//! Looks at a journal as it is written, not at a state.

use std::collections::BTreeMap;

use tutti_model::{SuspendCause, TaskId};

use super::Breach;
use crate::event::{Event, Record};

#[derive(Clone, Debug, Default)]
pub struct SuspensionKept {
    /// Tasks that a person wants to stay suspended, and whether others had suspended them before.
    wanted: BTreeMap<TaskId, bool>,
    /// Why those were suspended that are.
    for_others: BTreeMap<TaskId, bool>,
    /// How many lost what was suspended, and were kept from starting.
    pub lost: u32,
}

impl SuspensionKept {
    pub fn note(&mut self, record: &Record) -> Result<(), Breach> {
        match &record.event {
            Event::Suspending { lease, why, stays, .. } => {
                let for_others = matches!(why, SuspendCause::Preempted { .. });
                self.for_others.insert(lease.task, for_others);
                if *stays {
                    self.wanted.insert(lease.task, for_others);
                }
            }
            Event::SuspensionHeld { lease, .. } => {
                let for_others = self.for_others.get(&lease.task).copied().unwrap_or_default();
                self.wanted.insert(lease.task, for_others);
            }
            Event::SuspensionReleased { lease, .. } => self.forget(lease.task),
            Event::TaskReleased { task, .. } | Event::TaskEnded { task, .. } => self.forget(*task),
            Event::Waking { lease, refused: Some(_), .. }
                if self.wanted.get(&lease.task) == Some(&false) =>
            {
                self.forget(lease.task);
            }
            Event::Waking { lease, refused: None, .. } => {
                return self.must_not(lease.task, record, "woken");
            }
            Event::Requeued { lease, .. } => {
                self.lost += u32::from(self.wanted.contains_key(&lease.task));
            }
            Event::Placed { task, .. } => return self.must_not(*task, record, "started"),
            _ => {}
        }
        Ok(())
    }

    fn must_not(&self, task: TaskId, record: &Record, what: &str) -> Result<(), Breach> {
        if !self.wanted.contains_key(&task) {
            return Ok(());
        }
        let found = format!("{task}, which a person suspended, was {what} at {}", record.seq);
        Err(Breach { property: "suspension_kept", found })
    }

    fn forget(&mut self, task: TaskId) {
        self.wanted.remove(&task);
    }
}
