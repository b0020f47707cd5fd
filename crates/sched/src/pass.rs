//! One scheduling pass: claims that come true, then class by class the waiting work in its order,
//! whole gangs only; what does not fit keeps a time to start, room, or may stop others.

use std::collections::{BTreeMap, BTreeSet};

mod bars;
mod blocked;

use tutti_model::{
    Claim, ClaimCause, DEFAULT_CLASS, Head, Job, JobId, Lane, NewClaim, NodeId, Part,
    PartPlacement, Placement, Plan, Policy, QueueKey, State, TaskId, Tasks, Time, Topology,
    Verdict,
};

use crate::ask::Need;
use crate::backfill::{HeadRoom, ends_at};
use crate::candidates::{Book, PageNo};
use crate::claims;
use crate::cluster::{Cluster, SlotNo, Standing};
use crate::elastic;
use crate::fit;
use crate::lanes::{
    LaneNo, LaneView, Line, active_tasks, array_limit, starving_tasks, waiting_since,
};
use crate::teams::{TeamNo, Teams, Wanted, by_model};
use crate::value::Valuer;
use bars::{Bars, reservation};
use blocked::Onward;

/// The nodes as the scheduler sees them, and everything derived from them.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub cluster: Cluster,
    pub book: Book,
    pub valuer: Valuer,
}

impl View {
    pub fn new(state: &State, policy: &Policy) -> View {
        let cluster = Cluster::new(state, policy);
        let valuer = Valuer::new(state, policy, &cluster);
        View { cluster, book: Book::default(), valuer }
    }
}

/// A question about another state of affairs, answered by the very pass that runs the cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct WhatIf {
    /// As if this job did not wait.
    pub left_out: Option<JobId>,
    /// As if these tasks had ended. Their room must be given back to the view.
    pub ended: BTreeSet<TaskId>,
    /// Nobody is stopped for anybody, and nobody changes size.
    pub peaceful: bool,
    /// Only whether this task starts matters, or of a whole array, any task of it: the pass may
    /// end when that is settled.
    pub only: Option<TaskId>,
}

impl WhatIf {
    /// Whether this is the task that the question is about.
    pub fn is_about(&self, task: TaskId) -> bool {
        self.only.is_some_and(|t| t == task || t == TaskId::single(task.job))
    }
}

pub(crate) struct Pass<'a, 'v> {
    pub state: &'a State,
    pub policy: &'a Policy,
    pub now: Time,
    pub view: &'v mut View,
    pub teams: Teams<'a>,
    pub plan: Plan,
    /// Tasks that this plan stops.
    pub victims: BTreeSet<TaskId>,
    what_if: WhatIf,
    lanes: Vec<LaneView<'a>>,
    heads: Vec<HeadRoom>,
    /// Nodes that stay free for gangs that lost one.
    spares: BTreeSet<SlotNo>,
    /// Pages for which there is no room at all, and for whom nobody can be stopped.
    full: BTreeMap<PageNo, Option<Verdict>>,
    no_victims: BTreeSet<(PageNo, i32, TeamNo)>,
    /// Active tasks of arrays that limit them.
    running: BTreeMap<JobId, u32>,
    placed: BTreeMap<(Time, TaskId), Vec<PartPlacement>>,
    done: BTreeSet<TaskId>,
    /// Pages for which no time to start was found.
    no_head: BTreeSet<PageNo>,
    /// Teams at their limits, with the one for whom they must become free.
    closed: BTreeMap<TeamNo, JobId>,
    /// Overdue claims that are not kept from the class whose turn it is, with their verdicts.
    passed_over: Vec<(TaskId, Verdict)>,
    /// What was asked is answered.
    settled: bool,
}

/// How trying one task ended.
#[derive(Debug, PartialEq, Eq)]
enum Tried {
    Placed,
    /// It was placed, or has its claim already.
    Done,
    /// An array at its limit.
    Skipped,
    /// There is room, but it must stand back for somebody who is before it in line.
    StandsBack(Verdict),
    /// There is room, but it is reserved, kept as a spare or of a model its team has enough of.
    Barred(Verdict),
    /// Its team may not have more.
    AtTeamLimit(Verdict),
    NoRoom,
    PassFull,
}

