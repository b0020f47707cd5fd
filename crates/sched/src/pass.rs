//! One scheduling pass: claims that come true, then class by class the waiting work in its order,
//! whole gangs only; what does not fit keeps a time to start, room, or may stop others.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    ClaimCause, Head, Job, JobId, NewClaim, NodeId, PartPlacement, Placement, Plan, Policy,
    QueueKey, State, Stop, TaskId, Tasks, Time, Topology, Verdict, Victim,
};

use crate::ask::Need;
use crate::backfill::{self, Ends, HeadRoom, ends_at};
use crate::candidates::{Book, PageNo};
use crate::claims;
use crate::cluster::{Cluster, SlotNo, Standing};
use crate::elastic;
use crate::fit;
use crate::lanes::{LaneNo, LaneView, Line, active_tasks, array_limit, waiting_since};
use crate::preempt;
use crate::teams::{Teams, Wanted, by_model};
use crate::value::Valuer;

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
    full: BTreeSet<PageNo>,
    no_victims: BTreeSet<(PageNo, i32, usize)>,
    /// Active tasks of arrays that limit them.
    running: BTreeMap<JobId, u32>,
    placed: BTreeMap<(Time, TaskId), Vec<PartPlacement>>,
    done: BTreeSet<TaskId>,
    /// What was asked is answered.
    settled: bool,
}

