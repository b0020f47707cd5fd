//! What is free on every node, as the scheduler sees it. Owned, so that it can be kept between
//! passes and brought up to date node by node; taking from it leaves the state alone.

use std::collections::BTreeMap;

use tutti_model::{
    Attempt, AttemptPhase, Bytes, Gpu, GpuIndex, GpuQuota, Link, Milli, Node, NodeId, Part,
    PartPlacement, PlacementRule, Policy, State, TaskId, gpus_built,
};

use crate::ask::{Ask, Need, Room};
use crate::domains::{Path, Spot, paths};

/// Position of a node in [`Cluster::slots`]; in the order of node ids.
pub(crate) type SlotNo = u32;

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub slots: Vec<Slot>,
    /// Names of GPU models, by number.
    pub models: Vec<String>,
    /// Gangs are placed as if all nodes were equally near.
    pub is_flat: bool,
    /// Sets of labels, by number.
    labels: Vec<BTreeMap<String, String>>,
    labels_known: BTreeMap<BTreeMap<String, String>, u32>,
    reaches_known: BTreeMap<Option<String>, u32>,
    tenants: Vec<Tenants>,
    /// Guarantees that count for less than is written, because there are too few GPUs.
    pub scaled: BTreeMap<String, GpuQuota>,
    /// What teams hold now: GPUs in thousandths, by model.
    pub held: BTreeMap<String, Vec<u64>>,
    /// What they hold of that but are about to give back.
    pub leaving: BTreeMap<String, Vec<u64>>,
    /// Parts of leases by class.
    pub classes: BTreeMap<String, u64>,
    /// Parts of tasks that were starting or stopping when their nodes were last looked at.
    unsettled: BTreeMap<TaskId, u32>,
    /// Slots that changed, in order. Whoever derives something from slots remembers how far it read.
    log: Vec<SlotNo>,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub node: NodeId,
    pub standing: Standing,
    pub total: Room,
    /// GPUs: those wholly free.
    pub free: Room,
    pub cards: Vec<Card>,
    pub path: Path,
    /// Place among all nodes such that neighbours in the network are neighbours here.
    pub rank: u32,
    /// How many leases and claims have a part here.
    pub tenants: u32,
    /// Somebody has the node alone, or will.
    pub alone: bool,
    loners: u32,
    /// Claims with a part here.
    pub claims: u32,
    /// What was taken beyond what is free: claims on room that others still hold. Whatever is given
    /// back pays for this first.
    owed: Owed,
    labels: u32,
    /// Nodes with the same number reach each other.
    reach: u32,
    /// Into [`Policy::reservations`].
    pub reservations: Vec<u32>,
    /// Grows with every change.
    pub stamp: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    cpus: u32,
    mem: Bytes,
}

/// Who is on a node; of no interest to the search for room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tenants {
    /// (team, model, thousandths) of what is held.
    held: Vec<(String, u16, u64)>,
    /// Of that, what is about to be given back.
    leaving: Vec<(String, u16, u64)>,
    /// The class of each lease.
    classes: Vec<String>,
    unsettled: Vec<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub index: GpuIndex,
    pub model: u16,
    pub mem: Bytes,
    /// GPUs of which nobody said where they belong count as one island.
    pub island: u16,
    /// In thousandths.
    pub free: u16,
    owed: u16,
    /// Nothing may be placed on it, whoever leaves.
    pub fenced: bool,
}

impl Card {
    fn take(&mut self, milli: u16) {
        self.owed = self.owed.saturating_add(milli.saturating_sub(self.free));
        self.free = self.free.saturating_sub(milli);
    }

    fn give_back(&mut self, milli: u16) {
        let left = milli.saturating_sub(self.owed);
        self.owed = self.owed.saturating_sub(milli);
        if !self.fenced {
            self.free = (self.free + left).min(1000);
        }
    }
}

/// Whether a node takes work, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// Lost, away or cleaning up.
    Away,
    Draining,
}

/// A part of a gang before GPUs are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub slot: SlotNo,
    pub gpus: u32,
}

impl Standing {
    pub fn of(node: &Node) -> Standing {
        if node.link != Link::Up || !node.stale.is_empty() {
            Standing::Away
        } else if node.drain.is_some() {
            Standing::Draining
        } else {
            Standing::Open
        }
    }
}

