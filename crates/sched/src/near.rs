//! Where a replica is best off: near its files, which load from there in seconds and from elsewhere in
//! minutes, and not all of them on one node, which may be lost.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{Job, NodeId, Placement, State, TaskId};

/// Preferred, never demanded; empty for jobs that name no files.
pub(crate) fn near(state: &State, job: &Job) -> BTreeSet<NodeId> {
    let files = job.spec.service.as_deref().and_then(|service| service.files.as_deref());
    let Some(files) = files else { return BTreeSet::new() };
    let endpoint = job.replica_of.as_deref().and_then(|of| state.endpoints.get(&of.endpoint));
    let warm = endpoint.into_iter().flat_map(|e| e.warm.iter().copied());
    let told = state.nodes.values().filter(|n| n.facts.files.iter().any(|dir| holds(dir, files)));
    warm.chain(told.map(|n| n.id)).collect()
}

/// Nodes that would have more than half of an endpoint's replicas with one more; `placed` are those of
/// this pass.
pub(crate) fn crowded(state: &State, job: &Job, placed: &[Placement]) -> BTreeSet<NodeId> {
    let of = job.replica_of.as_deref();
    let Some(endpoint) = of.and_then(|of| state.endpoints.get(&of.endpoint)) else {
        return BTreeSet::new();
    };
    let siblings = endpoint.replicas.keys().filter(|&&id| id != job.id);
    let mut nodes: BTreeMap<NodeId, usize> = BTreeMap::new();
    for &id in siblings {
        let attempt = state.job(id).and_then(|job| job.task(None)?.attempt());
        let there = attempt.map(|a| a.parts.iter().map(|part| part.node).collect());
        let now = placed.iter().find(|p| p.task == TaskId::single(id));
        let soon = || now.map(|p| p.parts.iter().map(|part| part.node).collect());
        let parts: Vec<NodeId> = there.or_else(soon).unwrap_or_default();
        parts.into_iter().for_each(|node| *nodes.entry(node).or_default() += 1);
    }
    let half = (nodes.values().sum::<usize>() + 1).div_ceil(2);
    nodes.into_iter().filter(|(_, n)| n + 1 > half).map(|(node, _)| node).collect()
}

/// Whether a path is this one, or inside of it.
fn holds(dir: &str, path: &str) -> bool {
    let rest = path.strip_prefix(dir.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NOW, case, class, endpoint, gpus};
    use tutti_model::{
        AttemptPhase, Endpoint, JobId, JobSpec, Replica, ReplicaOf, ReplicaPhase, ServiceSpec, Time,
    };

    fn served(files: &str) -> JobSpec {
        let service = ServiceSpec { files: Some(files.into()), ..ServiceSpec::default() };
        JobSpec { service: Some(Box::new(service)), ..gpus(1) }
    }

    #[test]
    fn a_path_is_held_by_itself_and_by_what_it_is_inside_of() {
        for (dir, path, expected) in [
            ("/models", "/models/llama", true),
            ("/models/", "/models/llama", true),
            ("/models/llama", "/models/llama", true),
            ("/models/ll", "/models/llama", false),
            ("/models/llama/v2", "/models/llama", false),
            ("/", "/models", true),
        ] {
            assert_eq!(holds(dir, path), expected, "{dir} {path}");
        }
    }

    #[test]
    fn no_node_gets_more_than_half_of_the_replicas_if_there_is_another() {
        let of = || ReplicaOf { endpoint: "chat".into(), revision: 1 };
        let plain = || JobSpec { service: Some(Box::default()), ..gpus(1) };
        let with = |replicas: u64| {
            let coming = || Replica { revision: 1, phase: ReplicaPhase::Coming, since: Time(0) };
            let replica = |id| (JobId(id), coming());
            Endpoint { replicas: (1..=replicas).map(replica).collect(), ..endpoint(&[]) }
        };
        let mut four = case().nodes(3, 4).endpoint(with(4));
        for _ in 0..4 {
            four = four.submit(plain()).replica_of(of());
        }
        assert_eq!(four.placed(), "1@n1:0 2@n2:0 3@n1:1 4@n2:1");
        let mut one = case().nodes(1, 4).endpoint(with(2));
        for _ in 0..2 {
            one = one.submit(plain()).replica_of(of());
        }
        assert_eq!(one.placed(), "1@n1:0 2@n1:1", "better there than nowhere");
    }

    #[test]
    fn nodes_that_have_the_files_are_preferred_and_not_demanded() {
        let c = || case().nodes(3, 2);
        assert_eq!(c().submit(served("/m/a")).placed(), "1@n1:0");
        let told = c().change_node(3, |n| n.facts.files = vec!["/m".into()]);
        assert_eq!(told.submit(served("/m/a")).placed(), "1@n3:0");
        let warm = || {
            let of = ReplicaOf { endpoint: "chat".into(), revision: 1 };
            c().endpoint(endpoint(&[2])).submit(served("/m/a")).replica_of(of)
        };
        assert_eq!(warm().placed(), "1@n2:0");
        let avoided = warm().change_task(|t| t.avoid = [NodeId(2)].into());
        assert_eq!(avoided.placed(), "1@n1:0", "it failed there");
    }

    #[test]
    fn of_equal_victims_those_near_the_files_go() {
        let c = |minutes: [u64; 2]| {
            let mut c = case().nodes(2, 1).change_node(2, |n| n.facts.files = vec!["/m".into()]);
            for (node, minutes) in (1..).zip(minutes) {
                let since = Time(NOW.0 - minutes * 60_000);
                c = c.running(class("scavenger", gpus(1)), &[(node, &[0])]);
                c = c.change_task(|t| {
                    t.attempt_mut().unwrap().phase = AttemptPhase::Running { since }
                });
            }
            c.submit(class("urgent", served("/m/a"))).claimed()
        };
        assert_eq!(c([10, 10]), "3@n2:0 class [2]");
        assert_eq!(c([10, 11]), "3@n1:0 class [1]", "what others lose counts for more");
    }
}
