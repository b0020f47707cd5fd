//! How good a spot is: what placing something there does to the work that is expected.
//!
//! A node is worth the GPUs that the expected work could still use of it. The best spot is the one
//! where a placement costs least worth, strands the fewest GPUs without CPUs to feed them, and
//! leaves alone the models that others ask for by name. Until something was learned this is the
//! fullest node that fits. The constants were found on seventeen public traces at once
//! (`bench/openb`); no trace has its own.

use std::cmp::Ordering;

use tutti_model::{Kind, Milli, PlacementRule, Policy, Seen, State};

use crate::ask::{Ask, Need};
use crate::cluster::{Cluster, Slot};

/// The part of a kind's GPU slots that CPUs and memory must be able to feed.
const FED: f64 = 0.75;
/// What a newly stranded GPU costs, in GPUs.
const STRANDED: f64 = 3.0;
/// A free GPU counts as stranded when less than this part of the usual CPUs is left for it.
const USUAL_CPUS: f64 = 0.7;
/// What using a model costs that others name.
const NAMED: f64 = 1.0;
/// What eight GPUs left free on the node cost.
const LEFT_FREE: f64 = 0.01;
/// How much the weight of a kind grows with its GPUs.
const BY_SIZE: f64 = 0.1;
/// Kinds of work looked at.
const KINDS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Valuer {
    rule: PlacementRule,
    version: u64,
    /// By GPU model: the work that may run there, by what it takes of the GPUs.
    by_model: Vec<Vec<Class>>,
    /// By GPU model: 1 when the demand that names it would load it like the average GPU.
    pressure: Vec<f64>,
    cpus_per_gpu: f64,
}

/// Kinds that take the same of the GPUs, those with fewest CPUs first.
#[derive(Debug)]
struct Class {
    gpus: u32,
    share: Milli,
    kinds: Vec<Expected>,
}

#[derive(Debug)]
struct Expected {
    cpus: f64,
    mem: f64,
    /// Its part of all expected work, times its GPUs.
    weight: f64,
}

/// What a node is worth, and how many of its free GPUs are stranded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worth {
    usable: f64,
    stranded: f64,
}

/// Worths of nodes, by slot, with the stamp of the slot they were worked out for.
#[derive(Debug, Default)]
pub(crate) struct Worths {
    known: Vec<(u32, Worth)>,
}

impl Worths {
    pub fn of(&mut self, valuer: &Valuer, slot: &Slot, at: usize) -> Worth {
        if self.known.len() <= at {
            self.known.resize(at + 1, (u32::MAX, Worth::default()));
        }
        let (stamp, worth) = &mut self.known[at];
        if *stamp != slot.stamp {
            *worth = valuer.worth(&Spot::of(slot));
            *stamp = slot.stamp;
        }
        *worth
    }
}

/// The free part of a node, as far as its worth goes.
#[derive(Clone, Copy)]
struct Spot<'s> {
    cpus: f64,
    mem: f64,
    slot: &'s Slot,
    /// Whole GPUs taken, and a part of one card by its position.
    whole: u32,
    part: Option<(usize, u16)>,
}