/// A node that could stay empty as a spare.
pub(crate) fn is_empty_and_open(slot: &Slot) -> bool {
    slot.standing == Standing::Open && slot.is_empty()
}

impl Slot {
    pub fn is_empty(&self) -> bool {
        self.tenants == 0
    }

    /// As it would be without anybody on it and with nothing kept for anybody; `mended` without
    /// fences, too.
    pub fn emptied(&self, mended: bool) -> Slot {
        let mut slot = self.clone();
        for card in &mut slot.cards {
            card.fenced &= !mended;
            (card.free, card.owed) = (if card.fenced { 0 } else { 1000 }, 0);
        }
        (slot.free, slot.owed) = (slot.total, Owed::default());
        (slot.tenants, slot.loners, slot.claims, slot.alone) = (0, 0, 0, false);
        slot.count_whole();
        slot
    }

    fn count_whole(&mut self) {
        self.free.gpus = self.cards.iter().filter(|c| c.free == 1000).count() as u32;
    }

    /// Takes a part out of what is free, or will be.
    pub fn take(&mut self, held: &HeldPart<'_>) {
        let of_part = self.cards.iter_mut().filter(|c| held.gpus.contains(&c.index));
        of_part.for_each(|card| card.take(held.share.0));
        self.owed.cpus += held.cpus.saturating_sub(self.free.cpus);
        self.owed.mem.0 += held.mem.0.saturating_sub(self.free.mem.0);
        self.free.cpus = self.free.cpus.saturating_sub(held.cpus);
        self.free.mem.0 = self.free.mem.0.saturating_sub(held.mem.0);
        self.tenants += u32::from(held.tenant);
        self.loners += u32::from(held.alone);
        self.alone = self.loners > 0;
        self.count_whole();
    }

    /// Gives back what a lease or a claim holds here.
    pub fn give_back(&mut self, held: &HeldPart<'_>) {
        let of_part = self.cards.iter_mut().filter(|c| held.gpus.contains(&c.index));
        of_part.for_each(|card| card.give_back(held.share.0));
        self.free.cpus += held.cpus.saturating_sub(self.owed.cpus);
        self.free.mem.0 += held.mem.0.saturating_sub(self.owed.mem.0);
        self.free.cpus = self.free.cpus.min(self.total.cpus);
        self.free.mem = self.free.mem.min(self.total.mem);
        self.owed.cpus = self.owed.cpus.saturating_sub(held.cpus);
        self.owed.mem.0 = self.owed.mem.0.saturating_sub(held.mem.0);
        self.tenants = self.tenants.saturating_sub(u32::from(held.tenant));
        self.loners = self.loners.saturating_sub(u32::from(held.alone));
        self.alone = self.loners > 0;
        self.count_whole();
    }
}

/// What a lease or a claim holds on one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPart<'a> {
    pub gpus: &'a [GpuIndex],
    pub share: Milli,
    pub cpus: u32,
    pub mem: Bytes,
    pub alone: bool,
    /// It is there as long as it holds this, and gone with it.
    pub tenant: bool,
}

impl<'a> HeldPart<'a> {
    pub fn of(part: &'a tutti_model::Part, alone: bool) -> HeldPart<'a> {
        HeldPart {
            gpus: &part.gpus,
            share: part.share,
            cpus: part.cpus,
            mem: part.mem,
            alone,
            tenant: true,
        }
    }

    /// What it gives to others while it is suspended. Its memory it keeps, and so it stays.
    pub fn lent(self) -> HeldPart<'a> {
        HeldPart { mem: Bytes(0), alone: false, tenant: false, ..self }
    }

    /// Memory alone, of somebody who is there already.
    pub fn memory(mem: Bytes) -> HeldPart<'static> {
        HeldPart { gpus: &[], share: Milli(0), cpus: 0, mem, alone: false, tenant: false }
    }

    pub fn placed(part: &'a PartPlacement, alone: bool) -> HeldPart<'a> {
        HeldPart {
            gpus: &part.gpus,
            share: part.share,
            cpus: part.cpus,
            mem: part.mem,
            alone,
            tenant: true,
        }
    }
}

