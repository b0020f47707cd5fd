//! What a job could do without. To ask for something else means to submit anew: the old job is
//! gone, everybody else has had their turn, and the new one is the last of its priority.

use std::collections::BTreeSet;
use std::sync::Arc;

use tutti_model::{
    Bytes, Demand, Elastic, GpuRequest, Head, Job, JobId, JobSpec, NodeId, Span, Spread, Task,
    TaskId, Tasks, Time, Topology, Verdict,
};

use crate::ask::Ask;
use crate::describe::count;
use crate::domains::LEVELS;
use crate::explain::Case;
use crate::fit;
use crate::imagine::World;
use crate::pass::WhatIf;

/// The job with the change has the largest id there is: it was submitted last.
const IDEA: JobId = JobId(u64::MAX);

pub(super) struct Shapes<'c> {
    case: &'c Case<'c>,
    /// As things are.
    before: World,
    /// Without the job, and after a pass for all others.
    world: World,
    spec: JobSpec,
    demand: Demand,
    /// Heads of the queue without the job.
    heads: Vec<Head>,
    /// Nodes that have room but are kept for others.
    kept: BTreeSet<NodeId>,
    /// What its team may still have, in thousandths.
    allowed: Option<u64>,
}

type Change<'n> = dyn Fn(u64, &mut JobSpec) + 'n;

