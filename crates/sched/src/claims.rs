//! Room that is kept for a task until it is free: claims that come true, and claims that the head
//! of the queue makes when it has waited long enough.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tutti_model::{
    Attempt, Claim, ClaimCause, GpuIndex, Job, JobState, Link, NewClaim, Node, PartPlacement,
    Phase, Spread, State, TaskId, Topology,
};

use crate::ask::Ask;
use crate::candidates::Page;
use crate::cluster::{Card, Cluster, Share, Slot, SlotNo};
use crate::domains::{DomainNo, LEVELS};

/// How a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Everything it names is free.
    Ready,
    /// These still hold some of it; nobody, if a node of it is away for a while.
    Waiting(Vec<TaskId>),
    /// A node is lost, drained or has shrunk, or the task no longer waits.
    Void,
}

pub(crate) fn standing(state: &State, task: TaskId, claim: &Claim) -> Standing {
    let ready = |job: &&Job| !job.is_held(task.index);
    let Some(job) = state.job(task.job).filter(ready) else { return Standing::Void };
    match job.task(task.index).map(|t| &t.phase) {
        // A task of an array that never started has no record yet.
        None if job.task_state(task.index) == Some(JobState::Pending) => {}
        None => return Standing::Void,
        Some(Phase::Pending { not_before, .. }) if not_before.0 == 0 => {}
        // It is being stopped to change its size.
        Some(Phase::Active(_)) if claim.cause == ClaimCause::Resize => {
            return Standing::Waiting(vec![task]);
        }
        Some(Phase::Active(attempt)) if may_wake(attempt) => {}
        Some(_) => return Standing::Void,
    }
    let (mut holders, mut away) = (Vec::new(), false);
    for part in &claim.parts {
        let lost = |n: &Node| matches!(n.link, Link::Lost { .. }) || n.drain.is_some();
        let node = state.node(part.node).filter(|n| !lost(n) && has(n, part));
        let Some(node) = node else { return Standing::Void };
        // An agent that comes back in time finds everything as it was.
        away |= !node.accepts_work();
        holders.extend(in_the_way(state, task, node, part));
    }
    if holders.is_empty() && !away {
        return Standing::Ready;
    }
    holders.sort();
    holders.dedup();
    Standing::Waiting(holders)
}

/// A suspended task waits for room on its nodes.
fn may_wake(attempt: &Attempt) -> bool {
    attempt.is_suspended() && attempt.pause().is_some_and(|pause| !pause.stays)
}

pub(crate) fn is_suspended(job: &Job, task: TaskId) -> bool {
    let attempt = job.task(task.index).and_then(|t| t.attempt());
    attempt.is_some_and(Attempt::is_suspended)
}

/// Whether the node is still large enough for the part, however empty, and whole.
fn has(node: &Node, part: &PartPlacement) -> bool {
    let facts = &node.facts;
    let has_gpu =
        |index: &GpuIndex| facts.gpus.iter().any(|g| g.index == *index) && !node.is_fenced(*index);
    part.gpus.iter().all(has_gpu) && facts.cpus >= part.cpus && facts.mem >= part.mem
}

/// Who still holds what the part needs.
fn in_the_way(state: &State, task: TaskId, node: &Node, part: &PartPlacement) -> Vec<TaskId> {
    let mut tasks: Vec<TaskId> = Vec::new();
    for gpu in &part.gpus {
        if node.free_milli(*gpu) < part.share.0 {
            let holders = node.used.gpus.get(gpu).into_iter().flat_map(|u| u.leases.keys());
            tasks.extend(holders.map(|lease| lease.task));
        }
    }
    let alone = |task: &TaskId| state.job(task.job).is_some_and(|j| j.spec.exclusive);
    // What is suspended is there itself.
    let others = || node.used.leases.iter().map(|lease| lease.task).filter(|t| *t != task);
    let shared = alone(&task) && others().next().is_some();
    // What is suspended has its memory there, and nothing else.
    if node.free_mem() < part.mem || shared {
        tasks.extend(others());
    } else if node.free_cpus() < part.cpus || others().any(|t| alone(&t)) {
        let asleep = |t: &TaskId| state.job(t.job).is_some_and(|job| is_suspended(job, *t));
        tasks.extend(others().filter(|t| alone(t) || !asleep(t)));
    }
    tasks
}

