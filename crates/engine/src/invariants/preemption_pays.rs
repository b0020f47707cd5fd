//! Nobody is stopped in vain: a task for which others were stopped starts, unless it ends, is held or
//! is changed first, or a node that it needs is lost, drained, found broken or comes back another.
//!
//! Looks at a journal as it is written, not at a state.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{NodeFacts, NodeId, TaskId};

use super::Breach;
use crate::event::{Event, Record};

#[derive(Clone, Debug, Default)]
pub struct PreemptionPays {
    /// Claims with victims, and the nodes they need.
    open: BTreeMap<TaskId, BTreeSet<NodeId>>,
    /// Of those, the ones that something outside the scheduler has spoilt.
    excused: BTreeSet<TaskId>,
    /// What nodes have.
    facts: BTreeMap<NodeId, Box<NodeFacts>>,
    /// Claims with victims, and how many of their tasks started.
    pub claimed: u64,
    pub started: u64,
}

impl PreemptionPays {
    pub fn note(&mut self, record: &Record) -> Result<(), Breach> {
        match &record.event {
            Event::Claimed { task, parts, victims, .. } if !victims.is_empty() => {
                self.open.insert(*task, parts.iter().map(|p| p.node).collect());
                self.claimed += 1;
            }
            Event::Placed { task, .. } => {
                self.started += u64::from(self.open.contains_key(task));
                self.close(*task);
            }
            Event::TaskEnded { task, .. } => self.close(*task),
            Event::WaitingEnded { job, .. } => {
                let of_job = |t: &&TaskId| t.job == *job;
                let tasks: Vec<TaskId> = self.open.keys().filter(of_job).copied().collect();
                tasks.into_iter().for_each(|task| self.close(task));
            }
            Event::JobHeld { job, .. } => self.excuse(|task, _| task.job == *job),
            // What was freed is for what it was. A name is nothing that anybody goes by.
            Event::JobUpdated { job, update, .. } if !update.only_renames() => {
                self.excuse(|task, _| task.job == *job);
            }
            // Changed priorities, policies and nodes may put somebody else first.
            Event::PolicyChanged { .. } => self.excuse(|_, _| true),
            Event::NodeLost { node }
            | Event::NodeRemoved { node: Some(node), .. }
            | Event::NodeDrained { node, .. }
            | Event::FindingsChanged { node, .. } => {
                self.excuse(|_, nodes| nodes.contains(node));
            }
            Event::NodeJoined { node, facts } | Event::NodeUp { node, facts, .. } => {
                let known = self.facts.insert(*node, facts.clone());
                let changed = known.is_none_or(|known| known != *facts);
                self.excuse(|_, nodes| changed && nodes.contains(node));
            }
            Event::Unclaimed { task } => {
                if self.open.contains_key(task) && !self.excused.contains(task) {
                    let found = format!("the claim of {task} was dropped at {}", record.seq);
                    return Err(Breach { property: "preemption_pays", found });
                }
                self.close(*task);
            }
            _ => {}
        }
        Ok(())
    }

    /// At the end, when nothing is left to be done.
    pub fn finish(&self) -> Result<(), Breach> {
        match self.open.keys().next() {
            Some(task) => {
                let found = format!("others were stopped for {task}, which never started");
                Err(Breach { property: "preemption_pays", found })
            }
            None => Ok(()),
        }
    }

    fn close(&mut self, task: TaskId) {
        self.open.remove(&task);
        self.excused.remove(&task);
    }

    fn excuse(&mut self, spoilt: impl Fn(TaskId, &BTreeSet<NodeId>) -> bool) {
        let tasks = self.open.iter().filter(|(task, nodes)| spoilt(**task, nodes));
        self.excused.extend(tasks.map(|(task, _)| *task));
    }
}
