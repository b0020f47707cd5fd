//! The long answer of `tutti why`: who is ahead, who holds what it needs, when that ends, and what
//! would start it now.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tutti_model::{
    Attempt, Demand, Explanation, Holder, Job, NodeId, Plan, Policy, QueueKey, State, TaskId,
    Tasks, Time, Verdict,
};

use crate::advice;
use crate::ask::Ask;
use crate::cluster::{Cluster, Standing};
use crate::fit;
use crate::pass::{active_tasks, array_limit};
use crate::verdict::{Waiting, verdict};

/// More holders than this tell nobody anything.
const HOLDERS_SHOWN: usize = 100;

/// With more tasks ahead than this, nobody can say when it will start.
const AHEAD_FORESEEN: u64 = 1000;

/// None if the task is not pending.
pub fn explain(
    state: &State,
    plan: &Plan,
    policy: &Policy,
    task: TaskId,
    now: Time,
) -> Option<Explanation> {
    let verdict = verdict(state, plan, task, now)?;
    let job = state.job(task.job)?;
    let demand = Demand::of(&job.spec);
    let ask = Ask::new(&demand);
    let case = Case { state, plan, policy, now, job, task, ask, verdict: &verdict };
    let mut held = case.held();
    let starts_by = case.starts_by(&held);
    held.retain(|h| h.shown);
    let holders = held.iter().take(HOLDERS_SHOWN).map(Held::as_holder).collect();
    let advice = advice::advice(&case);
    Some(Explanation { task, ahead: case.ahead(), holders, starts_by, advice, verdict })
}

pub(crate) struct Case<'a> {
    pub state: &'a State,
    pub plan: &'a Plan,
    pub policy: &'a Policy,
    pub now: Time,
    pub job: &'a Job,
    pub task: TaskId,
    pub ask: Ask<'a>,
    pub verdict: &'a Verdict,
}

/// A lease on nodes that would suit, and when its time is over.
struct Held<'a> {
    task: TaskId,
    job: &'a Job,
    attempt: &'a Attempt,
    gpus: u32,
    nodes: u32,
    ends_by: Option<Time>,
    /// Holds what the demand lacks.
    shown: bool,
}

impl Held<'_> {
    fn as_holder(&self) -> Holder {
        Holder {
            task: self.task,
            user: self.job.user.clone(),
            name: self.job.spec.display_name().to_owned(),
            gpus: self.gpus,
            nodes: self.nodes,
            ends_by: self.ends_by,
        }
    }
}

impl<'a> Case<'a> {
    pub fn key(&self) -> QueueKey {
        let index = match Waiting::find(self.job, self.task.index) {
            Some(Waiting::Task { index, .. }) => index,
            _ => None,
        };
        QueueKey { priority: Reverse(self.job.priority), job: self.job.id, index }
    }

    fn ahead(&self) -> u64 {
        let before = self.entries_ahead().map(|(_, tasks)| tasks).sum::<u64>();
        before + self.siblings_ahead()
    }

    /// Queue entries before this one, with how many tasks each stands for.
    fn entries_ahead(&self) -> impl Iterator<Item = (&'a Demand, u64)> {
        let (state, key) = (self.state, self.key());
        state.index.queue.iter().flat_map(move |(demand, keys)| {
            keys.range(..key).map(move |k| (demand, tasks_of(state, k)))
        })
    }

    /// Tasks of the same untouched rest with a smaller index.
    fn siblings_ahead(&self) -> u64 {
        match (&self.job.tasks, self.task.index) {
            (Tasks::Array(array), Some(index)) if array.waiting.contains(index) => {
                array.waiting.iter().take_while(|&i| i < index).count() as u64
            }
            _ => 0,
        }
    }