impl<'s> Spot<'s> {
    fn of(slot: &'s Slot) -> Spot<'s> {
        let (cpus, mem) = (f64::from(slot.free.cpus), slot.free.mem.0 as f64);
        Spot { cpus, mem, slot, whole: 0, part: None }
    }

    fn taken(slot: &'s Slot, need: &Need) -> Spot<'s> {
        let cpus = f64::from(slot.free.cpus.saturating_sub(need.cpus));
        let mem = slot.free.mem.0.saturating_sub(need.mem.0) as f64;
        let whole = if need.share.is_whole() { need.gpus } else { 0 };
        Spot { cpus, mem, slot, whole, part: None }
    }

    fn free(&self, at: usize) -> u16 {
        let free = self.slot.cards[at].free;
        match self.part {
            Some((card, milli)) if card == at => free - milli,
            _ => free,
        }
    }

    fn whole_free(&self) -> u32 {
        let broken = self.part.is_some_and(|(card, _)| self.slot.cards[card].free == 1000);
        self.slot.free.gpus.saturating_sub(self.whole + u32::from(broken))
    }

    /// How many of such pieces fit.
    fn slots(&self, class: &Class) -> u32 {
        if class.share.is_whole() {
            return self.whole_free() / class.gpus.max(1);
        }
        let pieces = |at: usize| u32::from(self.free(at) / class.share.0.max(1));
        let all: u32 = (0..self.slot.cards.len()).map(pieces).sum();
        all.saturating_sub(self.whole * u32::from(1000 / class.share.0.max(1)))
    }

    fn free_gpus(&self) -> f64 {
        let milli: u32 = (0..self.slot.cards.len()).map(|at| u32::from(self.free(at))).sum();
        f64::from(milli.saturating_sub(self.whole * 1000)) / 1000.0
    }
}

impl Valuer {
    pub fn new(state: &State, policy: &Policy, cluster: &Cluster) -> Valuer {
        let (kinds, version) = state.learned.mix.expected();
        let gpus = gpus_by_model(cluster);
        let mut valuer = Valuer {
            rule: policy.placement,
            version,
            by_model: gpus.iter().map(|_| Vec::new()).collect(),
            pressure: vec![0.0; gpus.len()],
            cpus_per_gpu: 0.0,
        };
        let all: Vec<(&Kind, &Seen)> = kinds.iter().collect();
        valuer.learn_classes(cluster, &all);
        valuer.learn_demand(cluster, &all, &gpus);
        valuer
    }

    /// Whether what was learned since would change scores.
    pub fn is_old(&self, state: &State, policy: &Policy) -> bool {
        self.rule != policy.placement || state.learned.mix.expected().1 != self.version
    }

    fn learn_classes(&mut self, cluster: &Cluster, all: &[(&Kind, &Seen)]) {
        let weight = |(kind, seen): &(&Kind, &Seen)| {
            seen.count as f64 * (1.0 - BY_SIZE + BY_SIZE * gpus_of(kind))
        };
        // Large jobs are rare, and must still be among those that are looked at.
        let importance = |entry: &(&Kind, &Seen)| weight(entry) * f64::from(entry.0.gpus);
        let mut kept = all.to_vec();
        kept.sort_by(|a, b| importance(b).total_cmp(&importance(a)).then(a.0.cmp(b.0)));
        kept.truncate(KINDS_MAX);
        let sum: f64 = kept.iter().map(weight).sum();
        for (model, classes) in cluster.models.iter().zip(&mut self.by_model) {
            for entry in kept.iter().filter(|(kind, _)| names(kind, model)) {
                let (kind, seen) = entry;
                let count = seen.count as f64;
                let expected = Expected {
                    cpus: seen.cpus as f64 / count,
                    mem: seen.mem as f64 / count,
                    weight: weight(entry) / sum * gpus_of(kind),
                };
                let same = |c: &&mut Class| c.gpus == kind.gpus && c.share == kind.share;
                match classes.iter_mut().find(same) {
                    Some(class) => class.kinds.push(expected),
                    None => classes.push(Class {
                        gpus: kind.gpus,
                        share: kind.share,
                        kinds: vec![expected],
                    }),
                }
            }
            classes.sort_by_key(|c| (c.gpus, c.share));
            for class in classes {
                class.kinds.sort_by(|a, b| a.cpus.partial_cmp(&b.cpus).unwrap_or(Ordering::Equal));
            }
        }
    }

    /// How many CPUs go with a GPU, and which models are asked for by name.
    fn learn_demand(&mut self, cluster: &Cluster, all: &[(&Kind, &Seen)], gpus: &[f64]) {
        let total: f64 = gpus.iter().sum();
        let (mut cpus, mut wanted) = (0.0, 0.0);
        for (kind, seen) in all {
            let demand = seen.count as f64 * gpus_of(kind);
            cpus += seen.cpus as f64;
            wanted += demand;
            if kind.model.is_none() {
                continue;
            }
            let meant: Vec<usize> =
                (0..gpus.len()).filter(|&m| names(kind, &cluster.models[m])).collect();
            let room: f64 = meant.iter().map(|&m| gpus[m]).sum();
            meant.iter().filter(|_| room > 0.0).for_each(|&m| self.pressure[m] += demand / room);
        }
        if wanted > 0.0 {
            self.cpus_per_gpu = cpus / wanted;
            self.pressure.iter_mut().for_each(|p| *p /= wanted / total);
        }
    }

    fn worth(&self, spot: &Spot<'_>) -> Worth {
        let mut usable = 0.0;
        let classes = spot.slot.cards.first().map(|card| &self.by_model[usize::from(card.model)]);
        for class in classes.into_iter().flatten() {
            let slots = f64::from(spot.slots(class));
            if slots == 0.0 {
                continue;
            }
            for kind in class.kinds.iter().take_while(|k| k.cpus <= spot.cpus) {
                if kind.mem > spot.mem {
                    continue;
                }
                let fed =
                    (spot.cpus / kind.cpus.max(1.0)).min(spot.mem / kind.mem.max(1.0)).max(1.0);
                usable += kind.weight * ((1.0 - FED) * slots + FED * slots.min(fed));
            }
        }
        let cpus = USUAL_CPUS * self.cpus_per_gpu;
        let stranded =
            if cpus > 0.0 { (spot.free_gpus() - spot.cpus / cpus).max(0.0) } else { 0.0 };
        Worth { usable, stranded }
    }

    /// Smaller is better. `before` is what the node is worth now.
    pub fn score(
        &self,
        cluster: &Cluster,
        slot: &Slot,
        ask: &Ask,
        need: &Need,
        before: Worth,
    ) -> i64 {
        match self.rule {
            PlacementRule::FirstFit => 0,
            PlacementRule::BestFit => {
                let free: i64 = slot.cards.iter().map(|c| i64::from(c.free)).sum();
                let left = (free - need.milli() as i64).max(0);
                (left << 24) + i64::from(slot.free.cpus.saturating_sub(need.cpus))
            }
            PlacementRule::Fragments => match self.best_part(cluster, slot, ask, need, before) {
                Some((score, _)) => score,
                None => self.score_of(&Spot::taken(slot, need), need, before),
            },
        }
    }

    /// In millionths of a GPU.
    fn score_of(&self, after: &Spot<'_>, need: &Need, before: Worth) -> i64 {
        let worth = self.worth(after);
        let gpus = need.milli() as f64 / 1000.0;
        let named = after.slot.cards.first().map_or(0.0, |c| self.pressure[usize::from(c.model)]);
        let loss = (before.usable - worth.usable)
            + STRANDED * (worth.stranded - before.stranded)
            + LEFT_FREE * after.free_gpus() / 8.0
            + NAMED * named * gpus;
        // Work without GPUs goes where there are none, all else being equal.
        let misplaced = i64::from(need.gpus == 0 && !after.slot.cards.is_empty());
        (loss * 1e6).round() as i64 + misplaced
    }

    /// The best card for a part of a GPU, by position, and the score there. None for whole GPUs.
    fn best_part(
        &self,
        cluster: &Cluster,
        slot: &Slot,
        ask: &Ask,
        need: &Need,
        before: Worth,
    ) -> Option<(i64, usize)> {
        if need.share.is_whole() || need.gpus == 0 {
            return None;
        }
        let mut best: Option<(i64, usize)> = None;
        for (at, card) in slot.cards.iter().enumerate() {
            let seen =
                slot.cards[..at].iter().any(|c| (c.free, c.model) == (card.free, card.model));
            if seen || card.free < need.share.0 || !cluster.suits(card, ask) {
                continue;
            }
            let after = Spot { part: Some((at, need.share.0)), ..Spot::taken(slot, need) };
            let score = self.score_of(&after, need, before);
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, at));
            }
        }
        best
    }

    /// The card on which a part of a GPU does least harm.
    pub fn best_card(
        &self,
        cluster: &Cluster,
        slot: &Slot,
        ask: &Ask,
    ) -> Option<tutti_model::GpuIndex> {
        let fullest = || cluster.fitting_cards(slot, ask).min_by_key(|c| (c.free, c.index));
        if self.rule != PlacementRule::Fragments {
            return fullest().map(|c| c.index);
        }
        let before = self.worth(&Spot::of(slot));
        let best = self.best_part(cluster, slot, ask, &ask.least(), before);
        best.map(|(_, at)| slot.cards[at].index).or_else(|| fullest().map(|c| c.index))
    }
}

fn gpus_by_model(cluster: &Cluster) -> Vec<f64> {
    let mut gpus = vec![0.0; cluster.models.len()];
    let cards = cluster.slots.iter().flat_map(|s| &s.cards);
    cards.for_each(|card| gpus[usize::from(card.model)] += 1.0);
    gpus
}

fn gpus_of(kind: &Kind) -> f64 {
    f64::from(kind.gpus) * f64::from(kind.share.0) / 1000.0
}

fn names(kind: &Kind, model: &str) -> bool {
    kind.model.as_ref().is_none_or(|names| names.split('|').any(|name| name == model))
}
