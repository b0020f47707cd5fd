//! The smallest changes that would start a task sooner. Each is tried before it is given, by the
//! very pass on a state with that change: advice that does not help is worse than none.

mod shape;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tutti_model::{Job, JobId, Link, NodeId, Policy, Priority, Task, Tasks, Time, Verdict};

use crate::cluster::Standing;
use crate::describe::gpus;
use crate::explain::Case;
use crate::imagine::World;
use crate::pass::WhatIf;
use crate::verdict::unmet;

const NODES_NAMED: usize = 8;

/// Cheapest first: what costs the job nothing, then what it could do without, then what others
/// would have to do for it.
pub(crate) fn advice(case: &Case<'_>) -> Vec<String> {
    match case.verdict {
        Verdict::Dependencies { .. } => return release_others(case),
        Verdict::BackOff { .. }
        | Verdict::ArrayLimit { .. }
        | Verdict::Claimed { .. }
        | Verdict::Next => return Vec::new(),
        _ => {}
    }
    let mut desk = Desk { case, world: World::new(case.state, case.policy, case.passes()) };
    match case.verdict {
        Verdict::Held { suspended } => return vec![desk.release(suspended.is_some())],
        // Whatever it waits for is over by now: the next pass starts it.
        _ if desk.starts(case.now) => return Vec::new(),
        _ => {}
    }
    let mut advice: Vec<String> = desk.nodes().into_iter().collect();
    let by_others = match case.verdict {
        Verdict::Behind { job } => desk.overtake(*job),
        Verdict::TeamLimit { team, used, wanted, model, .. } => {
            desk.larger_limit(team, model.as_deref(), used + wanted)
        }
        Verdict::Reserved { reservation, until, .. } => desk.after_reservation(reservation, *until),
        _ => None,
    };
    advice.extend(shape::Shapes::new(case, desk.world).ideas());
    advice.extend(by_others);
    advice
}

fn release_others(case: &Case<'_>) -> Vec<String> {
    let waiting_for = unmet(case.state, case.job);
    let jobs = waiting_for.iter().filter_map(|d| case.state.job(d.job));
    let advice = jobs.filter_map(|job| {
        let id = job.id;
        if job.held {
            return Some(format!("job {id}, which it waits for, is held: tutti release {id}"));
        }
        let mut tasks = job.live_tasks();
        let words = || format!("job {id}, which it waits for, was suspended: tutti resume {id}");
        tasks.any(|(_, task)| task.kept().is_some()).then(words)
    });
    advice.collect()
}

/// As if a person let everything of it start that was lost while it was suspended.
fn resumed(job: &mut Job) {
    let tasks: Vec<&mut Task> = match &mut job.tasks {
        Tasks::One(task) => vec![task],
        Tasks::Array(array) => array.live.values_mut().collect(),
    };
    tasks.into_iter().filter_map(|t| t.past.as_deref_mut()).for_each(|past| past.kept = None);
}

struct Desk<'c> {
    case: &'c Case<'c>,
    world: World,
}

