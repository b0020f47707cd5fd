//! What keeps a task off a node that has room for it: reservations, spares, heads of the queue, models
//! of which its team may have no more, and a port that somebody else has there.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{Job, NodeId, Policy, Reservation, Shortage, Time, Topology, Verdict};

use crate::ask::Ask;
use crate::backfill::HeadRoom;
use crate::candidates::Page;
use crate::cluster::{Cluster, Share, Slot, SlotNo};
use crate::fit;

pub(crate) struct Bars<'b> {
    pub policy: &'b Policy,
    pub now: Time,
    pub cluster: &'b Cluster,
    pub heads: &'b [HeadRoom],
    /// None if it may use them.
    pub spares: Option<&'b BTreeSet<SlotNo>>,
    pub job: &'b Job,
    pub ask: &'b Ask,
    /// When it will have ended, if anybody knows.
    pub ends: Option<Time>,
    /// Models of which its team has all it may have.
    pub models: &'b [usize],
    /// Where somebody else listens on its port.
    pub ports: &'b BTreeSet<NodeId>,
}

impl<'b> Bars<'b> {
    fn until(&self) -> Time {
        self.ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed))
    }

    /// Whether there are any but for the heads.
    pub fn has_standing(&self) -> bool {
        !self.policy.reservations.is_empty()
            || self.spares.is_some_and(|s| !s.is_empty())
            || !self.models.is_empty()
            || !self.ports.is_empty()
    }

    /// Where its files are, if there is room there; else anywhere.
    pub fn find(
        &self,
        page: &Page,
        near: &BTreeSet<NodeId>,
        avoid: &BTreeSet<NodeId>,
    ) -> Option<Vec<Share>> {
        let allows = |slot, gpus| self.allows(slot, gpus);
        let close: BTreeSet<&NodeId> = near.difference(avoid).collect();
        let is_close = |slot| close.contains(&self.cluster.get(slot).node);
        let there = |slot, gpus| is_close(slot) && allows(slot, gpus);
        let found = || fit::find(self.cluster, page, &there, avoid);
        let found = if close.is_empty() { None } else { found() };
        found.or_else(|| fit::find(self.cluster, page, &allows, avoid))
    }

    pub fn allows(&self, slot: SlotNo, gpus: u32) -> bool {
        self.allows_but_for_heads(slot) && !self.delays_any(slot, gpus)
    }

    /// Whether it could be there if it listened elsewhere.
    pub fn allows_another_port(&self, slot: SlotNo, gpus: u32) -> bool {
        self.is_open(slot) && !self.delays_any(slot, gpus)
    }

    pub fn allows_but_for_heads(&self, slot: SlotNo) -> bool {
        self.is_open(slot) && !self.has_its_port(slot)
    }

    fn has_its_port(&self, slot: SlotNo) -> bool {
        !self.ports.is_empty() && self.ports.contains(&self.cluster.get(slot).node)
    }

    fn is_open(&self, slot: SlotNo) -> bool {
        self.spares.is_none_or(|spares| !spares.contains(&slot))
            && self.reservation(slot).is_none()
            && (self.models.is_empty() || !self.has_barred_model(slot))
    }

    fn delays_any(&self, slot: SlotNo, gpus: u32) -> bool {
        if self.heads.is_empty() {
            return false;
        }
        let need = self.ask.need(gpus);
        let alone = self.ask.demand.exclusive;
        !self.heads.iter().all(|head| head.allows(slot, &need, alone, self.ends))
    }

    fn reservation(&self, slot: SlotNo) -> Option<&'b Reservation> {
        reservation(self.policy, self.cluster, slot, self.job, self.now, self.until())
    }

    fn has_barred_model(&self, slot: SlotNo) -> bool {
        let cards = self.cluster.get(slot).cards.iter();
        cards
            .filter(|c| self.models.contains(&usize::from(c.model)))
            .any(|c| self.cluster.suits(c, self.ask))
    }

    /// The head that it would delay.
    pub fn behind(&self, page: &Page) -> Option<Verdict> {
        let gpus = self.ask.least().gpus;
        let need = self.ask.need(gpus);
        let alone = self.ask.demand.exclusive;
        let delayed = |head: &&HeadRoom| {
            let mut free = page.fitting().filter(|s| self.allows_but_for_heads(*s));
            free.any(|slot| !head.allows(slot, &need, alone, self.ends))
        };
        let head = self.heads.iter().find(delayed).or(self.heads.first())?;
        Some(Verdict::Behind { job: head.task.job })
    }

    /// There is room, but too little of it may be used, whoever else waits.
    pub fn verdict(&self, page: &Page) -> Verdict {
        let (mut kept, mut reserved, mut port, mut by) = (0, 0, 0, None);
        for slot in page.fitting() {
            match self.reservation(slot) {
                Some(r) => {
                    reserved += 1;
                    by = by.or(Some(r));
                }
                None if !self.is_open(slot) => kept += 1,
                None => port += u32::from(self.has_its_port(slot)),
            }
        }
        let mut shortage = match page.verdict(self.cluster) {
            Verdict::Busy(s) | Verdict::NodesUnavailable(s) => s,
            _ => Shortage::default(),
        };
        shortage.nodes_fitting = shortage.nodes_fitting.saturating_sub(kept + reserved + port);
        let blocked = &mut shortage.blocked;
        (blocked.kept, blocked.reserved, blocked.port) = (kept, reserved, port);
        match by {
            Some(r) => Verdict::Reserved { reservation: r.name.clone(), until: r.until, shortage },
            None => Verdict::Busy(shortage),
        }
    }
}

/// The reservation that keeps a job off a node between two times, if any.
pub(crate) fn reservation<'p>(
    policy: &'p Policy,
    cluster: &Cluster,
    slot: SlotNo,
    job: &Job,
    from: Time,
    until: Time,
) -> Option<&'p Reservation> {
    reservations_between(policy, cluster, slot, job, from, until).next().map(|(_, r)| r)
}

/// All of them, with their numbers.
pub(crate) fn reservations_between<'p>(
    policy: &'p Policy,
    cluster: &Cluster,
    slot: SlotNo,
    job: &Job,
    from: Time,
    until: Time,
) -> impl Iterator<Item = (u32, &'p Reservation)> {
    let all = cluster.get(slot).reservations.iter();
    let meant = all.filter_map(|&n| Some((n, policy.reservations.get(n as usize)?)));
    meant.filter(move |(_, r)| {
        let meets = r.from < until.max(Time(from.0 + 1)) && r.until > from;
        let theirs =
            r.team.as_ref().is_some_and(|t| policy.line_of(&job.team).contains(&t.as_str()));
        meets && !theirs
    })
}

/// In every domain that is to have spares, the last nodes that could be.
pub(crate) fn spare_slots(
    policy: &Policy,
    cluster: &Cluster,
    could_be: &dyn Fn(&Slot) -> bool,
) -> BTreeSet<SlotNo> {
    let mut spares = BTreeSet::new();
    for spare in &policy.spares {
        let level = spare.per.max(Topology::Rack);
        let mut empty: BTreeMap<u32, Vec<SlotNo>> = BTreeMap::new();
        for (no, slot) in (0..).zip(&cluster.slots).filter(|(_, slot)| could_be(slot)) {
            empty.entry(slot.path.at(level)).or_default().push(no);
        }
        for nodes in empty.values() {
            spares.extend(nodes.iter().rev().take(spare.nodes as usize));
        }
    }
    spares
}