impl<'c> Shapes<'c> {
    pub fn new(case: &'c Case<'c>, before: World) -> Shapes<'c> {
        let mut world = World::new(case.state, case.policy, case.passes());
        let left_out = Some(case.job.id);
        let plan = world.plan(case.now, WhatIf { left_out, ..WhatIf::default() });
        let plan = plan.unwrap_or_default();
        let heads = plan.heads.clone();
        world.carry_out(plan, case.now);
        let allowed = match case.verdict {
            Verdict::TeamLimit { limit, used, .. } => {
                Some(u64::from(limit.saturating_sub(*used)) * 1000)
            }
            _ => None,
        };
        let spec = JobSpec::clone(&case.job.spec);
        let spec = JobSpec { array: None, after: Vec::new(), hold: false, ..spec };
        let demand = Demand::of(&spec);
        let mut shapes =
            Shapes { case, before, world, spec, demand, heads, kept: BTreeSet::new(), allowed };
        shapes.kept = shapes.kept_nodes();
        shapes
    }

    fn kept_nodes(&self) -> BTreeSet<NodeId> {
        let mut kept: BTreeSet<NodeId> =
            self.heads.iter().flat_map(|h| &h.nodes).copied().collect();
        let Case { state, policy, now, job, .. } = *self.case;
        let span = job.spec.time.unwrap_or(policy.durations.assumed);
        for r in policy.reservations.iter().filter(|r| r.from < now.plus(span) && r.until > now) {
            let own = |team: &String| policy.line_of(&job.team).contains(&team.as_str());
            if !r.team.as_ref().is_some_and(own) {
                kept.extend(r.nodes.iter().filter_map(|name| state.node_named(name)).map(|n| n.id));
            }
        }
        kept
    }

    /// Cheapest first. Nothing if the very same job would start, submitted anew.
    pub fn ideas(&mut self) -> Vec<String> {
        if self.starts(self.spec.clone()) {
            return Vec::new();
        }
        let ideas = [
            Shapes::wider,
            Shapes::any_model,
            Shapes::other_labels,
            Shapes::smaller_gpus,
            Shapes::beside_others,
            Shapes::fewer_cpus,
            Shapes::less_memory,
            Shapes::shorter,
            Shapes::elastic,
            Shapes::anywhere,
            Shapes::smaller_share,
            Shapes::fewer_gpus,
            Shapes::fewer_nodes,
        ];
        ideas.into_iter().filter_map(|idea| idea(self)).map(|what| format!("{what}: now")).collect()
    }

    /// A quick look before a pass: whether there is room, on nodes that nobody has a claim to if
    /// need be.
    fn fits(&mut self, spec: &JobSpec, strict: bool) -> bool {
        let demand = Demand::of(spec);
        let least = Ask::new(&demand).least_gpus() * u64::from(demand.share.0);
        if self.allowed.is_some_and(|allowed| least > allowed) {
            return false;
        }
        let (world, kept) = (&mut self.world, &self.kept);
        let view = world.look();
        let no = view.book.page_of(&demand);
        let cluster = &view.cluster;
        let page = view.book.read(no, cluster, &view.valuer);
        let open = |slot, _| !strict || !kept.contains(&cluster.get(slot).node);
        fit::find(cluster, page, &open, &BTreeSet::new()).is_some()
    }

    /// The proof: the pass places it, whether others have their turn between the end of the old
    /// job and the new one or not.
    fn starts(&mut self, spec: JobSpec) -> bool {
        let idea = self.idea(spec);
        starts_in(self.case, &mut self.world, &idea)
            && starts_in(self.case, &mut self.before, &idea)
    }

    fn idea(&self, spec: JobSpec) -> Arc<Job> {
        let Case { now, job, .. } = *self.case;
        Arc::new(Job {
            id: IDEA,
            spec: Arc::new(spec),
            submitted_at: now,
            held: false,
            // What jobs like it became is not looked up: it goes last.
            rank: u64::MAX,
            tasks: Tasks::One(Task::pending(now)),
            ..job.clone()
        })
    }

    fn try_out(&mut self, with: impl FnOnce(&mut JobSpec)) -> bool {
        let mut spec = self.spec.clone();
        with(&mut spec);
        self.fits(&spec, false) && self.starts(spec)
    }

    /// The largest number from `low` on and below `high` that starts.
    fn most(&mut self, low: u64, high: u64, with: &Change<'_>) -> Option<u64> {
        let spec = self.spec.clone();
        let with = |n: u64| {
            let mut spec = spec.clone();
            with(n, &mut spec);
            spec
        };
        let mut tried = None;
        for strict in [false, true] {
            let found = largest(low, high, |n| self.fits(&with(n), strict))?;
            if tried != Some(found) && self.starts(with(found)) {
                return Some(found);
            }
            tried = Some(found);
        }
        None
    }

    /// The narrowest domain beyond the one asked for.
    fn wider(&mut self) -> Option<String> {
        let within = self.spec.topology.filter(|t| *t >= Topology::Rack)?;
        for level in LEVELS.into_iter().filter(|level| *level > within) {
            let cluster = &self.world.look().cluster;
            let mut domains = cluster.slots.iter().map(|slot| slot.path.at(level));
            let first = domains.next();
            let divides = domains.any(|domain| Some(domain) != first);
            // Where a level divides nothing, "any" says the same in plainer words.
            if (divides || level == Topology::Any) && self.try_out(|s| s.topology = Some(level)) {
                return Some(format!("--topology {}", level.as_str()));
            }
        }
        None
    }

    fn any_model(&mut self) -> Option<String> {
        let model = self.demand.gpu_model.clone()?;
        let any = |spec: &mut JobSpec| {
            if let Some(gpus) = &mut spec.gpus_per_node {
                gpus.model = None;
            }
        };
        self.try_out(any).then(|| format!("without the GPU model {model}"))
    }

    fn other_labels(&mut self) -> Option<String> {
        for (key, value) in self.spec.labels.clone() {
            if self.try_out(|spec| drop(spec.labels.remove(&key))) {
                return Some(format!("without the label {key}={value}"));
            }
        }
        for (key, value) in self.spec.avoid_labels.clone() {
            if self.try_out(|spec| drop(spec.avoid_labels.remove(&key))) {
                return Some(format!("on nodes with the label {key}={value} too"));
            }
        }
        None
    }

    fn smaller_gpus(&mut self) -> Option<String> {
        let asked = self.spec.gpu_mem?;
        let cards = self.world.look().cluster.slots.iter().flat_map(|slot| &slot.cards);
        let sizes: BTreeSet<Bytes> = cards.map(|c| c.mem).filter(|mem| *mem < asked).collect();
        let gib = |mem: Bytes| Bytes(mem.0 >> 30 << 30);
        let sizes: BTreeSet<Bytes> = sizes.into_iter().map(gib).collect();
        let enough = |mem: &Bytes| self.try_out(|spec| spec.gpu_mem = Some(*mem));
        let mem = sizes.into_iter().rev().find(enough)?;
        Some(format!("GPUs with {mem} instead of {asked}"))
    }

    fn beside_others(&mut self) -> Option<String> {
        let exclusive = self.spec.exclusive;
        (exclusive && self.try_out(|spec| spec.exclusive = false))
            .then(|| "on nodes that others use too (not exclusive)".to_owned())
    }

    fn fewer_cpus(&mut self) -> Option<String> {
        let per_gpu = self.demand.cpus_per_gpu > 0;
        let (asked, of) = match per_gpu {
            true => (self.demand.cpus_per_gpu, "GPU"),
            false => (self.demand.cpus_per_node, "node"),
        };
        let with = |cpus: u64, spec: &mut JobSpec| match per_gpu {
            true => spec.cpus_per_gpu = Some(cpus as u32),
            false => spec.cpus_per_node = Some(cpus as u32),
        };
        let cpus = self.most(1, asked.into(), &with)? as u32;
        Some(format!("{} per {of} instead of {asked}", count(cpus, "CPU")))
    }

    fn less_memory(&mut self) -> Option<String> {
        let per_gpu = self.demand.mem_per_gpu > Bytes(0);
        let (asked, of) = match per_gpu {
            true => (self.demand.mem_per_gpu, "GPU"),
            false => (self.demand.mem_per_node, "node"),
        };
        // People think of memory in whole units.
        let unit = if asked > Bytes::gib(1) { 1 << 30 } else { 1 << 20 };
        let with = |n: u64, spec: &mut JobSpec| match per_gpu {
            true => spec.mem_per_gpu = Some(Bytes(n * unit)),
            false => spec.mem_per_node = Some(Bytes(n * unit)),
        };
        let mem = Bytes(self.most(1, asked.0.div_ceil(unit), &with)? * unit);
        Some(format!("{mem} of memory per {of} instead of {asked}"))
    }

    /// A time limit that ends before somebody else needs the nodes.
    fn shorter(&mut self) -> Option<String> {
        let Case { policy, now, .. } = *self.case;
        let heads = self.heads.iter().filter_map(|head| {
            Some((head.starts_by?, format!("before job {} starts", head.task.job)))
        });
        let reserved = policy.reservations.iter().filter(|r| r.from > now);
        let reserved = reserved.map(|r| (r.from, format!("before reservation '{}'", r.name)));
        let mut ends: Vec<(Time, String)> = heads.chain(reserved).collect();
        ends.sort();
        for (end, why) in ends.into_iter().rev() {
            let left = round(end.since(now));
            if left.0 == 0 || self.spec.time.is_some_and(|time| time <= left) {
                continue;
            }
            if self.try_out(|spec| spec.time = Some(left)) {
                return Some(format!("a time limit of {left}, {why}"));
            }
        }
        None
    }

    fn elastic(&mut self) -> Option<String> {
        let Spread::Nodes { nodes: most, .. } = self.demand.spread else { return None };
        let least = self.demand.least_nodes.unwrap_or(most);
        let with = |min: u64, spec: &mut JobSpec| {
            spec.elastic = Some(Elastic { min_nodes: min as u32, max_nodes: most });
        };
        let nodes = self.most(1, least.into(), &with)? as u32;
        let before = match self.demand.least_nodes {
            Some(least) => format!(" instead of {least}"),
            None => String::new(),
        };
        Some(format!("elastic from {}{before}", count(nodes, "node")))
    }

    fn anywhere(&mut self) -> Option<String> {
        let Spread::Nodes { gpus_each: 1.., .. } = self.demand.spread else { return None };
        let total = u32::try_from(self.demand.total_gpus()).ok().filter(|&total| total > 1)?;
        if self.spec.elastic.is_some() || self.spec.ranks_per_node.is_some() {
            return None;
        }
        let spread = |spec: &mut JobSpec| {
            (spec.nodes, spec.gpus) = (None, Some(total));
            // Only the model is left of what was asked for by node.
            spec.gpus_per_node = spec.gpus_per_node.take().filter(|g| g.model.is_some());
            if let Some(gpus) = &mut spec.gpus_per_node {
                gpus.count = 1;
            }
        };
        self.try_out(spread).then(|| format!("{total} GPUs on any nodes"))
    }

    fn smaller_share(&mut self) -> Option<String> {
        let asked = self.spec.gpu_share?;
        let hundredths = |n: u64| n as f64 / 100.0;
        let high = u64::from(self.demand.share.0).div_ceil(10);
        let with = |n: u64, spec: &mut JobSpec| spec.gpu_share = Some(hundredths(n));
        let part = self.most(1, high, &with)?;
        Some(format!("{} of a GPU instead of {asked}", hundredths(part)))
    }

    fn fewer_gpus(&mut self) -> Option<String> {
        match self.demand.spread {
            Spread::Nodes { gpus_each, .. } => {
                let model = self.demand.gpu_model.clone();
                let with = |n: u64, spec: &mut JobSpec| {
                    let model = model.clone();
                    spec.gpus_per_node = Some(GpuRequest { model, count: n as u32 });
                };
                let gpus = self.most(1, gpus_each.into(), &with)? as u32;
                Some(format!("{} per node instead of {gpus_each}", count(gpus, "GPU")))
            }
            Spread::Gpus { total } => {
                let with = |n: u64, spec: &mut JobSpec| spec.gpus = Some(n as u32);
                let gpus = self.most(1, total.into(), &with)? as u32;
                Some(format!("{} instead of {total}", count(gpus, "GPU")))
            }
        }
    }

    fn fewer_nodes(&mut self) -> Option<String> {
        let Spread::Nodes { nodes: asked, .. } = self.demand.spread else { return None };
        if self.spec.elastic.is_some() {
            return None;
        }
        let with = |n: u64, spec: &mut JobSpec| spec.nodes = Some(n as u32);
        let nodes = self.most(1, asked.into(), &with)? as u32;
        Some(format!("{} instead of {asked}", count(nodes, "node")))
    }
}

fn starts_in(case: &Case<'_>, world: &mut World, idea: &Arc<Job>) -> bool {
    world.put_job(IDEA, Some(Arc::clone(idea)));
    let (only, left_out) = (Some(TaskId::single(IDEA)), Some(case.job.id));
    let plan = world.plan(case.now, WhatIf { left_out, only, ..WhatIf::default() });
    world.put_job(IDEA, None);
    plan.is_some_and(|plan| plan.placements.iter().any(|p| p.task.job == IDEA))
}

/// As people write it: whole minutes, or seconds if it is short.
fn round(span: Span) -> Span {
    let unit = if span.0 >= 60_000 { 60_000 } else { 1000 };
    Span(span.0 / unit * unit)
}

/// The largest number from `low` on and below `high` for which it is true, given that it is true
/// for all smaller ones.
fn largest(low: u64, high: u64, mut ok: impl FnMut(u64) -> bool) -> Option<u64> {
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
