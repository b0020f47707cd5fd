//! When the head of the queue can start, and what others must leave alone so that it does.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Attempt, AttemptPhase, Job, NodeId, PartPlacement, Policy, Span, State, TaskId, Time, Topology,
};

use crate::ask::{Ask, Need, Room};
use crate::candidates::Page;
use crate::cluster::{Cluster, HeldPart, Slot, SlotNo};
use crate::domains::DomainNo;

/// How many ends of running tasks are looked at to find a start. Beyond that the start is unknown,
/// and patience takes over.
const LOOK_AHEAD: usize = 4000;

/// A blocked task, when it can start, and what is left beside it on its nodes then.
#[derive(Clone, Debug)]
pub(crate) struct HeadRoom {
    pub task: TaskId,
    pub at: Time,
    nodes: BTreeMap<SlotNo, Kept>,
}

/// What a blocked task will use of a node.
#[derive(Clone, Debug)]
struct Kept {
    part: PartPlacement,
    /// It will have the node alone.
    alone: bool,
    beside: Room,
}

impl HeadRoom {
    pub fn nodes(&self, cluster: &Cluster) -> Vec<NodeId> {
        self.nodes.keys().map(|&no| cluster.get(no).node).collect()
    }

    pub fn slots(&self) -> impl Iterator<Item = SlotNo> + '_ {
        self.nodes.keys().copied()
    }

    /// Whether something that ends then (none: not known) may use this node.
    pub fn allows(&self, slot: SlotNo, need: &Need, alone: bool, ends: Option<Time>) -> bool {
        let Some(kept) = self.nodes.get(&slot) else { return true };
        let gone = ends.is_some_and(|end| end <= self.at);
        gone || (!alone && !kept.alone && kept.beside.holds(need))
    }

    /// Something was placed; if it is still there when the head starts, less is left beside it.
    pub fn note(&mut self, slot: SlotNo, need: &Need, ends: Option<Time>) {
        if ends.is_some_and(|end| end <= self.at) {
            return;
        }
        if let Some(Kept { beside, .. }) = self.nodes.get_mut(&slot) {
            beside.gpus = beside.gpus.saturating_sub(need.gpus);
            beside.cpus = beside.cpus.saturating_sub(need.cpus);
            beside.mem.0 = beside.mem.0.saturating_sub(need.mem.0);
        }
    }
}