impl Cluster {
    pub fn new(state: &State, policy: &Policy) -> Cluster {
        let is_flat = policy.placement != PlacementRule::Fragments;
        let mut cluster = Cluster { is_flat, ..Cluster::default() };
        let places: Vec<Spot<'_>> =
            state.nodes.values().map(|n| (n.facts.reach(), policy.topology.place_of(n))).collect();
        let paths = paths(&places);
        let ranks = ranks(state, &paths);
        let claims = Claims::of(state);
        for ((node, path), rank) in state.nodes.values().zip(paths).zip(ranks) {
            let (mut slot, tenants) = cluster.slot(state, policy, &claims, node);
            slot.path = path;
            slot.rank = rank;
            cluster.move_in(&tenants);
            cluster.slots.push(slot);
            cluster.tenants.push(tenants);
        }
        if policy.teams.values().any(|team| !team.guarantee.is_none()) {
            let scaled = policy.scaled_guarantees(&gpus_built(state.nodes.values()));
            cluster.scaled = scaled.into_iter().map(|(name, q)| (name.to_owned(), q)).collect();
        }
        cluster
    }

    /// Brings one node up to date. False if the node is new or changed so that all must be built
    /// again.
    pub fn refresh(&mut self, state: &State, policy: &Policy, claims: &Claims, id: NodeId) -> bool {
        let (Some(no), Some(node)) = (self.slot_of(id), state.node(id)) else { return false };
        let (mut slot, tenants) = self.slot(state, policy, claims, node);
        let old = &self.slots[no as usize];
        // Labels may say where a node stands, and models are numbered as they are met.
        let same = |(a, b): (&Card, &Card)| (a.index, a.model) == (b.index, b.model);
        if old.labels != slot.labels
            || old.reach != slot.reach
            || old.cards.len() != slot.cards.len()
            || !old.cards.iter().zip(&slot.cards).all(same)
        {
            return false;
        }
        slot.path = old.path;
        slot.rank = old.rank;
        slot.stamp = old.stamp + 1;
        let before = std::mem::take(&mut self.tenants[no as usize]);
        self.move_out(&before);
        self.move_in(&tenants);
        self.slots[no as usize] = slot;
        self.tenants[no as usize] = tenants;
        self.log.push(no);
        true
    }

    fn slot(
        &mut self,
        state: &State,
        policy: &Policy,
        claims: &Claims<'_>,
        node: &Node,
    ) -> (Slot, Tenants) {
        let facts = &node.facts;
        let mut cards: Vec<Card> = facts.gpus.iter().map(|g| self.card(node, g)).collect();
        cards.sort_by_key(|c| c.index);
        // A node may come back smaller than what it runs.
        let owed = Owed {
            cpus: node.used.cpus.saturating_sub(facts.cpus),
            mem: Bytes(node.used.mem.0.saturating_sub(facts.mem.0)),
        };
        let mut slot = Slot {
            node: node.id,
            standing: Standing::of(node),
            total: Room { gpus: facts.gpus.len() as u32, cpus: facts.cpus, mem: facts.mem },
            free: Room { gpus: 0, cpus: node.free_cpus(), mem: node.free_mem() },
            cards,
            path: Path::default(),
            rank: 0,
            tenants: node.used.leases.len() as u32,
            alone: false,
            loners: 0,
            claims: 0,
            owed,
            labels: self.label_set(&facts.labels),
            reach: self.reach_number(facts.reach()),
            reservations: reservations(policy, &facts.name),
            stamp: 0,
        };
        let tenants = tenants(state, node, &mut slot);
        slot.count_whole();
        for (task, part) in claims.on(node.id) {
            slot.take(&HeldPart::placed(part, is_alone(state, task)));
            slot.claims += 1;
        }
        for (task, part) in claims.returning_to(node.id) {
            slot.take(&HeldPart::of(part, is_alone(state, task)));
        }
        (slot, tenants)
    }

    fn card(&mut self, node: &Node, gpu: &Gpu) -> Card {
        let known = self.models.iter().position(|m| *m == gpu.model);
        let model = known.unwrap_or_else(|| {
            self.models.push(gpu.model.clone());
            self.models.len() - 1
        }) as u16;
        let island = gpu.island.unwrap_or(u16::MAX);
        let free = node.free_milli(gpu.index);
        let fenced = node.is_fenced(gpu.index);
        Card { index: gpu.index, model, mem: gpu.mem, island, free, owed: 0, fenced }
    }

