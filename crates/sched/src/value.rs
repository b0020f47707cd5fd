//! How good a spot is: what placing something there does to the work that is expected.

use tutti_model::{GpuIndex, PlacementRule, Policy, State};

use crate::ask::{Ask, Need};
use crate::cluster::{Cluster, Slot};

#[derive(Debug, Default)]
pub(crate) struct Valuer {
    rule: PlacementRule,
    seen: u64,
}

impl Valuer {
    pub fn new(state: &State, policy: &Policy) -> Valuer {
        Valuer { rule: policy.placement, seen: state.learned.mix.seen }
    }

    /// Whether what was learned since would change scores.
    pub fn is_old(&self, state: &State, policy: &Policy) -> bool {
        self.rule != policy.placement || state.learned.mix.seen >= self.seen * 2 + 1
    }

    /// Smaller is better.
    pub fn score(&self, _cluster: &Cluster, slot: &Slot, _ask: &Ask, need: &Need) -> i64 {
        match self.rule {
            PlacementRule::FirstFit => 0,
            PlacementRule::BestFit | PlacementRule::Fragments => {
                let free: i64 = slot.cards.iter().map(|c| i64::from(c.free)).sum();
                let left = free - need.milli() as i64;
                (left << 32) | i64::from(slot.free.cpus - need.cpus)
            }
        }
    }

    pub fn best_card(&self, cluster: &Cluster, slot: &Slot, ask: &Ask) -> Option<GpuIndex> {
        cluster.fitting_cards(slot, ask).min_by_key(|c| (c.free, c.index)).map(|c| c.index)
    }
}
