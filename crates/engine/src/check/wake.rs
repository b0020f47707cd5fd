//! Whether a suspended task may go on as the plan says: on its own nodes, on GPUs like its own, that
//! nobody has and that are kept for nobody else.

use std::collections::BTreeMap;

use tutti_model::{
    Attempt, Job, Link, NewClaim, Node, Part, PartPlacement, State, Task, TaskId, Wake, WakePart,
};

use super::Violation;

/// What it takes again, if that is right.
pub(super) fn parts<'a>(
    state: &'a State,
    job: &'a Job,
    wake: &Wake,
) -> Result<Vec<PartPlacement>, Violation> {
    let id = wake.task;
    let wrong = |why: &'static str| Violation::BadWake(id, why);
    let attempt = job.task(id.index).and_then(Task::attempt).filter(|a| a.is_suspended());
    let attempt = attempt.ok_or(wrong("it is not suspended"))?;
    if attempt.pause().is_some_and(|pause| pause.stays) {
        return Err(wrong("somebody wants it to stay suspended"));
    }
    let live: Vec<&Part> = attempt.parts.iter().filter(|p| !p.phase.is_over()).collect();
    if live.len() != wake.parts.len() || live.is_empty() {
        return Err(wrong("not all of its parts would wake"));
    }
    let both = live.into_iter().zip(&wake.parts);
    both.map(|(part, back)| one(state, id, attempt, part, back)).collect()
}

fn one(
    state: &State,
    id: TaskId,
    attempt: &Attempt,
    part: &Part,
    back: &WakePart,
) -> Result<PartPlacement, Violation> {
    debug_assert!(attempt.part_on(part.node).is_some());
    let wrong = |why: &'static str| Violation::BadWake(id, why);
    if part.node != back.node {
        return Err(wrong("it would wake on another node"));
    }
    let usable = |n: &&Node| n.link == Link::Up && n.stale.is_empty();
    let node = state.node(part.node).filter(usable);
    let node = node.ok_or(Violation::NodeClosed(id, part.node))?;
    let asleep = part.asleep.as_deref().ok_or(wrong("a part of it is awake"))?;
    if models(node, &asleep.gpus) != models(node, &back.gpus)
        || back.gpus.len() != asleep.gpus.len()
    {
        return Err(wrong("it would get other GPUs than it had"));
    }
    if !node.facts.can_move && back.gpus != asleep.gpus {
        return Err(wrong("its node can't bring it back on other GPUs"));
    }
    if let Some(gpu) = back.gpus.iter().find(|gpu| node.is_fenced(**gpu)) {
        return Err(Violation::Fenced(id, node.id, *gpu));
    }
    Ok(PartPlacement {
        node: part.node,
        gpus: back.gpus.clone(),
        cpus: asleep.cpus,
        mem: tutti_model::Bytes(0),
        ranks: part.ranks,
        share: part.share,
    })
}

pub(super) fn is_suspended(job: &Job, id: TaskId) -> bool {
    job.task(id.index).and_then(Task::attempt).is_some_and(Attempt::is_suspended)
}

/// Room is kept for it where it could wake, and nowhere else.
pub(super) fn may_claim(state: &State, job: &Job, claim: &NewClaim) -> Result<(), Violation> {
    let back = |p: &PartPlacement| WakePart { node: p.node, gpus: p.gpus.clone() };
    let wake = Wake { task: claim.task, parts: claim.parts.iter().map(back).collect() };
    match parts(state, job, &wake)? == claim.parts {
        true => Ok(()),
        false => Err(Violation::BadWake(claim.task, "more would be kept for it than it needs")),
    }
}

/// How many different GPUs of each model.
fn models<'n>(node: &'n Node, gpus: &[tutti_model::GpuIndex]) -> BTreeMap<(&'n str, u64), usize> {
    let mut counts = BTreeMap::new();
    for gpu in node.facts.gpus.iter().filter(|g| gpus.contains(&g.index)) {
        *counts.entry((gpu.model.as_str(), gpu.mem.0)).or_default() += 1;
    }
    counts
}
