//! When the head of the queue can start, and what others must leave alone so that it does.

use std::collections::BTreeMap;

use tutti_model::{Job, NodeId, PartPlacement, Policy, State, TaskId, Time, Topology};

use crate::ask::{Ask, Need, Room};
use crate::candidates::Page;
use crate::cluster::{Cluster, HeldPart, Share, Slot, SlotNo};
use crate::domains::DomainNo;

/// How many ends of running tasks are looked at to find a start. Beyond that the start is unknown,
/// and patience takes over.
const LOOK_AHEAD: usize = 4000;

/// A blocked task, when it can start, and what is left beside it on its nodes then.
#[derive(Clone, Debug)]
pub(crate) struct HeadRoom {
    pub task: TaskId,
    pub at: Time,
    spare: BTreeMap<SlotNo, Room>,
}

impl HeadRoom {
    pub fn nodes(&self, cluster: &Cluster) -> Vec<NodeId> {
        self.spare.keys().map(|&no| cluster.get(no).node).collect()
    }

    /// Whether something that ends then (none: not known) may use this node.
    pub fn allows(&self, slot: SlotNo, need: &Need, ends: Option<Time>) -> bool {
        let Some(spare) = self.spare.get(&slot) else { return true };
        ends.is_some_and(|end| end <= self.at) || spare.holds(need)
    }

    /// Something was placed; if it is still there when the head starts, less is left beside it.
    pub fn note(&mut self, slot: SlotNo, need: &Need, ends: Option<Time>) {
        if ends.is_some_and(|end| end <= self.at) {
            return;
        }
        if let Some(spare) = self.spare.get_mut(&slot) {
            spare.gpus = spare.gpus.saturating_sub(need.gpus);
            spare.cpus = spare.cpus.saturating_sub(need.cpus);
            spare.mem.0 = spare.mem.0.saturating_sub(need.mem.0);
        }
    }
}

/// When a task that starts now will have ended: by its limit, or by what was learned of its kind.
pub(crate) fn ends_at(state: &State, policy: &Policy, job: &Job, start: Time) -> Option<Time> {
    let learned = || {
        let longest = policy.durations.learn.then(|| state.learned.longest_run(job))??;
        let margin = longest.0 / 100 * u64::from(policy.durations.margin_percent);
        Some(tutti_model::Span(longest.0 + margin))
    };
    job.spec.time.or_else(learned).map(|span| start.plus(span))
}

/// Ends of what holds room, soonest first.
pub(crate) struct Ends<'a> {
    pub state: &'a State,
    pub policy: &'a Policy,
    pub now: Time,
    /// What this very pass placed.
    pub placed: &'a BTreeMap<(Time, TaskId), Vec<PartPlacement>>,
}

impl<'a> Ends<'a> {
    fn soonest(&self) -> Vec<(Time, TaskId)> {
        let mut ends: Vec<(Time, TaskId)> = if self.policy.durations.learn {
            self.state.index.active.iter().filter_map(|&id| Some((self.end_of(id)?, id))).collect()
        } else {
            self.state.index.limits.iter().take(LOOK_AHEAD).copied().collect()
        };
        ends.extend(self.placed.keys().copied());
        ends.sort();
        ends.truncate(LOOK_AHEAD);
        ends
    }

    fn end_of(&self, id: TaskId) -> Option<Time> {
        let job = self.state.job(id.job)?;
        let since = job.task(id.index)?.attempt()?.running_since()?;
        // What has run longer than expected may end any moment.
        ends_at(self.state, self.policy, job, since).map(|end| end.max(self.now))
    }

    /// Gives back what the task holds, node by node.
    fn release(&self, id: TaskId, mut give: impl FnMut(NodeId, HeldPart<'_>)) {
        let job = self.state.job(id.job);
        let alone = job.is_some_and(|j| j.spec.exclusive);
        if let Some(attempt) = job.and_then(|j| j.task(id.index)).and_then(|t| t.attempt()) {
            for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
                give(part.node, HeldPart::of(part, alone));
            }
        }
        for ((_, task), parts) in self.placed {
            for p in parts.iter().filter(|_| *task == id) {
                let (share, cpus, mem) = (p.share, p.cpus, p.mem);
                give(p.node, HeldPart { gpus: &p.gpus, share, cpus, mem, alone });
            }
        }
    }
}

/// The first known end at which the ask fits. None if no known end is enough.
pub(crate) fn head(
    cluster: &Cluster,
    page: &Page,
    task: TaskId,
    ends: &Ends<'_>,
    may_use: &dyn Fn(SlotNo) -> bool,
) -> Option<HeadRoom> {
    let mut search = Search::new(cluster, page, may_use);
    if let Some(domain) = search.enough() {
        return Some(search.room(task, ends.now, domain));
    }
    for (at, id) in ends.soonest() {
        ends.release(id, |node, held| search.give_back(node, &held));
        if let Some(domain) = search.enough() {
            return Some(search.room(task, at, domain));
        }
    }
    None
}

