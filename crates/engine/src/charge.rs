//! What an attempt is charged: the whole of what nobody else can use because of it.

use tutti_model::{JobSpec, Node, PartPlacement, Policy, State};

/// Thousandths of a weighted GPU.
pub(crate) fn of(state: &State, spec: &JobSpec, parts: &[PartPlacement]) -> u64 {
    let charge = |part: &PartPlacement| {
        state.node(part.node).map_or(0, |n| of_part(&state.policy, n, spec.exclusive, part))
    };
    parts.iter().map(charge).sum()
}

fn of_part(policy: &Policy, node: &Node, exclusive: bool, part: &PartPlacement) -> u64 {
    let all = node.facts.gpus.len() as u64 * 1000;
    let blocked = if exclusive {
        all
    } else {
        let given = part.gpus.len() as u64 * u64::from(part.share.0);
        given.max(portion(all, part.cpus.into(), node.facts.cpus.into())).max(portion(
            all,
            part.mem.0,
            node.facts.mem.0,
        ))
    };
    // On a node of several models, what it was given tells; all are blocked alike otherwise.
    let model = part
        .gpus
        .first()
        .and_then(|index| node.facts.gpus.iter().find(|g| g.index == *index))
        .or(node.facts.gpus.first());
    let weight = model.map_or(1000, |gpu| policy.gpu_weight(&gpu.model));
    blocked.saturating_mul(weight) / 1000
}

/// `all` times a part of a whole; never more than all, whatever a node says of itself.
fn portion(all: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    let share = u128::from(all) * u128::from(part) / u128::from(whole);
    u64::try_from(share).unwrap_or(all).min(all)
}
