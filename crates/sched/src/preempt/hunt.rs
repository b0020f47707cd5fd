//! The search for the cheapest victims: all sets where there are few candidates, else node by node.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{TaskId, Topology};

use super::{Candidate, held_by};
use crate::ask::Ask;
use crate::candidates::Page;
use crate::cluster::{Cluster, Slot, SlotNo};
use crate::domains::DomainNo;
use crate::teams::{TeamNo, Teams};

/// All sets are tried when there are this few candidates.
const TRY_ALL: usize = 10;
/// Candidates of one node among which all sets are tried.
const TRY_ALL_ON_NODE: usize = 8;
/// Nodes looked at closely at a time, or four times as many as are needed.
const LOOK_CLOSELY: usize = 64;

/// The search for one claimant.
pub(super) struct Hunt<'h, 'a> {
    cluster: &'h Cluster,
    page: &'h Page,
    candidates: &'h [Candidate<'a>],
    by_slot: BTreeMap<SlotNo, Vec<usize>>,
    may_use: &'h BTreeSet<SlotNo>,
    /// What each domain offers without stopping anybody.
    base: BTreeMap<DomainNo, u64>,
    wanted: u64,
    rights: Rights<'h, 'a>,
}

/// What makes a set of victims just.
pub(super) struct Rights<'h, 'a> {
    pub teams: &'h Teams<'a>,
    pub models: &'h [String],
    pub guarantor: Option<TeamNo>,
}

impl Rights<'_, '_> {
    /// Taking back a guarantee takes nobody's own: victims go one by one, the smallest first, and
    /// each must still be borrowing when its turn comes.
    fn hold<'c>(
        &self,
        cluster: &Cluster,
        victims: impl Iterator<Item = &'c Candidate<'c>>,
    ) -> bool {
        let Some(guarantor) = self.guarantor else { return true };
        let held = |v: &'c Candidate<'c>| Some((v.team?, held_by(cluster, v)));
        let mut victims: Vec<(TeamNo, Vec<u64>)> = victims.filter_map(held).collect();
        victims.sort_by_key(|(team, held)| (held.iter().sum::<u64>(), *team));
        let mut released: BTreeMap<TeamNo, Vec<u64>> = BTreeMap::new();
        victims.into_iter().all(|(team, held)| {
            let gone = |at: TeamNo| released.get(&at).map_or(&[][..], Vec::as_slice);
            let borrows = self.teams.borrows(team, guarantor, self.models, &gone);
            for above in self.teams.line(team) {
                let sums = released.entry(above).or_insert_with(|| vec![0; self.models.len()]);
                sums.iter_mut().zip(&held).for_each(|(sum, n)| *sum += n);
            }
            borrows
        })
    }
}

pub(super) type Set = BTreeSet<usize>;

