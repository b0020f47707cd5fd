//! Whether nobody else listens where a service wants to.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{Job, NodeId, PartPlacement, State, TaskId};

use super::Violation;

/// Who listens on which fixed port, or will.
pub(super) struct Ports(BTreeMap<(NodeId, u16), BTreeSet<TaskId>>);

impl Ports {
    pub fn new(state: &State, dropped: &[TaskId]) -> Ports {
        let mut ports = Ports(BTreeMap::new());
        for id in state.endpoints.values().flat_map(|e| e.replicas.keys()) {
            let Some(job) = state.job(*id) else { continue };
            let attempt = job.task(None).and_then(|task| task.attempt());
            let parts = attempt.into_iter().flat_map(|a| &a.parts).filter(|p| !p.phase.is_over());
            ports.take(job, TaskId::single(*id), parts.map(|p| p.node));
        }
        for (id, claim) in state.claims.iter().filter(|(id, _)| !dropped.contains(id)) {
            if let Some(job) = state.job(id.job) {
                ports.take(job, *id, claim.parts.iter().map(|p| p.node));
            }
        }
        ports
    }

    pub fn take(&mut self, job: &Job, id: TaskId, nodes: impl Iterator<Item = NodeId>) {
        let Some(port) = job.spec.fixed_port() else { return };
        for node in nodes {
            self.0.entry((node, port)).or_default().insert(id);
        }
    }

    pub fn are_free(
        &self,
        job: &Job,
        id: TaskId,
        parts: &[PartPlacement],
    ) -> Result<(), Violation> {
        let Some(port) = job.spec.fixed_port() else { return Ok(()) };
        for part in parts {
            let there = self.0.get(&(part.node, port)).into_iter().flatten();
            if let Some(other) = there.copied().find(|other| *other != id) {
                return Err(Violation::PortTaken(id, part.node, port, other));
            }
        }
        Ok(())
    }
}
