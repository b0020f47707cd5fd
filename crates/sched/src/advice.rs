//! Changes that would start a task now. Each is tried before it is given: advice that does not
//! help is worse than none.

use tutti_model::{Bytes, Demand, Job, JobId, Link, Plan, Policy, QueueKey, Spread, Verdict};

use crate::ask::Ask;
use crate::cluster::{Cluster, SlotNo, Standing};
use crate::describe::count;
use crate::explain::Case;
use crate::fit;
use crate::pass::{Overdue, WhatIf, active_tasks, array_limit};
use crate::verdict::unmet;

/// Nodes tried one by one; each costs a pass.
const NODES_TRIED: usize = 8;
const NODES_NAMED: usize = 8;

/// Cheapest first.
pub(crate) fn advice(case: &Case<'_>) -> Vec<String> {
    let desk = Desk { case, cluster: Cluster::new(case.state) };
    match case.verdict {
        Verdict::Held => desk.release(),
        Verdict::Dependencies { .. } => desk.release_others(),
        Verdict::Behind { .. } => desk.overtake(),
        Verdict::Busy(_) | Verdict::NodesUnavailable(_) => {
            let mut advice = desk.nodes();
            advice.extend(desk.shape());
            advice
        }
        Verdict::BackOff { .. } | Verdict::ArrayLimit { .. } | Verdict::Next => Vec::new(),
    }
}

struct Desk<'c> {
    case: &'c Case<'c>,
    cluster: Cluster<'c>,
}

