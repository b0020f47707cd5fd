//! Who is stopped so that a job can start: the cheapest set of victims that really makes it fit,
//! or nobody.
//!
//! Only tasks of a lower class, or tasks that borrowed what a guarantee gives to the claimant's
//! team. A gang is stopped whole; an elastic one may give up single nodes instead. Nothing here is
//! done: the plan names the victims, the checker proves the choice again, the engine acts.

mod hunt;
mod suspend;

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Attempt, AttemptPhase, Bytes, ClaimCause, Job, Moved, NewClaim, NodeId, Part, PartPlacement,
    Policy, PreemptMode, Span, State, Stop, Task, TaskId, Time, Victim,
};

use crate::candidates::PageNo;
use crate::cluster::{Cluster, HeldPart, Slot, SlotNo, Standing};
use crate::fit;
use crate::near::near;
use crate::pass::{Pass, View};
use crate::teams::{TeamNo, Teams, by_model};
use hunt::{Hunt, Rights, Set};

/// Something that can be stopped: a whole attempt, or one part of an elastic one.
#[derive(Clone, Debug)]
struct Candidate<'a> {
    task: TaskId,
    team: Option<TeamNo>,
    cost: u64,
    parts: Vec<(SlotNo, &'a Part)>,
    alone: bool,
    /// A single part of an elastic attempt that can give up this many.
    of_group: Option<u32>,
    /// It is suspended instead of being stopped, and takes this much memory of its nodes.
    moved: Option<Vec<Moved>>,
}

impl Candidate<'_> {
    /// What goes to memory on a node.
    fn moved_on(&self, node: NodeId) -> Option<Bytes> {
        self.moved.as_ref()?.iter().find(|m| m.node == node).map(|m| m.bytes)
    }

    /// Gives back what it would give back of this part.
    fn leave(&self, slot: &mut Slot, part: &Part) {
        let all = HeldPart::of(part, self.alone);
        match self.moved_on(part.node) {
            None => slot.give_back(&all),
            Some(bytes) => {
                slot.give_back(&all.lent());
                slot.take(&HeldPart::memory(bytes));
            }
        }
    }
}

/// Who wants room, and in what right.
struct Claimant<'a> {
    task: TaskId,
    job: &'a Job,
    team: TeamNo,
    rank: i32,
    page: PageNo,
    cause: ClaimCause,
    /// Whose guarantee it is.
    guarantor: Option<TeamNo>,
}

pub(crate) fn search<'a>(
    pass: &mut Pass<'a, '_>,
    page: PageNo,
    task: TaskId,
    job: &'a Job,
    team: TeamNo,
    rank: i32,
) -> Option<NewClaim> {
    let mut best: Option<(u64, NewClaim)> = None;
    for cause in [ClaimCause::Class, ClaimCause::Guarantee] {
        let guarantor = match cause {
            ClaimCause::Guarantee => pass.guarantor(team, page),
            _ => None,
        };
        let claimant = Claimant { task, job, team, rank, page, cause, guarantor };
        let Some(claim) = near_or_anywhere(pass, &claimant) else { continue };
        let cost = cost_of(&claim);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, claim));
        }
    }
    best.map(|(_, claim)| claim)
}

fn cost_of(claim: &NewClaim) -> u64 {
    claim.victims.iter().map(|v| v.cost).sum()
}

/// Where its files are, unless that costs others more.
fn near_or_anywhere<'a>(pass: &mut Pass<'a, '_>, who: &Claimant<'a>) -> Option<NewClaim> {
    if !could_help(pass, who) {
        return None;
    }
    let may_use = usable_slots(pass, who);
    let near = near(pass.state, who.job);
    let is_near = |slot: &SlotNo| near.contains(&pass.view.cluster.get(*slot).node);
    let close: BTreeSet<SlotNo> = may_use.iter().copied().filter(is_near).collect();
    let anywhere = stopping(pass, who, &may_use)?;
    if close.is_empty() || close == may_use {
        return Some(anywhere);
    }
    let there = stopping(pass, who, &close).filter(|c| cost_of(c) <= cost_of(&anywhere));
    Some(there.unwrap_or(anywhere))
}

