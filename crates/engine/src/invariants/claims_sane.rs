//! Room is kept only for tasks that can still use it, on nodes that exist; and nobody who came
//! later sits in it.

use tutti_model::{Claim, ClaimCause, DEFAULT_CLASS, NodeId, PartPlacement, State, TaskId};

pub(super) fn check(state: &State) -> Result<(), String> {
    for (&task, claim) in &state.claims {
        let Some(job) = state.job(task.job) else {
            return Err(format!("room for {task}, which does not exist"));
        };
        if !job.has_task(task.index) || job.ended(task.index).is_some() {
            return Err(format!("room for {task}, which is over"));
        }
        if claim.parts.is_empty() {
            return Err(format!("{task} claims nothing"));
        }
        for part in &claim.parts {
            if state.node(part.node).is_none() {
                return Err(format!("{task} claims node {}, which does not exist", part.node));
            }
            if let Some(other) = intruder(state, task, claim, part) {
                return Err(format!("{other} was placed on node {} kept for {task}", part.node));
            }
        }
    }
    Ok(())
}

/// A lease that was given on a claimed GPU after it was claimed, and leaves too little of it.
fn intruder(state: &State, owner: TaskId, claim: &Claim, part: &PartPlacement) -> Option<TaskId> {
    part.gpus.iter().find_map(|gpu| {
        let later = |(id, share): (TaskId, u16)| {
            let placed_at = placed_at(state, id, part.node)?;
            let too_much = share + part.share.0 > 1000;
            let later = placed_at > claim.made_at && !may_pass(state, claim.cause, owner, id);
            (id != owner && later && too_much).then_some(id)
        };
        let holders = &state.node(part.node)?.used.gpus.get(gpu)?.leases;
        holders.iter().find_map(|(lease, share)| later((lease.task, share.0)))
    })
}

/// Who has only waited long keeps nothing from a higher class.
fn may_pass(state: &State, cause: ClaimCause, owner: TaskId, other: TaskId) -> bool {
    let rank = |task: TaskId| {
        let class = state.job(task.job).and_then(|j| j.spec.class.as_deref());
        state.policy.class_rank(class.unwrap_or(DEFAULT_CLASS))
    };
    cause == ClaimCause::Overdue && rank(other) > rank(owner)
}

fn placed_at(state: &State, id: TaskId, node: NodeId) -> Option<tutti_model::Time> {
    let attempt = state.job(id.job)?.task(id.index)?.attempt()?;
    attempt.part_on(node).map(|_| attempt.took_at())
}