/// A task whose turn it is.
struct Turn<'a> {
    lane: LaneNo,
    job: &'a Job,
    index: Option<u32>,
    avoid: &'a BTreeSet<NodeId>,
    /// It lost a node before, and may use the spares.
    restarted: bool,
}

static AVOID_NONE: BTreeSet<NodeId> = BTreeSet::new();

impl Turn<'_> {
    fn task(&self) -> TaskId {
        TaskId { job: self.job.id, index: self.index }
    }
}

pub(crate) fn run<'a>(
    view: &mut View,
    state: &'a State,
    policy: &'a Policy,
    now: Time,
    what_if: WhatIf,
) -> Plan {
    view.book.trim();
    let teams = Teams::new(state, policy, &view.cluster, now);
    let mut pass = Pass {
        state,
        policy,
        now,
        view,
        teams,
        plan: Plan::default(),
        victims: BTreeSet::new(),
        what_if,
        lanes: Vec::new(),
        heads: Vec::new(),
        spares: BTreeSet::new(),
        full: BTreeMap::new(),
        no_victims: BTreeSet::new(),
        running: BTreeMap::new(),
        placed: BTreeMap::new(),
        done: BTreeSet::new(),
        no_head: BTreeSet::new(),
        closed: BTreeMap::new(),
        passed_over: Vec::new(),
        settled: false,
    };
    pass.keep_spares();
    pass.claims();
    pass.queue();
    if !pass.what_if.peaceful && !pass.is_full() {
        elastic::grow(&mut pass);
    }
    pass.finish()
}