/// Where memory is too short for those who would be suspended, all are stopped.
fn stopping<'a>(
    pass: &mut Pass<'a, '_>,
    who: &Claimant<'a>,
    may_use: &BTreeSet<SlotNo>,
) -> Option<NewClaim> {
    for_cause(pass, who, may_use, true).or_else(|| {
        let any = pass.state.nodes.values().any(|n| n.facts.can_suspend);
        any.then(|| for_cause(pass, who, may_use, false)).flatten()
    })
}

fn for_cause<'a>(
    pass: &mut Pass<'a, '_>,
    who: &Claimant<'a>,
    may_use: &BTreeSet<SlotNo>,
    suspends: bool,
) -> Option<NewClaim> {
    let candidates = candidates(pass, who, suspends);
    let leaving = leaving(pass);
    if candidates.is_empty() && leaving.is_empty() {
        return None;
    }
    let View { cluster, book, valuer } = &mut *pass.view;
    book.read(who.page, cluster, valuer);
    let page = book.page(who.page);
    let (chosen, fitting, later) = cluster.with_slots(leaving.clone(), |cluster| {
        let models = &cluster.models;
        let rights = Rights { teams: &pass.teams, models, guarantor: who.guarantor };
        let hunt = Hunt::new(cluster, page, &candidates, may_use, rights);
        let most = pass.policy.preemption.victims_max;
        let chosen = hunt.cheapest(most.saturating_mul(hunt.parts()))?;
        let (fitting, later) = (hunt.fitting(&chosen), hunt.later(&chosen));
        Some((chosen, fitting, later))
    })?;
    let freed: BTreeSet<SlotNo> = later.keys().copied().collect();
    let later = leaving.into_iter().chain(later).collect();
    let parts = cluster.with_slots(later, |cluster| {
        let mut shares = fit::find_among(cluster, &page.ask, fitting.into_iter())?;
        let least = page.ask.node_counts().map_or(usize::MAX, |(_, least)| least as usize);
        // An elastic gang takes no more than it has a right to, and what was made free for it first.
        shares.sort_by_key(|s| !freed.contains(&s.slot));
        loop {
            let mut ranked = shares.clone();
            ranked.sort_by_key(|s| cluster.get(s.slot).rank);
            let parts = fit::place(cluster, valuer, &page.ask, &ranked);
            if is_right(&pass.teams, cluster, who, &parts) {
                return Some(parts);
            }
            if shares.len() <= least {
                return None;
            }
            shares.pop();
        }
    })?;
    let victims = victims(&candidates, &chosen, pass);
    if victims.len() > pass.policy.preemption.victims_max.saturating_mul(parts.len()) {
        return None;
    }
    Some(NewClaim { task: who.task, parts, cause: who.cause, victims })
}

/// Whether its team may have this, and if it takes back a guarantee, all of it is inside: whoever
/// wants nodes alone takes all of them.
fn is_right(
    teams: &Teams<'_>,
    cluster: &Cluster,
    who: &Claimant<'_>,
    parts: &[PartPlacement],
) -> bool {
    let held = by_model(cluster, parts);
    let guaranteed = |of: TeamNo| {
        let blocked = match who.job.spec.exclusive {
            true => whole_nodes(cluster, parts),
            false => held.clone(),
        };
        teams.is_guaranteed(of, &blocked, &cluster.models)
    };
    teams.over_limit(who.team, &held, &cluster.models).is_none()
        && who.guarantor.is_none_or(guaranteed)
}

fn whole_nodes(cluster: &Cluster, parts: &[PartPlacement]) -> Vec<u64> {
    let mut sums = vec![0; cluster.models.len()];
    let slots = parts.iter().filter_map(|p| cluster.slot_of(p.node));
    let cards = slots.flat_map(|no| &cluster.get(no).cards);
    cards.for_each(|c| sums[usize::from(c.model)] += 1000);
    sums
}

