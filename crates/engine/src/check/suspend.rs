//! Whether victims that are suspended can be: it is proven again, from the leases and the nodes.

use tutti_model::{
    Attempt, AttemptPhase, Job, Moved, NewClaim, NodeId, Part, PreemptMode, State, Stop, Task,
};

use super::Violation;
use super::books::Books;

/// Its mode allows it, all of it runs on whole GPUs of nodes that can, and what is said to be moved
/// is what it has.
pub(super) fn may_suspend(
    state: &State,
    job: &Job,
    attempt: &Attempt,
    moved: &[Moved],
) -> Result<(), String> {
    if let Some(PreemptMode::Checkpoint | PreemptMode::Requeue | PreemptMode::Never) =
        job.spec.preempt.as_ref().map(|p| p.mode)
    {
        return Err("its mode does not allow it".to_owned());
    }
    if !matches!(attempt.phase, AttemptPhase::Running { .. }) {
        return Err("it does not run".to_owned());
    }
    if job.spec.gpu_share.is_some() || job.spec.exclusive {
        return Err("it shares a GPU, or has its nodes alone".to_owned());
    }
    if moved.len() != attempt.parts.len() {
        return Err("not all of it would be suspended".to_owned());
    }
    for (part, moved) in attempt.parts.iter().zip(moved) {
        if part.node != moved.node || part.phase.is_over() {
            return Err(format!("it has no part on node {} that runs", moved.node));
        }
        if !state.node(part.node).is_some_and(|n| n.facts.can_suspend) {
            return Err(format!("node {} can't do that", part.node));
        }
        let least = part.gpu_mem.map_or_else(|| all_memory(state, part), |heard| heard.0);
        if moved.bytes.0 < least.min(all_memory(state, part)) {
            return Err(format!("it has more than {} on node {}", moved.bytes, part.node));
        }
    }
    Ok(())
}

fn all_memory(state: &State, part: &Part) -> u64 {
    let gpus = state.node(part.node).into_iter().flat_map(|n| &n.facts.gpus);
    gpus.filter(|g| part.gpus.contains(&g.index)).map(|g| g.mem.0).sum()
}

/// How long it takes to move everything out and in again, for all of its GPUs.
pub(super) fn cost(state: &State, attempt: &Attempt, moved: &[Moved]) -> u64 {
    let rule = &state.policy.preemption;
    let most = moved.iter().map(|m| m.bytes.0).max().unwrap_or(0);
    let ms = |rate: u64| most.saturating_mul(1000) / rate.max(1);
    let gpus: usize = attempt.parts.iter().map(|p| p.gpus.len()).sum();
    ms(rule.suspend_out.0).saturating_add(ms(rule.suspend_in.0)).saturating_mul(gpus as u64)
}

/// On every node of every victim, memory has room for what is moved there beside everybody who
/// stays, everything that is kept, and what the claimant gets.
pub(super) fn memory_fits(
    state: &State,
    books: &Books<'_>,
    claim: &NewClaim,
) -> Result<(), Violation> {
    for victim in &claim.victims {
        let Stop::Suspend { moved } = &victim.how else { continue };
        let attempt = state.job(victim.task.job).and_then(|j| j.task(victim.task.index));
        let parts = attempt.and_then(Task::attempt).map(|a| &a.parts);
        for Moved { node, .. } in moved {
            let has = |p: &&Part| p.node == *node;
            if parts.and_then(|parts| parts.iter().find(has)).is_none() {
                continue;
            }
            let total = state.node(*node).map_or(0, |n| n.facts.mem.0);
            let taken = books.memory_later(*node, claim).saturating_add(wanted(claim, *node));
            if taken > total {
                let why = format!("node {node} would need {taken} bytes of memory, has {total}");
                return Err(Violation::BadSuspension(claim.task, victim.task, why));
            }
        }
    }
    Ok(())
}

fn wanted(claim: &NewClaim, node: NodeId) -> u64 {
    claim.parts.iter().filter(|p| p.node == node).map(|p| p.mem.0).sum()
}
