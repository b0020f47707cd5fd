//! What a verdict counts as busy or as fitting and is neither. A pass counts nodes once for all that
//! ask for the same, which is enough to decide; who looks is told what is kept for others and what it
//! may not use itself.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tutti_model::{KeptFor, Shortage, State, TaskId, Verdict};

use super::NAMED_MAX;
use crate::ask::Ask;
use crate::candidates::best_domain;
use crate::cluster::{Claims, Cluster, HeldPart, Slot, SlotNo, Standing};

/// Why a task may not use a node that has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shut {
    Reserved,
    Spare,
    Port,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Apart {
    /// Nodes that would have enough GPUs if nothing were kept for others, and for whom it is.
    kept: u32,
    pub kept_for: Vec<KeptFor>,
    reserved: u32,
    spares: u32,
    port: u32,
    /// Free on nodes that it may not use.
    shut_gpus: u32,
    /// In the nodes that are left to it.
    best_domain: u32,
}

impl Apart {
    pub fn of(state: &State, cluster: &Cluster, ask: &Ask, claims: &Claims<'_>) -> Apart {
        let mut apart = Apart::default();
        let mut sums = BTreeMap::<TaskId, (u32, u32)>::new();
        for slot in cluster.slots.iter().filter(|slot| is_short(cluster, ask, slot)) {
            let kept: Vec<(TaskId, HeldPart<'_>)> = claims.kept_on(state, slot.node).collect();
            if kept.is_empty() {
                continue;
            }
            let mut free = slot.clone();
            kept.iter().for_each(|(_, held)| free.give_back(held));
            if cluster.usable(&free, ask).gpus < ask.least().gpus {
                continue;
            }
            apart.kept += 1;
            for (task, held) in kept {
                let cards = cluster.fitting_cards(&free, ask);
                let gpus = cards.filter(|card| held.gpus.contains(&card.index)).count() as u32;
                let sum = sums.entry(task).or_default();
                *sum = (sum.0 + gpus, sum.1 + u32::from(gpus > 0));
            }
        }
        let kept_for = |(task, (gpus, nodes))| KeptFor { task, gpus, nodes };
        apart.kept_for =
            sums.into_iter().filter(|(_, (gpus, _))| *gpus > 0).map(kept_for).collect();
        apart.kept_for.sort_by_key(|kept| (Reverse(kept.gpus), kept.task));
        apart.kept_for.truncate(NAMED_MAX);
        apart
    }

    /// Nodes that have room, and which of them it may not use.
    pub fn note_shut(
        &mut self,
        cluster: &Cluster,
        ask: &Ask,
        open: &[SlotNo],
        shut: &[(SlotNo, Shut)],
    ) {
        let free = |no: SlotNo| cluster.usable(cluster.get(no), ask).gpus;
        for (no, why) in shut {
            self.shut_gpus += free(*no);
            *match why {
                Shut::Reserved => &mut self.reserved,
                Shut::Spare => &mut self.spares,
                Shut::Port => &mut self.port,
            } += 1;
        }
        self.best_domain = best_domain(cluster, ask, open.iter().map(|&no| (no, free(no))));
    }

    /// The verdict with its counts put right.
    pub fn tell(&self, mut verdict: Verdict) -> Verdict {
        match &mut verdict {
            // What a pass found barred, it has counted so itself.
            Verdict::Reserved { shortage, .. } => self.move_kept(shortage),
            Verdict::Busy(shortage) | Verdict::NodesUnavailable(shortage) => {
                self.move_kept(shortage);
                self.move_shut(shortage);
            }
            _ => {}
        }
        verdict
    }

    fn move_kept(&self, shortage: &mut Shortage) {
        let blocked = &mut shortage.blocked;
        let moved = self.kept.min(blocked.gpus_busy);
        blocked.gpus_busy -= moved;
        blocked.kept += moved;
    }

    fn move_shut(&self, shortage: &mut Shortage) {
        let shut = self.reserved + self.spares + self.port;
        let counted = shortage.blocked.reserved + shortage.blocked.port;
        if shut == 0 || counted > 0 || shortage.nodes_fitting < shut {
            return;
        }
        shortage.nodes_fitting -= shut;
        shortage.gpus_free = shortage.gpus_free.saturating_sub(self.shut_gpus);
        shortage.best_domain = shortage.best_domain.min(self.best_domain);
        let blocked = &mut shortage.blocked;
        blocked.reserved += self.reserved;
        blocked.kept += self.spares;
        blocked.port += self.port;
    }
}

/// Whether it is counted among those with too few GPUs free.
fn is_short(cluster: &Cluster, ask: &Ask, slot: &Slot) -> bool {
    let least = ask.least();
    slot.standing == Standing::Open
        && !slot.alone
        && (slot.is_empty() || !ask.demand.exclusive)
        && cluster.labels_hold(slot, ask)
        && cluster.usable_when_empty(slot, ask).holds(&least)
        && cluster.usable_but_for_fences(slot, ask).gpus < least.gpus
}
