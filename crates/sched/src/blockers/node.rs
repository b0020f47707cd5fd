//! What keeps a task off the nodes that it could use, node by node.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Blocker, GpuIndex, KeptFor, Link, Node, NodeId, Obstacle, Span, Spread, State, Task, TaskId,
    Time,
};

use super::apart::{Apart, Shut};
use super::{Asker, NAMED_MAX};
use crate::cluster::{Card, Claims, Cluster, HeldPart, Slot, SlotNo, Standing, is_empty_and_open};
use crate::fit;
use crate::pass::{reservations_between, spare_slots};

/// About how long somebody takes to go who was told to.
const GOES: Span = Span::secs(30);

pub(super) struct NodeLook<'l, 'a> {
    pub asker: &'l Asker<'a>,
    pub claims: &'l Claims<'a>,
    /// Who could be stopped for it, but not before these times.
    pub left_alone: &'l BTreeMap<TaskId, Time>,
    pub spares: &'l BTreeSet<SlotNo>,
}

/// When the attempt of a task has used up its time limit, or will be gone because it was told to go.
pub(super) fn end_of(state: &State, id: TaskId, now: Time) -> Option<Time> {
    let job = state.job(id.job)?;
    let attempt = job.task(id.index).and_then(Task::attempt)?;
    if attempt.leaves() {
        return Some(now.plus(GOES));
    }
    Some(attempt.running_since(now)?.plus(job.spec.time?).max(now))
}

/// What is on a node: who runs there, and for whom something is kept.
struct Tenancy<'a> {
    leases: Vec<(TaskId, HeldPart<'a>)>,
    kept: Vec<(TaskId, HeldPart<'a>)>,
}

/// Which of the things on a node are looked at as if they were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct With {
    leases: bool,
    kept: bool,
    fences: bool,
}

impl With {
    const ALL: With = With { leases: true, kept: true, fences: true };
    const NONE: With = With { leases: false, kept: false, fences: false };
}

/// Sums over nodes.
#[derive(Debug, Default)]
struct Tally {
    reserved: BTreeMap<u32, u32>,
    kept: BTreeMap<TaskId, (u32, u32)>,
    left_alone: BTreeMap<TaskId, (u32, u32)>,
    busy: (u32, u32),
    /// When nodes on which others are will have room, and how much they give then; none: not known.
    ends: Vec<(Option<Time>, u32)>,
    draining: u32,
    away: u32,
    fenced: u32,
    port: u32,
    spares: u32,
    /// Nodes that it could use as they are.
    open: Vec<SlotNo>,
    /// Nodes that have room, and why it may not use them.
    shut: Vec<(SlotNo, Shut)>,
    /// Nodes that it could use if nothing else were there.
    suitable: Vec<SlotNo>,
}

