//! One scheduling pass: greedy in the order of the queue, whole gangs only.
//!
//! The queue holds one lane per kind of demand. The pass merges the lanes by their heads and drops
//! a lane as soon as its demand does not fit: room only shrinks during a pass, so nothing behind
//! in that lane would fit either.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set};
use std::ops::Bound;

use tutti_model::{
    Job, JobId, Lane, NodeId, Phase, Placement, Plan, Policy, QueueKey, State, TaskId, Tasks, Time,
    Verdict,
};

use crate::ask::Ask;
use crate::cluster::Cluster;
use crate::fit;
use crate::shortage;

pub fn plan(state: &State, policy: &Policy, now: Time) -> Plan {
    if state.index.queue.is_empty() {
        return Plan::default();
    }
    WhatIf::as_it_is(state).plan(state, policy, now).0
}

/// A question about another state of affairs, answered by the very pass that runs the cluster.
pub(crate) struct WhatIf<'a> {
    pub cluster: Cluster<'a>,
    /// As if this job did not wait.
    pub left_out: Option<JobId>,
    /// As if these tasks had ended. Their room must be given back to the cluster.
    pub ended: BTreeSet<TaskId>,
}

impl<'a> WhatIf<'a> {
    pub fn as_it_is(state: &'a State) -> WhatIf<'a> {
        WhatIf { cluster: Cluster::new(state), left_out: None, ended: BTreeSet::new() }
    }

    /// The plan, and what would still be free after it.
    pub fn plan(self, state: &'a State, policy: &'a Policy, now: Time) -> (Plan, Cluster<'a>) {
        let mut pass = Pass::new(self, state, policy, now);
        pass.run();
        (pass.plan, pass.cluster)
    }
}

struct Pass<'a> {
    left_out: Option<JobId>,
    ended: BTreeSet<TaskId>,
    state: &'a State,
    policy: &'a Policy,
    now: Time,
    cluster: Cluster<'a>,
    lanes: Vec<LaneView<'a>>,
    heads: BinaryHeap<Reverse<(QueueKey, Step, usize)>>,
    /// Active tasks of arrays that limit them.
    running: BTreeMap<JobId, u32>,
    plan: Plan,
}

/// Everything waiting with one demand.
struct LaneView<'a> {
    lane: &'a Lane,
    ask: Ask<'a>,
    keys: &'a BTreeSet<QueueKey>,
    rest: btree_set::Iter<'a, QueueKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Try,
    /// The task is known not to fit and has waited too long.
    KeepRoom,
}

/// How trying one queue entry ended.
enum Tried {
    /// All of it; also when there was nothing to place.
    Placed,
    AtLimit,
    NoRoom,
    PassFull,
}

static AVOID_NONE: BTreeSet<NodeId> = BTreeSet::new();

