//! The long answer of `tutti why`: its place in line, who holds what it needs, when it will start,
//! and what would start it sooner.

use std::collections::BTreeMap;

use tutti_model::{
    Attempt, DefaultTime, DefaultTimeOf, Demand, Explanation, Fence, Finding, Forecast, GpuIndex,
    Holder, Job, Node, NodeId, Plan, Policy, Span, State, TaskId, Time, Verdict, WakeNeed,
};

use crate::advice;
use crate::ahead::ahead;
use crate::ask::Ask;
use crate::blockers::Lookout;
use crate::cluster::{Cluster, Standing};
use crate::forecast::forecast;
use crate::verdict::verdict;

/// More holders than this tell nobody anything.
const HOLDERS_SHOWN: usize = 100;
const FENCES_SHOWN: usize = 100;

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
    let attempt = job.task(task.index).and_then(|t| t.attempt());
    if let Some(attempt) = attempt {
        let holders = in_its_place(state, attempt, task, now);
        let stays = matches!(verdict, Verdict::Suspended { stays: true, .. });
        let resume = stays.then(|| format!("`tutti resume {task}` lets it go on"));
        return Some(Explanation {
            task,
            fences: around(state, &verdict),
            verdict,
            ahead: 0,
            holders,
            starts_by: None,
            forecast: None,
            advice: resume.into_iter().collect(),
            kept: Vec::new(),
            gives_up_at: None,
            blockers: Vec::new(),
            default_time: None,
        });
    }
    let ask = Ask::new(&Demand::of(&job.spec));
    let case = Case { state, plan, policy, now, job, task, ask, verdict: &verdict };
    let cluster = Cluster::new(state, policy);
    let forecast = forecast(&case);
    let outlook = Lookout::new(state, now).look(state, plan, task)?;
    Some(Explanation {
        task,
        ahead: ahead(&case, &cluster),
        holders: case.holders(&cluster),
        starts_by: case.starts_by(forecast),
        forecast,
        advice: advice::advice(&case),
        fences: case.fences(&cluster),
        gives_up_at: None,
        blockers: outlook.blockers,
        default_time: job.spec.time.zip(job.spec.default_time_of.clone()).map(default_time),
        verdict: outlook.verdict,
        kept: outlook.kept,
    })
}

fn default_time((time, of): (Span, DefaultTimeOf)) -> DefaultTime {
    DefaultTime { time, of }
}

fn fence(node: &Node, gpu: GpuIndex) -> Option<Fence> {
    let Finding { key, text, since, .. } = node.fence_of(gpu)?.clone();
    Some(Fence { node: node.facts.name.clone(), gpu, key, text, since })
}

/// What keeps a suspended task off GPUs of its own nodes.
fn around(state: &State, verdict: &Verdict) -> Vec<Fence> {
    let Verdict::Suspended { needs, .. } = verdict else { return Vec::new() };
    let of_need = |need: &WakeNeed| {
        let node = state.node_named(&need.node)?;
        Some(need.fenced.iter().filter_map(|gpu| fence(node, *gpu)).collect::<Vec<_>>())
    };
    needs.iter().filter_map(of_need).flatten().collect()
}

/// Who has GPUs of the nodes on which a suspended task waits to go on.
fn in_its_place(state: &State, attempt: &Attempt, task: TaskId, now: Time) -> Vec<Holder> {
    let mut gpus: BTreeMap<TaskId, (u32, u32)> = BTreeMap::new();
    for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
        let Some(node) = state.node(part.node) else { continue };
        let mut here: BTreeMap<TaskId, u32> = BTreeMap::new();
        let leases = node.used.gpus.values().flat_map(|u| u.leases.keys());
        leases.for_each(|lease| *here.entry(lease.task).or_default() += 1);
        for (other, n) in here.into_iter().filter(|(other, _)| *other != task) {
            let sum = gpus.entry(other).or_default();
            *sum = (sum.0 + n, sum.1 + 1);
        }
    }
    let holder = |(task, (gpus, nodes)): (TaskId, (u32, u32))| {
        let job = state.job(task.job)?;
        let since = job.task(task.index)?.attempt()?.running_since(now);
        Some(Holder {
            task,
            user: job.user.clone(),
            name: job.spec.display_name().to_owned(),
            gpus,
            nodes,
            ends_by: since.zip(job.spec.time).map(|(since, time)| since.plus(time)),
        })
    };
    let mut holders: Vec<Holder> = gpus.into_iter().filter_map(holder).collect();
    holders.sort_by_key(|h| (h.ends_by.is_none(), h.ends_by, h.task));
    holders.truncate(HOLDERS_SHOWN);
    holders
}

/// How many passes on imagined states take about a second.
pub(crate) fn passes(state: &State) -> usize {
    let lanes = state.index.queue.iter().count();
    let cost = 50 + state.nodes.len() + 2 * lanes;
    (200_000 / cost).clamp(8, 200)
}

