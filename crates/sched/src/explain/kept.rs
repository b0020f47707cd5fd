//! Room that is free, but not for everybody: somebody waits for the rest of it, or comes back to it.
//! A plan counts such nodes as busy, which is enough for a list; who asks why is told apart.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tutti_model::{KeptFor, TaskId, Verdict};

use super::Case;
use crate::cluster::{Claims, Cluster, HeldPart, Slot, Standing};

/// As for holders, more tell nobody anything.
const KEPT_SHOWN: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// That would have enough GPUs if nothing were kept for others.
    nodes: u32,
    pub by: Vec<KeptFor>,
}

impl Kept {
    pub fn of(case: &Case<'_>, cluster: &Cluster) -> Kept {
        let mut verdict = case.verdict.clone();
        if busy(&mut verdict).is_none_or(|(busy, _)| *busy == 0) {
            return Kept::default();
        }
        let claims = Claims::of(case.state);
        let (mut nodes, mut sums) = (0, BTreeMap::<TaskId, (u32, u32)>::new());
        for slot in cluster.slots.iter().filter(|slot| is_short(case, cluster, slot)) {
            let kept: Vec<(TaskId, HeldPart<'_>)> = claims.kept_on(case.state, slot.node).collect();
            let mut free = slot.clone();
            kept.iter().for_each(|(_, held)| free.give_back(held));
            if cluster.usable(&free, &case.ask).gpus < case.ask.least().gpus {
                continue;
            }
            nodes += 1;
            for (task, held) in kept {
                let cards = cluster.fitting_cards(&free, &case.ask);
                let gpus = cards.filter(|card| held.gpus.contains(&card.index)).count() as u32;
                let sum = sums.entry(task).or_default();
                *sum = (sum.0 + gpus, sum.1 + u32::from(gpus > 0));
            }
        }
        let kept_for = |(task, (gpus, nodes))| KeptFor { task, gpus, nodes };
        let mut by: Vec<KeptFor> =
            sums.into_iter().filter(|(_, (gpus, _))| *gpus > 0).map(kept_for).collect();
        by.sort_by_key(|kept| (Reverse(kept.gpus), kept.task));
        by.truncate(KEPT_SHOWN);
        Kept { nodes, by }
    }

    /// The verdict, with nodes that are kept no longer counted as busy.
    pub fn told_apart(&self, mut verdict: Verdict) -> Verdict {
        if let Some((busy, kept)) = busy(&mut verdict) {
            let moved = self.nodes.min(*busy);
            *busy -= moved;
            *kept += moved;
        }
        verdict
    }
}

/// Nodes whose GPUs are busy, and nodes that are kept for others.
fn busy(verdict: &mut Verdict) -> Option<(&mut u32, &mut u32)> {
    match verdict {
        Verdict::Busy(s) | Verdict::NodesUnavailable(s) | Verdict::Reserved { shortage: s, .. } => {
            Some((&mut s.blocked.gpus_busy, &mut s.blocked.kept))
        }
        _ => None,
    }
}

/// Whether it is counted among those with too few GPUs free.
fn is_short(case: &Case<'_>, cluster: &Cluster, slot: &Slot) -> bool {
    let (ask, least) = (&case.ask, case.ask.least());
    slot.standing == Standing::Open
        && !slot.alone
        && (slot.is_empty() || !ask.demand.exclusive)
        && cluster.labels_hold(slot, ask)
        && cluster.usable_when_empty(slot, ask).holds(&least)
        && cluster.usable_but_for_fences(slot, ask).gpus < least.gpus
}