/// When a task that starts now will have ended: by its limit, or by what was learned of its kind.
pub(crate) fn ends_at(state: &State, policy: &Policy, job: &Job, start: Time) -> Option<Time> {
    let learned = || {
        let longest = policy.durations.learn.then(|| state.learned.longest_run(job))??;
        let margin = longest.0 / 100 * u64::from(policy.durations.margin_percent);
        Some(Span(longest.0 + margin))
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
    /// What this very pass stops.
    pub victims: &'a BTreeSet<TaskId>,
}

/// Time between SIGTERM and SIGKILL for a job that does not say.
const GRACE: Span = Span::secs(30);

/// About how long it takes until what is being suspended has left its GPUs.
const SUSPENDS: Span = Span::secs(30);

impl<'a> Ends<'a> {
    fn soonest(&self, cluster: &Cluster) -> Vec<(Time, TaskId)> {
        let (state, now) = (self.state, self.now);
        let end = |id: TaskId| Some((self.end_of(id)?, id));
        let mut ends: Vec<(Time, TaskId)> = if self.policy.durations.learn {
            state.index.active.iter().filter_map(|&id| end(id)).collect()
        } else {
            let limits = state.index.limits.iter().take(LOOK_AHEAD);
            let limits = limits.filter(|(_, id)| self.runs_on(*id));
            let known = limits.map(|&(at, id)| (at.max(now), id));
            // The index of limits has only what runs.
            let rest = cluster.unsettled().chain(self.victims.iter().copied());
            let rest = rest.filter(|id| !self.runs_on(*id)).filter_map(end);
            known.chain(rest).collect()
        };
        ends.extend(self.placed.keys().copied());
        ends.sort();
        ends.dedup();
        ends.truncate(LOOK_AHEAD);
        ends
    }

    fn attempt(&self, id: TaskId) -> Option<(&'a Job, &'a Attempt)> {
        let job = self.state.job(id.job)?;
        Some((job, job.task(id.index)?.attempt()?))
    }

    /// Runs, and nobody stops it.
    fn runs_on(&self, id: TaskId) -> bool {
        let runs = |(_, a): (_, &Attempt)| {
            matches!(a.phase, AttemptPhase::Running { .. }) && !self.is_about_to_end(a)
        };
        !self.victims.contains(&id) && self.attempt(id).is_some_and(runs)
    }

    fn end_of(&self, id: TaskId) -> Option<Time> {
        let (job, attempt) = self.attempt(id)?;
        let grace = job.spec.checkpoint.as_ref().and_then(|c| c.grace).or(job.spec.grace);
        let end = match attempt.phase {
            AttemptPhase::Stopping { since, .. } => Some(since.plus(grace.unwrap_or(GRACE))),
            _ if self.victims.contains(&id) => Some(self.now.plus(grace.unwrap_or(GRACE))),
            AttemptPhase::Running { .. } if self.is_about_to_end(attempt) => Some(self.now),
            AttemptPhase::Running { since } => ends_at(self.state, self.policy, job, since),
            // Its time begins when all of it runs.
            AttemptPhase::Starting => ends_at(self.state, self.policy, job, self.now),
            AttemptPhase::Suspending { .. } => Some(self.now.plus(SUSPENDS)),
            // What it still has it keeps until it has run on, and nobody knows when.
            AttemptPhase::Suspended { .. } => None,
            AttemptPhase::Waking { .. } => {
                ends_at(self.state, self.policy, job, attempt.running_since(self.now)?)
            }
        };
        // What has run longer than expected may end any moment.
        end.map(|end| end.max(self.now))
    }

    /// The parts of a gang end one after another. Where the rest takes long after all, its limit is
    /// what is known.
    fn is_about_to_end(&self, attempt: &Attempt) -> bool {
        let ended = attempt.ended_in_part_at();
        ended.is_some_and(|at| self.now.since(at) <= self.policy.patience)
    }

    /// Gives back what the task holds, node by node.
    fn release(&self, at: Time, id: TaskId, mut give: impl FnMut(NodeId, HeldPart<'_>)) {
        let job = self.state.job(id.job);
        let alone = job.is_some_and(|j| j.spec.exclusive);
        if let Some(attempt) = job.and_then(|j| j.task(id.index)).and_then(|t| t.attempt()) {
            let suspends = matches!(attempt.phase, AttemptPhase::Suspending { .. });
            for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
                let all = HeldPart::of(part, alone);
                give(part.node, if suspends { all.lent() } else { all });
            }
        }
        for p in self.placed.get(&(at, id)).into_iter().flatten() {
            give(p.node, HeldPart::placed(p, alone));
        }
    }
}

/// The first known end at which the ask fits beside the heads before it. None if no known end is
/// enough.
pub(crate) fn head(
    cluster: &Cluster,
    page: &Page,
    task: TaskId,
    ends: &Ends<'_>,
    before: &[HeadRoom],
    may_use: &dyn Fn(SlotNo) -> bool,
) -> Option<HeadRoom> {
    let mut search = Search::new(cluster, page, before, may_use);
    if let Some(domain) = search.enough() {
        return Some(search.room(task, ends.now, domain));
    }
    let mut last = ends.now;
    for (at, id) in ends.soonest(cluster) {
        // All that ends at one time ends before anything starts.
        if at > last
            && let Some(domain) = search.enough()
        {
            return Some(search.room(task, last, domain));
        }
        last = at;
        ends.release(at, id, |node, held| search.give_back(node, &held));
    }
    search.enough().map(|domain| search.room(task, last, domain))
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
    /// Domains that got something: only they can have become enough.
    touched: Vec<DomainNo>,
}

impl<'a> Search<'a> {
    fn new(
        cluster: &'a Cluster,
        page: &'a Page,
        before: &[HeadRoom],
        may_use: &'a dyn Fn(SlotNo) -> bool,
    ) -> Search<'a> {
        let wanted = match page.ask.node_counts() {
            Some((_, least)) => least.into(),
            None => page.ask.least_gpus(),
        };
        let mut later: BTreeMap<SlotNo, Slot> = BTreeMap::new();
        for (&no, kept) in before.iter().flat_map(|head| &head.nodes) {
            let slot = later.entry(no).or_insert_with(|| cluster.get(no).clone());
            slot.take(&HeldPart::placed(&kept.part, kept.alone));
        }
        let mut search = Search {
            cluster,
            page,
            may_use,
            later,
            gives: BTreeMap::new(),
            by_domain: BTreeMap::new(),
            wanted,
            touched: Vec::new(),
        };
        for no in page.fitting().filter(|&no| may_use(no)) {
            let slot = search.later.get(&no).unwrap_or_else(|| cluster.get(no));
            search.set(no, offer(cluster, &page.ask, slot));
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
        let mut all: Vec<SlotNo> = self.gives.keys().copied().filter(in_domain).collect();
        all.sort_by_key(|no| (self.later.contains_key(no), *no));
        let ask = &self.page.ask;
        let mut left = self.wanted;
        let mut nodes = BTreeMap::new();
        for no in all {
            if left == 0 {
                break;
            }
            let slot = self.later.get(&no).unwrap_or_else(|| self.cluster.get(no));
            let gpus = match ask.node_counts() {
                Some(_) => ask.least().gpus,
                None => (self.gives[&no]).min(left as u32),
            };
            left -= if ask.node_counts().is_some() { 1 } else { u64::from(gpus) };
            nodes.insert(no, keep(self.cluster, ask, slot, gpus));
        }
        HeadRoom { task, at, nodes }
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

fn keep(cluster: &Cluster, ask: &Ask, slot: &Slot, gpus: u32) -> Kept {
    let need = ask.need(gpus);
    let room = cluster.usable(slot, ask);
    let beside = Room {
        gpus: room.gpus.saturating_sub(need.gpus),
        cpus: room.cpus.saturating_sub(need.cpus),
        mem: tutti_model::Bytes(room.mem.0.saturating_sub(need.mem.0)),
    };
    let cards = cluster.fitting_cards(slot, ask).take(gpus as usize).map(|c| c.index);
    let part = PartPlacement {
        node: slot.node,
        gpus: cards.collect(),
        cpus: need.cpus,
        mem: need.mem,
        ranks: ask.demand.ranks_for(gpus),
        share: ask.demand.share,
    };
    Kept { part, alone: ask.demand.exclusive, beside }
}

#[cfg(test)]
mod tests;