impl<'a> NodeLook<'_, 'a> {
    /// Nothing if there is room enough as it is; and what verdicts count otherwise.
    pub fn blockers(&self, cluster: &mut Cluster) -> (Vec<Blocker>, Apart) {
        let mut tally = Tally::default();
        for no in 0..cluster.slots.len() as SlotNo {
            self.look_at(cluster, no, &mut tally);
        }
        let ask = &self.asker.ask;
        let mut apart = Apart::of(self.asker.state, cluster, ask, self.claims);
        apart.note_shut(cluster, ask, &tally.open, &tally.shut);
        (self.summed_up(cluster, tally), apart)
    }

    fn summed_up(&self, cluster: &mut Cluster, mut tally: Tally) -> Vec<Blocker> {
        let open = tally.open.iter().copied();
        if fit::find_among(cluster, &self.asker.ask, open).is_some() {
            return Vec::new();
        }
        tally.spares += self.spares_once_empty(cluster, &tally);
        self.in_sum(tally)
    }

    fn look_at(&self, cluster: &Cluster, no: SlotNo, tally: &mut Tally) {
        let (slot, asker) = (cluster.get(no), self.asker);
        let Some(node) = asker.state.node(slot.node) else { return };
        let full = self.gives(cluster, &slot.emptied(true));
        if full == 0 || !cluster.labels_hold(slot, &asker.ask) {
            return;
        }
        tally.suitable.push(no);
        let before = tally.closed_nodes();
        tally.away += u32::from(node.link != Link::Up || !node.stale.is_empty());
        tally.draining += u32::from(node.drain.is_some());
        let (policy, now, until) = (asker.policy, asker.now, asker.until);
        let mut shut = None;
        for (at, _) in reservations_between(policy, cluster, no, asker.job, now, until) {
            *tally.reserved.entry(at).or_default() += 1;
            shut = Some(Shut::Reserved);
        }
        if !asker.restarted && self.spares.contains(&no) {
            tally.spares += 1;
            shut = shut.or(Some(Shut::Spare));
        }
        if asker.ports.contains(&slot.node) {
            tally.port += 1;
            shut = shut.or(Some(Shut::Port));
        }
        let closed = tally.closed_nodes() > before;
        let gives = self.gives(cluster, slot);
        if gives < full {
            self.look_at_tenants(cluster, slot, node, full, tally);
        }
        if gives > 0 && slot.standing == Standing::Open {
            match shut {
                Some(why) => tally.shut.push((no, why)),
                None if !closed => tally.open.push(no),
                None => {}
            }
        }
    }

    /// What keeps a node from giving as much as it could: leases, claims and fences, each if it alone
    /// does, or if the node would do without it; and all of them where only together they do.
    fn look_at_tenants(
        &self,
        cluster: &Cluster,
        slot: &Slot,
        node: &Node,
        full: u32,
        tally: &mut Tally,
    ) {
        let tenancy = self.tenancy(node);
        let lacks = |with: With| self.gives(cluster, &tenancy.slot(slot, with)) < full;
        let (all, none) = (With::ALL, With::NONE);
        let mut by = With {
            leases: lacks(With { leases: true, ..none }) || !lacks(With { leases: false, ..all }),
            kept: lacks(With { kept: true, ..none }) || !lacks(With { kept: false, ..all }),
            fences: lacks(With { fences: true, ..none }) || !lacks(With { fences: false, ..all }),
        };
        if lacks(With { leases: !by.leases, kept: !by.kept, fences: !by.fences }) {
            by = With::ALL;
        }
        tally.fenced += u32::from(by.fences && slot.cards.iter().any(|card| card.fenced));
        if by.kept {
            self.count_kept(cluster, slot, &tenancy, tally);
        }
        if by.leases {
            self.count_leases(cluster, slot, &tenancy, full, tally);
        }
    }

    fn tenancy(&self, node: &Node) -> Tenancy<'a> {
        let state = self.asker.state;
        let lease = |task: TaskId| {
            let job = state.job(task.job)?;
            let attempt = job.task(task.index)?.attempt()?;
            let part = attempt.part_on(node.id).filter(|p| !p.phase.is_over())?;
            Some((task, HeldPart::of(part, job.spec.exclusive)))
        };
        let leases = node.used.leases.iter().filter_map(|l| lease(l.task)).collect();
        let kept = self.claims.kept_on(state, node.id);
        let kept = kept.filter(|(task, _)| *task != self.asker.task).collect();
        Tenancy { leases, kept }
    }

    /// What is free and kept. What others still have is counted with them.
    fn count_kept(&self, cluster: &Cluster, slot: &Slot, tenancy: &Tenancy<'_>, tally: &mut Tally) {
        let leased =
            |gpu: GpuIndex| tenancy.leases.iter().any(|(_, held)| held.gpus.contains(&gpu));
        for (task, held) in &tenancy.kept {
            let usable = self.usable_cards(cluster, slot, held);
            let free = usable.filter(|card| !leased(card.index)).count() as u32;
            let sum = tally.kept.entry(*task).or_default();
            *sum = (sum.0 + free, sum.1 + 1);
        }
    }

    fn count_leases(
        &self,
        cluster: &Cluster,
        slot: &Slot,
        tenancy: &Tenancy<'_>,
        full: u32,
        tally: &mut Tally,
    ) {
        let (mut gpus, mut others) = (0, Vec::new());
        for (task, held) in &tenancy.leases {
            let usable = self.usable_cards(cluster, slot, held).count() as u32;
            if self.left_alone.contains_key(task) {
                let sum = tally.left_alone.entry(*task).or_default();
                *sum = (sum.0 + usable, sum.1 + 1);
            } else {
                gpus += usable;
                others.push((end_of(self.asker.state, *task, self.asker.now), held));
            }
        }
        if others.is_empty() {
            return;
        }
        tally.busy = (tally.busy.0 + 1, tally.busy.1 + gpus);
        // One after another goes, until the node gives what it can.
        others.sort_by_key(|(end, _)| (end.is_none(), *end));
        let mut free = slot.emptied(true);
        others.iter().for_each(|(_, held)| free.take(held));
        let mut ends = Some(self.asker.now);
        for (end, held) in &others {
            if self.gives(cluster, &free) >= full {
                break;
            }
            free.give_back(held);
            ends = *end;
        }
        tally.ends.push((ends, full));
    }

    /// GPUs of a part that the task could use if it were alone there.
    fn usable_cards<'s>(
        &self,
        cluster: &Cluster,
        slot: &'s Slot,
        held: &HeldPart<'_>,
    ) -> impl Iterator<Item = &'s Card> {
        let cards = slot.cards.iter().filter(|card| held.gpus.contains(&card.index));
        cards.filter(|card| cluster.suits_when_mended(card, &self.asker.ask))
    }

    /// What a node gives, whether it takes work or not: GPUs where only they count, else 1.
    fn gives(&self, cluster: &Cluster, slot: &Slot) -> u32 {
        let (ask, room) = (&self.asker.ask, cluster.usable(slot, &self.asker.ask));
        let alone = slot.alone || ask.demand.exclusive && !slot.is_empty();
        if alone || !room.holds(&ask.least()) || ask.names_models() && room.gpus == 0 {
            return 0;
        }
        match ask.spread {
            Spread::Nodes { .. } => 1,
            Spread::Gpus { .. } => ask.share_of(&room),
        }
    }

    /// Nodes that would be kept empty as spares as soon as they were, where the rest is not enough.
    fn spares_once_empty(&self, cluster: &mut Cluster, tally: &Tally) -> u32 {
        if self.asker.policy.spares.is_empty() || self.asker.restarted {
            return 0;
        }
        let emptied = |no: &SlotNo| (*no, cluster.get(*no).emptied(true));
        let later: BTreeMap<SlotNo, Slot> = tally.suitable.iter().map(emptied).collect();
        // Which node is the last empty one depends on who else leaves: nobody, or everybody.
        let suitable: BTreeSet<NodeId> = later.values().map(|slot| slot.node).collect();
        let soon = |slot: &Slot| suitable.contains(&slot.node) || is_empty_and_open(slot);
        let mut spares = spare_slots(self.asker.policy, cluster, &soon);
        spares.extend(spare_slots(self.asker.policy, cluster, &|_| true));
        cluster.with_slots(later, |cluster| {
            let rest = tally.suitable.iter().copied().filter(|no| !spares.contains(no));
            match fit::find_among(cluster, &self.asker.ask, rest) {
                Some(_) => 0,
                None => {
                    let new = |no: &&SlotNo| spares.contains(no) && !self.spares.contains(no);
                    tally.suitable.iter().filter(new).count() as u32
                }
            }
        })
    }

    fn in_sum(&self, tally: Tally) -> Vec<Blocker> {
        let busy_until = self.enough_by(&tally);
        let mut found = Vec::new();
        for (at, nodes) in &tally.reserved {
            let Some(r) = self.asker.policy.reservations.get(*at as usize) else { continue };
            let (name, team, nodes) = (r.name.clone(), r.team.clone(), *nodes);
            let what = Obstacle::Reservation { name, team, from: r.from, nodes };
            found.push(Blocker::new(what, Some(r.until)));
        }
        let kept = tally.kept.iter();
        let mut kept: Vec<KeptFor> =
            kept.map(|(&task, &(gpus, nodes))| KeptFor { task, gpus, nodes }).collect();
        kept.sort_by_key(|kept| (std::cmp::Reverse(kept.gpus), kept.task));
        found.extend(kept.into_iter().take(NAMED_MAX).map(|KeptFor { task, gpus, nodes }| {
            Blocker::new(Obstacle::KeptFor { task, gpus, nodes }, None)
        }));
        let left_alone = tally.left_alone.iter().take(NAMED_MAX);
        found.extend(left_alone.map(|(&task, &(gpus, nodes))| {
            // It may be over sooner by itself.
            let until = self.left_alone.get(&task).copied();
            let until = until.into_iter().chain(end_of(self.asker.state, task, self.asker.now));
            Blocker::new(Obstacle::LeftAlone { task, gpus, nodes }, until.min())
        }));
        let (nodes, gpus) = tally.busy;
        let counted = [
            (nodes, Obstacle::Busy { nodes, gpus }, busy_until),
            (tally.draining, Obstacle::Draining { nodes: tally.draining }, None),
            (tally.away, Obstacle::Away { nodes: tally.away }, None),
            (tally.fenced, Obstacle::Fenced { nodes: tally.fenced }, None),
            (tally.port, Obstacle::Port { nodes: tally.port }, None),
            (tally.spares, Obstacle::Spares { nodes: tally.spares }, None),
        ];
        let counted = counted.into_iter().filter(|(nodes, ..)| *nodes > 0);
        found.extend(counted.map(|(_, what, until)| Blocker::new(what, until)));
        found
    }

    /// When enough of those who are there have used up their limits, wherever that is.
    fn enough_by(&self, tally: &Tally) -> Option<Time> {
        let ask = &self.asker.ask;
        let (wanted, mut have) = match ask.node_counts() {
            Some((_, least)) => (u64::from(least), tally.open.len() as u64),
            None => (ask.least_gpus(), 0),
        };
        let mut ends = tally.ends.clone();
        ends.sort_by_key(|(end, _)| (end.is_none(), *end));
        for (end, gives) in ends {
            have += u64::from(gives);
            if have >= wanted {
                return end;
            }
        }
        None
    }
}

impl Tenancy<'_> {
    /// The node as it would be with only these things there.
    fn slot(&self, slot: &Slot, with: With) -> Slot {
        let mut seen = slot.emptied(!with.fences);
        let leases = self.leases.iter().filter(|_| with.leases);
        leases.chain(self.kept.iter().filter(|_| with.kept)).for_each(|(_, held)| seen.take(held));
        seen
    }
}

impl Tally {
    /// How often a node was found closed, whatever is free on it.
    fn closed_nodes(&self) -> u32 {
        let reserved: u32 = self.reserved.values().sum();
        self.away + self.draining + reserved + self.port + self.spares
    }
}