    fn reach_number(&mut self, reach: Option<&str>) -> u32 {
        let next = self.reaches_known.len() as u32;
        *self.reaches_known.entry(reach.map(str::to_owned)).or_insert(next)
    }

    fn label_set(&mut self, labels: &BTreeMap<String, String>) -> u32 {
        if let Some(&known) = self.labels_known.get(labels) {
            return known;
        }
        let number = self.labels.len() as u32;
        self.labels.push(labels.clone());
        self.labels_known.insert(labels.clone(), number);
        number
    }

    pub fn labels_hold(&self, slot: &Slot, ask: &Ask) -> bool {
        ask.demand.labels.iter().all(|rule| rule.holds(&self.labels[slot.labels as usize]))
    }

    fn move_in(&mut self, tenants: &Tenants) {
        for class in &tenants.classes {
            *self.classes.entry(class.clone()).or_default() += 1;
        }
        for task in &tenants.unsettled {
            *self.unsettled.entry(*task).or_default() += 1;
        }
        tenants.held.iter().for_each(|held| add(&mut self.held, held));
        tenants.leaving.iter().for_each(|held| add(&mut self.leaving, held));
    }

    fn move_out(&mut self, tenants: &Tenants) {
        for class in &tenants.classes {
            if let Some(count) = self.classes.get_mut(class) {
                *count -= 1;
            }
        }
        for task in &tenants.unsettled {
            if let Some(count) = self.unsettled.get_mut(task) {
                *count -= 1;
                if *count == 0 {
                    self.unsettled.remove(task);
                }
            }
        }
        tenants.held.iter().for_each(|held| subtract(&mut self.held, held));
        tenants.leaving.iter().for_each(|held| subtract(&mut self.leaving, held));
    }

    /// Tasks that may be starting or stopping. Some may have settled since.
    pub fn unsettled(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.unsettled.keys().copied()
    }

    pub fn slot_of(&self, node: NodeId) -> Option<SlotNo> {
        self.slots.binary_search_by_key(&node, |s| s.node).ok().map(|no| no as SlotNo)
    }

    pub fn get(&self, no: SlotNo) -> &Slot {
        &self.slots[no as usize]
    }

    pub fn log(&self) -> &[SlotNo] {
        &self.log
    }

    /// Looks at the cluster with some slots as they will be.
    pub fn with_slots<T>(
        &mut self,
        mut later: BTreeMap<SlotNo, Slot>,
        look: impl FnOnce(&Cluster) -> T,
    ) -> T {
        let mut swap = |slots: &mut Vec<Slot>| {
            for (no, slot) in &mut later {
                std::mem::swap(&mut slots[*no as usize], slot);
            }
        };
        swap(&mut self.slots);
        let seen = look(self);
        swap(&mut self.slots);
        seen
    }

    /// Starts the log again; readers must have forgotten where they were.
    pub fn clear_log(&mut self) {
        self.log.clear();
    }

    /// Changes a slot and lets readers know.
    pub fn change(&mut self, no: SlotNo, with: impl FnOnce(&mut Slot)) {
        let slot = &mut self.slots[no as usize];
        with(slot);
        slot.stamp += 1;
        self.log.push(no);
    }

    /// Takes a placement out of what is free.
    pub fn take(&mut self, parts: &[PartPlacement], alone: bool) {
        for part in parts {
            if let Some(no) = self.slot_of(part.node) {
                self.change(no, |slot| slot.take(&HeldPart::placed(part, alone)));
            }
        }
    }

    /// Keeps room for a claim.
    pub fn keep(&mut self, parts: &[PartPlacement], alone: bool) {
        for part in parts {
            if let Some(no) = self.slot_of(part.node) {
                self.change(no, |slot| {
                    slot.take(&HeldPart::placed(part, alone));
                    slot.claims += 1;
                });
            }
        }
    }

    /// Gives back what was kept for a claim.
    pub fn unkeep(&mut self, parts: &[PartPlacement], alone: bool) {
        for part in parts {
            if let Some(no) = self.slot_of(part.node) {
                self.change(no, |slot| {
                    slot.give_back(&HeldPart::placed(part, alone));
                    slot.claims -= 1;
                });
            }
        }
    }

