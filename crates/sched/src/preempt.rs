//! Who is stopped so that a job can start: the cheapest set of victims that really makes it fit,
//! or nobody.
//!
//! Only tasks of a lower class, or tasks that borrowed what a guarantee gives to the claimant's
//! team. A gang is stopped whole; an elastic one may give up single nodes instead. Nothing here is
//! done: the plan names the victims, the checker proves the choice again, the engine acts.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Attempt, AttemptPhase, ClaimCause, Job, NewClaim, Part, PartPlacement, PreemptMode, Span, Stop,
    Task, TaskId, Topology, Victim,
};

use crate::ask::Ask;
use crate::candidates::{Page, PageNo};
use crate::cluster::{Cluster, HeldPart, Slot, SlotNo};
use crate::domains::DomainNo;
use crate::fit;
use crate::pass::Pass;
use crate::teams::{Wanted, by_model};

/// All sets are tried when there are this few candidates.
const TRY_ALL: usize = 10;
/// Candidates of one node among which all sets are tried.
const TRY_ALL_ON_NODE: usize = 8;

/// Something that can be stopped: a whole attempt, or one part of an elastic one.
#[derive(Clone, Debug)]
struct Candidate<'a> {
    task: TaskId,
    cost: u64,
    parts: Vec<(SlotNo, &'a Part)>,
    alone: bool,
    /// A single part of an elastic attempt that can give up this many.
    of_group: Option<u32>,
}

pub(crate) fn search<'a>(
    pass: &mut Pass<'a, '_>,
    page: PageNo,
    task: TaskId,
    job: &'a Job,
    team: usize,
    rank: i32,
) -> Option<NewClaim> {
    let causes = [ClaimCause::Class, ClaimCause::Guarantee];
    let claims =
        causes.into_iter().filter_map(|cause| for_cause(pass, page, task, job, team, rank, cause));
    claims.min_by_key(|claim| claim.victims.iter().map(|v| v.cost).sum::<u64>())
}

fn for_cause<'a>(
    pass: &mut Pass<'a, '_>,
    page_no: PageNo,
    task: TaskId,
    job: &'a Job,
    team: usize,
    rank: i32,
    cause: ClaimCause,
) -> Option<NewClaim> {
    if !could_help(pass, page_no, team, rank, cause) {
        return None;
    }
    let may_use: BTreeSet<SlotNo> = {
        let slots = 0..pass.view.cluster.slots.len() as SlotNo;
        slots.filter(|&no| pass.may_use(no, job)).collect()
    };
    let candidates = candidates(pass, task, team, rank, cause);
    if candidates.is_empty() {
        return None;
    }
    let view = &mut *pass.view;
    let page = view.book.read(page_no, &view.cluster, &view.valuer);
    let hunt = Hunt::new(&view.cluster, page, &candidates, &may_use);
    let mut chosen = hunt.cheapest(pass.policy.preemption.victims_max)?;
    if cause == ClaimCause::Guarantee {
        chosen = within_guarantees(pass, &candidates, chosen, team)?;
    }
    let view = &*pass.view;
    let parts = placement(view, page_no, &candidates, &chosen, &may_use)?;
    let over = pass.teams.over_limit(team, &by_model(&view.cluster, &parts), &view.cluster.models);
    if over.is_some() {
        return None;
    }
    let victims = victims(&candidates, &chosen, pass);
    Some(NewClaim { task, parts, cause, victims })
}

/// A quick look before an expensive search.
fn could_help(
    pass: &Pass<'_, '_>,
    page: PageNo,
    team: usize,
    rank: i32,
    cause: ClaimCause,
) -> bool {
    match cause {
        ClaimCause::Class => {
            let mut running = pass.view.cluster.classes.iter().filter(|(_, n)| **n > 0);
            running.any(|(class, _)| pass.policy.class_rank(class) < rank)
        }
        _ => {
            let models = &pass.view.cluster.models;
            let wanted = Wanted::by(pass.view.book.ask(page), models);
            pass.teams.in_guarantee(team, &wanted)
        }
    }
}