/// How trying one task ended.
#[derive(Debug, PartialEq, Eq)]
enum Tried {
    Placed,
    /// Nothing to do: an array at its limit, or a task that was placed already.
    Skipped,
    /// There is room, but it must stand back for somebody else.
    StandsBack(Verdict),
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
        full: BTreeSet::new(),
        no_victims: BTreeSet::new(),
        running: BTreeMap::new(),
        placed: BTreeMap::new(),
        done: BTreeSet::new(),
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
        for head in &self.heads {
            let nodes = head.nodes(&self.view.cluster);
            self.plan.heads.push(Head { task: head.task, starts_by: Some(head.at), nodes });
        }
        self.plan
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
            if Some(task.job) == self.what_if.left_out {
                continue;
            }
            match claims::standing(self.state, task, claim) {
                claims::Standing::Void => self.plan.dropped.push(task),
                claims::Standing::Waiting(waiting_for) => {
                    let verdict = Verdict::Claimed { cause: claim.cause, waiting_for };
                    self.plan.by_task.insert(task, verdict);
                }
                claims::Standing::Ready => {
                    if let Some(job) = self.state.job(task.job) {
                        self.start(job, task, claim.parts.clone(), None);
                    }
                }
            }
        }
    }

    /// Classes from the highest rank down.
    fn queue(&mut self) {
        let state = self.state;
        let mut classes: BTreeMap<std::cmp::Reverse<i32>, Line> = BTreeMap::new();
        for (lane, keys) in state.index.queue.iter() {
            let page = self.view.book.page_of(&lane.demand);
            let team = self.teams.number(&lane.team);
            let head = keys.iter().find(|k| Some(k.job) != self.what_if.left_out).copied();
            let rank = std::cmp::Reverse(self.policy.class_rank(&lane.class));
            classes.entry(rank).or_default().add(team, self.lanes.len());
            let (next_index, stood_back) = (None, 0);
            self.lanes.push(LaneView { lane, keys, page, team, head, next_index, stood_back });
        }
        for (std::cmp::Reverse(rank), mut line) in classes {
            if self.is_full() {
                break;
            }
            self.starving(rank);
            line.changed_all();
            if self.policy.teams.values().any(|t| !t.guarantee.is_none()) {
                self.run_line(&mut line, rank, true);
                line.changed_all();
            }
            self.run_line(&mut line, rank, false);
        }
    }

    /// Tasks that have waited beyond bearing go before everything else of their class.
    fn starving(&mut self, rank: i32) {
        let before = Time(self.now.0.saturating_sub(self.policy.starve_after.0));
        let lane_of: BTreeMap<_, LaneNo> = match self.state.index.waiting.first() {
            Some((since, _)) if *since < before => {
                (0..).zip(&self.lanes).map(|(no, l)| (l.lane, no)).collect::<BTreeMap<_, _>>()
            }
            _ => return,
        };
        let starving = self.state.index.waiting.iter().take_while(|(since, _)| *since < before);
        let starving: Vec<TaskId> =
            starving.take(self.policy.backfill_depth).map(|(_, id)| *id).collect();
        for task in starving {
            let Some(job) = self.state.job(task.job) else { continue };
            let Some(&lane) = lane_of.get(&tutti_model::Lane::of(job)) else { continue };
            if self.policy.class_rank(&self.lanes[lane].lane.class) != rank {
                continue;
            }
            let record = job.task(task.index);
            let key = QueueKey::of(self.policy, job, task.index, record);
            if Some(job.id) == self.what_if.left_out || self.is_full() {
                continue;
            }
            let tried = self.try_entry(lane, &key);
            self.note_blocked(lane, &key, tried, rank);
        }
    }

    fn run_line(&mut self, line: &mut Line, rank: i32, guaranteed: bool) {
        loop {
            let models = self.view.cluster.models.clone();
            let book = &self.view.book;
            let may = |lane: &LaneView<'a>, teams: &Teams<'a>| {
                if !guaranteed {
                    return true;
                }
                let wanted = Wanted::by(book.ask(lane.page), &models);
                teams.has_guarantee(lane.team) && teams.in_guarantee(lane.team, &wanted)
            };
            let Some(no) = line.next(&self.lanes, &mut self.teams, &may) else { return };
            if self.is_full() {
                return;
            }
            let Some(key) = self.lanes[no].head else { return };
            let team = self.lanes[no].team;
            let tried = self.try_entry(no, &key);
            // In the first round a lane that is blocked is left for the second.
            self.go_on(no, &key, tried, rank, guaranteed);
            if guaranteed {
                line.changed_all();
            } else {
                line.changed(team);
            }
        }
    }

    fn go_on(&mut self, no: LaneNo, key: &QueueKey, tried: Tried, rank: i32, _guaranteed: bool) {
        let left_out = self.what_if.left_out;
        match &tried {
            Tried::Placed => {
                if let Some(job) = self.state.job(key.job) {
                    let index = self.current_index(no, key, job);
                    self.lanes[no].advance_task(job, index, left_out);
                }
            }
            Tried::Skipped => self.lanes[no].advance(left_out),
            Tried::PassFull => {}
            _ => {
                let goes_on = self.note_blocked(no, key, tried, rank);
                if goes_on {
                    self.lanes[no].advance(left_out);
                } else {
                    self.lanes[no].head = None;
                }
            }
        }
    }

    fn current_index(&self, no: LaneNo, key: &QueueKey, job: &Job) -> Option<u32> {
        match (&job.tasks, key.index) {
            (Tasks::Array(array), None) => {
                self.lanes[no].next_index.or_else(|| array.waiting.first())
            }
            (_, index) => index,
        }
    }

    fn turn(&self, no: LaneNo, key: &QueueKey) -> Option<Turn<'a>> {
        let job = self.state.job(key.job)?;
        let index = self.current_index(no, key, job);
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
            return Tried::Skipped;
        }
        if self.at_array_limit(turn.job) {
            let max_running = array_limit(turn.job).unwrap_or_default();
            let rest = TaskId::single(turn.job.id);
            self.plan.by_task.insert(rest, Verdict::ArrayLimit { max_running });
            return Tried::Skipped;
        }
        if self.is_full() {
            return Tried::PassFull;
        }
        self.try_task(&turn)
    }

    fn at_array_limit(&mut self, job: &Job) -> bool {
        let Some(limit) = array_limit(job) else { return false };
        let (active, ended) = (&self.state.index.active, &self.what_if.ended);
        let count = || active_tasks(active, job.id) - active_tasks(ended, job.id);
        *self.running.entry(job.id).or_insert_with(count) >= limit
    }

    fn try_task(&mut self, turn: &Turn<'a>) -> Tried {
        let LaneView { page: page_no, team, .. } = self.lanes[turn.lane];
        if let Some(verdict) = self.team_limit(team, page_no) {
            return Tried::AtTeamLimit(verdict);
        }
        if self.full.contains(&page_no) {
            return Tried::NoRoom;
        }
        let need = self.view.book.ask(page_no).least();
        let ends = ends_at(self.state, self.policy, turn.job, self.now);
        let View { cluster, book, valuer } = &mut *self.view;
        let page = book.read(page_no, cluster, valuer);
        let guard = Bars {
            state: self.state,
            policy: self.policy,
            now: self.now,
            cluster,
            heads: &self.heads,
            spares: (!turn.restarted).then_some(&self.spares),
        };
        let allows = |slot: SlotNo| guard.allows(slot, turn.job, &need, ends);
        let Some(shares) = fit::find(cluster, page, &allows, turn.avoid) else {
            if fit::find(cluster, page, &|_| true, &AVOID_NONE).is_none() {
                self.full.insert(page_no);
                return Tried::NoRoom;
            }
            let verdict = guard.verdict(page, turn.job, &need, ends);
            return Tried::StandsBack(verdict);
        };
        let parts = fit::place(cluster, valuer, &page.ask, &shares);
        let held = by_model(cluster, &parts);
        if let Some(over) = self.teams.over_limit(team, &held, &cluster.models) {
            let wanted = (held.iter().sum::<u64>()).div_ceil(1000) as u32;
            return Tried::AtTeamLimit(Verdict::TeamLimit {
                team: over.team.to_owned(),
                limit: over.limit,
                used: over.used,
                wanted,
            });
        }
        for share in &shares {
            let need = page.ask.need(share.gpus);
            self.heads.iter_mut().for_each(|head| head.note(share.slot, &need, ends));
        }
        cluster.take(&parts, page.ask.demand.exclusive);
        self.start(turn.job, turn.task(), parts, ends);
        Tried::Placed
    }

    /// Whether the team could have the least that this needs, of whatever model.
    fn team_limit(&self, team: usize, page: PageNo) -> Option<Verdict> {
        let ask = self.view.book.ask(page);
        let milli = ask.least_gpus() * u64::from(ask.demand.share.0);
        let over = self.teams.over_limit(team, &[milli], &[])?;
        let (limit, used) = (over.limit, over.used);
        let wanted = milli.div_ceil(1000) as u32;
        Some(Verdict::TeamLimit { team: over.team.to_owned(), limit, used, wanted })
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
        if let Some(running) = self.running.get_mut(&job.id) {
            *running += 1;
        }
        self.done.insert(task);
        self.plan.by_task.remove(&task);
        self.settled |= self.what_if.is_about(task);
        self.plan.placements.push(Placement { task, parts });
    }

    fn charge(&self, job: &Job, parts: &[PartPlacement]) -> u64 {
        let of_part = |part: &PartPlacement| {
            let node = self.state.node(part.node)?;
            Some(self.policy.charge(&node.facts, part, job.spec.exclusive))
        };
        parts.iter().filter_map(of_part).sum()
    }

    /// What becomes of a task that can't start now. False if nothing behind it in its lane can
    /// either.
    fn note_blocked(&mut self, no: LaneNo, key: &QueueKey, tried: Tried, rank: i32) -> bool {
        match tried {
            Tried::Placed | Tried::Skipped => true,
            Tried::PassFull => false,
            Tried::AtTeamLimit(verdict) => {
                self.plan.by_lane.entry(self.lanes[no].lane.clone()).or_insert(verdict);
                false
            }
            Tried::StandsBack(verdict) => {
                self.lanes[no].stood_back += 1;
                if matches!(verdict, Verdict::Reserved { .. }) {
                    self.make_way(no, key, rank);
                }
                if let Some(turn) = self.turn(no, key) {
                    let rest = TaskId { job: turn.job.id, index: key.index };
                    self.plan.by_task.entry(rest).or_insert(verdict.clone());
                }
                let goes_on = self.lanes[no].stood_back < self.policy.backfill_depth;
                if !goes_on {
                    self.plan.by_lane.entry(self.lanes[no].lane.clone()).or_insert(verdict);
                }
                goes_on
            }
            Tried::NoRoom => {
                let page_no = self.lanes[no].page;
                let View { cluster, book, valuer } = &mut *self.view;
                let verdict = book.read(page_no, cluster, valuer).verdict(cluster);
                let busy = matches!(verdict, Verdict::Busy(_));
                self.plan.by_lane.entry(self.lanes[no].lane.clone()).or_insert(verdict);
                self.make_way(no, key, rank) || {
                    if busy {
                        self.become_head(no, key);
                    }
                    false
                }
            }
        }
    }

    /// Stops others for a task, if the rules allow it and it helps. True if the next in the lane
    /// may try as well.
    fn make_way(&mut self, no: LaneNo, key: &QueueKey, rank: i32) -> bool {
        if !self.policy.preemption.enabled || self.what_if.peaceful {
            return false;
        }
        let Some(turn) = self.turn(no, key) else { return false };
        let (page, team) = (self.lanes[no].page, self.lanes[no].team);
        if self.state.claims.contains_key(&turn.task()) {
            return true;
        }
        if self.no_victims.contains(&(page, rank, team)) {
            return false;
        }
        let Some(claim) = preempt::search(self, page, turn.task(), turn.job, team, rank) else {
            self.no_victims.insert((page, rank, team));
            return false;
        };
        self.claim(turn.job, claim);
        true
    }

    /// Puts a claim into the plan, and keeps its room from everybody else.
    pub fn claim(&mut self, job: &'a Job, claim: NewClaim) {
        let held = by_model(&self.view.cluster, &claim.parts);
        for victim in &claim.victims {
            self.victims.insert(victim.task);
            self.release_victim(victim, claim.task);
        }
        if claim.cause != ClaimCause::Resize {
            let charge = self.charge(job, &claim.parts);
            let team = self.teams.number(&job.team);
            self.teams.charge(team, &job.user, &held, charge);
        }
        self.view.cluster.take(&claim.parts, job.spec.exclusive);
        self.done.insert(claim.task);
        let waiting_for = claim.victims.iter().map(|v| v.task).collect();
        let verdict = Verdict::Claimed { cause: claim.cause, waiting_for };
        self.plan.by_task.insert(claim.task, verdict);
        self.plan.claims.push(claim);
    }

    /// What a victim gives up no longer counts for its team.
    fn release_victim(&mut self, victim: &Victim, claimant: TaskId) {
        let Some(job) = self.state.job(victim.task.job) else { return };
        let attempt = job.task(victim.task.index).and_then(|t| t.attempt());
        if victim.task == claimant {
            return;
        }
        let kept: &[PartPlacement] = match &victim.how {
            Stop::Requeue => &[],
            Stop::Shrink { keep } => keep,
        };
        let parts = attempt.into_iter().flat_map(|a| &a.parts);
        let gone = parts.filter(|p| !kept.iter().any(|k| k.node == p.node));
        let gone: Vec<PartPlacement> = gone.map(preempt::as_placement).collect();
        let held = by_model(&self.view.cluster, &gone);
        if let Some(team) = self.teams.find(&job.team) {
            self.teams.release(team, &held);
        }
    }

    /// The first blocked task gets a time to start that nobody behind it may delay or, if nobody
    /// knows one and it has waited long, nodes of its own.
    fn become_head(&mut self, no: LaneNo, key: &QueueKey) {
        let Some(turn) = self.turn(no, key) else { return };
        let (task, page_no) = (turn.task(), self.lanes[no].page);
        let kept = self.state.claims.values().filter(|c| c.cause == ClaimCause::Overdue).count();
        let new = self.plan.claims.iter().filter(|c| c.cause == ClaimCause::Overdue).count();
        if self.heads.len() + kept + new >= self.policy.reserved_heads
            || self.state.claims.contains_key(&task)
        {
            return;
        }
        let View { cluster, book, valuer } = &mut *self.view;
        let page = book.read(page_no, cluster, valuer);
        let placed = &self.placed;
        let ends = Ends { state: self.state, policy: self.policy, now: self.now, placed };
        let may_use =
            |slot: SlotNo| !is_reserved(self.policy, cluster, slot, turn.job, self.now, self.now);
        if let Some(head) = backfill::head(cluster, page, task, &ends, &may_use) {
            self.heads.push(head);
            return;
        }
        let waited = self.now.since(waiting_since(self.state, key));
        if waited > self.policy.patience
            && let Some(claim) = claims::overdue(cluster, page, task, &may_use)
        {
            self.claim(turn.job, claim);
        }
    }

    /// What preemption may not touch for the sake of this job.
    pub fn may_use(&self, slot: SlotNo, job: &Job) -> bool {
        let ends = ends_at(self.state, self.policy, job, self.now);
        let ends = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        !is_reserved(self.policy, &self.view.cluster, slot, job, self.now, ends)
    }
}