/// Nodes as they will be once everybody is gone who was told to stop: nobody else need be.
fn leaving(pass: &Pass<'_, '_>) -> BTreeMap<SlotNo, Slot> {
    let mut later: BTreeMap<SlotNo, Slot> = BTreeMap::new();
    let cluster = &pass.view.cluster;
    let told: BTreeSet<TaskId> = cluster.unsettled().chain(pass.victims.iter().copied()).collect();
    for id in told {
        let Some(job) = pass.state.job(id.job) else { continue };
        let Some(attempt) = job.task(id.index).and_then(Task::attempt) else { continue };
        if !attempt.leaves() && !pass.victims.contains(&id) {
            continue;
        }
        let suspends =
            matches!(attempt.phase, AttemptPhase::Suspending { .. }) || pass.suspends(id);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let Some(no) = cluster.slot_of(part.node) else { continue };
            let slot = later.entry(no).or_insert_with(|| cluster.get(no).clone());
            let all = HeldPart::of(part, job.spec.exclusive);
            slot.give_back(&if suspends { all.lent() } else { all });
        }
    }
    later
}

/// A quick look before an expensive search.
fn could_help(pass: &Pass<'_, '_>, who: &Claimant<'_>) -> bool {
    match who.cause {
        ClaimCause::Class => {
            let mut running = pass.view.cluster.classes.iter().filter(|(_, n)| **n > 0);
            running.any(|(class, _)| pass.policy.class_rank(class) < who.rank)
        }
        _ => who.guarantor.is_some_and(|guarantor| {
            let models = &pass.view.cluster.models;
            let holds = |no: &TeamNo| pass.teams.teams[*no].keeps.iter().any(|n| *n > 0);
            let mut teams = (0..pass.teams.teams.len()).filter(holds);
            let leaves = pass.view.cluster.unsettled().next().is_some();
            leaves
                || !pass.victims.is_empty()
                || teams.any(|no| pass.teams.borrows(no, guarantor, models, &|_| &[]))
        }),
    }
}

/// Nodes that it may use, with GPUs that its guarantee is about.
fn usable_slots(pass: &Pass<'_, '_>, who: &Claimant<'_>) -> BTreeSet<SlotNo> {
    let cluster = &pass.view.cluster;
    let ask = pass.view.book.ask(who.page);
    let covered = who
        .guarantor
        .map(|of| pass.teams.covered_models(of, &pass.wanted(who.page), &cluster.models));
    let is_covered = |no: SlotNo| match &covered {
        None => true,
        Some(covered) => {
            let cards = cluster.get(no).cards.iter().filter(|c| cluster.suits(c, ask));
            let mut models = cards.map(|c| usize::from(c.model));
            models.all(|m| covered[m])
        }
    };
    let slots = 0..cluster.slots.len() as SlotNo;
    let ports = pass.port_taken(who.job);
    let open = |no| pass.may_take(no, who.job, who.page, who.task, &ports);
    slots.filter(|&no| is_covered(no) && open(no)).collect()
}

fn candidates<'a>(pass: &Pass<'a, '_>, who: &Claimant<'a>, suspends: bool) -> Vec<Candidate<'a>> {
    let state = pass.state;
    let mut found = Vec::new();
    for &id in &state.index.active {
        let Some(job) = state.job(id.job) else { continue };
        let class = pass.policy.class_rank(job.class());
        let allowed = match who.guarantor {
            None => class < who.rank,
            Some(guarantor) => class <= who.rank && borrows(pass, &job.team, guarantor),
        };
        if !allowed || id == who.task || pass.victims.contains(&id) {
            continue;
        }
        let Some(task) = job.task(id.index) else { continue };
        let Some(attempt) = task.attempt() else { continue };
        if may_stop(pass, id, job, task, attempt) {
            add(pass, id, job, attempt, suspends, &mut found);
        }
    }
    found
}

fn borrows(pass: &Pass<'_, '_>, of: &str, guarantor: TeamNo) -> bool {
    let models = &pass.view.cluster.models;
    // A team that the policy does not know has no guarantee.
    pass.teams.find(of).is_none_or(|of| pass.teams.borrows(of, guarantor, models, &|_| &[]))
}

fn may_stop(pass: &Pass<'_, '_>, id: TaskId, job: &Job, task: &Task, attempt: &Attempt) -> bool {
    left_alone_until(pass.policy, task, attempt, pass.now).is_none()
        && may_ever_stop(pass.state, id, job, attempt)
}

