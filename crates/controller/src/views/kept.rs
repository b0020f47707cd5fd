//! What is free of a node, but not for everybody: somebody waits for the rest of it, comes back to it, or was told
//! when it starts there.

use std::collections::BTreeMap;

use tutti_model::{
    Demand, GpuIndex, Head, Milli, Node, NodeId, NodeKept, Plan, Spread, State, TaskId,
};

/// Of all nodes of which something is kept, by task.
pub type KeptByNode = BTreeMap<NodeId, Vec<NodeKept>>;

/// By node, and there by task. What others still hold is not kept yet, and nodes where that is all are left out.
pub fn kept(state: &State, plan: &Plan) -> KeptByNode {
    let mut found: BTreeMap<(NodeId, TaskId), NodeKept> = BTreeMap::new();
    let mut note = |id: NodeId, kept: Option<NodeKept>| {
        // What is kept in more than one way is told in the first of them.
        if let Some(kept) = kept {
            found.entry((id, kept.task)).or_insert(kept);
        }
    };
    for (task, claim) in &state.claims {
        for part in &claim.parts {
            note(part.node, of_part(state, part.node, *task, &part.gpus, part.share));
        }
    }
    for task in &state.index.ending {
        let attempt = state.job(task.job).and_then(|job| job.task(task.index)?.attempt());
        let parts = attempt.filter(|attempt| attempt.will_return()).into_iter();
        for part in parts.flat_map(|attempt| &attempt.parts).filter(|part| part.phase.is_over()) {
            note(part.node, of_part(state, part.node, *task, &part.gpus, part.share));
        }
    }
    for head in &plan.heads {
        head.nodes.iter().for_each(|id| note(*id, of_head(state, *id, head)));
    }
    let mut by_node: KeptByNode = BTreeMap::new();
    found.into_iter().for_each(|((id, _), kept)| by_node.entry(id).or_default().push(kept));
    by_node
}

fn of_part(
    state: &State,
    id: NodeId,
    task: TaskId,
    gpus: &[GpuIndex],
    share: Milli,
) -> Option<NodeKept> {
    let node = state.node(id)?;
    let free = gpus.iter().filter(|gpu| is_free(node, **gpu, share)).count() as u32;
    (free > 0 || gpus.is_empty()).then_some(NodeKept { task, gpus: free, from: None })
}

/// Which of its GPUs it gets is not settled yet, only how many at most.
fn of_head(state: &State, id: NodeId, head: &Head) -> Option<NodeKept> {
    let node = state.node(id)?;
    let demand = Demand::of(&state.job(head.task.job)?.spec);
    let most = match demand.spread {
        Spread::Nodes { gpus_each, .. } => gpus_each,
        Spread::Gpus { total } => total,
    };
    let free = |gpu: &&tutti_model::Gpu| is_free(node, gpu.index, demand.share);
    let gpus = most.min(node.facts.gpus.iter().filter(free).count() as u32);
    let is_idle = node.used.leases.is_empty();
    let there = gpus > 0 || (most == 0 && is_idle);
    there.then_some(NodeKept { task: head.task, gpus, from: head.starts_by })
}

fn is_free(node: &Node, gpu: GpuIndex, share: Milli) -> bool {
    let used = node.used.gpus.get(&gpu).map_or(0, |used| used.milli());
    !node.is_fenced(gpu) && used + u32::from(share.0) <= 1000
}

#[cfg(test)]
mod tests {
    use tutti_engine::{Actor, Command, Engine, Settings};
    use tutti_model::{
        Bytes, Claim, ClaimCause, Gpu, Greeting, JobId, JobSpec, NodeFacts, PartPlacement, Role,
        Time,
    };

    use super::*;

    fn facts(name: &str) -> NodeFacts {
        let gpu = |index| Gpu {
            index: GpuIndex(index),
            model: "h100".into(),
            uuid: format!("{name}-{index}"),
            mem: Bytes::gib(80),
            island: None,
        };
        NodeFacts {
            address: "127.0.0.1".into(),
            cpus: 64,
            mem: Bytes::gib(512),
            gpus: (0..8).map(gpu).collect(),
            name: name.into(),
            ..NodeFacts::default()
        }
    }