    /// Which of a slot's cards the ask can use, by what they have free.
    pub fn fitting_cards<'c>(
        &'c self,
        slot: &'c Slot,
        ask: &'c Ask,
    ) -> impl Iterator<Item = &'c Card> + 'c {
        let least = ask.demand.share.0;
        slot.cards.iter().filter(move |c| c.free >= least && self.suits(c, ask))
    }

    pub fn suits(&self, card: &Card, ask: &Ask) -> bool {
        !card.fenced && self.suits_when_mended(card, ask)
    }

    pub fn suits_when_mended(&self, card: &Card, ask: &Ask) -> bool {
        card.mem >= ask.demand.gpu_mem
            && (!ask.names_models() || ask.wants_model(&self.models[usize::from(card.model)]))
    }

    /// What the ask could use of a node, free now.
    pub fn usable(&self, slot: &Slot, ask: &Ask) -> Room {
        let gpus = if ask.on_one_island() {
            most_on_one_island(self.fitting_cards(slot, ask))
        } else {
            self.fitting_cards(slot, ask).count() as u32
        };
        Room { gpus, ..slot.free }
    }

    /// The same if the GPUs that are fenced were free.
    pub fn usable_but_for_fences(&self, slot: &Slot, ask: &Ask) -> Room {
        let least = ask.demand.share.0;
        let free = |c: &&Card| (c.free >= least || c.fenced) && self.suits_when_mended(c, ask);
        Room { gpus: self.room_of(slot, ask, slot.cards.iter().filter(free)).gpus, ..slot.free }
    }

    /// What the ask could use of a node if it were empty.
    pub fn usable_when_empty(&self, slot: &Slot, ask: &Ask) -> Room {
        self.room_of(slot, ask, slot.cards.iter().filter(|c| self.suits(c, ask)))
    }

    /// The same if no GPU of it were fenced.
    pub fn usable_when_mended(&self, slot: &Slot, ask: &Ask) -> Room {
        self.room_of(slot, ask, slot.cards.iter().filter(|c| self.suits_when_mended(c, ask)))
    }

    fn room_of<'c>(&self, slot: &Slot, ask: &Ask, cards: impl Iterator<Item = &'c Card>) -> Room {
        let gpus =
            if ask.on_one_island() { most_on_one_island(cards) } else { cards.count() as u32 };
        Room { gpus, ..slot.total }
    }

    /// Open, and with room for this much of the ask.
    pub fn fits(&self, slot: &Slot, ask: &Ask, need: &Need) -> bool {
        slot.standing == Standing::Open
            && !slot.alone
            && (!ask.demand.exclusive || slot.is_empty())
            && self.usable(slot, ask).holds(need)
    }
}

fn most_on_one_island<'c>(cards: impl Iterator<Item = &'c Card>) -> u32 {
    let mut islands: BTreeMap<u16, u32> = BTreeMap::new();
    cards.for_each(|c| *islands.entry(c.island).or_default() += 1);
    islands.into_values().max().unwrap_or(0)
}

/// Everybody with a lease here; sets whether one of them has the node alone.
fn tenants(state: &State, node: &Node, slot: &mut Slot) -> Tenants {
    let mut tenants = Tenants::default();
    for lease in &node.used.leases {
        let Some(job) = state.job(lease.task.job) else { continue };
        slot.loners += u32::from(job.spec.exclusive);
        tenants.classes.push(job.class().to_owned());
        let attempt = job.task(lease.task.index).and_then(|t| t.attempt());
        let runs_on =
            |a: &Attempt| matches!(a.phase, AttemptPhase::Running { .. }) && !a.is_ending();
        if !attempt.is_some_and(runs_on) {
            tenants.unsettled.push(lease.task);
        }
        let leaves = attempt.is_some_and(Attempt::leaves);
        for card in &slot.cards {
            let of_lease = node.used.gpus.get(&card.index).and_then(|u| u.leases.get(lease));
            let Some(milli) = of_lease else { continue };
            note(&mut tenants.held, &job.team, card.model, u64::from(milli.0));
            if leaves {
                note(&mut tenants.leaving, &job.team, card.model, u64::from(milli.0));
            }
        }
    }
    slot.alone = slot.loners > 0;
    tenants
}