fn candidates<'a>(
    pass: &Pass<'a, '_>,
    claimant: TaskId,
    team: usize,
    rank: i32,
    cause: ClaimCause,
) -> Vec<Candidate<'a>> {
    let state = pass.state;
    let mut found = Vec::new();
    for &id in &state.index.active {
        let Some(job) = state.job(id.job) else { continue };
        let Some(task) = job.task(id.index) else { continue };
        let Some(attempt) = task.attempt() else { continue };
        if id == claimant || pass.victims.contains(&id) || !may_stop(pass, job, task, attempt) {
            continue;
        }
        let class = job.spec.class.as_deref().unwrap_or(tutti_model::DEFAULT_CLASS);
        let class = pass.policy.class_rank(class);
        let allowed = match cause {
            ClaimCause::Class => class < rank,
            _ => class <= rank && borrows(pass, &job.team, team),
        };
        if allowed {
            add(pass, id, job, attempt, &mut found);
        }
    }
    found
}

fn borrows(pass: &Pass<'_, '_>, of: &str, claimant: usize) -> bool {
    match pass.teams.find(of) {
        Some(of) => {
            of != claimant
                && pass.teams.is_beyond_guarantee(of, claimant, &pass.view.cluster.models)
        }
        // A team that the policy does not know has no guarantee.
        None => true,
    }
}

fn may_stop(pass: &Pass<'_, '_>, job: &Job, task: &Task, attempt: &Attempt) -> bool {
    let again = task.preempted_at.is_some()
        && pass.now.since(attempt.placed_at) < pass.policy.preemption.not_again_within;
    let never = job.spec.preempt.as_ref().is_some_and(|p| p.mode == PreemptMode::Never);
    let claimed = pass.state.claims.contains_key(&TaskId { job: job.id, index: None });
    let stopping = matches!(attempt.phase, AttemptPhase::Stopping { .. });
    !again && !never && !stopping && !claimed
}

fn add<'a>(
    pass: &Pass<'a, '_>,
    task: TaskId,
    job: &'a Job,
    attempt: &'a Attempt,
    found: &mut Vec<Candidate<'a>>,
) {
    let cluster = &pass.view.cluster;
    let slot = |p: &'a Part| Some((cluster.slot_of(p.node)?, p));
    let parts: Vec<_> =
        attempt.parts.iter().filter(|p| !p.phase.is_over()).filter_map(slot).collect();
    let alone = job.spec.exclusive;
    if let Some(elastic) = &job.spec.elastic {
        let spare = (parts.len() as u32).saturating_sub(elastic.min_nodes.max(1));
        for part in parts.iter().filter(|_| spare > 0) {
            let parts = vec![*part];
            found.push(Candidate { task, cost: 0, parts, alone, of_group: Some(spare) });
        }
    }
    let cost = cost(job, attempt, pass.now);
    found.push(Candidate { task, cost, parts, alone, of_group: None });
}

/// GPU-milliseconds of work lost: since the last time it was safe; of a job that saves when it is
/// asked to, only the time that takes.
fn cost(job: &Job, attempt: &Attempt, now: tutti_model::Time) -> u64 {
    let gpus = u64::from(attempt.gpu_count());
    let saves = job.spec.checkpoint.as_ref().filter(|c| c.signal.is_some());
    let lost = match (saves, attempt.running_since()) {
        (_, None) => Span(0),
        (Some(c), Some(_)) => c.grace.or(job.spec.grace).unwrap_or(Span::secs(30)),
        (None, Some(since)) => now.since(since.max(attempt.saved_at.unwrap_or(since))),
    };
    lost.0.saturating_mul(gpus)
}

/// The search for one claimant.
struct Hunt<'h, 'a> {
    cluster: &'h Cluster,
    page: &'h Page,
    candidates: &'h [Candidate<'a>],
    by_slot: BTreeMap<SlotNo, Vec<usize>>,
    /// What each domain offers without stopping anybody.
    base: BTreeMap<DomainNo, u64>,
    wanted: u64,
}

type Set = BTreeSet<usize>;

impl<'h, 'a> Hunt<'h, 'a> {
    fn new(
        cluster: &'h Cluster,
        page: &'h Page,
        candidates: &'h [Candidate<'a>],
        may_use: &'h BTreeSet<SlotNo>,
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
        let mut hunt = Hunt { cluster, page, candidates, by_slot, base: BTreeMap::new(), wanted };
        for slot in page.fitting().filter(|slot| may_use.contains(slot)) {
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
    }