struct Search<'a> {
    cluster: &'a Cluster,
    page: &'a Page,
    may_use: &'a dyn Fn(SlotNo) -> bool,
    /// Nodes as they will be.
    later: BTreeMap<SlotNo, Slot>,
    gives: BTreeMap<SlotNo, u32>,
    by_domain: BTreeMap<DomainNo, u64>,
    wanted: u64,
    /// The domain that got something last: the only one that can have become enough.
    touched: Vec<DomainNo>,
}

impl<'a> Search<'a> {
    fn new(
        cluster: &'a Cluster,
        page: &'a Page,
        may_use: &'a dyn Fn(SlotNo) -> bool,
    ) -> Search<'a> {
        let wanted = match page.ask.node_counts() {
            Some((_, least)) => least.into(),
            None => page.ask.least_gpus(),
        };
        let mut search = Search {
            cluster,
            page,
            may_use,
            later: BTreeMap::new(),
            gives: BTreeMap::new(),
            by_domain: BTreeMap::new(),
            wanted,
            touched: Vec::new(),
        };
        for no in page.fitting().filter(|&no| may_use(no)) {
            search.set(no, offer(cluster, &page.ask, cluster.get(no)));
        }
        search
    }

    fn domain(&self, no: SlotNo) -> DomainNo {
        match self.page.ask.within() {
            Topology::Island | Topology::Node => no,
            within => self.cluster.get(no).path.at(within),
        }
    }

    fn set(&mut self, no: SlotNo, gives: u32) {
        let before = self.gives.insert(no, gives).unwrap_or(0);
        let domain = self.domain(no);
        let sum = self.by_domain.entry(domain).or_default();
        *sum = *sum + u64::from(gives) - u64::from(before);
        self.touched.push(domain);
    }

    fn give_back(&mut self, node: NodeId, held: &HeldPart<'_>) {
        let Some(no) = self.cluster.slot_of(node) else { return };
        if !self.page.is_suitable_and_open(no) || !(self.may_use)(no) {
            return;
        }
        let cluster = self.cluster;
        let slot = self.later.entry(no).or_insert_with(|| cluster.get(no).clone());
        slot.give_back(held);
        let gives = offer(cluster, &self.page.ask, slot);
        self.set(no, gives);
    }

    fn enough(&mut self) -> Option<DomainNo> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().find(|d| self.by_domain[d] >= self.wanted)
    }

    /// Nodes that are free soonest come first: those that need nobody's end.
    fn room(self, task: TaskId, at: Time, domain: DomainNo) -> HeadRoom {
        let in_domain = |no: &SlotNo| self.domain(*no) == domain && self.gives[no] > 0;
        let mut nodes: Vec<SlotNo> = self.gives.keys().copied().filter(in_domain).collect();
        nodes.sort_by_key(|no| (self.later.contains_key(no), *no));
        let ask = &self.page.ask;
        let mut left = self.wanted;
        let mut spare = BTreeMap::new();
        for no in nodes {
            if left == 0 {
                break;
            }
            let slot = self.later.get(&no).unwrap_or_else(|| self.cluster.get(no));
            let share = match ask.node_counts() {
                Some(_) => Share { slot: no, gpus: ask.least().gpus },
                None => Share { slot: no, gpus: (self.gives[&no]).min(left as u32) },
            };
            left -= if ask.node_counts().is_some() { 1 } else { u64::from(share.gpus) };
            spare.insert(no, beside(self.cluster, ask, slot, &ask.need(share.gpus)));
        }
        HeadRoom { task, at, spare }
    }
}

/// What a node adds to the ask: GPUs where only they count, else 1.
fn offer(cluster: &Cluster, ask: &Ask, slot: &Slot) -> u32 {
    let least = ask.least();
    if !cluster.fits(slot, ask, &least) {
        return 0;
    }
    match ask.node_counts() {
        Some(_) => 1,
        None => ask.share_of(&cluster.usable(slot, ask)),
    }
}

fn beside(cluster: &Cluster, ask: &Ask, slot: &Slot, need: &Need) -> Room {
    if ask.demand.exclusive {
        return Room::default();
    }
    let room = cluster.usable(slot, ask);
    Room {
        gpus: room.gpus.saturating_sub(need.gpus),
        cpus: room.cpus.saturating_sub(need.cpus),
        mem: tutti_model::Bytes(room.mem.0.saturating_sub(need.mem.0)),
    }
}