    /// Two nodes with 8 GPUs; job 1 has 6 of the first, and job 2 waits for both.
    fn engine() -> Engine {
        let mut engine = Engine::new(Settings::default());
        for name in ["n1", "n2"] {
            let greeting = Box::new(Greeting::new(facts(name), Vec::new()));
            let hello = Command::Hello { greeting, session: 1, key: None };
            engine.step(hello, Time(1000)).reply.unwrap();
        }
        let actor = Actor { user: "ada".into(), role: Role::Admin };
        for (nodes, gpus) in [(1, "6"), (2, "8")] {
            let spec = JobSpec {
                nodes: Some(nodes),
                gpus_per_node: Some(gpus.parse().unwrap()),
                time: Some("1h".parse().unwrap()),
                ..JobSpec::shell("true")
            };
            let (actor, spec) = (actor.clone(), Box::new(spec));
            let submit = Command::Submit { actor, spec, user: None, key: None };
            engine.step(submit, Time(2000)).reply.unwrap();
            while engine.wants_schedule() {
                engine.schedule(Time(3000)).reply.unwrap();
            }
        }
        engine
    }

    fn told(state: &State, plan: &Plan) -> Vec<(String, u64, u32, bool)> {
        let all = kept(state, plan).into_iter();
        let of = |(id, kept): (NodeId, Vec<NodeKept>)| {
            let name = state.node_name(id);
            let of = move |k: NodeKept| (name.clone(), k.task.job.0, k.gpus, k.from.is_some());
            kept.into_iter().map(of).collect::<Vec<_>>()
        };
        let mut told: Vec<_> = all.flat_map(of).collect();
        told.sort();
        told
    }

    #[test]
    fn what_is_free_of_the_nodes_of_who_is_next_is_kept_for_it() {
        let engine = engine();
        let state = engine.state();
        let busy = state.nodes.values().find(|node| !node.used.leases.is_empty()).unwrap();
        let of = |name: &str, gpus| (name.to_owned(), 2, gpus, true);
        let idle = if busy.facts.name == "n1" { "n2" } else { "n1" };
        let mut wanted = vec![of(&busy.facts.name, 2), of(idle, 8)];
        wanted.sort();
        assert_eq!(told(state, engine.plan()), wanted);
        assert!(told(state, &Plan::default()).is_empty(), "nobody was told when it starts");
    }

    #[test]
    fn a_claim_keeps_what_is_free_of_it_and_is_told_once() {
        let engine = engine();
        let mut state = engine.state().clone();
        let busy = state.nodes.values().find(|node| !node.used.leases.is_empty()).unwrap();
        let (name, node, taken) =
            (busy.facts.name.clone(), busy.id, busy.used.gpus.keys().copied().collect::<Vec<_>>());
        let free = (0..8).map(GpuIndex).find(|gpu| !taken.contains(gpu)).unwrap();
        let part = |gpus: Vec<GpuIndex>| PartPlacement {
            node,
            gpus,
            cpus: 1,
            mem: Bytes(0),
            ranks: 1,
            share: Milli::WHOLE,
        };
        let mut claim = |gpus| {
            let parts = vec![part(gpus)];
            let (cause, made_at) = (ClaimCause::Overdue, Time(3000));
            let claim = Claim { parts, cause, made_at, victims: Vec::new() };
            state.claims.insert(TaskId::single(JobId(2)), claim);
            told(&state, &Plan::default())
        };
        assert_eq!(claim(vec![taken[0], free]), [(name.clone(), 2, 1, false)]);
        assert!(claim(vec![taken[0]]).is_empty(), "others still have all of it");
        assert_eq!(claim(Vec::new()), [(name.clone(), 2, 0, false)], "its CPUs are kept");
        let both = told(&state, engine.plan());
        assert_eq!(both.iter().filter(|told| told.0 == name).count(), 1, "{both:?}");
    }
}
