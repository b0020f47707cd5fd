//! The long answer of `tutti why`: who is ahead, who holds what it needs, when that ends, and what
//! would start it now.

use std::cmp::Reverse;

use tutti_model::{
    Attempt, Demand, Explanation, Holder, Job, NodeId, Plan, Policy, QueueKey, State, TaskId,
    Tasks, Time, Verdict,
};

use crate::advice;
use crate::ask::Ask;
use crate::cluster::{Cluster, Standing};
use crate::pass::WhatIf;
use crate::verdict::{Waiting, verdict};

/// More holders than this tell nobody anything.
const HOLDERS_SHOWN: usize = 100;

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

/// A lease, and when its time is over.
struct Held<'a> {
    task: TaskId,
    job: &'a Job,
    attempt: &'a Attempt,
    /// Only on nodes that would suit.
    gpus: u32,
    nodes: u32,
    ends_by: Option<Time>,
    /// Holds what the demand lacks. The others matter too: those ahead may go where they end.
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
        let before = self.entries_ahead().map(|(key, _)| tasks_of(self.state, &key)).sum::<u64>();
        before + self.siblings_ahead()
    }

    fn entries_ahead(&self) -> impl Iterator<Item = (QueueKey, &'a Demand)> {
        let key = self.key();
        let lanes = self.state.index.queue.iter();
        lanes.flat_map(move |(demand, keys)| keys.range(..key).map(move |&k| (k, demand)))
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

    /// All leases, those with the earliest end first.
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
        let shown = gpus > 0 || (nodes > 0 && self.lacks_more_than_gpus());
        Some(Held { task, job, attempt, gpus, nodes, ends_by, shown })
    }

    fn lacks_more_than_gpus(&self) -> bool {
        match self.verdict {
            Verdict::Busy(s) | Verdict::NodesUnavailable(s) => {
                s.gpus_wanted == 0 || s.blocked.cpus_busy + s.blocked.mem_busy > 0
            }
            _ => self.ask.demand.total_gpus() == 0,
        }
    }

    /// The first end of a holder's time at which a pass would start this task, if everybody used
    /// all their time and nothing new came. None if that is not known: a limit is missing, or
    /// something other than room keeps it waiting.
    fn starts_by(&self, held: &[Held<'a>]) -> Option<Time> {
        match self.verdict {
            Verdict::Held
            | Verdict::Dependencies { .. }
            | Verdict::BackOff { .. }
            | Verdict::NodesUnavailable(_) => return None,
            _ => {}
        }
        let ends = held.iter().filter_map(|h| h.ends_by).filter(|end| *end > self.now);
        let mut times: Vec<Time> = std::iter::once(self.now).chain(ends).collect();
        times.dedup();
        if !self.starts_at(*times.last()?, held) {
            return None;
        }
        // More ends make more room, so the first that is enough can be bisected; whatever the
        // bisection returns has been tried.
        let (mut low, mut high) = (0, times.len() - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.starts_at(times[middle], held) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(times[high])
    }

    fn starts_at(&self, at: Time, held: &[Held<'a>]) -> bool {
        let mut what_if = WhatIf::as_it_is(self.state);
        for over in held.iter().filter(|h| h.ends_by.is_some_and(|end| end <= at)) {
            what_if.ended.insert(over.task);
            for part in over.attempt.parts.iter().filter(|p| !p.phase.is_over()) {
                if let Some(slot) = what_if.cluster.slot_of(part.node) {
                    what_if.cluster.give_back(slot, &part.gpus, part.cpus, part.mem);
                }
            }
        }
        let (plan, _) = what_if.plan(self.state, self.policy, at);
        self.is_placed(&plan)
    }

    /// Whether the plan starts this task or, for a whole array, any task of it.
    pub fn is_placed(&self, plan: &Plan) -> bool {
        let whole = self.task.index.is_none();
        plan.placements.iter().any(|p| p.task == self.task || (whole && p.task.job == self.job.id))
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