    /// Whether the claimant fits once these have stopped.
    fn fits(&self, set: &Set) -> bool {
        let later = self.later(set);
        let mut sums = self.base.clone();
        for (no, slot) in &later {
            let before = offer(self.cluster, &self.page.ask, self.cluster.get(*no));
            let after = offer(self.cluster, &self.page.ask, slot);
            *sums.entry(self.domain(*no)).or_default() += after - before.min(after);
        }
        sums.values().any(|&sum| sum >= self.wanted)
    }

    /// The nodes that change, as they will be.
    fn later(&self, set: &Set) -> BTreeMap<SlotNo, Slot> {
        let mut later: BTreeMap<SlotNo, Slot> = BTreeMap::new();
        for &at in set {
            let candidate = &self.candidates[at];
            for (no, part) in &candidate.parts {
                if self.by_slot.contains_key(no) {
                    let slot = later.entry(*no).or_insert_with(|| self.cluster.get(*no).clone());
                    slot.give_back(&HeldPart::of(part, candidate.alone));
                }
            }
        }
        later
    }

    fn cheapest(&self, victims_max: usize) -> Option<Set> {
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
        let sets = domains.values().filter_map(|slots| self.free_nodes(slots));
        sets.min_by_key(|set| (self.cost(set), set.len()))
    }

    fn free_nodes(&self, slots: &[SlotNo]) -> Option<Set> {
        let mut chosen = Set::new();
        let mut open: Vec<SlotNo> = slots.to_vec();
        // What freeing a node costs changes only where a chosen victim has another part.
        let mut prices: BTreeMap<SlotNo, Option<Set>> =
            open.iter().map(|&slot| (slot, self.price(slot, &chosen))).collect();
        while !self.fits(&chosen) {
            let priced = open.iter().filter_map(|slot| {
                let extra = prices[slot].as_ref()?;
                Some((self.cost(extra), extra.len(), *slot))
            });
            let (_, _, slot) = priced.min()?;
            let extra = prices[&slot].clone()?;
            let mut with = chosen.clone();
            with.extend(extra);
            if !self.is_sound(&with) {
                open.retain(|s| *s != slot);
                continue;
            }
            let news: Vec<usize> = with.difference(&chosen).copied().collect();
            chosen = with;
            open.retain(|s| *s != slot);
            for at in news {
                for (touched, _) in &self.candidates[at].parts {
                    if prices.contains_key(touched) {
                        prices.insert(*touched, self.price(*touched, &chosen));
                    }
                }
            }
        }
        Some(chosen)
    }