impl<'h, 'a> Hunt<'h, 'a> {
    pub fn new(
        cluster: &'h Cluster,
        page: &'h Page,
        candidates: &'h [Candidate<'a>],
        may_use: &'h BTreeSet<SlotNo>,
        rights: Rights<'h, 'a>,
    ) -> Hunt<'h, 'a> {
        let wanted = match page.ask.node_counts() {
            Some((_, least)) => least.into(),
            None => page.ask.least_gpus(),
        };
        let mut by_slot: BTreeMap<SlotNo, Vec<usize>> = BTreeMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            for (slot, _) in &candidate.parts {
                if page.is_suitable_and_open(*slot) && may_use.contains(slot) {
                    by_slot.entry(*slot).or_default().push(at);
                }
            }
        }
        let base = BTreeMap::new();
        let mut hunt = Hunt { cluster, page, candidates, by_slot, may_use, base, wanted, rights };
        for &slot in may_use.iter().filter(|slot| page.is_suitable_and_open(**slot)) {
            let offers = offer(cluster, &page.ask, cluster.get(slot));
            *hunt.base.entry(hunt.domain(slot)).or_default() += offers;
        }
        hunt
    }

    fn domain(&self, slot: SlotNo) -> DomainNo {
        match self.page.ask.within() {
            Topology::Island | Topology::Node => slot,
            within => self.cluster.get(slot).path.at(within),
        }
    }

    fn cost(&self, set: &Set) -> u64 {
        set.iter().map(|&at| self.candidates[at].cost).sum()
    }

    /// How many tasks a set stops, whole or in part.
    fn size(&self, set: &Set) -> usize {
        set.iter().map(|&at| self.candidates[at].task).collect::<BTreeSet<_>>().len()
    }

    /// A task is stopped whole or in part, not both, and gives up no more parts than it may.
    fn is_sound(&self, set: &Set) -> bool {
        let mut parts: BTreeMap<TaskId, (u32, u32, bool)> = BTreeMap::new();
        for &at in set {
            let candidate = &self.candidates[at];
            let entry = parts.entry(candidate.task).or_default();
            match candidate.of_group {
                Some(spare) => *entry = (entry.0 + 1, spare, entry.2),
                None => entry.2 = true,
            }
        }
        parts.values().all(|&(parts, spare, whole)| parts == 0 || (parts <= spare && !whole))
            && self.memory_fits(set)
            && self.rights.hold(self.cluster, set.iter().map(|&at| &self.candidates[at]))
    }

    /// Whoever is suspended finds room in the memory of its nodes, on all of them.
    fn memory_fits(&self, set: &Set) -> bool {
        let mut sums: BTreeMap<SlotNo, u64> = BTreeMap::new();
        for candidate in set.iter().map(|&at| &self.candidates[at]) {
            for (no, part) in &candidate.parts {
                let bytes = candidate.moved_on(part.node).unwrap_or_default();
                *sums.entry(*no).or_default() += bytes.0;
            }
        }
        sums.iter().all(|(no, sum)| *sum == 0 || *sum <= self.cluster.get(*no).free.mem.0)
    }

    /// Where a part of the claimant fits once these have stopped.
    pub fn fitting(&self, set: &Set) -> Vec<SlotNo> {
        let later = self.later(set);
        let fits = |no: &SlotNo| {
            let slot = later.get(no).unwrap_or_else(|| self.cluster.get(*no));
            self.page.is_suitable_and_open(*no) && offer(self.cluster, &self.page.ask, slot) > 0
        };
        self.may_use.iter().copied().filter(fits).collect()
    }

    /// Whether the claimant fits once these have stopped. Only where they are can that be new.
    fn fits(&self, set: &Set) -> bool {
        let mut sums: BTreeMap<DomainNo, u64> = BTreeMap::new();
        for (no, slot) in &self.later(set) {
            let before = offer(self.cluster, &self.page.ask, self.cluster.get(*no));
            let after = offer(self.cluster, &self.page.ask, slot);
            *sums.entry(self.domain(*no)).or_default() += after - before.min(after);
        }
        let base = |domain: &DomainNo| self.base.get(domain).copied().unwrap_or(0);
        sums.iter().any(|(domain, more)| base(domain) + more >= self.wanted)
    }

    /// How many nodes, or GPUs where only they count, it needs.
    pub fn parts(&self) -> usize {
        usize::try_from(self.wanted).unwrap_or(usize::MAX)
    }

    /// The nodes that change, as they will be.
    pub fn later(&self, set: &Set) -> BTreeMap<SlotNo, Slot> {
        let mut later: BTreeMap<SlotNo, Slot> = BTreeMap::new();
        for &at in set {
            let candidate = &self.candidates[at];
            for (no, part) in &candidate.parts {
                if self.by_slot.contains_key(no) {
                    let slot = later.entry(*no).or_insert_with(|| self.cluster.get(*no).clone());
                    candidate.leave(slot, part);
                }
            }
        }
        later
    }

    pub fn cheapest(&self, victims_max: usize) -> Option<Set> {
        if self.base.values().any(|&sum| sum >= self.wanted) {
            return Some(Set::new());
        }
        let useful: Set = self.by_slot.values().flatten().copied().collect();
        let found = if useful.len() <= TRY_ALL {
            self.try_all(&useful.into_iter().collect::<Vec<_>>(), &|set| self.fits(set))
        } else {
            self.node_by_node()
        }?;
        let found = self.prune(found);
        (self.size(&found) <= victims_max && self.is_sound(&found)).then_some(found)
    }

    /// The cheapest set for which it is true; of equal ones the smaller, then the first.
    fn try_all(&self, of: &[usize], ok: &dyn Fn(&Set) -> bool) -> Option<Set> {
        let subset = |bits: u32| -> Set {
            of.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0).map(|(_, &at)| at).collect()
        };
        let mut sets: Vec<(u64, usize, Set)> = (1u32..1 << of.len())
            .map(subset)
            .filter(|set| self.is_sound(set))
            .map(|set| (self.cost(&set), set.len(), set))
            .collect();
        sets.sort();
        sets.into_iter().map(|(_, _, set)| set).find(|set| ok(set))
    }

    /// Frees nodes one after another, each time the one that costs least more, in every domain;
    /// the cheapest domain wins.
    fn node_by_node(&self) -> Option<Set> {
        let mut domains: BTreeMap<DomainNo, Vec<SlotNo>> = BTreeMap::new();
        for &slot in self.by_slot.keys() {
            domains.entry(self.domain(slot)).or_default().push(slot);
        }
        let sets = domains.values().flat_map(|slots| {
            // The cheapest node first, or what costs least for each node that it frees: a gang on
            // many. Neither is always better.
            let each = |by_node| self.free_nodes(slots, by_node).map(|set| self.prune(set));
            [each(false), each(true)]
        });
        sets.flatten().min_by_key(|set| (self.cost(set), set.len()))
    }

    fn free_nodes(&self, slots: &[SlotNo], by_node: bool) -> Option<Set> {
        let mut chosen = Set::new();
        // What freeing a node costs changes only where a chosen victim has another part.
        let mut rough = self.cheap_first(slots).into_iter();
        let batch = LOOK_CLOSELY.max(4 * self.parts());
        let mut open: Vec<SlotNo> = Vec::new();
        let mut prices: BTreeMap<SlotNo, Option<Set>> = BTreeMap::new();
        while !self.fits(&chosen) {
            let priced = open.iter().filter_map(|slot| {
                let extra = prices[slot].as_ref()?;
                let nodes = if by_node { self.freed_by(extra, &chosen) } else { 1 };
                Some((self.cost(extra) / nodes, extra.len(), *slot))
            });
            let Some((_, _, slot)) = priced.min() else {
                open = rough.by_ref().take(batch).collect();
                if open.is_empty() {
                    return None;
                }
                let price = |&slot: &SlotNo| (slot, self.price(slot, &chosen, true));
                prices.extend(open.iter().map(price));
                continue;
            };
            let extra = prices[&slot].clone()?;
            let mut with = chosen.clone();
            with.extend(extra);
            if !self.is_sound(&with) {
                // Its price is of before: others may have to go now, or nothing helps.
                prices.insert(slot, self.price(slot, &chosen, true));
                continue;
            }
            let news: Vec<usize> = with.difference(&chosen).copied().collect();
            chosen = with;
            open.retain(|s| *s != slot);
            for at in news {
                for (touched, _) in &self.candidates[at].parts {
                    if prices.contains_key(touched) {
                        prices.insert(*touched, self.price(*touched, &chosen, true));
                    }
                }
            }
        }
        Some(chosen)
    }

    /// Nodes that can be freed, roughly the cheapest first: a close look at all would take long.
    fn cheap_first(&self, slots: &[SlotNo]) -> Vec<SlotNo> {
        let none = Set::new();
        let rough = slots.iter().filter_map(|&slot| {
            let set = self.price(slot, &none, false)?;
            Some((self.cost(&set), set.len(), slot))
        });
        let mut rough: Vec<_> = rough.collect();
        rough.sort_unstable();
        rough.into_iter().map(|(_, _, slot)| slot).collect()
    }

    /// How many nodes become free by stopping these as well, one at least.
    fn freed_by(&self, extra: &Set, chosen: &Set) -> u64 {
        let touched = extra.iter().flat_map(|&at| &self.candidates[at].parts);
        let touched: BTreeSet<SlotNo> = touched.map(|(no, _)| *no).collect();
        let with: Set = chosen.union(extra).copied().collect();
        let later = self.later(&with);
        let ask = &self.page.ask;
        let freed = |no: &&SlotNo| {
            let after = later.get(no).map_or(0, |slot| offer(self.cluster, ask, slot));
            after > offer(self.cluster, ask, self.cluster.get(**no))
        };
        (touched.iter().filter(freed).count() as u64).clamp(1, self.wanted.max(1))
    }

    /// The cheapest further victims that let this node take a part; looked at less closely, cheap
    /// ones. None if nothing does.
    fn price(&self, slot: SlotNo, chosen: &Set, closely: bool) -> Option<Set> {
        let here = self.by_slot.get(&slot)?;
        let ok = |set: &Set| {
            let mut later = self.cluster.get(slot).clone();
            for at in chosen.union(set) {
                let candidate = &self.candidates[*at];
                for (_, part) in candidate.parts.iter().filter(|(no, _)| *no == slot) {
                    candidate.leave(&mut later, part);
                }
            }
            let before = offer(self.cluster, &self.page.ask, self.cluster.get(slot));
            offer(self.cluster, &self.page.ask, &later) > before
        };
        let sound = |set: &Set| self.is_sound(&chosen.union(set).copied().collect());
        if ok(&Set::new()) {
            return Some(Set::new());
        }
        let mut open: Vec<usize> = here.iter().copied().filter(|at| !chosen.contains(at)).collect();
        open.sort_by_key(|&at| (self.candidates[at].cost, at));
        if closely && open.len() <= TRY_ALL_ON_NODE {
            return self.try_all(&open, &|set| ok(set) && sound(set));
        }
        // Too many to try all: add the cheapest until it fits, then drop what is not needed.
        let mut set = Set::new();
        for at in open {
            set.insert(at);
            if !sound(&set) {
                set.remove(&at);
            } else if ok(&set) {
                let mut dearest: Vec<usize> = set.iter().copied().collect();
                dearest.sort_by_key(|&at| std::cmp::Reverse((self.candidates[at].cost, at)));
                for at in dearest {
                    set.remove(&at);
                    if !ok(&set) {
                        set.insert(at);
                    }
                }
                return Some(set);
            }
        }
        None
    }

    /// Lets everybody go whose end is not needed, the dearest first.
    fn prune(&self, mut set: Set) -> Set {
        let mut dearest: Vec<usize> = set.iter().copied().collect();
        dearest.sort_by_key(|&at| std::cmp::Reverse((self.candidates[at].cost, at)));
        for at in dearest {
            set.remove(&at);
            if !self.fits(&set) {
                set.insert(at);
            }
        }
        set
    }
}

/// What a node adds: GPUs where only they count, else 1.
fn offer(cluster: &Cluster, ask: &Ask, slot: &Slot) -> u64 {
    if !cluster.fits(slot, ask, &ask.least()) {
        return 0;
    }
    match ask.node_counts() {
        Some(_) => 1,
        None => ask.share_of(&cluster.usable(slot, ask)).into(),
    }
}