/// Whether anybody may stop it, now or later.
pub(crate) fn may_ever_stop(state: &State, id: TaskId, job: &Job, attempt: &Attempt) -> bool {
    let never = job.spec.preempt.as_ref().is_some_and(|p| p.mode == PreemptMode::Never);
    let holds = matches!(attempt.phase, AttemptPhase::Starting | AttemptPhase::Running { .. });
    !never && holds && !state.claims.contains_key(&id)
}

/// Until when a task that was preempted before is not preempted again; none if it may be now.
pub(crate) fn left_alone_until(
    policy: &Policy,
    task: &Task,
    attempt: &Attempt,
    now: Time,
) -> Option<Time> {
    task.preempted_at?;
    let until = attempt.took_at().plus(policy.preemption.not_again_within);
    (now < until).then_some(until)
}

fn add<'a>(
    pass: &Pass<'a, '_>,
    task: TaskId,
    job: &'a Job,
    attempt: &'a Attempt,
    suspends: bool,
    found: &mut Vec<Candidate<'a>>,
) {
    let cluster = &pass.view.cluster;
    let slot = |p: &'a Part| Some((cluster.slot_of(p.node)?, p));
    let parts: Vec<_> =
        attempt.parts.iter().filter(|p| !p.phase.is_over()).filter_map(slot).collect();
    let alone = job.spec.exclusive;
    // It starts again on what it keeps, so all of that must take work, and it must not be held.
    let stays = |(no, _): &(SlotNo, &Part)| {
        cluster.get(*no).standing == Standing::Open && pass.may_use(*no, job, task)
    };
    if let Some(elastic) = &job.spec.elastic
        && !job.held
        && parts.iter().all(stays)
        && !attempt.is_ending()
    {
        let spare = (parts.len() as u32).saturating_sub(elastic.min_nodes.max(1));
        for part in parts.iter().filter(|_| spare > 0) {
            let parts = vec![*part];
            let (cost, team) = (0, pass.teams.find(&job.team));
            let of_group = Some(spare);
            found.push(Candidate { task, team, cost, parts, alone, of_group, moved: None });
        }
    }
    let (cost, team) = (cost(job, attempt, pass.now), pass.teams.find(&job.team));
    let suspension = suspends.then(|| suspend::suspension(pass, job, attempt, cost)).flatten();
    let (cost, moved) = suspension.map_or((cost, None), |(cost, moved)| (cost, Some(moved)));
    found.push(Candidate { task, team, cost, parts, alone, of_group: None, moved });
}

/// GPU-milliseconds of work lost: since the last time it was safe; of a job that saves when it is
/// asked to, only the time that takes.
fn cost(job: &Job, attempt: &Attempt, now: Time) -> u64 {
    let gpus = u64::from(attempt.gpu_count());
    let saves = job.spec.checkpoint.as_ref().filter(|c| c.signal.is_some());
    let lost = match (saves, attempt.running_since(now)) {
        (_, None) => Span(0),
        (Some(c), Some(_)) => c.grace.or(job.spec.grace).unwrap_or(Span::secs(30)),
        (None, Some(since)) => now.since(since.max(attempt.saved_at.unwrap_or(since))),
    };
    lost.0.saturating_mul(gpus)
}

fn held_by(cluster: &Cluster, candidate: &Candidate<'_>) -> Vec<u64> {
    let mut sums = vec![0; cluster.models.len()];
    for (slot, part) in &candidate.parts {
        let cards = cluster.get(*slot).cards.iter().filter(|c| part.gpus.contains(&c.index));
        cards.for_each(|c| sums[usize::from(c.model)] += u64::from(part.share.0));
    }
    sums
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
            false => match of.iter().find_map(|c| c.moved.clone()) {
                Some(moved) => Stop::Suspend { moved },
                None => Stop::Requeue,
            },
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

fn kept(pass: &Pass<'_, '_>, task: TaskId, gone: &BTreeSet<NodeId>) -> Vec<PartPlacement> {
    let attempt = pass.state.job(task.job).and_then(|j| j.task(task.index)).and_then(Task::attempt);
    let parts = attempt.into_iter().flat_map(|a| &a.parts);
    parts.filter(|p| !gone.contains(&p.node)).map(PartPlacement::from).collect()
}

#[cfg(test)]
mod tests;