    /// The cheapest further victims that let this node take a part. None if nothing does.
    fn price(&self, slot: SlotNo, chosen: &Set) -> Option<Set> {
        let here = self.by_slot.get(&slot)?;
        let ok = |set: &Set| {
            let mut later = self.cluster.get(slot).clone();
            for at in chosen.union(set) {
                let candidate = &self.candidates[*at];
                for (_, part) in candidate.parts.iter().filter(|(no, _)| *no == slot) {
                    later.give_back(&HeldPart::of(part, candidate.alone));
                }
            }
            let before = offer(self.cluster, &self.page.ask, self.cluster.get(slot));
            offer(self.cluster, &self.page.ask, &later) > before
        };
        if ok(&Set::new()) {
            return Some(Set::new());
        }
        let mut open: Vec<usize> = here.iter().copied().filter(|at| !chosen.contains(at)).collect();
        open.sort_by_key(|&at| (self.candidates[at].cost, at));
        if open.len() <= TRY_ALL_ON_NODE {
            return self.try_all(&open, &ok);
        }
        // Too many to try all: add the cheapest until it fits, then drop what is not needed.
        let mut set = Set::new();
        for at in open {
            set.insert(at);
            if self.is_sound(&set) && ok(&set) {
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

/// Taking back a guarantee must not push the lender's creditor below its own: victims are taken
/// one by one, and each must still be borrowing when its turn comes.
fn within_guarantees(
    pass: &Pass<'_, '_>,
    candidates: &[Candidate<'_>],
    chosen: Set,
    team: usize,
) -> Option<Set> {
    let models = &pass.view.cluster.models;
    let mut released: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for &at in &chosen {
        let candidate = &candidates[at];
        let of = pass.state.job(candidate.task.job).and_then(|j| pass.teams.find(&j.team));
        let Some(of) = of else { continue };
        let gone = |at: usize| released.get(&at).map_or(&[][..], Vec::as_slice);
        if !pass.teams.is_beyond_guarantee_after(of, team, models, &gone) {
            return None;
        }
        let held = held_by(&pass.view.cluster, candidate);
        for above in pass.teams.line(of).collect::<Vec<_>>() {
            let sums = released.entry(above).or_insert_with(|| vec![0; models.len()]);
            sums.iter_mut().zip(&held).for_each(|(sum, n)| *sum += n);
        }
    }
    Some(chosen)
}

fn held_by(cluster: &Cluster, candidate: &Candidate<'_>) -> Vec<u64> {
    let mut sums = vec![0; cluster.models.len()];
    for (slot, part) in &candidate.parts {
        let cards = cluster.get(*slot).cards.iter().filter(|c| part.gpus.contains(&c.index));
        cards.for_each(|c| sums[usize::from(c.model)] += u64::from(part.share.0));
    }
    sums
}

/// Where the claimant goes once the victims have stopped.
fn placement(
    view: &crate::pass::View,
    page_no: PageNo,
    candidates: &[Candidate<'_>],
    chosen: &Set,
    may_use: &BTreeSet<SlotNo>,
) -> Option<Vec<PartPlacement>> {
    let ask = view.book.ask(page_no);
    let mut later = view.cluster.sketch();
    for &at in chosen {
        for (no, part) in &candidates[at].parts {
            later.slots[*no as usize].give_back(&HeldPart::of(part, candidates[at].alone));
        }
    }
    let least = ask.least();
    let fitting: Vec<SlotNo> = may_use
        .iter()
        .copied()
        .filter(|&no| {
            let slot = later.get(no);
            later.labels_hold(slot, ask) && later.fits(slot, ask, &least)
        })
        .collect();
    let shares = fit::find_among(&later, ask, fitting.into_iter())?;
    Some(fit::place(&later, &view.valuer, ask, &shares))
}

/// The chosen candidates as victims, parts of one elastic attempt put together.
fn victims(candidates: &[Candidate<'_>], chosen: &Set, pass: &Pass<'_, '_>) -> Vec<Victim> {
    let mut by_task: BTreeMap<TaskId, Vec<&Candidate<'_>>> = BTreeMap::new();
    for &at in chosen {
        by_task.entry(candidates[at].task).or_default().push(&candidates[at]);
    }
    let victim = |(task, of): (TaskId, Vec<&Candidate<'_>>)| {
        let cost = of.iter().map(|c| c.cost).sum();
        let how = match of.iter().all(|c| c.of_group.is_some()) {
            false => Stop::Requeue,
            true => {
                let gone: BTreeSet<_> =
                    of.iter().flat_map(|c| &c.parts).map(|(_, p)| p.node).collect();
                Stop::Shrink { keep: kept(pass, task, &gone) }
            }
        };
        Victim { task, how, cost }
    };
    by_task.into_iter().map(victim).collect()
}

fn kept(
    pass: &Pass<'_, '_>,
    task: TaskId,
    gone: &BTreeSet<tutti_model::NodeId>,
) -> Vec<PartPlacement> {
    let attempt = pass.state.job(task.job).and_then(|j| j.task(task.index)).and_then(Task::attempt);
    let parts = attempt.into_iter().flat_map(|a| &a.parts);
    parts.filter(|p| !gone.contains(&p.node)).map(as_placement).collect()
}

/// A part that runs, as it would be placed again.
pub(crate) fn as_placement(part: &Part) -> PartPlacement {
    PartPlacement {
        node: part.node,
        gpus: part.gpus.clone(),
        cpus: part.cpus,
        mem: part.mem,
        ranks: part.ranks,
        share: part.share,
    }
}
