//! What becomes of a task that can't start now: others are stopped for it, or it gets a time to
//! start that nobody behind it may delay, or nodes of its own; and in any case a reason.

use std::collections::BTreeSet;
use std::ops::Bound;

use tutti_model::{
    ClaimCause, Job, JobId, Moved, NewClaim, NodeId, PartPlacement, QueueKey, Span, Stop, TaskId,
    Time, Verdict, Victim,
};

use super::bars::reservation;
use super::{AVOID_NONE, Pass, Tried, Turn, View};
use crate::backfill::{self, Ends, HeadRoom, ends_at};
use crate::candidates::PageNo;
use crate::claims;
use crate::cluster::{HeldPart, SlotNo};
use crate::fit;
use crate::lanes::{LaneNo, LaneView, array_limit, waiting_since};
use crate::preempt;
use crate::teams::{OverLimit, TeamNo, by_model};

/// How a lane goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onward {
    /// With the next task, which may be one of the same array.
    Task,
    /// With the next entry: all tasks of an array fare alike.
    Entry,
    /// Nothing behind it can start either.
    Over,
}

/// A claim comes true later than it is made. It must not meet a reservation then.
const CLAIM_MARGIN: Span = Span::secs(600);

impl<'a> Pass<'a, '_> {
    pub(super) fn note_blocked(
        &mut self,
        no: LaneNo,
        key: &QueueKey,
        tried: Tried,
        rank: i32,
    ) -> Onward {
        match tried {
            Tried::Placed | Tried::Done => Onward::Task,
            Tried::Skipped => Onward::Entry,
            Tried::PassFull => Onward::Over,
            Tried::AtTeamLimit(verdict) => {
                self.lanes[no].verdict.get_or_insert(verdict);
                Onward::Over
            }
            Tried::StandsBack(verdict) => self.stand_back(no, key, verdict),
            Tried::Barred(verdict) => {
                if self.make_way(no, key, rank) {
                    return Onward::Task;
                }
                self.become_head(no, key);
                self.stand_back(no, key, verdict)
            }
            Tried::PortTaken(verdict) => {
                if self.make_way(no, key, rank) {
                    return Onward::Task;
                }
                self.become_head(no, key);
                // Those behind it may have another port, or none.
                let task = TaskId { job: key.job, index: key.index };
                self.plan.by_task.entry(task).or_insert(verdict);
                Onward::Entry
            }
            Tried::NoRoom => {
                let busy = self.is_busy(self.lanes[no].page);
                if self.make_way(no, key, rank) {
                    return Onward::Task;
                }
                if busy {
                    self.become_head(no, key);
                }
                // For one that ends sooner, or listens elsewhere, others might be stopped yet.
                let alike = self.finds_alike() && !self.has_fixed_port(key);
                let lane = &mut self.lanes[no];
                lane.stood_back += 1;
                let depth = self.policy.backfill_depth;
                if lane.stood_back < depth && !alike && !self.is_peaceful() {
                    return Onward::Entry;
                }
                Onward::Over
            }
        }
    }

    /// A team at its limit takes no more, or no more of a model, for those behind a task that has
    /// waited long and for which there is room, until enough is left for it.
    pub(super) fn close_team(&mut self, turn: &Turn<'a>, over: &OverLimit<'a>, milli: u64) {
        let waited = self.now.since(turn.waits_since());
        let team = self.lanes[turn.lane].team;
        let may_ever = self.teams.may_ever_have(team, over.model_name, milli);
        if waited <= self.policy.patience || !may_ever || !self.has_room(turn) {
            return;
        }
        if let Some(at) = self.teams.find(over.team) {
            self.closed.entry((at, over.model)).or_insert(turn.job.id);
            let verdict = over.verdict(milli);
            self.plan.by_task.entry(turn.task()).or_insert(verdict);
        }
    }

    fn has_room(&mut self, turn: &Turn<'a>) -> bool {
        let page = self.lanes[turn.lane].page;
        let View { cluster, book, valuer } = &mut *self.view;
        let page = book.read(page, cluster, valuer);
        fit::find(cluster, page, &|_, _| true, &AVOID_NONE).is_some()
    }

    /// Of which models a team, or one above it, takes no more but for the one who waits longest.
    pub(super) fn closed_models(&self, team: TeamNo) -> (Vec<usize>, Option<JobId>) {
        let of_line = |at: &TeamNo| self.teams.line(team).any(|no| no == *at);
        let closed = self.closed.iter().filter(|((at, _), _)| of_line(at));
        let closed: Vec<_> = closed.filter_map(|((_, m), job)| Some(((*m)?, *job))).collect();
        (closed.iter().map(|(m, _)| *m).collect(), closed.first().map(|(_, job)| *job))
    }

    /// Whether a page that is full has enough nodes, if they were free. Everything that asks for
    /// the same waits for the same reason, which is noted.
    fn is_busy(&mut self, page: PageNo) -> bool {
        let View { cluster, book, valuer } = &mut *self.view;
        let look = || book.read(page, cluster, valuer).verdict(cluster);
        let verdict = self.full.entry(page).or_default().get_or_insert_with(look);
        matches!(verdict, Verdict::Busy(_))
    }

    /// Whether a lane is through that has no room, nobody to stop and no head to become: what most
    /// of a long queue is. Settled without a look at its jobs.
    pub(super) fn is_hopeless(&mut self, no: LaneNo, rank: i32) -> bool {
        let LaneView { page, team, has_claims, starves_since, .. } = self.lanes[no];
        self.full.contains_key(&page)
            && !has_claims
            && starves_since.is_none()
            && (self.is_peaceful()
                || self.finds_alike() && self.no_victims.contains(&(page, rank, team)))
            && self.over_team_limit(no).is_none()
            && !(self.is_busy(page) && self.heads_left(page) > 0 && self.may_lead(page))
    }

    /// Nobody is stopped for anybody.
    fn is_peaceful(&self) -> bool {
        !self.policy.preemption.enabled || self.what_if.peaceful
    }

    /// Whether a time to start or an overdue claim may be found for a page.
    fn may_lead(&self, page: PageNo) -> bool {
        !self.no_head.contains(&page) || !self.finds_alike() || self.anybody_is_overdue()
    }

    /// Without reservations and spares, all who ask for the same find the same.
    fn finds_alike(&self) -> bool {
        self.policy.reservations.is_empty() && self.policy.spares.is_empty()
    }

    /// What it does not find on nodes where its port is free, others might elsewhere.
    fn has_fixed_port(&self, key: &QueueKey) -> bool {
        self.state.job(key.job).is_some_and(|job| job.spec.fixed_port().is_some())
    }

    fn anybody_is_overdue(&self) -> bool {
        let oldest = self.state.index.waiting.first();
        oldest.is_some_and(|(since, _)| self.now.since(*since) > self.policy.patience)
    }

    /// How many blocked tasks may still get a time to start: of those who want the same nodes, few.
    fn heads_left(&self, page: PageNo) -> usize {
        let slot = |p: &PartPlacement| self.view.cluster.slot_of(p.node);
        let is_rival =
            |parts: &[PartPlacement]| self.wants_any(page, parts.iter().filter_map(slot));
        // What is kept for somebody to wake is no head: that one is not in the queue.
        let sleeps = |task: TaskId| {
            self.state.job(task.job).is_some_and(|job| claims::is_suspended(job, task))
        };
        let kept = self.state.claims.iter().filter(|(task, claim)| {
            claim.cause == ClaimCause::Overdue
                && !self.dropped.contains(task)
                && !sleeps(**task)
                && is_rival(&claim.parts)
        });
        let new = self.plan.claims.iter();
        let new =
            new.filter(|c| c.cause == ClaimCause::Overdue && !sleeps(c.task) && is_rival(&c.parts));
        let taken = self.rivals(page).count() + kept.count() + new.count();
        self.policy.reserved_heads.saturating_sub(taken)
    }

    /// Heads with nodes that this page could use.
    fn rivals(&self, page: PageNo) -> impl Iterator<Item = &HeadRoom> + '_ {
        self.heads.iter().filter(move |head| self.wants_any(page, head.slots()))
    }

    fn wants_any(&self, page: PageNo, slots: impl IntoIterator<Item = SlotNo>) -> bool {
        let page = self.view.book.page(page);
        slots.into_iter().any(|no| page.is_suitable(no))
    }

    /// Shorter work of the same lane may still go before.
    fn stand_back(&mut self, no: LaneNo, key: &QueueKey, verdict: Verdict) -> Onward {
        let Some(job) = self.state.job(key.job) else { return Onward::Entry };
        let ends = ends_at(self.state, self.policy, job, self.now);
        let task = TaskId { job: key.job, index: key.index };
        self.plan.by_task.entry(task).or_insert(verdict.clone());
        let lane = &mut self.lanes[no];
        lane.stood_back += 1;
        if lane.stands_back(ends).is_none() && !self.may_use_spares(job, task) {
            self.lanes[no].too_long = Some((ends, verdict.clone()));
        }
        if self.lanes[no].stood_back < self.policy.backfill_depth {
            return Onward::Entry;
        }
        self.lanes[no].verdict.get_or_insert(verdict);
        Onward::Over
    }

    /// Stops others for a task, if the rules allow it and it helps.
    pub(super) fn make_way(&mut self, no: LaneNo, key: &QueueKey, rank: i32) -> bool {
        if self.is_peaceful() {
            return false;
        }
        // Where some nodes are closed for a time, it matters how long a job runs.
        let alike = self.finds_alike();
        let Some(turn) = self.turn(no, key) else { return false };
        let (page, team) = (self.lanes[no].page, self.lanes[no].team);
        if alike && self.no_victims.contains(&(page, rank, team)) {
            return false;
        }
        let Some(claim) = preempt::search(self, page, turn.task(), turn.job, team, rank) else {
            if !self.has_fixed_port(key) {
                self.no_victims.insert((page, rank, team));
            }
            return false;
        };
        self.claim(turn.job, claim);
        true
    }

    /// Puts a claim into the plan, and keeps its room from everybody else.
    pub fn claim(&mut self, job: &'a Job, claim: NewClaim) {
        for victim in &claim.victims {
            self.victims.insert(victim.task);
            self.release_victim(victim, claim.task);
        }
        if claim.cause == ClaimCause::Resize {
            self.add_growth(job, &claim);
        } else {
            let held = by_model(&self.view.cluster, &claim.parts);
            let charge = self.charge(job, &claim.parts);
            let team = self.teams.number(&job.team);
            self.charge_claim(team, job, claim.cause, &held, charge);
            self.count_running(job);
            self.tell_heads(&claim.parts, ends_at(self.state, self.policy, job, self.now));
        }
        self.view.cluster.keep(&claim.parts, job.spec.exclusive);
        self.done.insert(claim.task);
        let waiting_for = claim.victims.iter().map(|v| v.task).collect();
        let verdict = Verdict::Claimed { cause: claim.cause, waiting_for };
        self.plan.by_task.insert(claim.task, verdict);
        self.plan.claims.push(claim);
    }

    /// A job that grows has what it has, and more.
    fn add_growth(&mut self, job: &'a Job, claim: &NewClaim) {
        let attempt = job.task(claim.task.index).and_then(|t| t.attempt());
        let has = |p: &&PartPlacement| attempt.is_some_and(|a| a.part_on(p.node).is_some());
        let more: Vec<_> = claim.parts.iter().filter(|p| !has(p)).cloned().collect();
        let held = by_model(&self.view.cluster, &more);
        let team = self.teams.number(&job.team);
        self.teams.add(team, &held);
    }

    /// What a victim gives up no longer counts for its team.
    fn release_victim(&mut self, victim: &Victim, claimant: TaskId) {
        let Some(job) = self.state.job(victim.task.job) else { return };
        let attempt = job.task(victim.task.index).and_then(|t| t.attempt());
        if victim.task == claimant {
            return;
        }
        let kept: &[PartPlacement] = match &victim.how {
            Stop::Requeue | Stop::Suspend { .. } => &[],
            Stop::Shrink { keep } => keep,
        };
        let parts = attempt.into_iter().flat_map(|a| &a.parts);
        let gone = parts.filter(|p| !kept.iter().any(|k| k.node == p.node));
        let gone: Vec<PartPlacement> = gone.map(PartPlacement::from).collect();
        let held = by_model(&self.view.cluster, &gone);
        if let Some(team) = self.teams.find(&job.team) {
            self.teams.release(team, &held);
        }
        if let Stop::Suspend { moved } = &victim.how {
            self.keep_memory(moved);
        }
        // It goes on with these, and they are its own meanwhile.
        self.view.cluster.keep(kept, job.spec.exclusive);
    }

    /// What leaves GPUs for memory is kept for it there from now on.
    fn keep_memory(&mut self, moved: &[Moved]) {
        for Moved { node, bytes } in moved {
            if let Some(no) = self.view.cluster.slot_of(*node) {
                self.view.cluster.change(no, |slot| slot.take(&HeldPart::memory(*bytes)));
            }
        }
    }

    /// Whether this plan suspends the task.
    pub fn suspends(&self, task: TaskId) -> bool {
        let mut victims = self.plan.claims.iter().flat_map(|c| &c.victims);
        victims.any(|v| v.task == task && matches!(v.how, Stop::Suspend { .. }))
    }

    /// The first blocked task gets a time to start that nobody behind it may delay or, if nobody
    /// knows one and it has waited long, nodes of its own.
    fn become_head(&mut self, no: LaneNo, key: &QueueKey) {
        let Some(turn) = self.turn(no, key) else { return };
        let (task, page) = (turn.task(), self.lanes[no].page);
        if self.heads.iter().any(|head| head.task == task) {
            return;
        }
        let may_lead = self.heads_left(page) > 0;
        if !may_lead && self.lanes[no].starves_since.is_none() {
            return;
        }
        if !(self.finds_alike() && self.no_head.contains(&page)) {
            if let Some(head) = self.find_head(&turn, page) {
                // Who starves need not wait for a head that starts later still.
                if may_lead || self.rivals(page).all(|rival| rival.at > head.at) {
                    self.heads.push(head);
                }
                return;
            }
            if !self.has_fixed_port(key) {
                self.no_head.insert(page);
            }
        }
        if !may_lead {
            return;
        }
        let Some(turn) = self.overdue(no, key) else { return };
        let task = turn.task();
        self.view.book.read(page, &self.view.cluster, &self.view.valuer);
        let ports = self.port_taken(turn.job);
        let may_use = |slot: SlotNo| self.may_take(slot, turn.job, page, task, &ports);
        let claim = claims::overdue(&self.view.cluster, self.view.book.page(page), task, &may_use);
        if let Some(claim) = claim
            && self.may_have(turn.job, &claim.parts)
        {
            self.claim(turn.job, claim);
        }
    }

    /// The task itself if it has waited longer than patience allows, or one like it further back.
    fn overdue(&self, no: LaneNo, first: &QueueKey) -> Option<Turn<'a>> {
        // Mostly nobody has waited that long, and no lane need be looked through.
        if !self.anybody_is_overdue() {
            return None;
        }
        let behind = self.lanes[no].keys.range((Bound::Excluded(first), Bound::Unbounded));
        let keys = std::iter::once(first).chain(behind).take(self.policy.backfill_depth);
        let waited = |key: &QueueKey| self.now.since(waiting_since(self.state, key));
        let mut overdue = keys.filter(|key| waited(key) > self.policy.patience);
        overdue.find_map(|key| {
            let turn = self.turn(no, key)?;
            // Whether an array further back may run more was not looked at.
            let may_run = key == first || array_limit(turn.job).is_none();
            let task = turn.task();
            let has_claim = self.state.claims.contains_key(&task) && !self.dropped.contains(&task);
            let is_free = !self.done.contains(&turn.task()) && !has_claim && may_run;
            is_free.then_some(turn)
        })
    }

    /// When it can start, on nodes that are not reserved for others then.
    fn find_head(&mut self, turn: &Turn<'a>, page_no: PageNo) -> Option<HeadRoom> {
        let (state, policy, now, job) = (self.state, self.policy, self.now, turn.job);
        let spares = (!turn.restarted).then_some(&self.spares);
        let ports = self.port_taken(job);
        let View { cluster, book, valuer } = &mut *self.view;
        let page = book.read(page_no, cluster, valuer);
        let (cluster, page) = (&*cluster, page);
        let (placed, victims) = (&self.placed, &self.victims);
        let ends = Ends { state, policy, now, placed, victims };
        let free_of = |slot: SlotNo, from: Time, until: Time| {
            !spares.is_some_and(|spares| spares.contains(&slot))
                && !ports.contains(&cluster.get(slot).node)
                && reservation(policy, cluster, slot, job, from, until).is_none()
        };
        let search = |may_use: &dyn Fn(SlotNo) -> bool| {
            backfill::head(cluster, page, turn.task(), &ends, &self.heads, may_use)
        };
        let never_reserved = |slot: SlotNo| free_of(slot, now, Time(u64::MAX));
        search(&never_reserved).or_else(|| {
            let not_now = |slot: SlotNo| free_of(slot, now, now);
            let head = search(&not_now).filter(|_| !policy.reservations.is_empty())?;
            let run = ends_at(state, policy, job, head.at);
            let until = run.unwrap_or_else(|| head.at.plus(policy.durations.assumed));
            let free_then = head.slots().all(|slot| free_of(slot, head.at, until));
            free_then.then_some(head)
        })
    }

    fn may_use_spares(&self, job: &Job, task: TaskId) -> bool {
        job.task(task.index).is_some_and(|t| t.restarts.node_failure > 0)
    }

    /// Whether a claim of this job may name the node: not a spare, not reserved for others.
    pub fn may_use(&self, slot: SlotNo, job: &Job, task: TaskId) -> bool {
        let from = self.now.plus(CLAIM_MARGIN);
        let ends = ends_at(self.state, self.policy, job, from);
        let until = ends.unwrap_or_else(|| from.plus(self.policy.durations.assumed));
        (!self.spares.contains(&slot) || self.may_use_spares(job, task))
            && reservation(self.policy, &self.view.cluster, slot, job, self.now, until).is_none()
    }

    /// The same for one that does not run there yet, and must not delay those before it in line, or meet
    /// somebody on its port.
    pub fn may_take(
        &self,
        slot: SlotNo,
        job: &Job,
        page: PageNo,
        task: TaskId,
        port_taken: &BTreeSet<NodeId>,
    ) -> bool {
        if !port_taken.is_empty() && port_taken.contains(&self.view.cluster.get(slot).node) {
            return false;
        }
        let ask = self.view.book.ask(page);
        // Of a total of GPUs, a node may give all it has.
        let need = match ask.node_counts() {
            Some(_) => ask.least(),
            None => {
                let room = self.view.cluster.usable_when_empty(self.view.cluster.get(slot), ask);
                let most = u32::try_from(ask.least_gpus()).unwrap_or(u32::MAX);
                ask.need(ask.share_of(&room).min(most))
            }
        };
        let alone = job.spec.exclusive;
        self.heads.iter().all(|head| head.allows(slot, &need, alone, None))
            && self.may_use(slot, job, task)
    }
}
