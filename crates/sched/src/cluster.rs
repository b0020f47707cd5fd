//! What is free on every node, as the scheduler sees it. Owned, so that it can be kept between
//! passes and brought up to date node by node; taking from it leaves the state alone.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Bytes, DEFAULT_CLASS, Gpu, GpuIndex, Link, Milli, Node, NodeId, PartPlacement, Place, Policy,
    State, TaskId,
};

use crate::ask::{Ask, Need, Room};
use crate::domains::{Path, paths};

/// Position of a node in [`Cluster::slots`]; in the order of node ids.
pub(crate) type SlotNo = u32;

#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub slots: Vec<Slot>,
    /// Names of GPU models, by number.
    pub models: Vec<String>,
    /// Sets of labels, by number.
    labels: Vec<BTreeMap<String, String>>,
    labels_known: BTreeMap<BTreeMap<String, String>, u32>,
    /// What teams hold now: GPUs in thousandths, by model.
    pub held: BTreeMap<String, Vec<u64>>,
    /// Leases by class, and tasks that can change their number of nodes.
    pub classes: BTreeMap<String, u64>,
    pub elastic: BTreeSet<TaskId>,
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
    /// Somebody has the node alone.
    pub alone: bool,
    /// Tasks with a part here.
    pub tasks: Vec<TaskId>,
    labels: u32,
    /// Into [`Policy::reservations`].
    pub reservations: Vec<u32>,
    /// (team, model, thousandths) of what is held here.
    held: Vec<(String, u16, u64)>,
    /// The class of each lease.
    classes: Vec<String>,
    /// Grows with every change.
    pub stamp: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub index: GpuIndex,
    pub model: u16,
    pub mem: Bytes,
    /// A GPU without an island of its own is one.
    pub island: u16,
    /// In thousandths.
    pub free: u16,
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

impl Slot {
    pub fn is_empty(&self) -> bool {
        self.tenants == 0
    }

    fn count_whole(&mut self) {
        self.free.gpus = self.cards.iter().filter(|c| c.free == 1000).count() as u32;
    }

    /// Takes a part out of what is free.
    fn take(&mut self, part: &PartPlacement, alone: bool) {
        for card in self.cards.iter_mut().filter(|c| part.gpus.contains(&c.index)) {
            card.free = card.free.saturating_sub(part.share.0);
        }
        self.free.cpus = self.free.cpus.saturating_sub(part.cpus);
        self.free.mem.0 = self.free.mem.0.saturating_sub(part.mem.0);
        self.tenants += 1;
        self.alone |= alone;
        self.count_whole();
    }

    /// Gives back what a lease holds here, to see what fits once it has ended.
    pub fn give_back(&mut self, held: &HeldPart<'_>) {
        for card in self.cards.iter_mut().filter(|c| held.gpus.contains(&c.index)) {
            card.free = (card.free + held.share.0).min(1000);
        }
        self.free.cpus = self.free.cpus.saturating_add(held.cpus).min(self.total.cpus);
        self.free.mem = Bytes(self.free.mem.0.saturating_add(held.mem.0)).min(self.total.mem);
        self.tenants = self.tenants.saturating_sub(1);
        self.alone &= !held.alone;
        self.count_whole();
    }
}

/// What a lease holds on one node.
pub(crate) struct HeldPart<'a> {
    pub gpus: &'a [GpuIndex],
    pub share: Milli,
    pub cpus: u32,
    pub mem: Bytes,
    pub alone: bool,
}

impl<'a> HeldPart<'a> {
    pub fn of(part: &'a tutti_model::Part, alone: bool) -> HeldPart<'a> {
        HeldPart { gpus: &part.gpus, share: part.share, cpus: part.cpus, mem: part.mem, alone }
    }
}

impl Cluster {
    pub fn new(state: &State, policy: &Policy) -> Cluster {
        let mut cluster = Cluster::default();
        let places: Vec<Place> =
            state.nodes.values().map(|n| policy.topology.place_of(n)).collect();
        let paths = paths(&places);
        let ranks = ranks(state, &paths);
        let claims = Claims::of(state);
        for ((node, path), rank) in state.nodes.values().zip(paths).zip(ranks) {
            let mut slot = cluster.slot(state, policy, &claims, node);
            slot.path = path;
            slot.rank = rank;
            cluster.add_held(&slot);
            cluster.slots.push(slot);
        }
        cluster
    }

