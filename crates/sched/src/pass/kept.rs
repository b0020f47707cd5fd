//! Claims in a pass: those that come true, those that wait, and those that others pass over.

use std::collections::BTreeSet;

use tutti_model::{
    Claim, ClaimCause, Job, Lane, NewClaim, NodeId, Part, PartPlacement, QueueKey, TaskId, Verdict,
};

use super::bars::reservation;
use super::{Pass, Tried, Turn};
use crate::backfill::ends_at;
use crate::claims::{self, is_suspended};
use crate::cluster::SlotNo;
use crate::lanes::returns;
use crate::teams::{TeamNo, by_model};

impl<'a> Pass<'a, '_> {
    pub(super) fn claims(&mut self) {
        // What nobody was stopped for comes last: it must not keep others from their limits.
        let is_overdue = |(_, claim): &(&TaskId, &Claim)| claim.cause == ClaimCause::Overdue;
        let (overdue, others): (Vec<_>, Vec<_>) = self.state.claims.iter().partition(is_overdue);
        // Those who return, and those who were suspended, go first in their class.
        let late = self.somebody_returns() || !self.state.index.asleep.is_empty();
        self.drop_overtaken(&overdue, &others);
        for (&task, claim) in others.into_iter().chain(overdue) {
            let job = self.state.job(task.job);
            let alone = job.is_some_and(|j| j.spec.exclusive);
            if self.dropped.contains(&task) {
                continue;
            }
            if Some(task.job) == self.what_if.left_out {
                self.view.cluster.unkeep(&claim.parts, alone);
                continue;
            }
            if job.is_some_and(|job| self.is_one_too_many(job, task)) {
                self.dropped.insert(task);
                self.view.cluster.unkeep(&claim.parts, alone);
                continue;
            }
            match (claims::standing(self.state, task, claim), job) {
                (claims::Standing::Waiting(waiting_for), Some(job)) => {
                    let verdict = Verdict::Claimed { cause: claim.cause, waiting_for };
                    self.plan.by_task.insert(task, verdict);
                    self.note_claim(job, task, claim);
                }
                // It goes on when its class has its turn.
                (claims::Standing::Ready, Some(job)) if is_suspended(job, task) => {
                    let verdict = Verdict::Claimed { cause: claim.cause, waiting_for: Vec::new() };
                    self.plan.by_task.insert(task, verdict);
                    self.note_claim(job, task, claim);
                }
                // It has its turn after those who return.
                (claims::Standing::Ready, Some(job))
                    if late && claim.cause == ClaimCause::Overdue =>
                {
                    let verdict = Verdict::Claimed { cause: claim.cause, waiting_for: Vec::new() };
                    self.plan.by_task.insert(task, verdict);
                    self.note_claim(job, task, claim);
                }
                (claims::Standing::Ready, Some(job)) if self.may_come_true(job, claim) => {
                    let ends = ends_at(self.state, self.policy, job, self.now);
                    self.start(job, task, claim.parts.clone(), ends);
                }
                _ => {
                    self.dropped.insert(task);
                    self.view.cluster.unkeep(&claim.parts, alone);
                }
            }
        }
    }

    /// Whoever waited for the tenant of a node to end, and finds that the node is kept for somebody
    /// else by now: a gang that changes its size stays where it is. It may claim other nodes when it
    /// is its turn.
    fn drop_overtaken(&mut self, of: &[(&TaskId, &'a Claim)], by: &[(&TaskId, &'a Claim)]) {
        for (task, claim) in of {
            let alone = self.is_alone(**task);
            let meets = |(other, first): &(&TaskId, &Claim)| {
                if Some(other.job) == self.what_if.left_out {
                    return false;
                }
                let alone = alone || self.is_alone(**other);
                let pair = |p: &PartPlacement| {
                    let there = first.parts.iter().find(|q| q.node == p.node);
                    there.is_some_and(|q| alone || self.collide(p, q))
                };
                claim.parts.iter().any(pair)
            };
            if by.iter().any(meets) {
                self.dropped.insert(**task);
                self.view.cluster.unkeep(&claim.parts, alone);
            }
        }
    }

    fn is_alone(&self, task: TaskId) -> bool {
        self.state.job(task.job).is_some_and(|j| j.spec.exclusive)
    }

    /// Whether two parts can't be on one node at a time.
    fn collide(&self, a: &PartPlacement, b: &PartPlacement) -> bool {
        let Some(node) = self.state.node(a.node) else { return true };
        let shared = a.gpus.iter().any(|gpu| b.gpus.contains(gpu));
        shared && u32::from(a.share.0) + u32::from(b.share.0) > 1000
            || a.cpus + b.cpus > node.facts.cpus
            || a.mem.0.saturating_add(b.mem.0) > node.facts.mem.0
    }

    /// Nodes that became free do as well as those that an overdue task waits for: it need not wait
    /// for the very ones that it named first, whose tenants may stay for ever.
    fn choose_anew(&mut self, turn: &Turn<'a>, claim: &Claim) -> Option<NewClaim> {
        if self.now.since(turn.waits_since()) <= self.policy.patience {
            return None;
        }
        let page = self.lanes[turn.lane].page;
        self.view.book.read(page, &self.view.cluster, &self.view.valuer);
        let task = turn.task();
        let ports = self.port_taken(turn.job);
        let may_use = |slot: SlotNo| self.may_take(slot, turn.job, page, task, &ports);
        let new = claims::overdue(&self.view.cluster, self.view.book.page(page), task, &may_use)?;
        let (new_free, old_free) = (
            claims::free_parts(self.state, task, &new.parts),
            claims::free_parts(self.state, task, &claim.parts),
        );
        (new_free > old_free && self.may_have(turn.job, &new.parts)).then_some(new)
    }

    /// A claim counts as if it had come true; but what nobody is stopped for may be far away, and is
    /// not part of anybody's guarantee yet.
    pub(super) fn charge_claim(
        &mut self,
        team: TeamNo,
        job: &'a Job,
        cause: ClaimCause,
        held: &[u64],
        charge: u64,
    ) {
        if cause == ClaimCause::Overdue {
            self.teams.charge(team, &job.user, &[], charge);
            self.teams.hold(team, held);
        } else {
            self.teams.charge(team, &job.user, held, charge);
        }
    }

    /// A claim that waits is on the books.
    pub(super) fn note_claim(&mut self, job: &'a Job, task: TaskId, claim: &Claim) {
        // An overdue task starts elsewhere if it can.
        if claim.cause != ClaimCause::Overdue {
            self.done.insert(task);
        }
        let team = self.teams.number(&job.team);
        let attempt = job.task(task.index).and_then(|t| t.attempt());
        let Some(attempt) = attempt.filter(|a| !a.is_suspended()) else {
            let charge = self.charge(job, &claim.parts);
            let held = by_model(&self.view.cluster, &claim.parts);
            self.charge_claim(team, job, claim.cause, &held, charge);
            // A suspended task of an array counts already.
            if attempt.is_none() {
                self.count_running(job);
            }
            return;
        };
        // It changes its size: what it holds is counted, and given back as far as it shrinks.
        let live = |p: &Part| !p.phase.is_over();
        let both = |p: &&PartPlacement| attempt.part_on(p.node).is_some_and(live);
        let (stays, more): (Vec<_>, Vec<_>) = claim.parts.iter().partition(both);
        let owned = |parts: Vec<&PartPlacement>| parts.into_iter().cloned().collect::<Vec<_>>();
        let cluster = &self.view.cluster;
        let (stays, more) = (by_model(cluster, &owned(stays)), by_model(cluster, &owned(more)));
        self.teams.add(team, &more);
        self.teams.unrelease(team, &stays);
    }

    /// Since the claim was made, others of its array may have started.
    fn is_one_too_many(&mut self, job: &Job, task: TaskId) -> bool {
        let has_lease = job.task(task.index).is_some_and(|t| t.attempt().is_some());
        !has_lease && self.at_array_limit(job)
    }

    /// Since the claim was made, a policy may have set limits and reservations, and somebody may have
    /// come to listen there.
    fn may_come_true(&mut self, job: &'a Job, claim: &Claim) -> bool {
        let ports = self.port_taken(job);
        let open = claim.parts.iter().all(|part| !ports.contains(&part.node));
        open && self.may_have(job, &claim.parts) && !self.is_reserved(job, claim)
    }

    /// Whether its team may have this much more.
    pub(super) fn may_have(&mut self, job: &'a Job, parts: &[PartPlacement]) -> bool {
        let held = by_model(&self.view.cluster, parts);
        let team = self.teams.number(&job.team);
        self.teams.over_limit(team, &held, &self.view.cluster.models).is_none()
    }

    fn is_reserved(&self, job: &Job, claim: &Claim) -> bool {
        let ends = ends_at(self.state, self.policy, job, self.now);
        let until = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        let cluster = &self.view.cluster;
        let mut slots = claim.parts.iter().filter_map(|p| cluster.slot_of(p.node));
        slots.any(|no| reservation(self.policy, cluster, no, job, self.now, until).is_some())
    }

    pub(super) fn mark_claimed(&mut self) {
        for job in self.state.claims.keys().filter_map(|task| self.state.job(task.job)) {
            if let Some(no) = self.lane_of(&Lane::of(job)) {
                self.lanes[no].has_claims = true;
            }
        }
    }

    /// What is kept for the overdue of lower classes is not kept from this one. They may claim it
    /// again when it is their turn.
    pub(super) fn pass_over_the_overdue(&mut self, rank: i32) {
        self.pass_over(|pass, job, _| pass.policy.class_rank(job.class()) < rank);
    }

    /// The same for what returns, which others of its class do not keep from it, either.
    pub(super) fn pass_over_the_patient(&mut self, rank: i32) {
        // They have had their turn, and wait on.
        let overdue = |(_, claim): &(&TaskId, &Claim)| claim.cause == ClaimCause::Overdue;
        let overdue = self.state.claims.iter().filter(overdue).map(|(task, _)| *task);
        let waiting: Vec<TaskId> = overdue.filter(|t| self.waits_for_asleep(*t, rank)).collect();
        for task in &waiting {
            self.done.remove(task);
        }
        self.pass_over(|pass, job, task| {
            let before = returns(pass.state, task) || is_suspended(job, task);
            let class = pass.policy.class_rank(job.class());
            class < rank || class == rank && !before || waiting.contains(&task)
        });
    }

    /// Whoever waits for something suspended to end, because it wants the node alone or lacks its
    /// memory, lets it go on first: asleep it never ends.
    fn waits_for_asleep(&self, task: TaskId, rank: i32) -> bool {
        let Some(Verdict::Claimed { waiting_for, .. }) = self.plan.by_task.get(&task) else {
            return false;
        };
        let is_asleep = |id: &TaskId| {
            let job = self.state.job(id.job);
            job.is_some_and(|j| is_suspended(j, *id) && self.policy.class_rank(j.class()) == rank)
        };
        waiting_for.iter().any(is_asleep)
    }

    fn pass_over(&mut self, whom: impl Fn(&Self, &Job, TaskId) -> bool) {
        for (&task, claim) in &self.state.claims {
            let Some(job) = self.state.job(task.job) else { continue };
            let waits = self.plan.by_task.contains_key(&task) && !self.done.contains(&task);
            if claim.cause != ClaimCause::Overdue
                || !whom(self, job, task)
                || !waits
                || self.dropped.contains(&task)
            {
                continue;
            }
            self.dropped.insert(task);
            self.passed_over.extend(self.plan.by_task.remove(&task).map(|why| (task, why)));
            self.view.cluster.unkeep(&claim.parts, job.spec.exclusive);
            self.forget_overdue(job, task, claim);
        }
    }

    /// A claim that nobody was stopped for is off the books.
    pub(super) fn forget_overdue(&mut self, job: &'a Job, task: TaskId, claim: &Claim) {
        let held = by_model(&self.view.cluster, &claim.parts);
        let charge = self.charge(job, &claim.parts);
        let team = self.teams.number(&job.team);
        self.teams.unhold(team, &held);
        self.teams.uncharge(team, &job.user, charge);
        if let Some(running) = self.running.get_mut(&job.id)
            && !is_suspended(job, task)
        {
            *running = running.saturating_sub(1);
        }
    }

    /// Claims that were passed over for higher classes, and of whose nodes nobody took anything,
    /// hold again from their own class on.
    pub(super) fn keep_again(&mut self, rank: i32) {
        if self.passed_over.is_empty() {
            return;
        }
        let taken: BTreeSet<NodeId> = {
            let placed = self.plan.placements.iter().flat_map(|p| &p.parts);
            let claimed = self.plan.claims.iter().flat_map(|c| &c.parts);
            let woken = self.plan.wakes.iter().flat_map(|w| &w.parts).map(|p| p.node);
            placed.chain(claimed).map(|p| p.node).chain(woken).collect()
        };
        for (task, why) in std::mem::take(&mut self.passed_over) {
            let (Some(job), Some(claim)) = (self.state.job(task.job), self.state.claims.get(&task))
            else {
                continue;
            };
            if self.policy.class_rank(job.class()) < rank {
                self.passed_over.push((task, why));
            } else if !self.done.contains(&task)
                && !claim.parts.iter().any(|p| taken.contains(&p.node))
                && !self.is_one_too_many(job, task)
                && self.may_have(job, &claim.parts)
            {
                self.dropped.remove(&task);
                self.plan.by_task.insert(task, why);
                self.view.cluster.keep(&claim.parts, job.spec.exclusive);
                self.note_claim(job, task, claim);
            }
        }
    }

    /// An overdue task need not wait for the very nodes that are kept for it.
    pub(super) fn try_elsewhere(
        &mut self,
        turn: &Turn<'a>,
        key: &QueueKey,
        claim: &Claim,
    ) -> Tried {
        let alone = turn.job.spec.exclusive;
        self.view.cluster.unkeep(&claim.parts, alone);
        let page = self.lanes[turn.lane].page;
        let was_full = self.full.contains_key(&page);
        self.forget_overdue(turn.job, turn.task(), claim);
        let tried = self.try_task(turn);
        if tried == Tried::Placed {
            self.dropped.insert(turn.task());
            return Tried::Done;
        }
        if !was_full {
            self.full.remove(&page);
        }
        // By now it may have the right to stop others.
        let rank = self.policy.class_rank(&self.lanes[turn.lane].lane.class);
        let lacks_room = matches!(tried, Tried::NoRoom | Tried::Barred(_) | Tried::PortTaken(_));
        if lacks_room && self.make_way(turn.lane, key, rank) {
            self.dropped.insert(turn.task());
            return Tried::Done;
        }
        if let Some(new) = self.choose_anew(turn, claim) {
            self.dropped.insert(turn.task());
            self.claim(turn.job, new);
            return Tried::Done;
        }
        self.view.cluster.keep(&claim.parts, alone);
        self.note_claim(turn.job, turn.task(), claim);
        self.done.insert(turn.task());
        Tried::Done
    }
}
