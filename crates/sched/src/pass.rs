//! One scheduling pass: claims that come true, then class by class the waiting work in its order,
//! whole gangs only; what does not fit keeps a time to start, room, or may stop others.

use std::collections::{BTreeMap, BTreeSet};

mod bars;
mod blocked;
mod kept;
mod wake;

use tutti_model::{
    Head, Job, JobId, Lane, NodeId, PartPlacement, Placement, Plan, Policy, QueueKey, State, Task,
    TaskId, Tasks, Time, Verdict,
};

use crate::ask::Need;
use crate::backfill::{HeadRoom, ends_at};
use crate::candidates::{Book, PageNo};
use crate::cluster::{Cluster, SlotNo, is_empty_and_open};
use crate::elastic;
use crate::fit;
use crate::lanes::{
    LaneNo, LaneView, Line, active_tasks, array_limit, returning_tasks, returns, starving_tasks,
};
use crate::near::{crowded, near};
use crate::teams::{OverLimit, TeamNo, Teams, Wanted, by_model};
use crate::value::Valuer;
use bars::Bars;
pub(crate) use bars::{reservations_between, spare_slots};
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
    /// Claims that are given up; those of the plan at the end.
    pub dropped: BTreeSet<TaskId>,
    /// Tasks that this plan stops.
    pub victims: BTreeSet<TaskId>,
    pub what_if: WhatIf,
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
    /// Teams at their limits, of a model or of any, with the one for whom they must become free.
    closed: BTreeMap<(TeamNo, Option<usize>), JobId>,
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
    /// There is room, but somebody else there listens on its port.
    PortTaken(Verdict),
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

    fn waits_since(&self) -> Time {
        let since = self.job.task(self.index).and_then(Task::waits_since);
        since.unwrap_or(self.job.submitted_at)
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
    let spares = spare_slots(policy, &view.cluster, &is_empty_and_open);
    let mut pass = Pass {
        state,
        policy,
        now,
        view,
        teams,
        plan: Plan::default(),
        dropped: BTreeSet::new(),
        victims: BTreeSet::new(),
        what_if,
        lanes: Vec::new(),
        heads: Vec::new(),
        spares,
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
        self.plan.dropped = self.dropped.into_iter().collect();
        self.plan
    }

    /// All the reasons for which something waits, so far.
    pub fn verdicts(&self) -> impl Iterator<Item = &Verdict> + '_ {
        let of_lanes = self.lanes.iter().filter_map(|lane| lane.verdict.as_ref());
        let of_demands = self.full.values().flatten();
        of_lanes.chain(of_demands).chain(self.plan.by_task.values())
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
        for rank in self.asleep_ranks() {
            classes.entry(std::cmp::Reverse(rank)).or_default();
        }
        self.mark_claimed();
        self.starving(&mut classes);
        for (std::cmp::Reverse(rank), lanes) in classes {
            if self.is_full() {
                break;
            }
            self.keep_again(rank);
            self.run_returning(&lanes, rank);
            self.pass_over_the_overdue(rank);
            if self.policy.teams.values().any(|t| !t.guarantee.is_none()) {
                let has = |no: &&LaneNo| self.teams.has_guarantee(self.lanes[**no].team);
                let of = lanes.iter().filter(has).copied();
                let line = Line::new(of, &self.lanes, &self.teams);
                self.run_line(line, rank, true);
            }
            self.wake(rank);
            let line = Line::new(lanes.into_iter(), &self.lanes, &self.teams);
            self.run_line(line, rank, false);
        }
    }

    /// Gangs that lost a node go before everything else of their class, whoever pays: what is left
    /// of their room is still theirs in all but name.
    fn run_returning(&mut self, lanes: &[LaneNo], rank: i32) {
        let returning = |no: &&LaneNo| {
            let LaneView { starves_since: Some(_), head: Some(key), .. } = self.lanes[**no] else {
                return false;
            };
            returns(self.state, TaskId { job: key.job, index: key.index })
        };
        let of: Vec<LaneNo> = lanes.iter().filter(returning).copied().collect();
        if !of.is_empty() {
            // Who waits for a node of theirs waits for their end, not for an accident.
            self.pass_over_the_patient(rank);
            let line = Line::new(of.into_iter(), &self.lanes, &self.teams);
            self.run_line(line, rank, false);
            self.keep_again(rank);
        }
    }

    /// Whether a gang that lost a node waits to return.
    fn somebody_returns(&self) -> bool {
        let mut all = returning_tasks(self.state);
        all.any(|task| Some(task.job) != self.what_if.left_out)
    }

    /// Lanes are numbered in their own order, before those that starve.
    fn lane_of(&self, lane: &Lane) -> Option<LaneNo> {
        let whole = self.lanes.partition_point(|l| l.starves_since.is_none());
        self.lanes[..whole].binary_search_by(|l| l.lane.cmp(lane)).ok()
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
                // Of an array that starves, one task at a time.
                (Onward::Task, Some(job)) if self.lanes[no].starves_since.is_none() => {
                    self.lanes[no].advance_task(job, index, left_out)
                }
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
            && !self.dropped.contains(&turn.task())
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
            if let Some((over, milli)) = self.over_any_limit(turn.lane) {
                self.close_team(turn, &over, milli);
            }
            return Tried::AtTeamLimit(verdict);
        }
        let ends = ends_at(self.state, self.policy, turn.job, self.now);
        if !turn.restarted
            && let Some(verdict) = self.lanes[turn.lane].stands_back(ends)
        {
            return Tried::StandsBack(verdict.clone());
        }
        let (mut barred, first) = self.closed_models(self.lanes[turn.lane].team);
        let mut at_limit = first.map(|job| Verdict::Behind { job });
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
            let milli = over.model.map_or_else(|| held.iter().sum(), |m| held[m]);
            self.close_team(turn, &over, milli);
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
        let ports = self.port_taken(turn.job);
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
            ports: &ports,
        };
        let mut avoid = crowded(self.state, turn.job, &self.plan.placements);
        avoid.extend(turn.avoid);
        let found = bars.find(page, &near(self.state, turn.job), &avoid);
        let Some(mut shares) = found else {
            if fit::find(cluster, page, &|_, _| true, &AVOID_NONE).is_none() {
                self.full.insert(page_no, None);
                return Err(Tried::NoRoom);
            }
            let other_port = |slot, gpus| bars.allows_another_port(slot, gpus);
            if !ports.is_empty() && fit::find(cluster, page, &other_port, &AVOID_NONE).is_some() {
                return Err(Tried::PortTaken(bars.verdict(page)));
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
        let team = self.lanes[no].team;
        let first = self.teams.line(team).find_map(|at| self.closed.get(&(at, None)));
        if let Some(&job) = first {
            return Some(Verdict::Behind { job });
        }
        self.over_any_limit(no).map(|(over, milli)| over.verdict(milli))
    }

    /// The limit for GPUs of any model that the least of this would break.
    fn over_any_limit(&self, no: LaneNo) -> Option<(OverLimit<'a>, u64)> {
        let LaneView { page, team, .. } = self.lanes[no];
        let milli = self.view.book.ask(page).least_milli();
        Some((self.teams.over_limit(team, &[milli], &[])?, milli))
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