impl<'a> Pass<'a> {
    fn new(what_if: WhatIf<'a>, state: &'a State, policy: &'a Policy, now: Time) -> Pass<'a> {
        let WhatIf { cluster, left_out, ended } = what_if;
        let mut pass = Pass {
            left_out,
            ended,
            state,
            policy,
            now,
            cluster,
            lanes: Vec::new(),
            heads: BinaryHeap::new(),
            running: BTreeMap::new(),
            plan: Plan::default(),
        };
        for (lane, keys) in state.index.queue.iter() {
            pass.lanes.push(LaneView {
                lane,
                ask: Ask::new(&lane.demand),
                keys,
                rest: keys.iter(),
            });
            pass.advance(pass.lanes.len() - 1);
        }
        pass
    }

    fn run(&mut self) {
        while let Some(Reverse((key, step, lane))) = self.heads.pop() {
            if self.is_full() {
                return;
            }
            match step {
                Step::KeepRoom => return self.put_behind(key.job),
                Step::Try => self.attempt(lane, key),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.plan.placements.len() >= self.policy.placements_max
    }

    fn advance(&mut self, lane: usize) {
        let left_out = self.left_out;
        if let Some(&key) = self.lanes[lane].rest.find(|key| Some(key.job) != left_out) {
            self.heads.push(Reverse((key, Step::Try, lane)));
        }
    }

    fn attempt(&mut self, lane: usize, key: QueueKey) {
        match self.place_entry(lane, key) {
            Tried::Placed | Tried::AtLimit => self.advance(lane),
            Tried::NoRoom => self.drop_lane(lane, key),
            // Its head goes back so that the end of the pass treats all lanes alike.
            Tried::PassFull => self.heads.push(Reverse((key, Step::Try, lane))),
        }
    }

    fn place_entry(&mut self, lane: usize, key: QueueKey) -> Tried {
        let Some(job) = self.state.job(key.job) else {
            debug_assert!(false, "{key:?} is queued, but there is no such job");
            return Tried::Placed;
        };
        match (&job.tasks, key.index) {
            (Tasks::Array(array), None) => {
                for index in array.waiting.iter() {
                    match self.place_task(lane, job, Some(index), &AVOID_NONE) {
                        Tried::Placed => {}
                        stop => return stop,
                    }
                }
                Tried::Placed
            }
            (_, index) => {
                let Some(task) = job.task(index) else {
                    debug_assert!(false, "{key:?} is queued, but its job has no such task");
                    return Tried::Placed;
                };
                debug_assert!(
                    matches!(task.phase, Phase::Pending { .. }),
                    "{key:?} is queued and {:?}",
                    task.state()
                );
                self.place_task(lane, job, index, &task.avoid)
            }
        }
    }

    fn place_task(
        &mut self,
        lane: usize,
        job: &Job,
        index: Option<u32>,
        avoid: &BTreeSet<NodeId>,
    ) -> Tried {
        if self.at_limit(job) {
            let max_running = array_limit(job).unwrap_or_default();
            let rest = TaskId::single(job.id);
            self.plan.by_task.insert(rest, Verdict::ArrayLimit { max_running });
            return Tried::AtLimit;
        }
        if self.is_full() {
            return Tried::PassFull;
        }
        let ask = &self.lanes[lane].ask;
        let Some(shares) = fit::find(&self.cluster, ask, avoid) else { return Tried::NoRoom };
        let parts = self.cluster.take(ask, &shares);
        self.plan.placements.push(Placement { task: TaskId { job: job.id, index }, parts });
        if let Some(running) = self.running.get_mut(&job.id) {
            *running += 1;
        }
        Tried::Placed
    }

    fn at_limit(&mut self, job: &Job) -> bool {
        let Some(limit) = array_limit(job) else { return false };
        let (active, ended) = (&self.state.index.active, &self.ended);
        let count = || active_tasks(active, job.id) - active_tasks(ended, job.id);
        *self.running.entry(job.id).or_insert_with(count) >= limit
    }

    fn drop_lane(&mut self, lane: usize, key: QueueKey) {
        let verdict = shortage::verdict_of(&self.cluster, &self.lanes[lane].ask);
        // Keeping room for a job that waits for lost nodes would idle the cluster for nothing.
        if matches!(verdict, Verdict::Busy(_))
            && let Some(overdue) = self.first_overdue(lane, key)
        {
            self.heads.push(Reverse((overdue, Step::KeepRoom, lane)));
        }
        self.plan.by_lane.insert(self.lanes[lane].lane.clone(), verdict);
    }

    fn first_overdue(&mut self, lane: usize, from: QueueKey) -> Option<QueueKey> {
        let overdue = Overdue { state: self.state, policy: self.policy, now: self.now };
        let left_out = self.left_out;
        let keys = self.lanes[lane].keys;
        overdue.first(keys, from, |job| Some(job.id) == left_out || self.at_limit(job))
    }

    /// Nothing more starts in this pass, so that room gathers for this job.
    fn put_behind(&mut self, job: JobId) {
        let kept = self.heads.drain().filter(|Reverse((_, step, _))| *step == Step::Try);
        for Reverse((_, _, lane)) in kept {
            let lane = self.lanes[lane].lane.clone();
            self.plan.by_lane.insert(lane, Verdict::Behind { job });
        }
    }
}

/// Finds what has waited longer than patience allows.
pub(crate) struct Overdue<'a> {
    pub state: &'a State,
    pub policy: &'a Policy,
    pub now: Time,
}

impl Overdue<'_> {
    /// The first such entry from `from` on. Job ids grow with time, so after the first young job
    /// of a priority only the next priority can have one: this looks at few entries, not at the
    /// whole lane. Entries that `skip` names wait for something other than room.
    pub fn first(
        &self,
        keys: &BTreeSet<QueueKey>,
        from: QueueKey,
        mut skip: impl FnMut(&Job) -> bool,
    ) -> Option<QueueKey> {
        let mut at = Bound::Included(from);
        loop {
            let &key = keys.range((at, Bound::Unbounded)).next()?;
            let job = self.state.job(key.job)?;
            if !self.is_overdue(job.submitted_at) {
                let last = QueueKey { job: JobId(u64::MAX), index: Some(u32::MAX), ..key };
                at = Bound::Excluded(last);
            } else if self.is_overdue(waiting_since(job, key.index)) && !skip(job) {
                return Some(key);
            } else {
                at = Bound::Excluded(key);
            }
        }
    }

    fn is_overdue(&self, since: Time) -> bool {
        self.now.since(since) > self.policy.patience
    }
}

pub(crate) fn array_limit(job: &Job) -> Option<u32> {
    job.spec.array.as_ref().and_then(|array| array.max_running)
}

pub(crate) fn active_tasks(active: &BTreeSet<TaskId>, job: JobId) -> u32 {
    active.range(TaskId::single(job)..=TaskId::of_array(job, u32::MAX)).count() as u32
}

/// An array's untouched rest has waited since it was submitted.
fn waiting_since(job: &Job, index: Option<u32>) -> Time {
    match job.task(index).map(|task| &task.phase) {
        Some(Phase::Pending { since, .. }) => *since,
        _ => job.submitted_at,
    }
}

#[cfg(test)]
mod tests;