    /// Brings one node up to date. False if the node is new or changed so that all must be built
    /// again.
    pub fn refresh(&mut self, state: &State, policy: &Policy, claims: &Claims, id: NodeId) -> bool {
        let (Some(no), Some(node)) = (self.slot_of(id), state.node(id)) else { return false };
        let mut slot = self.slot(state, policy, claims, node);
        let old = &self.slots[no as usize];
        // Labels may say where a node stands.
        if old.labels != slot.labels {
            return false;
        }
        slot.path = old.path;
        slot.rank = old.rank;
        slot.stamp = old.stamp + 1;
        self.remove_held(no);
        self.add_held(&slot);
        self.slots[no as usize] = slot;
        self.log.push(no);
        true
    }

    fn slot(&mut self, state: &State, policy: &Policy, claims: &Claims, node: &Node) -> Slot {
        let facts = &node.facts;
        let mut cards: Vec<Card> = facts.gpus.iter().map(|g| self.card(node, g)).collect();
        cards.sort_by_key(|c| c.index);
        let mut slot = Slot {
            node: node.id,
            standing: Standing::of(node),
            total: Room { gpus: facts.gpus.len() as u32, cpus: facts.cpus, mem: facts.mem },
            free: Room { gpus: 0, cpus: node.free_cpus(), mem: node.free_mem() },
            cards,
            path: Path::default(),
            rank: 0,
            tenants: 0,
            alone: false,
            tasks: Vec::new(),
            labels: self.label_set(&facts.labels),
            reservations: reservations(policy, &facts.name),
            held: Vec::new(),
            classes: Vec::new(),
            stamp: 0,
        };
        slot.count_whole();
        for lease in &node.used.leases {
            slot.tenants += 1;
            slot.tasks.push(lease.task);
            let Some(job) = state.job(lease.task.job) else { continue };
            slot.alone |= job.spec.exclusive;
            let class = job.spec.class.as_deref().unwrap_or(DEFAULT_CLASS);
            slot.classes.push(class.to_owned());
            if job.spec.elastic.is_some() {
                self.elastic.insert(lease.task);
            }
            for card in &slot.cards {
                let of_lease = node.used.gpus.get(&card.index).and_then(|u| u.leases.get(lease));
                if let Some(milli) = of_lease {
                    note(&mut slot.held, &job.team, card.model, u64::from(milli.0));
                }
            }
        }
        for (task, part) in claims.on(node.id) {
            let alone = state.job(task.job).is_some_and(|j| j.spec.exclusive);
            slot.take(part, alone);
        }
        slot
    }

    fn card(&mut self, node: &Node, gpu: &Gpu) -> Card {
        let known = self.models.iter().position(|m| *m == gpu.model);
        let model = known.unwrap_or_else(|| {
            self.models.push(gpu.model.clone());
            self.models.len() - 1
        }) as u16;
        let island = gpu.island.unwrap_or(0);
        Card { index: gpu.index, model, mem: gpu.mem, island, free: node.free_milli(gpu.index) }
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

    fn add_held(&mut self, slot: &Slot) {
        for class in &slot.classes {
            *self.classes.entry(class.clone()).or_default() += 1;
        }
        for (team, model, milli) in &slot.held {
            let of_team = self.held.entry(team.clone()).or_default();
            let at = usize::from(*model);
            of_team.resize(of_team.len().max(at + 1), 0);
            of_team[at] += milli;
        }
    }

    fn remove_held(&mut self, no: SlotNo) {
        for class in &self.slots[no as usize].classes {
            if let Some(count) = self.classes.get_mut(class) {
                *count -= 1;
            }
        }
        for (team, model, milli) in &self.slots[no as usize].held {
            if let Some(of_team) = self.held.get_mut(team) {
                of_team[usize::from(*model)] -= milli;
            }
        }
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

    /// A copy to try things on, without what is derived.
    pub fn sketch(&self) -> Cluster {
        Cluster {
            slots: self.slots.clone(),
            models: self.models.clone(),
            labels: self.labels.clone(),
            ..Cluster::default()
        }
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
                self.change(no, |slot| slot.take(part, alone));
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

    /// What the ask could use of a node if it were empty.
    pub fn usable_when_empty(&self, slot: &Slot, ask: &Ask) -> Room {
        let cards = slot.cards.iter().filter(|c| self.suits(c, ask));
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
fn natural(name: &str) -> Vec<(u64, String)> {
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
}

impl<'a> Claims<'a> {
    pub fn of(state: &'a State) -> Claims<'a> {
        let mut by_node: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for (task, claim) in &state.claims {
            for part in &claim.parts {
                by_node.entry(part.node).or_default().push((*task, part));
            }
        }
        Claims { by_node }
    }

    fn on(&self, node: NodeId) -> impl Iterator<Item = (TaskId, &'a PartPlacement)> {
        self.by_node.get(&node).into_iter().flatten().copied()
    }
}