impl Desk<'_> {
    /// Whether the task starts in the world as it is made up now.
    fn starts(&mut self, at: Time) -> bool {
        let what_if = WhatIf { only: Some(self.case.task), ..WhatIf::default() };
        self.world.plan(at, what_if).is_some_and(|plan| self.case.starts(&plan))
    }

    /// Whether the task starts if its job were changed so.
    fn starts_as(&mut self, with: impl FnOnce(&mut Job)) -> bool {
        let id = self.case.job.id;
        let mut job = self.case.job.clone();
        with(&mut job);
        self.world.put_job(id, Some(Arc::new(job)));
        let starts = self.starts(self.case.now);
        self.world.put_job(id, self.case.state.jobs.get(&id).cloned());
        starts
    }

    fn release(&mut self, suspended: bool) -> String {
        let task = self.case.task;
        let now = self.starts_as(|job| match suspended {
            true => resumed(job),
            false => job.held = false,
        });
        let then = if now { "it would start now" } else { "it would then wait for its turn" };
        match suspended {
            true => format!("resume it: tutti resume {task} ({then})"),
            false => format!("release it: tutti release {} ({then})", self.case.job.id),
        }
    }

    fn overtake(&mut self, other: JobId) -> Option<String> {
        let other = self.case.state.job(other).filter(|other| other.id != self.case.job.id)?;
        let above = Priority(other.priority.0.checked_add(1)?);
        let helps = above > self.case.job.priority && self.starts_as(|job| job.priority = above);
        helps.then(|| format!("a priority of {}, above job {}: now", above.0, other.id))
    }

    /// A limit is raised no further than this task needs.
    fn larger_limit(&mut self, team: &str, model: Option<&str>, to: u32) -> Option<String> {
        let before = self.world.state.policy.clone();
        let mut policy = Policy::clone(&before);
        let limit = policy.teams.get_mut(team)?.limit.as_mut()?;
        *model.map_or(Some(&mut limit.any), |m| limit.models.get_mut(m))? = to;
        self.world.state.policy = Arc::new(policy);
        let helps = self.starts(self.case.now);
        self.world.state.policy = before;
        let words = || format!("team {team} would have to get a limit of {}: now", gpus(to, model));
        helps.then(words)
    }

    fn after_reservation(&mut self, name: &str, until: Time) -> Option<String> {
        let wait = until.since(self.case.now).short_up();
        let words = || format!("wait for reservation '{name}' to end: in {wait}");
        self.starts(until).then(words)
    }

    /// Nodes that would make room if they took work again.
    fn nodes(&mut self) -> Option<String> {
        let draining = self.closed(Standing::Draining);
        let away = self.closed(Standing::Away);
        if let Some(nodes) = self.fewest(&draining) {
            return Some(format!("resume {}: now", self.names(&nodes)));
        }
        if let Some(nodes) = self.fewest(&away) {
            return Some(format!("bring back {}: now", self.names(&nodes)));
        }
        if draining.is_empty() || away.is_empty() {
            return None;
        }
        let both = [draining.as_slice(), &away].concat();
        let (draining, away) = (self.names(&draining), self.names(&away));
        self.starts_with(&both).then(|| format!("resume {draining} and bring back {away}: now"))
    }

    /// Nodes that would suit but take no work, those with most free first.
    fn closed(&mut self, standing: Standing) -> Vec<NodeId> {
        let ask = &self.case.ask;
        let cluster = &self.world.look().cluster;
        let slots = cluster.slots.iter().filter(|slot| {
            slot.standing == standing
                && cluster.labels_hold(slot, ask)
                && cluster.usable_when_empty(slot, ask).holds(&ask.least())
        });
        let mut nodes: Vec<_> =
            slots.map(|slot| (std::cmp::Reverse(slot.free.gpus), slot.node)).collect();
        nodes.sort();
        // A node that cleans up comes back by itself; one that is drained too stays closed.
        let mut nodes: Vec<NodeId> = nodes.into_iter().map(|(_, node)| node).collect();
        nodes.retain(|&id| {
            let node = self.case.state.node(id);
            standing == Standing::Draining
                || node.is_some_and(|n| n.link != Link::Up && n.drain.is_none())
        });
        nodes
    }

    /// How many of these nodes, the first first, are enough.
    fn fewest(&mut self, nodes: &[NodeId]) -> Option<Vec<NodeId>> {
        if !self.starts_with(nodes) {
            return None;
        }
        let (mut low, mut high) = (1, nodes.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.starts_with(&nodes[..middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Some(nodes[..high].to_vec())
    }

    fn starts_with(&mut self, opened: &[NodeId]) -> bool {
        if opened.is_empty() {
            return false;
        }
        for node in opened.iter().filter_map(|&id| self.case.state.node(id)) {
            let mut node = node.clone();
            (node.link, node.drain) = (Link::Up, None);
            self.world.put_node(node);
        }
        let starts = self.starts(self.case.now);
        for node in opened.iter().filter_map(|&id| self.case.state.node(id)) {
            self.world.put_node(node.clone());
        }
        starts
    }

    fn names(&self, nodes: &[NodeId]) -> String {
        let shown = nodes.iter().take(NODES_NAMED);
        let names: Vec<String> = shown.map(|&id| self.case.state.node_name(id)).collect();
        let word = if names.len() == 1 { "node" } else { "nodes" };
        match nodes.len().saturating_sub(NODES_NAMED) {
            0 => format!("{word} {}", names.join(", ")),
            more => format!("{word} {} and {more} more", names.join(", ")),
        }
    }
}
