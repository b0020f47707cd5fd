//! Where a replica can't be: two that listen on the same fixed port would meet on one node.

use std::collections::BTreeSet;

use tutti_model::{Job, JobId, NodeId, PartPlacement, State, TaskId};

use crate::pass::Pass;

/// Nodes on which somebody else has the job's port, or will; none for a port that is picked there.
pub(crate) fn port_taken<'p>(
    state: &'p State,
    job: &Job,
    ended: &BTreeSet<TaskId>,
    promised: impl Iterator<Item = (TaskId, &'p [PartPlacement])>,
) -> BTreeSet<NodeId> {
    let Some(port) = job.spec.fixed_port() else { return BTreeSet::new() };
    let rival = |id: JobId| {
        let other = state.job(id).filter(|other| other.id != job.id)?;
        (other.spec.fixed_port() == Some(port)).then_some(other)
    };
    let ended = |id: JobId| ended.contains(&TaskId::single(id));
    let replicas = state.endpoints.values().flat_map(|e| e.replicas.keys().copied());
    let active =
        replicas.filter(|id| !ended(*id)).filter_map(|id| rival(id)?.task(None)?.attempt());
    let there = active.flat_map(|a| &a.parts).filter(|p| !p.phase.is_over()).map(|p| p.node);
    let soon = |(task, parts): (TaskId, &'p [PartPlacement])| {
        let parts = rival(task.job).map_or(&[][..], |_| parts);
        parts.iter().map(|p| p.node).collect::<Vec<_>>()
    };
    there.chain(promised.flat_map(soon)).collect()
}

impl Pass<'_, '_> {
    pub(crate) fn port_taken(&self, job: &Job) -> BTreeSet<NodeId> {
        port_taken(self.state, job, &self.what_if.ended, self.promised())
    }

    /// Everything that is to start, now or when its room is free.
    fn promised(&self) -> impl Iterator<Item = (TaskId, &[PartPlacement])> {
        let kept = self.state.claims.iter().filter(|(task, _)| !self.dropped.contains(task));
        let kept = kept.map(|(task, claim)| (*task, claim.parts.as_slice()));
        let placed = self.plan.placements.iter().map(|p| (p.task, p.parts.as_slice()));
        let claimed = self.plan.claims.iter().map(|c| (c.task, c.parts.as_slice()));
        kept.chain(placed).chain(claimed)
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::{
        AttemptPhase, Endpoint, JobSpec, Replica, ReplicaOf, ReplicaPhase, ServiceSpec, Time,
        Verdict,
    };

    use super::*;
    use crate::describe;
    use crate::testing::{Case, NOW, case, class, endpoint, gpus};

    fn on_port(port: u16) -> JobSpec {
        let service = ServiceSpec { port: Some(port), ..ServiceSpec::default() };
        JobSpec { service: Some(Box::new(service)), ..gpus(1) }
    }

    /// An endpoint whose replicas are these jobs.
    fn of(c: Case, name: &str, jobs: &[u64]) -> Case {
        let coming = || Replica { revision: 1, phase: ReplicaPhase::Coming, since: Time(0) };
        let replicas = jobs.iter().map(|&id| (JobId(id), coming())).collect();
        c.endpoint(Endpoint { name: name.into(), replicas, ..endpoint(&[]) })
    }

    fn replica(c: Case, name: &str, spec: JobSpec) -> Case {
        c.submit(spec).replica_of(ReplicaOf { endpoint: name.into(), revision: 1 })
    }

    #[test]
    fn one_port_is_on_one_node_once() {
        let c = of(of(case().nodes(2, 4), "a", &[1, 2]), "b", &[3, 4]);
        let c = replica(replica(c, "a", on_port(8000)), "a", on_port(8000));
        let c = replica(replica(c, "b", on_port(8000)), "b", on_port(9000));
        assert_eq!(c.placed(), "1@n1:0 2@n2:0 4@n1:1", "whosever it is, and no other port");
        let verdict = c.verdict("3").unwrap();
        assert!(matches!(&verdict, Verdict::Busy(s) if s.blocked.port == 2), "{verdict:?}");
        let words = describe(&verdict);
        assert!(words.contains("2 with its port taken"), "{words}");
    }

    #[test]
    fn those_behind_in_line_are_not_held_up() {
        let c = of(of(case().nodes(1, 4), "a", &[1, 2]), "b", &[4]);
        let c = replica(replica(c, "a", on_port(8000)), "a", on_port(8000)).submit(gpus(1));
        let c = replica(c, "b", on_port(9000));
        assert_eq!(c.placed(), "1@n1:0 3@n1:1 4@n1:2");
    }

    #[test]
    fn one_that_runs_has_its_port_and_nobody_is_stopped_for_a_node_with_it() {
        let there = || {
            let c = case().nodes(2, 1).running(class("scavenger", on_port(8000)), &[(1, &[0])]);
            c.replica_of(ReplicaOf { endpoint: "a".into(), revision: 1 })
        };
        let wants = |c: Case| replica(c, "a", class("urgent", on_port(8000)));
        assert_eq!(wants(of(there(), "a", &[1, 2])).placed(), "2@n2:0");
        // The dearer of the two.
        let full = there().running(class("scavenger", gpus(1)), &[(2, &[0])]).change_task(|task| {
            let phase = AttemptPhase::Running { since: Time(NOW.0 / 2) };
            task.attempt_mut().unwrap().phase = phase;
        });
        assert_eq!(wants(of(full, "a", &[1, 3])).claimed(), "3@n2:0 class [2]");
    }
}