impl<'a> Pass<'a, '_> {
    fn is_full(&self) -> bool {
        self.settled || self.plan.placements.len() >= self.policy.placements_max
    }

    fn finish(mut self) -> Plan {
        self.keep_again(i32::MIN);
        // A lane's own reason is better than that of one of its tasks.
        let lanes = self.lanes.iter_mut().rev();
        let verdicts = lanes.filter_map(|l| Some((l.lane.clone(), l.verdict.take()?)));
        self.plan.by_lane = verdicts.collect();
        for (page, verdict) in std::mem::take(&mut self.full) {
            let demand = &self.view.book.ask(page).demand;
            self.plan.by_demand.extend(verdict.map(|verdict| (demand.clone(), verdict)));
        }
        for head in &self.heads {
            let nodes = head.nodes(&self.view.cluster);
            self.plan.heads.push(Head { task: head.task, starts_by: Some(head.at), nodes });
        }
        self.plan
    }

    /// All the reasons for which something waits, so far.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> + '_ {
        let of_lanes = self.lanes.iter().filter_map(|lane| lane.verdict.as_ref());
        let of_demands = self.full.values().flatten();
        of_lanes.chain(of_demands).chain(self.plan.by_task.values())
    }

    /// In every domain that is to have spares, the last nodes that are empty.
    fn keep_spares(&mut self) {
        for spare in &self.policy.spares {
            let level = spare.per.max(Topology::Rack);
            let mut empty: BTreeMap<u32, Vec<SlotNo>> = BTreeMap::new();
            for (no, slot) in (0..).zip(&self.view.cluster.slots) {
                if slot.standing == Standing::Open && slot.is_empty() {
                    empty.entry(slot.path.at(level)).or_default().push(no);
                }
            }
            for nodes in empty.values() {
                self.spares.extend(nodes.iter().rev().take(spare.nodes as usize));
            }
        }
    }

    fn claims(&mut self) {
        for (&task, claim) in &self.state.claims {
            let job = self.state.job(task.job);
            let alone = job.is_some_and(|j| j.spec.exclusive);
            if Some(task.job) == self.what_if.left_out {
                self.view.cluster.unkeep(&claim.parts, alone);
                continue;
            }
            match (claims::standing(self.state, task, claim), job) {
                (claims::Standing::Waiting(waiting_for), Some(job)) => {
                    let verdict = Verdict::Claimed { cause: claim.cause, waiting_for };
                    self.plan.by_task.insert(task, verdict);
                    self.note_claim(job, task, claim);
                }
                (claims::Standing::Ready, Some(job)) if self.may_come_true(job, claim) => {
                    let ends = ends_at(self.state, self.policy, job, self.now);
                    self.start(job, task, claim.parts.clone(), ends);
                }
                _ => {
                    self.plan.dropped.push(task);
                    self.view.cluster.unkeep(&claim.parts, alone);
                }
            }
        }
    }

    /// Nodes that became free do as well as those that an overdue task waits for: it need not wait
    /// for the very ones that it named first, whose tenants may stay for ever.
    fn choose_anew(&mut self, turn: &Turn<'a>, key: &QueueKey, claim: &Claim) -> Option<NewClaim> {
        let key = QueueKey { index: turn.index, ..*key };
        if self.now.since(waiting_since(self.state, &key)) <= self.policy.patience {
            return None;
        }
        let page = self.lanes[turn.lane].page;
        self.view.book.read(page, &self.view.cluster, &self.view.valuer);
        let task = turn.task();
        let may_use = |slot: SlotNo| self.may_take(slot, turn.job, page, task);
        let new = claims::overdue(&self.view.cluster, self.view.book.page(page), task, &may_use)?;
        let (new_free, old_free) = (
            claims::free_parts(self.state, task, &new.parts),
            claims::free_parts(self.state, task, &claim.parts),
        );
        (new_free > old_free && self.within_limit(turn.job, &new)).then_some(new)
    }

    /// A claim counts as if it had come true; but what nobody is stopped for may be far away, and is
    /// not part of anybody's guarantee yet.
    fn charge_claim(
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
    fn note_claim(&mut self, job: &'a Job, task: TaskId, claim: &Claim) {
        // An overdue task starts elsewhere if it can.
        if claim.cause != ClaimCause::Overdue {
            self.done.insert(task);
        }
        let team = self.teams.number(&job.team);
        let attempt = job.task(task.index).and_then(|t| t.attempt());
        let Some(attempt) = attempt else {
            let charge = self.charge(job, &claim.parts);
            let held = by_model(&self.view.cluster, &claim.parts);
            self.charge_claim(team, job, claim.cause, &held, charge);
            self.count_running(job);
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

    /// Since the claim was made, a policy may have set limits and reservations.
    fn may_come_true(&mut self, job: &'a Job, claim: &Claim) -> bool {
        let held = by_model(&self.view.cluster, &claim.parts);
        let team = self.teams.number(&job.team);
        let models = &self.view.cluster.models;
        self.teams.over_limit(team, &held, models).is_none() && !self.is_reserved(job, claim)
    }

    fn is_reserved(&self, job: &Job, claim: &Claim) -> bool {
        let ends = ends_at(self.state, self.policy, job, self.now);
        let until = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        let cluster = &self.view.cluster;
        let mut slots = claim.parts.iter().filter_map(|p| cluster.slot_of(p.node));
        slots.any(|no| reservation(self.policy, cluster, no, job, self.now, until).is_some())
    }

    /// Classes from the highest rank down.
    fn queue(&mut self) {
        let state = self.state;
        let mut classes: BTreeMap<std::cmp::Reverse<i32>, Vec<LaneNo>> = BTreeMap::new();
        for (lane, keys) in state.index.queue.iter() {
            let page = self.view.book.page_of(&lane.demand);
            // Lanes of one user are neighbours.
            let (team, user) = match self.lanes.last() {
                Some(l) if l.lane.user == lane.user && l.lane.team == lane.team => (l.team, l.user),
                _ => {
                    let team = self.teams.number(&lane.team);
                    (team, self.teams.user_number(team, &lane.user))
                }
            };
            let head = keys.iter().find(|k| Some(k.job) != self.what_if.left_out).copied();
            let rank = std::cmp::Reverse(self.policy.class_rank(&lane.class));
            classes.entry(rank).or_default().push(self.lanes.len());
            self.lanes.push(LaneView { head, ..LaneView::new(lane, keys, page, team, user) });
        }
        self.mark_claimed();
        self.starving(&mut classes);
        for (std::cmp::Reverse(rank), lanes) in classes {
            if self.is_full() {
                break;
            }
            self.keep_again(rank);
            self.pass_over_the_overdue(rank);
            if self.policy.teams.values().any(|t| !t.guarantee.is_none()) {
                let has = |no: &&LaneNo| self.teams.has_guarantee(self.lanes[**no].team);
                let of = lanes.iter().filter(has).copied();
                let line = Line::new(of, &self.lanes, &self.teams);
                self.run_line(line, rank, true);
            }
            let line = Line::new(lanes.into_iter(), &self.lanes, &self.teams);
            self.run_line(line, rank, false);
        }
    }

    fn mark_claimed(&mut self) {
        for job in self.state.claims.keys().filter_map(|task| self.state.job(task.job)) {
            if let Some(no) = self.lane_of(&Lane::of(job)) {
                self.lanes[no].has_claims = true;
            }
        }
    }

    /// Lanes are numbered in their own order, before those that starve.
    fn lane_of(&self, lane: &Lane) -> Option<LaneNo> {
        let whole = self.lanes.partition_point(|l| l.starves_since.is_none());
        self.lanes[..whole].binary_search_by(|l| l.lane.cmp(lane)).ok()
    }

    /// What is kept for the overdue of lower classes is not kept from this one. They may claim it
    /// again when it is their turn.
    fn pass_over_the_overdue(&mut self, rank: i32) {
        for (&task, claim) in &self.state.claims {
            let Some(job) = self.state.job(task.job) else { continue };
            let class = job.spec.class.as_deref().unwrap_or(DEFAULT_CLASS);
            let waits = self.plan.by_task.contains_key(&task) && !self.done.contains(&task);
            if claim.cause != ClaimCause::Overdue
                || self.policy.class_rank(class) >= rank
                || !waits
                || self.plan.dropped.contains(&task)
            {
                continue;
            }
            self.plan.dropped.push(task);
            self.passed_over.extend(self.plan.by_task.remove(&task).map(|why| (task, why)));
            self.view.cluster.unkeep(&claim.parts, job.spec.exclusive);
            let held = by_model(&self.view.cluster, &claim.parts);
            let team = self.teams.number(&job.team);
            self.teams.unhold(team, &held);
            if let Some(running) = self.running.get_mut(&job.id) {
                *running -= 1;
            }
        }
    }

    /// Claims that were passed over for higher classes, and of whose nodes nobody took anything,
    /// hold again from their own class on.
    fn keep_again(&mut self, rank: i32) {
        if self.passed_over.is_empty() {
            return;
        }
        let taken: BTreeSet<NodeId> = {
            let placed = self.plan.placements.iter().flat_map(|p| &p.parts);
            let claimed = self.plan.claims.iter().flat_map(|c| &c.parts);
            placed.chain(claimed).map(|p| p.node).collect()
        };
        for (task, why) in std::mem::take(&mut self.passed_over) {
            let (Some(job), Some(claim)) = (self.state.job(task.job), self.state.claims.get(&task))
            else {
                continue;
            };
            let class = job.spec.class.as_deref().unwrap_or(DEFAULT_CLASS);
            if self.policy.class_rank(class) < rank {
                self.passed_over.push((task, why));
            } else if !self.done.contains(&task)
                && !claim.parts.iter().any(|p| taken.contains(&p.node))
            {
                self.plan.dropped.retain(|dropped| *dropped != task);
                self.plan.by_task.insert(task, why);
                self.view.cluster.keep(&claim.parts, job.spec.exclusive);
                self.note_claim(job, task, claim);
            }
        }
    }

    /// Tasks that have waited beyond bearing go before everything else of their team.
    fn starving(&mut self, classes: &mut BTreeMap<std::cmp::Reverse<i32>, Vec<LaneNo>>) {
        let depth = self.policy.backfill_depth;
        for (job, task, since) in starving_tasks(self.state, self.policy, self.now, depth) {
            let Some(no) = self.lane_of(&Lane::of(job)) else { continue };
            if Some(job.id) == self.what_if.left_out {
                continue;
            }
            let key = QueueKey::of(self.policy, job, task.index, job.task(task.index));
            let rank = std::cmp::Reverse(self.policy.class_rank(&self.lanes[no].lane.class));
            classes.entry(rank).or_default().push(self.lanes.len());
            let starving = self.lanes[no].starving(key, since);
            self.lanes.push(starving);
        }
    }

    fn run_line(&mut self, mut line: Line, rank: i32, guaranteed: bool) {
        while let Some(no) = line.next(&self.teams) {
            if self.is_full() {
                return;
            }
            let LaneView { page, team, head: Some(key), .. } = self.lanes[no] else {
                line.leave(no, &self.teams);
                continue;
            };
            if guaranteed && self.guarantor(team, page).is_none() {
                line.leave(no, &self.teams);
                continue;
            }
            if self.is_hopeless(no, rank) {
                self.lanes[no].head = None;
                line.leave(no, &self.teams);
                continue;
            }
            let index = self.turn(no, &key).and_then(|turn| turn.index);
            let tried = self.try_entry(no, &key);
            let onward = self.note_blocked(no, &key, tried, rank);
            let left_out = self.what_if.left_out;
            match (onward, self.state.job(key.job)) {
                (Onward::Task, Some(job)) => self.lanes[no].advance_task(job, index, left_out),
                (Onward::Over, _) => self.lanes[no].head = None,
                _ => self.lanes[no].advance(left_out),
            }
            line.update(no, &self.lanes, &self.teams);
        }
    }

    pub fn wanted(&self, page: PageNo) -> Wanted {
        Wanted::by(self.view.book.ask(page), &self.view.cluster.models)
    }

    /// The team whose guarantee covers this.
    pub fn guarantor(&self, team: TeamNo, page: PageNo) -> Option<TeamNo> {
        if !self.teams.has_guarantee(team) {
            return None;
        }
        self.teams.guarantor(team, &self.wanted(page), &self.view.cluster.models)
    }

    fn turn(&self, no: LaneNo, key: &QueueKey) -> Option<Turn<'a>> {
        let job = self.state.job(key.job)?;
        let index = match (&job.tasks, key.index) {
            (Tasks::Array(array), None) if self.lanes[no].head == Some(*key) => {
                self.lanes[no].next_index.or_else(|| array.waiting.first())
            }
            (Tasks::Array(array), None) => array.waiting.first(),
            (_, index) => index,
        };
        let task = job.task(index);
        Some(Turn {
            lane: no,
            job,
            index,
            avoid: task.map_or(&AVOID_NONE, |t| &t.avoid),
            restarted: task.is_some_and(|t| t.restarts.node_failure > 0),
        })
    }

    fn try_entry(&mut self, no: LaneNo, key: &QueueKey) -> Tried {
        let Some(turn) = self.turn(no, key) else {
            debug_assert!(false, "{key:?} is queued, but there is no such job");
            return Tried::Skipped;
        };
        if self.done.contains(&turn.task()) {
            return Tried::Done;
        }
        if self.is_full() {
            return Tried::PassFull;
        }
        if let Some(claim) = self.state.claims.get(&turn.task())
            && !self.plan.dropped.contains(&turn.task())
        {
            return self.try_elsewhere(&turn, key, claim);
        }
        if self.at_array_limit(turn.job) {
            return Tried::Skipped;
        }
        if self.full.contains_key(&self.lanes[turn.lane].page) {
            return match self.over_team_limit(turn.lane) {
                Some(verdict) => Tried::AtTeamLimit(verdict),
                None => Tried::NoRoom,
            };
        }
        self.try_task(&turn)
    }

    /// An overdue task need not wait for the very nodes that are kept for it.
    fn try_elsewhere(&mut self, turn: &Turn<'a>, key: &QueueKey, claim: &Claim) -> Tried {
        let alone = turn.job.spec.exclusive;
        self.view.cluster.unkeep(&claim.parts, alone);
        let page = self.lanes[turn.lane].page;
        let was_full = self.full.contains_key(&page);
        let held = by_model(&self.view.cluster, &claim.parts);
        self.teams.unhold(self.lanes[turn.lane].team, &held);
        let tried = self.try_task(turn);
        if tried == Tried::Placed {
            self.plan.dropped.push(turn.task());
            return Tried::Done;
        }
        if !was_full {
            self.full.remove(&page);
        }
        // By now it may have the right to stop others.
        let rank = self.policy.class_rank(&self.lanes[turn.lane].lane.class);
        let lacks_room = matches!(tried, Tried::NoRoom | Tried::Barred(_));
        if lacks_room && self.make_way(turn.lane, key, rank) {
            self.plan.dropped.push(turn.task());
            return Tried::Done;
        }
        if let Some(new) = self.choose_anew(turn, key, claim) {
            self.plan.dropped.push(turn.task());
            self.claim(turn.job, new);
            return Tried::Done;
        }
        self.teams.hold(self.lanes[turn.lane].team, &held);
        self.view.cluster.keep(&claim.parts, alone);
        self.done.insert(turn.task());
        Tried::Done
    }

    fn at_array_limit(&mut self, job: &Job) -> bool {
        array_limit(job).is_some_and(|limit| self.running_tasks(job) >= limit)
    }

    fn running_tasks(&mut self, job: &Job) -> u32 {
        let (active, ended) = (&self.state.index.active, &self.what_if.ended);
        let count = || active_tasks(active, job.id) - active_tasks(ended, job.id);
        *self.running.entry(job.id).or_insert_with(count)
    }

    /// One more task of an array that limits them runs, or will.
    fn count_running(&mut self, job: &Job) {
        if array_limit(job).is_some() {
            let running = self.running_tasks(job) + 1;
            self.running.insert(job.id, running);
        }
    }

    fn try_task(&mut self, turn: &Turn<'a>) -> Tried {
        if let Some(verdict) = self.over_team_limit(turn.lane) {
            return Tried::AtTeamLimit(verdict);
        }
        let ends = ends_at(self.state, self.policy, turn.job, self.now);
        if !turn.restarted
            && let Some(verdict) = self.lanes[turn.lane].stands_back(ends)
        {
            return Tried::StandsBack(verdict.clone());
        }
        let (mut barred, mut at_limit) = (Vec::new(), None);
        loop {
            let parts = match self.find(turn, ends, &barred) {
                Ok(found) => found,
                // What room is left is of models that its team has enough of.
                Err(Tried::Barred(_)) if let Some(verdict) = at_limit => {
                    return Tried::AtTeamLimit(verdict);
                }
                Err(tried) => return tried,
            };
            let (team, models) = (self.lanes[turn.lane].team, &self.view.cluster.models);
            let held = by_model(&self.view.cluster, &parts);
            let Some(over) = self.teams.over_limit(team, &held, models) else {
                self.tell_heads(&parts, ends);
                self.view.cluster.take(&parts, turn.job.spec.exclusive);
                self.start(turn.job, turn.task(), parts, ends);
                return Tried::Placed;
            };
            match over.model {
                // It may do with another model.
                Some(model) if !barred.contains(&model) => {
                    barred.push(model);
                    at_limit = Some(over.verdict(held.iter().sum()));
                }
                _ => return Tried::AtTeamLimit(over.verdict(held.iter().sum())),
            }
        }
    }

    fn find(
        &mut self,
        turn: &Turn<'a>,
        ends: Option<Time>,
        barred: &[usize],
    ) -> Result<Vec<PartPlacement>, Tried> {
        let LaneView { page: page_no, team, .. } = self.lanes[turn.lane];
        let View { cluster, book, valuer } = &mut *self.view;
        let page = book.read(page_no, cluster, valuer);
        let bars = Bars {
            policy: self.policy,
            now: self.now,
            cluster,
            heads: &self.heads,
            spares: (!turn.restarted).then_some(&self.spares),
            job: turn.job,
            ask: &page.ask,
            ends,
            models: barred,
        };
        let found = fit::find(cluster, page, &|slot, gpus| bars.allows(slot, gpus), turn.avoid);
        let Some(mut shares) = found else {
            if fit::find(cluster, page, &|_, _| true, &AVOID_NONE).is_none() {
                self.full.insert(page_no, None);
                return Err(Tried::NoRoom);
            }
            let standing = |slot, _| bars.allows_but_for_heads(slot);
            let behind =
                !bars.has_standing() || fit::find(cluster, page, &standing, &AVOID_NONE).is_some();
            let verdict = if behind { bars.behind(page) } else { None };
            return Err(match verdict {
                Some(verdict) => Tried::StandsBack(verdict),
                None => Tried::Barred(bars.verdict(page)),
            });
        };
        let mut parts = fit::place(cluster, valuer, &page.ask, &shares);
        // An elastic gang takes no more than its team may have.
        let least = page.ask.node_counts().map_or(usize::MAX, |(_, least)| least as usize);
        while shares.len() > least
            && self.teams.over_limit(team, &by_model(cluster, &parts), &cluster.models).is_some()
        {
            shares.pop();
            parts = fit::place(cluster, valuer, &page.ask, &shares);
        }
        Ok(parts)
    }

    /// Whether the team could have the least that this needs, of whatever model.
    fn over_team_limit(&self, no: LaneNo) -> Option<Verdict> {
        let LaneView { page, team, .. } = self.lanes[no];
        let first = self.teams.line(team).find_map(|at| self.closed.get(&at));
        if let Some(&job) = first {
            return Some(Verdict::Behind { job });
        }
        let milli = self.view.book.ask(page).least_milli();
        Some(self.teams.over_limit(team, &[milli], &[])?.verdict(milli))
    }

    /// Puts a placement into the plan and on the books.
    fn start(&mut self, job: &'a Job, task: TaskId, parts: Vec<PartPlacement>, ends: Option<Time>) {
        let held = by_model(&self.view.cluster, &parts);
        let charge = self.charge(job, &parts);
        let team = self.teams.number(&job.team);
        self.teams.charge(team, &job.user, &held, charge);
        if let Some(ends) = ends {
            self.placed.insert((ends, task), parts.clone());
        }
        self.count_running(job);
        self.done.insert(task);
        self.plan.by_task.remove(&task);
        self.settled |= self.what_if.is_about(task);
        self.plan.placements.push(Placement { task, parts });
    }

    /// Heads know that something will be on their nodes.
    fn tell_heads(&mut self, parts: &[PartPlacement], ends: Option<Time>) {
        for part in parts {
            let Some(slot) = self.view.cluster.slot_of(part.node) else { continue };
            let gpus = part.gpus.len() as u32;
            let need = Need { gpus, share: part.share, cpus: part.cpus, mem: part.mem };
            self.heads.iter_mut().for_each(|head| head.note(slot, &need, ends));
        }
    }

    fn charge(&self, job: &Job, parts: &[PartPlacement]) -> u64 {
        let of_part = |part: &PartPlacement| {
            let node = self.state.node(part.node)?;
            Some(self.policy.charge(&node.facts, part, job.spec.exclusive))
        };
        parts.iter().filter_map(of_part).sum()
    }
}

#[cfg(test)]
mod tests;
