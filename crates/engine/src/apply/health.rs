//! What speaks for a node and what against it. A failure counts where it happened only as long as
//! the task fails nowhere else.

use tutti_model::{
    Attempt, EndReason, Ended, Mishap, Node, NodeId, Outcome, State, Strike, Task, TaskId, Time,
};

use super::with_node;

/// Older ones are dropped: three are enough to judge.
const STRIKES_MAX: usize = 32;

/// A node that is lost while an operator works on it says nothing.
pub(super) fn lost(node: &mut Node, at: Time) {
    if node.drain.is_none() {
        strike(node, Strike { at, what: Mishap::Lost });
    }
}

fn strike(node: &mut Node, strike: Strike) {
    node.strikes.push(strike);
    let surplus = node.strikes.len().saturating_sub(STRIKES_MAX);
    node.strikes.drain(..surplus);
}

/// An attempt failed on this node. `proven`: it is not the task.
pub(super) fn failed(state: &mut State, id: TaskId, node: NodeId, proven: bool, at: Time) {
    let Some(job) = state.job(id.job) else { return };
    let user = job.user.clone();
    let others: Vec<NodeId> = failed_on(state, id).into_iter().filter(|n| *n != node).collect();
    if others.is_empty() {
        let what = Mishap::Failed { task: id, user, proven };
        with_node(state, node, |n| strike(n, Strike { at, what }));
        return;
    }
    // It fails elsewhere, too: none of them is to blame.
    others.into_iter().chain([node]).for_each(|n| with_node(state, n, |n| acquit(n, id)));
}

fn acquit(node: &mut Node, id: TaskId) {
    node.strikes.retain(|s| !matches!(s.what, Mishap::Failed { task, .. } if task == id));
}

fn failed_on(state: &State, id: TaskId) -> Vec<NodeId> {
    let task = state.job(id.job).and_then(|j| j.task(id.index));
    task.map_or_else(Vec::new, |t| t.past().failed_on.iter().copied().collect())
}

/// The task goes well where it runs now: these nodes work, and where it failed before they may not.
pub(super) fn went_well(state: &mut State, id: TaskId, at: Time) {
    let task = state.job(id.job).and_then(|j| j.task(id.index));
    let Some(attempt) = task.and_then(Task::attempt) else { return };
    let here: Vec<NodeId> = attempt.parts.iter().map(|p| p.node).collect();
    let before = failed_on(state, id);
    for &node in &here {
        with_node(state, node, |n| {
            n.good_at = Some(at);
            n.strikes.retain(|s| !matches!(s.what, Mishap::Failed { proven: false, .. }));
        });
    }
    for node in before.into_iter().filter(|n| !here.contains(n)) {
        with_node(state, node, |n| n.strikes.iter_mut().for_each(|s| prove(s, id)));
    }
}

fn prove(strike: &mut Strike, id: TaskId) {
    if let Mishap::Failed { task, proven, .. } = &mut strike.what
        && *task == id
    {
        *proven = true;
    }
}

/// How a task ended may tell about the nodes of its last attempt, or about those before.
pub(super) fn ended(state: &mut State, id: TaskId, ended: &Ended, at: Time) {
    let attempt = state.job(id.job).and_then(|j| j.task(id.index)).and_then(Task::attempt);
    match (&ended.reason, attempt) {
        _ if ended.outcome == Outcome::Completed => went_well(state, id, at),
        (EndReason::CrashLoop { nodes, .. }, _) => {
            nodes.iter().for_each(|n| with_node(state, *n, |n| acquit(n, id)));
        }
        (reason, Some(attempt)) => {
            if let Some((node, proven)) = blamed(reason, attempt) {
                failed(state, id, node, proven, at);
            }
        }
        _ => {}
    }
}

fn blamed(reason: &EndReason, attempt: &Attempt) -> Option<(NodeId, bool)> {
    match reason {
        EndReason::RankFailed { rank, .. } => Some((attempt.part_of(*rank)?.node, false)),
        EndReason::PeerFault { node, .. } => Some((*node, true)),
        EndReason::Stalled { rank: Some(rank), .. } => Some((attempt.part_of(*rank)?.node, true)),
        // A node that was lost has its strike already.
        EndReason::NodeFailures { last } => {
            let here = attempt.part_on(*last)?;
            (here.phase != tutti_model::PartState::Lost).then_some((*last, true))
        }
        _ => None,
    }
}