    /// Leases on open nodes that suit the demand, those with the earliest end first.
    fn held(&self) -> Vec<Held<'a>> {
        let cluster = Cluster::new(self.state);
        let least = self.ask.least();
        let suits = |node: NodeId| {
            cluster.slot_of(node).map(|no| &cluster.slots[no as usize]).is_some_and(|slot| {
                slot.standing == Standing::Open
                    && cluster.has_model(slot, &self.ask)
                    && cluster.usable_when_empty(slot, &self.ask).holds(&least)
            })
        };
        let mut held: Vec<Held<'a>> =
            self.state.index.active.iter().filter_map(|&task| self.held_by(task, &suits)).collect();
        held.sort_by_key(|h| (h.ends_by.is_none(), h.ends_by, h.task));
        held
    }

    fn held_by(&self, task: TaskId, suits: &impl Fn(NodeId) -> bool) -> Option<Held<'a>> {
        let job = self.state.job(task.job)?;
        let attempt = job.task(task.index)?.attempt()?;
        let (mut gpus, mut nodes) = (0, 0);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over() && suits(p.node)) {
            gpus += part.gpus.len() as u32;
            nodes += 1;
        }
        let ends_by = attempt.running_since().zip(job.spec.time).map(|(since, t)| since.plus(t));
        let shown = gpus > 0 || self.lacks_more_than_gpus();
        (nodes > 0).then_some(Held { task, job, attempt, gpus, nodes, ends_by, shown })
    }

    fn lacks_more_than_gpus(&self) -> bool {
        match self.verdict {
            Verdict::Busy(s) | Verdict::NodesUnavailable(s) => {
                s.gpus_wanted == 0 || s.blocked.cpus_busy + s.blocked.mem_busy > 0
            }
            _ => self.ask.demand.total_gpus() == 0,
        }
    }

    /// When enough holders' limits have run out for this task and everything ahead of it to have
    /// room together. None if that is not known: a limit is missing, or something other than room
    /// keeps it waiting.
    fn starts_by(&self, held: &[Held<'a>]) -> Option<Time> {
        let earliest = match self.verdict {
            Verdict::Held | Verdict::Dependencies { .. } | Verdict::NodesUnavailable(_) => {
                return None;
            }
            Verdict::BackOff { until } => *until,
            _ => self.now,
        };
        let earliest = earliest.max(self.array_allows()?);
        let ahead = self.asks_ahead()?;
        let limited = held.iter().take_while(|h| h.ends_by.is_some()).count();
        // More ends make more room, so the first that is enough can be bisected; whatever the
        // bisection returns has been tried.
        let (mut low, mut high) = (0, limited);
        if !self.fits_after(&held[..high], &ahead) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.fits_after(&held[..middle], &ahead) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let ends = low.checked_sub(1).and_then(|last| held[last].ends_by).unwrap_or(self.now);
        Some(ends.max(earliest).max(self.now))
    }

    /// When so many of the array's running tasks are over that its limit leaves this one a place.
    fn array_allows(&self) -> Option<Time> {
        let Some(limit) = array_limit(self.job) else { return Some(self.now) };
        let mut ends: Vec<Option<Time>> = Vec::new();
        for (_, task) in self.job.live_tasks() {
            if let Some(attempt) = task.attempt() {
                let since = attempt.running_since();
                ends.push(since.zip(self.job.spec.time).map(|(since, t)| since.plus(t)));
            }
        }
        ends.sort_by_key(|end| (end.is_none(), *end));
        let active = active_tasks(&self.state.index.active, self.job.id);
        match (u64::from(active) + self.siblings_ahead()).checked_sub(limit.into()) {
            Some(over) => ends.get(over as usize).copied().flatten(),
            None => Some(self.now),
        }
    }

    fn asks_ahead(&self) -> Option<Vec<(Ask<'a>, u64)>> {
        let mut asks = Vec::new();
        let mut left = AHEAD_FORESEEN;
        let siblings = (self.ask.demand, self.siblings_ahead());
        for (demand, tasks) in self.entries_ahead() {
            left = left.checked_sub(tasks)?;
            asks.push((Ask::new(demand), tasks));
        }
        left.checked_sub(siblings.1)?;
        if siblings.1 > 0 {
            asks.push((self.ask.clone(), siblings.1));
        }
        Some(asks)
    }

    fn fits_after(&self, over: &[Held<'a>], ahead: &[(Ask<'a>, u64)]) -> bool {
        let mut cluster = Cluster::new(self.state);
        for part in over.iter().flat_map(|h| &h.attempt.parts).filter(|p| !p.phase.is_over()) {
            if let Some(slot) = cluster.slot_of(part.node) {
                cluster.give_back(slot, &part.gpus, part.cpus, part.mem);
            }
        }
        for (ask, tasks) in ahead {
            for _ in 0..*tasks {
                let Some(shares) = fit::find(&cluster, ask, &BTreeSet::new()) else { return false };
                cluster.take(ask, &shares);
            }
        }
        fit::fits(&cluster, &self.ask)
    }
}

fn tasks_of(state: &State, key: &QueueKey) -> u64 {
    match (state.job(key.job).map(|job| &job.tasks), key.index) {
        (Some(Tasks::Array(array)), None) => array.waiting.len(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