fn is_alone(state: &State, task: TaskId) -> bool {
    state.job(task.job).is_some_and(|j| j.spec.exclusive)
}

fn add(sums: &mut BTreeMap<String, Vec<u64>>, (team, model, milli): &(String, u16, u64)) {
    let of_team = sums.entry(team.clone()).or_default();
    let at = usize::from(*model);
    of_team.resize(of_team.len().max(at + 1), 0);
    of_team[at] += milli;
}

fn subtract(sums: &mut BTreeMap<String, Vec<u64>>, (team, model, milli): &(String, u16, u64)) {
    if let Some(of_team) = sums.get_mut(team) {
        of_team[usize::from(*model)] -= milli;
    }
}

fn note(held: &mut Vec<(String, u16, u64)>, team: &str, model: u16, milli: u64) {
    match held.iter_mut().find(|(t, m, _)| t == team && *m == model) {
        Some((_, _, sum)) => *sum += milli,
        None => held.push((team.to_owned(), model, milli)),
    }
}

fn reservations(policy: &Policy, node: &str) -> Vec<u32> {
    let on_node = |(_, r): &(u32, &tutti_model::Reservation)| r.nodes.contains(node);
    (0..).zip(&policy.reservations).filter(on_node).map(|(n, _)| n).collect()
}

/// The order of nodes for ranks: by domain, then by name as people count (`n9` before `n10`).
fn ranks(state: &State, paths: &[Path]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..paths.len()).collect();
    let names: Vec<_> = state.nodes.values().map(|n| natural(&n.facts.name)).collect();
    order.sort_by(|&a, &b| (paths[a], &names[a], a).cmp(&(paths[b], &names[b], b)));
    let mut ranks = vec![0; paths.len()];
    (0..).zip(order).for_each(|(rank, at)| ranks[at] = rank);
    ranks
}

/// Digits as numbers, the rest as text.
pub(crate) fn natural(name: &str) -> Vec<(u64, String)> {
    let mut words: Vec<(u64, String)> = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        words.push((number.parse().unwrap_or(0), tail[..letters].to_owned()));
        rest = &tail[letters..];
    }
    words
}

/// All claims by node.
#[derive(Debug, Default)]
pub(crate) struct Claims<'a> {
    by_node: BTreeMap<NodeId, Vec<(TaskId, &'a PartPlacement)>>,
    /// What is free already of gangs that lost a node and are not quite gone: they come back, and
    /// must find it.
    returning: BTreeMap<NodeId, Vec<(TaskId, &'a Part)>>,
}

impl<'a> Claims<'a> {
    pub fn of(state: &'a State) -> Claims<'a> {
        let mut by_node: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for (task, claim) in &state.claims {
            for part in &claim.parts {
                by_node.entry(part.node).or_default().push((*task, part));
            }
        }
        let mut returning: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for &task in &state.index.ending {
            let attempt = state.job(task.job).and_then(|j| j.task(task.index)?.attempt());
            let returns = attempt.filter(|a| a.will_return());
            let parts = returns.into_iter().flat_map(|a| &a.parts);
            for part in parts.filter(|p| p.phase.is_over()) {
                returning.entry(part.node).or_default().push((task, part));
            }
        }
        Claims { by_node, returning }
    }

    fn returning_to(&self, node: NodeId) -> impl Iterator<Item = (TaskId, &'a Part)> {
        self.returning.get(&node).into_iter().flatten().copied()
    }

    /// What is kept on a node, and for whom.
    pub fn kept_on(
        &self,
        state: &State,
        node: NodeId,
    ) -> impl Iterator<Item = (TaskId, HeldPart<'a>)> {
        let claimed = self.on(node);
        let claimed =
            claimed.map(|(task, part)| (task, HeldPart::placed(part, is_alone(state, task))));
        let returning = self.returning_to(node);
        let returning =
            returning.map(|(task, part)| (task, HeldPart::of(part, is_alone(state, task))));
        claimed.chain(returning)
    }

    fn on(&self, node: NodeId) -> impl Iterator<Item = (TaskId, &'a PartPlacement)> {
        self.by_node.get(&node).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests;
