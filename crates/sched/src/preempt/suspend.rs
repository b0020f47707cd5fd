//! Victims that give their GPUs up for a while instead of being stopped.

use tutti_model::{Attempt, AttemptPhase, Bytes, Job, Moved, Node, Part, PreemptMode};

use crate::pass::Pass;

/// What suspending an attempt costs in GPU-milliseconds, and what it takes of each node's memory.
/// None if it can't be suspended, or if stopping it loses less and it does not insist.
pub(super) fn suspension(
    pass: &Pass<'_, '_>,
    job: &Job,
    attempt: &Attempt,
    stopping_costs: u64,
) -> Option<(u64, Vec<Moved>)> {
    let insists = match job.spec.preempt.as_ref().map(|p| p.mode) {
        Some(PreemptMode::Suspend) => true,
        None | Some(PreemptMode::Auto) => false,
        Some(PreemptMode::Checkpoint | PreemptMode::Requeue | PreemptMode::Never) => return None,
    };
    let whole = job.spec.gpu_share.is_none() && !job.spec.exclusive;
    let runs = matches!(attempt.phase, AttemptPhase::Running { .. }) && !attempt.is_ending();
    if !whole || !runs || attempt.gpu_count() == 0 {
        return None;
    }
    let moved: Vec<Moved> =
        attempt.parts.iter().map(|part| of_part(pass, part)).collect::<Option<_>>()?;
    // All nodes move theirs at the same time.
    let most = moved.iter().map(|m| m.bytes).max().unwrap_or_default();
    let takes = pass.policy.preemption.out_and_in(most);
    let cost = takes.0.saturating_mul(attempt.gpu_count().into());
    (insists || cost < stopping_costs).then_some((cost, moved))
}

fn of_part(pass: &Pass<'_, '_>, part: &Part) -> Option<Moved> {
    let node = pass.state.node(part.node).filter(|n| n.facts.can_suspend)?;
    Some(Moved { node: part.node, bytes: part.bytes_when_out(gpu_memory(node, part)) })
}

fn gpu_memory(node: &Node, part: &Part) -> Bytes {
    let gpus = node.facts.gpus.iter().filter(|g| part.gpus.contains(&g.index));
    Bytes(gpus.map(|g| g.mem.0).sum())
}