/// The nodes that the head of the queue keeps when nobody knows when they become free: in the
/// narrowest domain that could hold it, those with most free already.
pub(crate) fn overdue(
    cluster: &Cluster,
    page: &Page,
    task: TaskId,
    may_use: &dyn Fn(SlotNo) -> bool,
) -> Option<NewClaim> {
    let ask = &page.ask;
    let suitable: Vec<SlotNo> = (0..cluster.slots.len() as SlotNo)
        .filter(|&no| page.is_suitable_and_open(no) && may_use(no) && cluster.get(no).claims == 0)
        .collect();
    let shares = match (ask.spread, ask.node_counts()) {
        (Spread::Nodes { gpus_each, .. }, Some((_, least))) => {
            let nodes = domain_of(cluster, ask, suitable, least.into(), |_| 1)?;
            let shares = nodes.into_iter().map(|slot| Share { slot, gpus: gpus_each });
            shares.take(least as usize).collect::<Vec<_>>()
        }
        _ => {
            let gives = |slot: &Slot| ask.share_of(&cluster.usable_when_empty(slot, ask));
            let total = ask.least_gpus();
            let nodes = domain_of(cluster, ask, suitable, total, gives)?;
            few(cluster, nodes, total, gives)
        }
    };
    let mut shares = shares;
    shares.sort_by_key(|s| cluster.get(s.slot).rank);
    let parts = shares.iter().map(|s| part(cluster, ask, s)).collect();
    Some(NewClaim { task, parts, cause: ClaimCause::Overdue, victims: Vec::new() })
}

fn few(
    cluster: &Cluster,
    nodes: Vec<SlotNo>,
    total: u64,
    gives: impl Fn(&Slot) -> u32,
) -> Vec<Share> {
    let (mut shares, mut left) = (Vec::new(), total);
    for slot in nodes {
        let gpus = u64::from(gives(cluster.get(slot))).min(left) as u32;
        if gpus > 0 {
            shares.push(Share { slot, gpus });
            left -= u64::from(gpus);
        }
    }
    shares
}

/// The nodes of the narrowest domain that is large enough when empty, those with most free first.
fn domain_of(
    cluster: &Cluster,
    ask: &Ask,
    nodes: Vec<SlotNo>,
    wanted: u64,
    gives: impl Fn(&Slot) -> u32,
) -> Option<Vec<SlotNo>> {
    let free = |no: SlotNo| u64::from(cluster.usable(cluster.get(no), ask).gpus);
    let sorted = |mut nodes: Vec<SlotNo>| {
        nodes.sort_by_key(|&no| (Reverse(free(no)), no));
        nodes
    };
    let one = nodes.iter().filter(|&&no| u64::from(gives(cluster.get(no))) >= wanted);
    if let Some(&best) = one.max_by_key(|&&no| (free(no), Reverse(no))) {
        return Some(vec![best]);
    }
    let widest = match ask.within() {
        Topology::Island | Topology::Node => return None,
        within => within,
    };
    for level in LEVELS.into_iter().take_while(|level| *level <= widest) {
        let mut domains: BTreeMap<DomainNo, Vec<SlotNo>> = BTreeMap::new();
        for &no in &nodes {
            domains.entry(cluster.get(no).path.at(level)).or_default().push(no);
        }
        let size =
            |of: &Vec<SlotNo>| of.iter().map(|&no| u64::from(gives(cluster.get(no)))).sum::<u64>();
        let enough = domains.into_values().filter(|of| size(of) >= wanted);
        let most_free = |of: &Vec<SlotNo>| of.iter().map(|&no| free(no)).sum::<u64>();
        // Of equal ones the first.
        if let Some(best) = enough.min_by_key(|of| Reverse(most_free(of))) {
            return Some(sorted(best));
        }
    }
    None
}

/// How many parts of a claim could start now.
pub(crate) fn free_parts(state: &State, task: TaskId, parts: &[PartPlacement]) -> usize {
    let is_free = |part: &&PartPlacement| {
        let node = state.node(part.node).filter(|n| n.accepts_work());
        node.is_some_and(|node| in_the_way(state, task, node, part).is_empty())
    };
    parts.iter().filter(is_free).count()
}

/// A part with the cards that have most free.
fn part(cluster: &Cluster, ask: &Ask, share: &Share) -> PartPlacement {
    let slot = cluster.get(share.slot);
    let mut islands: BTreeMap<u16, Vec<Card>> = BTreeMap::new();
    for card in slot.cards.iter().filter(|c| cluster.suits(c, ask)) {
        let island = if ask.on_one_island() { card.island } else { 0 };
        islands.entry(island).or_default().push(*card);
    }
    let wanted = share.gpus as usize;
    let most_free = |cards: &Vec<Card>| {
        let mut cards = cards.clone();
        cards.sort_by_key(|c| (Reverse(c.free), c.index));
        cards.truncate(wanted);
        cards
    };
    let enough = islands.values().filter(|cards| cards.len() >= wanted).map(most_free);
    let free = |cards: &Vec<Card>| cards.iter().map(|c| u32::from(c.free)).sum::<u32>();
    let best = enough.max_by_key(free).unwrap_or_default();
    let mut gpus: Vec<_> = best.iter().map(|c| c.index).collect();
    gpus.sort();
    let need = ask.need(share.gpus);
    PartPlacement {
        node: slot.node,
        gpus,
        cpus: need.cpus,
        mem: need.mem,
        ranks: ask.demand.ranks_for(share.gpus),
        share: ask.demand.share,
    }
}

#[cfg(test)]
mod tests;