/// A question about one waiting task.
pub(crate) struct Case<'a> {
    pub state: &'a State,
    pub plan: &'a Plan,
    pub policy: &'a Policy,
    pub now: Time,
    pub job: &'a Job,
    pub task: TaskId,
    pub ask: Ask,
    pub verdict: &'a Verdict,
}

impl Case<'_> {
    /// How many passes on imagined states the answer may cost: people wait about a second.
    pub fn passes(&self) -> usize {
        passes(self.state)
    }

    /// Whether the plan starts this task or, for a whole array, any task of it.
    pub fn starts(&self, plan: &Plan) -> bool {
        let whole = self.task.index.is_none();
        plan.placements.iter().any(|p| p.task == self.task || (whole && p.task.job == self.job.id))
    }

    /// What the plan promises the head of the queue; for others, what time limits make of it.
    fn starts_by(&self, forecast: Option<Forecast>) -> Option<Time> {
        let ours = |task: TaskId| task == self.task || task == TaskId::single(self.job.id);
        let head = self.plan.heads.iter().find(|head| ours(head.task));
        let waits = matches!(self.verdict, Verdict::Busy(_) | Verdict::Reserved { .. });
        let promised = head.filter(|_| waits).and_then(|head| head.starts_by);
        promised.or_else(|| forecast?.late)
    }

    /// Who has a part on a node that would suit, and holds what the task lacks there; the earliest
    /// end by time limit first.
    fn holders(&self, cluster: &Cluster) -> Vec<Holder> {
        let least = self.ask.least();
        let suits = |node: NodeId| {
            cluster.slot_of(node).map(|no| cluster.get(no)).is_some_and(|slot| {
                slot.standing == Standing::Open
                    && cluster.labels_hold(slot, &self.ask)
                    && cluster.usable_when_empty(slot, &self.ask).holds(&least)
            })
        };
        let active = self.state.index.active.iter();
        let mut holders: Vec<Holder> =
            active.filter_map(|&task| self.holder(cluster, task, &suits)).collect();
        let order = |h: &Holder| (h.ends_by.is_none(), h.ends_by, h.task);
        if holders.len() > HOLDERS_SHOWN {
            holders.select_nth_unstable_by_key(HOLDERS_SHOWN, order);
            holders.truncate(HOLDERS_SHOWN);
        }
        holders.sort_by_key(order);
        holders
    }

    /// GPUs that it could use but for their fences, on nodes that would do without them.
    fn fences(&self, cluster: &Cluster) -> Vec<Fence> {
        let (Verdict::Busy(s) | Verdict::NodesUnavailable(s)) = self.verdict else {
            return Vec::new();
        };
        if s.blocked.fenced + s.blocked.fenced_busy == 0 {
            return Vec::new();
        }
        let mut found = Vec::new();
        for node in self.state.nodes.values().filter(|n| !n.findings.is_empty()) {
            let Some(slot) = cluster.slot_of(node.id).map(|no| cluster.get(no)) else { continue };
            if slot.standing == Standing::Open && cluster.labels_hold(slot, &self.ask) {
                let cards = slot.cards.iter().filter(|c| c.fenced);
                let cards = cards.filter(|c| cluster.suits_when_mended(c, &self.ask));
                found.extend(cards.filter_map(|c| fence(node, c.index)));
            }
        }
        found.truncate(FENCES_SHOWN);
        found
    }

    fn holder(
        &self,
        cluster: &Cluster,
        task: TaskId,
        suits: &impl Fn(NodeId) -> bool,
    ) -> Option<Holder> {
        let job = self.state.job(task.job)?;
        let attempt = job.task(task.index)?.attempt()?;
        let (mut gpus, mut nodes) = (0, 0);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over() && suits(p.node)) {
            let slot = cluster.get(cluster.slot_of(part.node)?);
            let cards = slot.cards.iter().filter(|c| part.gpus.contains(&c.index));
            gpus += cards.filter(|c| cluster.suits(c, &self.ask)).count() as u32;
            nodes += 1;
        }
        if gpus == 0 && (nodes == 0 || !self.lacks_more_than_gpus()) {
            return None;
        }
        let since = attempt.running_since(self.now);
        Some(Holder {
            task,
            user: job.user.clone(),
            name: job.spec.display_name().to_owned(),
            gpus,
            nodes,
            ends_by: since.zip(job.spec.time).map(|(since, time)| since.plus(time)),
        })
    }

    fn lacks_more_than_gpus(&self) -> bool {
        match self.verdict {
            Verdict::Busy(s) | Verdict::NodesUnavailable(s) => {
                let b = &s.blocked;
                s.gpus_wanted == 0 || b.cpus_busy + b.mem_busy + b.not_empty + b.alone > 0
            }
            _ => self.ask.least_gpus() == 0,
        }
    }
}

#[cfg(test)]
mod tests;
