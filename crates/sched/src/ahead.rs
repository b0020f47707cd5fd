//! How many tasks are tried before one: its place in line.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tutti_model::{Job, Lane, Priority, QueueKey, TaskId, Tasks};

use crate::ask::Ask;
use crate::cluster::Cluster;
use crate::explain::Case;
use crate::lanes::{LaneNo, LaneView, Line, active_tasks, array_limit, starving_tasks};
use crate::teams::{Teams, Wanted};
use crate::verdict::Waiting;

/// Tasks counted by running the order. Those behind are counted by where they stand by then.
const STEPS: usize = 10_000;

/// Place among the tasks of a team.
type Place<'a> = (bool, Reverse<Priority>, u128, &'a str, QueueKey);

/// Tasks that would be tried before this one if each that is tried before it started, so that
/// teams and users take turns as they will. Those that may not start are not counted: arrays and
/// other teams at their limits.
pub(crate) fn ahead(case: &Case<'_>, cluster: &Cluster) -> u64 {
    let lane = Lane::of(case.job);
    let rank = case.policy.class_rank(&lane.class);
    let key = key_of(case);
    let mut own: BTreeSet<QueueKey> = BTreeSet::from([key]);
    let (mut higher, mut class) = (0, Vec::new());
    for (other, keys) in case.state.index.queue.iter() {
        match case.policy.class_rank(&other.class) {
            r if r > rank => higher += keys.iter().map(|k| tasks_of(case, k)).sum::<u64>(),
            r if r == rank && *other == lane => own.extend(keys),
            r if r == rank => class.push((other, keys)),
            _ => {}
        }
    }
    class.push((&lane, &own));
    let mut run = Run::new(case, cluster, class, key, rank);
    higher + run.count() + siblings(case)
}

fn key_of(case: &Case<'_>) -> QueueKey {
    let index = match Waiting::find(case.job, case.task.index) {
        Some(Waiting::Task { index, .. }) => index,
        _ => None,
    };
    QueueKey::of(case.policy, case.job, index, case.job.task(index))
}

fn tasks_of(case: &Case<'_>, key: &QueueKey) -> u64 {
    match (case.state.job(key.job).map(|job| &job.tasks), key.index) {
        (Some(Tasks::Array(array)), None) => array.waiting.len(),
        _ => 1,
    }
}

/// Tasks of the same untouched rest with a smaller index.
fn siblings(case: &Case<'_>) -> u64 {
    match (&case.job.tasks, case.task.index) {
        (Tasks::Array(array), Some(index)) if array.waiting.contains(index) => {
            waiting_before(case.job, index)
        }
        _ => 0,
    }
}

fn waiting_before(job: &Job, index: u32) -> u64 {
    let Tasks::Array(array) = &job.tasks else { return 0 };
    array.waiting.iter().take_while(|&i| i < index).count() as u64
}

struct Run<'a> {
    case: &'a Case<'a>,
    teams: Teams<'a>,
    lanes: Vec<LaneView<'a>>,
    asks: Vec<Ask>,
    line: Line,
    models: Vec<String>,
    /// The entry that is counted up to, in the last lane.
    key: QueueKey,
    /// Tasks that have lanes of their own.
    starving: BTreeSet<TaskId>,
    steps: usize,
}

/// Tasks of the class that have waited beyond bearing get lanes of their own; the last lane stays
/// the one of the task in question.
fn starve<'a>(
    case: &Case<'a>,
    lanes: &mut Vec<LaneView<'a>>,
    asks: &mut Vec<Ask>,
    key: QueueKey,
    rank: i32,
) -> BTreeSet<TaskId> {
    let mut found = BTreeSet::new();
    let own = lanes.len() - 1;
    let depth = case.policy.backfill_depth;
    for (job, task, since) in starving_tasks(case.state, case.policy, case.now, depth) {
        let lane = Lane::of(job);
        let Some(no) = lanes[..=own].iter().position(|l| *l.lane == lane) else { continue };
        if case.policy.class_rank(&lane.class) != rank {
            continue;
        }
        let of_task = QueueKey::of(case.policy, job, task.index, job.task(task.index));
        lanes.push(lanes[no].starving(of_task, since));
        asks.push(Ask::new(&lane.demand));
        found.insert(task);
    }
    let is_own = |l: &LaneView<'_>| l.starves_since.is_some() && l.head == Some(key);
    let last = lanes.iter().position(is_own).unwrap_or(own);
    let (lane, ask) = (lanes.remove(last), asks.remove(last));
    lanes.push(lane);
    asks.push(ask);
    (0..).zip(lanes).for_each(|(no, lane)| lane.page = no);
    found
}