/// What keeps a task off a node that has room for it.
struct Bars<'b> {
    state: &'b State,
    policy: &'b Policy,
    now: Time,
    cluster: &'b Cluster,
    heads: &'b [HeadRoom],
    spares: Option<&'b BTreeSet<SlotNo>>,
}

impl Bars<'_> {
    fn allows(&self, slot: SlotNo, job: &Job, need: &Need, ends: Option<Time>) -> bool {
        let kept = self.spares.is_some_and(|spares| spares.contains(&slot));
        let until = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        !kept
            && self.heads.iter().all(|head| head.allows(slot, need, ends))
            && !is_reserved(self.policy, self.cluster, slot, job, self.now, until)
    }

    /// Why there is room and it may not be used.
    fn verdict(
        &self,
        page: &crate::candidates::Page,
        job: &Job,
        need: &Need,
        ends: Option<Time>,
    ) -> Verdict {
        let until = ends.unwrap_or_else(|| self.now.plus(self.policy.durations.assumed));
        let (mut kept, mut reserved, mut by) = (0, 0, None);
        for slot in page.fitting() {
            match reservation(self.policy, self.cluster, slot, job, self.now, until) {
                Some(r) => {
                    reserved += 1;
                    by = by.or(Some(r));
                }
                None => kept += u32::from(!self.allows(slot, job, need, ends)),
            }
        }
        let mut shortage = match page.verdict(self.cluster) {
            Verdict::Busy(s) | Verdict::NodesUnavailable(s) => s,
            _ => Default::default(),
        };
        shortage.nodes_fitting = shortage.nodes_fitting.saturating_sub(kept + reserved);
        (shortage.blocked.kept, shortage.blocked.reserved) = (kept, reserved);
        let delayed = |head: &&HeadRoom| page.fitting().any(|s| !head.allows(s, need, ends));
        match (by, self.heads.iter().find(delayed)) {
            (Some(r), None) => {
                Verdict::Reserved { reservation: r.name.clone(), until: r.until, shortage }
            }
            (_, Some(head)) => Verdict::Behind { job: head.task.job },
            (None, None) => {
                let _ = self.state;
                Verdict::Busy(shortage)
            }
        }
    }
}

/// The reservation that keeps a job off a node between two times, if any.
fn reservation<'p>(
    policy: &'p Policy,
    cluster: &Cluster,
    slot: SlotNo,
    job: &Job,
    from: Time,
    until: Time,
) -> Option<&'p tutti_model::Reservation> {
    let all = cluster.get(slot).reservations.iter();
    let mut meant = all.filter_map(|&n| policy.reservations.get(n as usize));
    meant.find(|r| {
        let meets = r.from < until.max(Time(from.0 + 1)) && r.until > from;
        let theirs =
            r.team.as_ref().is_some_and(|t| policy.line_of(&job.team).contains(&t.as_str()));
        meets && !theirs
    })
}

fn is_reserved(
    policy: &Policy,
    cluster: &Cluster,
    slot: SlotNo,
    job: &Job,
    from: Time,
    until: Time,
) -> bool {
    reservation(policy, cluster, slot, job, from, until).is_some()
}