impl Desk<'_> {
    fn fits(&self, demand: &Demand) -> bool {
        fit::fits(&self.cluster, &Ask::new(demand))
    }

    fn at_limit(&self, job: &Job) -> bool {
        let running = || active_tasks(&self.case.state.index.active, job.id);
        array_limit(job).is_some_and(|limit| running() >= limit)
    }

    /// The first job with a place before this one that the plan keeps room for.
    fn keeper(&self, plan: &Plan, before: QueueKey) -> Option<JobId> {
        let Case { state, policy, now, job, .. } = *self.case;
        let overdue = Overdue { state, policy, now };
        let lanes = state.index.queue.iter();
        let full = lanes.filter(|(d, _)| matches!(plan.by_demand.get(d), Some(Verdict::Busy(_))));
        let keepers = full.filter_map(|(_, keys)| {
            let first = *keys.first()?;
            overdue.first(keys, first, |other| other.id == job.id || self.at_limit(other))
        });
        keepers.min().filter(|key| *key < before).map(|key| key.job)
    }

    fn release(&self) -> Vec<String> {
        let case = self.case;
        let starts = unmet(case.state, case.job).is_empty()
            && !self.at_limit(case.job)
            && self.fits(case.ask.demand)
            && self.keeper(case.plan, case.key()).is_none();
        let then = if starts { "it would start now" } else { "it would then wait for its turn" };
        vec![format!("release it: tutti release {} ({then})", case.job.id)]
    }

    fn release_others(&self) -> Vec<String> {
        let waiting_for = unmet(self.case.state, self.case.job);
        let jobs = waiting_for.iter().filter_map(|d| self.case.state.job(d.job));
        let held = jobs.filter(|job| job.held).map(|job| job.id);
        held.map(|id| format!("job {id}, which it waits for, is held: tutti release {id}"))
            .collect()
    }

    fn overtake(&self) -> Vec<String> {
        let Some(keeper) = self.keeper(self.case.plan, self.case.key()) else { return Vec::new() };
        if self.at_limit(self.case.job) || !self.fits(self.case.ask.demand) {
            return Vec::new();
        }
        vec![format!("give it a higher priority than job {keeper}: it would start now")]
    }

    /// Nodes that would make room if they took work again.
    fn nodes(&self) -> Vec<String> {
        let ask = &self.case.ask;
        let least = ask.least();
        let suitable = |standing: Standing| -> Vec<SlotNo> {
            let slots = (0..).zip(&self.cluster.slots);
            let there = slots.filter(|(_, slot)| slot.standing == standing);
            there
                .filter(|(_, slot)| self.cluster.has_model(slot, ask))
                .filter(|(_, slot)| self.cluster.usable_when_empty(slot, ask).holds(&least))
                .map(|(no, _)| no)
                .collect()
        };
        let draining = suitable(Standing::Draining);
        // A node that cleans up comes back by itself; one that is drained too stays closed.
        let mut away = suitable(Standing::Away);
        away.retain(|&no| {
            let node = self.cluster.node(no);
            node.link != Link::Up && node.drain.is_none()
        });
        let mut advice = Vec::new();
        if let Some(nodes) = self.enough_of(&draining) {
            advice.push(format!("resume {}: it would start now", self.names(&nodes)));
        } else if let Some(nodes) = self.enough_of(&away) {
            advice.push(format!("bring back {}: it would start now", self.names(&nodes)));
        } else if self.starts_with(&[draining.as_slice(), &away].concat()) {
            let (draining, away) = (self.names(&draining), self.names(&away));
            advice.push(format!("resume {draining} and bring back {away}: it would start now"));
        }
        advice
    }

    /// One of these nodes if one will do, else all of them if that helps.
    fn enough_of(&self, nodes: &[SlotNo]) -> Option<Vec<SlotNo>> {
        let one = nodes.iter().take(NODES_TRIED).find(|&&node| self.starts_with(&[node]));
        match one {
            Some(&node) => Some(vec![node]),
            None if nodes.len() > 1 && self.starts_with(nodes) => Some(self.fewest(nodes)),
            None => None,
        }
    }

    /// All of these nodes together are enough; how many of the first are?
    fn fewest(&self, nodes: &[SlotNo]) -> Vec<SlotNo> {
        let (mut low, mut high) = (1, nodes.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.starts_with(&nodes[..middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        nodes[..high].to_vec()
    }

    /// Runs a whole pass: those ahead may take the room first.
    fn starts_with(&self, opened: &[SlotNo]) -> bool {
        if opened.is_empty() {
            return false;
        }
        let Case { state, policy, now, .. } = *self.case;
        let mut what_if = WhatIf::as_it_is(state);
        for &slot in opened {
            what_if.cluster.set_standing(slot, Standing::Open);
        }
        let policy = Policy { placements_max: usize::MAX, ..policy.clone() };
        let (plan, _) = what_if.plan(state, &policy, now);
        self.case.is_placed(&plan)
    }

    fn names(&self, nodes: &[SlotNo]) -> String {
        let shown = nodes.iter().take(NODES_NAMED);
        let names: Vec<&str> = shown.map(|&no| self.cluster.node(no).facts.name.as_str()).collect();
        let word = if names.len() == 1 { "node" } else { "nodes" };
        match nodes.len().saturating_sub(NODES_NAMED) {
            0 => format!("{word} {}", names.join(", ")),
            more => format!("{word} {} and {more} more", names.join(", ")),
        }
    }

    /// Asking for something else means to submit anew, behind everything of the same priority and
    /// behind everything that was kept back for the old job.
    fn shape(&self) -> Vec<String> {
        let Case { state, policy, now, job, .. } = *self.case;
        let last = QueueKey { job: JobId(u64::MAX), index: None, ..self.case.key() };
        let demand = self.case.ask.demand;
        let policy = Policy { placements_max: usize::MAX, ..policy.clone() };
        let without = WhatIf { left_out: Some(job.id), ..WhatIf::as_it_is(state) };
        let (plan, cluster) = without.plan(state, &policy, now);
        let desk = Desk { case: self.case, cluster };
        if self.fits(demand) || desk.keeper(&plan, last).is_some() {
            return Vec::new();
        }
        let ideas = [
            desk.without_model(demand),
            desk.fewer_cpus(demand),
            desk.less_memory(demand),
            desk.anywhere(demand),
            desk.fewer_gpus(demand),
            desk.fewer_nodes(demand),
        ];
        ideas.into_iter().flatten().collect()
    }

    fn without_model(&self, demand: &Demand) -> Option<String> {
        let model = demand.gpu_model.as_ref()?;
        let any = Demand { gpu_model: None, ..demand.clone() };
        self.fits(&any).then(|| format!("without the GPU model {model} it would start now"))
    }

    fn fewer_cpus(&self, demand: &Demand) -> Option<String> {
        let per_gpu = demand.cpus_per_gpu > 0;
        let with = |cpus: u64| match per_gpu {
            true => Demand { cpus_per_gpu: cpus as u32, ..demand.clone() },
            false => Demand { cpus_per_node: cpus as u32, ..demand.clone() },
        };
        let (asked, of) = match per_gpu {
            true => (demand.cpus_per_gpu, "GPU"),
            false => (demand.cpus_per_node, "node"),
        };
        let cpus = largest(1, asked.into(), |cpus| self.fits(&with(cpus)))? as u32;
        Some(format!("ask for {} per {of}: it would start now", count(cpus, "CPU")))
    }

    fn less_memory(&self, demand: &Demand) -> Option<String> {
        let per_gpu = demand.mem_per_gpu > Bytes(0);
        let with = |mem: Bytes| match per_gpu {
            true => Demand { mem_per_gpu: mem, ..demand.clone() },
            false => Demand { mem_per_node: mem, ..demand.clone() },
        };
        let (asked, of) = match per_gpu {
            true => (demand.mem_per_gpu, "GPU"),
            false => (demand.mem_per_node, "node"),
        };
        // People think of memory in whole units.
        let unit = if asked > Bytes::gib(1) { 1 << 30 } else { 1 << 20 };
        let units = largest(1, asked.0.div_ceil(unit), |n| self.fits(&with(Bytes(n * unit))))?;
        let mem = Bytes(units * unit);
        Some(format!("ask for {mem} of memory per {of}: it would start now"))
    }

    fn anywhere(&self, demand: &Demand) -> Option<String> {
        let Spread::Nodes { gpus_each: 1.., .. } = demand.spread else { return None };
        let total = u32::try_from(demand.total_gpus()).ok().filter(|&total| total > 1)?;
        let spread = Spread::Gpus { total };
        self.fits(&Demand { spread, ..demand.clone() })
            .then(|| format!("ask for {total} GPUs in all, on any nodes: it would start now"))
    }

    fn fewer_gpus(&self, demand: &Demand) -> Option<String> {
        let with = |spread| Demand { spread, ..demand.clone() };
        match demand.spread {
            Spread::Nodes { nodes, gpus_each } => {
                let spread = |gpus: u64| Spread::Nodes { nodes, gpus_each: gpus as u32 };
                let fits = |gpus| self.fits(&with(spread(gpus)));
                let gpus = largest(1, gpus_each.into(), fits)? as u32;
                let changed = with(spread(gpus.into()));
                let ask = Ask::new(&changed);
                let fitting = self.cluster.candidates(&ask, ask.need(gpus)).count() as u32;
                let (gpus, nodes) = (count(gpus, "GPU"), count(fitting, "node"));
                Some(format!("ask for {gpus} per node: {nodes} could take that now"))
            }
            Spread::Gpus { total } => {
                let spread = |gpus: u64| Spread::Gpus { total: gpus as u32 };
                let gpus = largest(1, total.into(), |gpus| self.fits(&with(spread(gpus))))? as u32;
                Some(format!("ask for {}: it would start now", count(gpus, "GPU")))
            }
        }
    }

    fn fewer_nodes(&self, demand: &Demand) -> Option<String> {
        let Spread::Nodes { nodes, gpus_each } = demand.spread else { return None };
        let with = |nodes: u64| Demand {
            spread: Spread::Nodes { nodes: nodes as u32, gpus_each },
            ..demand.clone()
        };
        let nodes = largest(1, nodes.into(), |nodes| self.fits(&with(nodes)))? as u32;
        Some(format!("ask for {}: it would start now", count(nodes, "node")))
    }
}

/// The largest number from `low` on and below `high` for which it is true, given that it is true
/// for all smaller ones.
fn largest(low: u64, high: u64, ok: impl Fn(u64) -> bool) -> Option<u64> {
    if low >= high || !ok(low) {
        return None;
    }
    let (mut low, mut high) = (low, high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if ok(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}