impl<'a> Run<'a> {
    fn new(
        case: &'a Case<'a>,
        cluster: &Cluster,
        class: Vec<(&'a Lane, &'a BTreeSet<QueueKey>)>,
        key: QueueKey,
        rank: i32,
    ) -> Run<'a> {
        let mut teams = Teams::new(case.state, case.policy, cluster, case.now);
        let (mut lanes, mut asks) = (Vec::new(), Vec::new());
        for (no, (lane, keys)) in class.into_iter().enumerate() {
            let team = teams.number(&lane.team);
            let user = teams.user_number(team, &lane.user);
            lanes.push(LaneView::new(lane, keys, no, team, user));
            asks.push(Ask::new(&lane.demand));
        }
        let starving = starve(case, &mut lanes, &mut asks, key, rank);
        let models = cluster.models.clone();
        let line = Line::default();
        Run { case, teams, lanes, asks, line, models, key, starving, steps: 0 }
    }

    fn count(&mut self) -> u64 {
        let mut count = 0;
        let guarantees = self.case.policy.teams.values().any(|t| !t.guarantee.is_none());
        let rounds: &[bool] = if guarantees { &[true, false] } else { &[false] };
        for &guaranteed in rounds {
            self.line = Line::new(0..self.lanes.len(), &self.lanes, &self.teams);
            while let Some(no) = self.next(guaranteed) {
                if no + 1 == self.lanes.len() && self.lanes[no].head == Some(self.key) {
                    return count;
                }
                if self.steps == STEPS {
                    return count + self.rest();
                }
                self.steps += 1;
                count += self.step(no);
                self.line.update(no, &self.lanes, &self.teams);
            }
        }
        count
    }

    fn next(&mut self, guaranteed: bool) -> Option<LaneNo> {
        loop {
            let no = self.line.next(&self.teams)?;
            let LaneView { team, page, .. } = self.lanes[no];
            let wanted = || Wanted::by(&self.asks[page], &self.models);
            if !guaranteed || self.teams.guarantor(team, &wanted(), &self.models).is_some() {
                return Some(no);
            }
            self.line.leave(no, &self.teams);
        }
    }

    /// The head of this lane starts, or is left out. How many that is.
    fn step(&mut self, no: LaneNo) -> u64 {
        let lane = &mut self.lanes[no];
        let Some((key, job)) = lane.head.and_then(|k| Some((k, self.case.state.job(k.job)?)))
        else {
            lane.head = None;
            return 0;
        };
        let entry = TaskId { job: job.id, index: key.index };
        if lane.starves_since.is_none() && self.starving.contains(&entry) {
            lane.advance(None);
            return 0;
        }
        let ask = &self.asks[no];
        let milli = ask.least_milli();
        let ours = lane.lane.team == self.case.job.team;
        if !ours && self.teams.over_limit(lane.team, &[milli], &[]).is_some() {
            lane.head = None;
            return 0;
        }
        let active = || active_tasks(&self.case.state.index.active, job.id);
        let other = job.id != self.case.job.id;
        if other && array_limit(job).is_some_and(|limit| active() >= limit) {
            lane.advance(None);
            return 0;
        }
        let held: Vec<u64> = match self.models.iter().position(|m| ask.wants_model(m)) {
            Some(model) => (0..=model).map(|m| if m == model { milli } else { 0 }).collect(),
            None => Vec::new(),
        };
        self.teams.charge(lane.team, &lane.lane.user, &held, milli);
        let index = match &job.tasks {
            Tasks::Array(array) if key.index.is_none() => {
                lane.next_index.or_else(|| array.waiting.first())
            }
            _ => key.index,
        };
        lane.advance_task(job, index, None);
        1
    }

    /// Everything left that stands before the task as things are now.
    fn rest(&self) -> u64 {
        let own = self.lanes.len() - 1;
        let mine = self.place(own, self.key);
        let mut count = 0;
        for no in 0..self.lanes.len() {
            let Some(head) = self.lanes[no].head else { continue };
            let order = self.teams.compare(self.lanes[no].team, self.lanes[own].team);
            if order.is_gt() {
                continue;
            }
            let lane = &self.lanes[no];
            let alone = lane.starves_since.map(|_| head);
            for key in lane.keys.range(head..).copied().chain(alone) {
                let task = TaskId { job: key.job, index: key.index };
                if lane.starves_since.is_none() && self.starving.contains(&task) {
                    continue;
                }
                if order.is_eq() && self.place(no, key) >= mine {
                    break;
                }
                let counted = if key == head { self.counted(no, &key) } else { 0 };
                count += tasks_of(self.case, &key) - counted;
            }
        }
        count
    }

    /// Of the array whose turn it is in a lane, the tasks that had theirs.
    fn counted(&self, no: LaneNo, key: &QueueKey) -> u64 {
        let Some(next) = self.lanes[no].next_index else { return 0 };
        let job = self.case.state.job(key.job);
        job.map_or(0, |job| waiting_before(job, next))
    }

    /// Place among the tasks of one team.
    fn place(&self, no: LaneNo, key: QueueKey) -> Place<'a> {
        let LaneView { lane, user, starves_since, .. } = self.lanes[no];
        match starves_since {
            Some(since) => (false, Reverse(Priority::default()), since.0.into(), "", key),
            None => (true, key.priority, self.teams.user_due(user), lane.user.as_str(), key),
        }
    }
}
