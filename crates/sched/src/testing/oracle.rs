//! Judges plans. Counts from the leases and the specs and shares no code with the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::*;

/// Who will be on the nodes, counted part by part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    gpus: BTreeMap<(NodeId, GpuIndex), u32>,
    cpus: BTreeMap<NodeId, u64>,
    mem: BTreeMap<NodeId, u64>,
    /// Who is there, and whether alone.
    tenants: BTreeMap<NodeId, Vec<bool>>,
}

impl Load {
    pub fn add(&mut self, part: &PartPlacement, alone: bool) {
        for &gpu in &part.gpus {
            *self.gpus.entry((part.node, gpu)).or_default() += u32::from(part.share.0);
        }
        *self.cpus.entry(part.node).or_default() += u64::from(part.cpus);
        *self.mem.entry(part.node).or_default() += part.mem.0;
        self.tenants.entry(part.node).or_default().push(alone);
    }

    /// Everything that leases hold, but for those of some tasks.
    pub fn of_leases(state: &State, without: &dyn Fn(TaskId) -> bool) -> Load {
        let mut load = Load::default();
        for job in state.jobs.values() {
            for (_, task) in job.live_tasks().filter(|(id, _)| !without(*id)) {
                let parts = task.attempt().into_iter().flat_map(|a| &a.parts);
                for part in parts.filter(|p| !p.phase.is_over()) {
                    load.add(&PartPlacement::from(part), job.spec.exclusive);
                }
            }
        }
        load
    }

    /// What is wrong with it.
    pub fn excess(&self, state: &State) -> Option<String> {
        for ((node, gpu), milli) in &self.gpus {
            if *milli > 1000 {
                return Some(format!("GPU {gpu} of n{node} is given {milli} times"));
            }
        }
        for (id, node) in &state.nodes {
            let cpus = self.cpus.get(id).copied().unwrap_or(0);
            let mem = self.mem.get(id).copied().unwrap_or(0);
            if cpus > u64::from(node.facts.cpus) || mem > node.facts.mem.0 {
                return Some(format!("n{id} is given {cpus} CPUs and {mem} bytes"));
            }
            let tenants = self.tenants.get(id).map_or(&[][..], Vec::as_slice);
            if tenants.len() > 1 && tenants.contains(&true) {
                return Some(format!("n{id} has somebody who wants it alone"));
            }
        }
        None
    }

    /// GPUs of a node that the demand could have now, each by itself.
    fn usable(&self, node: &Node, d: &Demand) -> Vec<GpuIndex> {
        let free = |g: &&Gpu| {
            let used = self.gpus.get(&(node.id, g.index)).copied().unwrap_or(0);
            let fenced = node.findings.iter().any(|f| f.fences() == Some(g.index));
            !fenced && used + u32::from(d.share.0) <= 1000 && suits(d, g)
        };
        node.facts.gpus.iter().filter(free).map(|g| g.index).collect()
    }

    /// How many GPUs the node could give at once.
    pub fn gives(&self, node: &Node, d: &Demand) -> Option<u32> {
        let usable = self.usable(node, d);
        let most = if d.within == Topology::Island {
            let island = |i: &GpuIndex| node.facts.gpus.iter().find(|g| g.index == *i);
            let mut islands: BTreeMap<Option<u16>, u32> = BTreeMap::new();
            for gpu in usable.iter().filter_map(island) {
                *islands.entry(gpu.island).or_default() += 1;
            }
            islands.into_values().max().unwrap_or(0)
        } else {
            usable.len() as u32
        };
        let tenants = self.tenants.get(&node.id).map_or(&[][..], Vec::as_slice);
        let alone = tenants.contains(&true) || (d.exclusive && !tenants.is_empty());
        let labels = d.labels.iter().all(|l| {
            let value = node.facts.labels.get(&l.key);
            value.is_some_and(|v| l.value.split('|').any(|w| w == v)) == l.wanted
        });
        let has_model = d.gpu_model.is_none() || node.facts.gpus.iter().any(|g| suits(d, g));
        if alone || !labels || !has_model || !node.accepts_work() {
            return None;
        }
        let cpus = u64::from(node.facts.cpus) - self.cpus.get(&node.id).copied().unwrap_or(0);
        let mem = node.facts.mem.0 - self.mem.get(&node.id).copied().unwrap_or(0);
        let feeds = |g: &u32| cpus >= u64::from(d.cpus_for(*g)) && mem >= d.mem_for(*g).0;
        (0..=most).rev().find(feeds)
    }

    /// Whether the least of the demand fits on nodes that it may use.
    pub fn fits(&self, state: &State, d: &Demand, may_use: &dyn Fn(&Node) -> bool) -> bool {
        let mut domains: BTreeMap<String, u64> = BTreeMap::new();
        for node in state.nodes.values().filter(|n| may_use(n)) {
            let Some(gpus) = self.gives(node, d) else { continue };
            let adds = match d.spread {
                Spread::Nodes { gpus_each, .. } => u64::from(gpus >= gpus_each),
                Spread::Gpus { .. } => gpus.into(),
            };
            *domains.entry(domain(state, node, d.within)).or_default() += adds;
        }
        let wanted = match d.spread {
            Spread::Nodes { nodes, .. } => d.least_nodes.unwrap_or(nodes).max(1).into(),
            Spread::Gpus { total } => u64::from(total),
        };
        domains.into_values().any(|sum| sum >= wanted)
    }
}

fn suits(d: &Demand, gpu: &Gpu) -> bool {
    let model = d.gpu_model.as_ref().is_none_or(|m| m.split('|').any(|m| m == gpu.model));
    model && gpu.mem >= d.gpu_mem
}

/// The domain of a level as a name.
fn domain(state: &State, node: &Node, level: Topology) -> String {
    let place = state.policy.topology.place_of(node);
    let (site, rail, rack) = (place.site, place.rail, place.rack);
    let reach = node.facts.reach().unwrap_or_default().to_owned();
    reach
        + &match level {
            Topology::Island | Topology::Node => node.facts.name.clone(),
            Topology::Rack => format!("{site:?}/{rail:?}/{rack:?}"),
            Topology::Rail => format!("{site:?}/{rail:?}"),
            Topology::Site => format!("{site:?}"),
            Topology::Any => String::new(),
        }
}

/// Parts are all that was asked for, on nodes and GPUs that will do.
pub(crate) fn check_shape(state: &State, task: TaskId, parts: &[PartPlacement]) {
    let job = state.job(task.job).unwrap();
    let d = Demand::of(&job.spec);
    let nodes: BTreeSet<NodeId> = parts.iter().map(|p| p.node).collect();
    assert_eq!(nodes.len(), parts.len(), "{task} has a node twice");
    let gpus: u32 = parts.iter().map(|p| p.gpus.len() as u32).sum();
    match d.spread {
        Spread::Nodes { nodes, gpus_each } => {
            let (count, nodes) = (parts.len() as u32, nodes.max(1));
            let least = d.least_nodes.unwrap_or(nodes);
            assert!((least..=nodes).contains(&count), "{task}: {count} of {nodes} nodes");
            assert!(parts.iter().all(|p| p.gpus.len() as u32 == gpus_each), "{task}: GPUs");
        }
        Spread::Gpus { total } => {
            assert_eq!(gpus, total, "{task}");
            assert!(parts.iter().all(|p| !p.gpus.is_empty()), "{task} has a node for nothing");
        }
    }
    let mut domains = BTreeSet::new();
    for part in parts {
        let node = &state.nodes[&part.node];
        domains.insert(domain(state, node, d.within));
        let count = part.gpus.len() as u32;
        assert_eq!((part.cpus, part.mem), (d.cpus_for(count), d.mem_for(count)), "{task}");
        assert_eq!((part.ranks, part.share), (d.ranks_for(count), d.share), "{task}");
        assert!(Load::default().gives(node, &d).is_some(), "{task} on {}", node.facts.name);
        let gpu = |i: &GpuIndex| node.facts.gpus.iter().find(|g| g.index == *i).unwrap();
        assert!(part.gpus.iter().all(|i| suits(&d, gpu(i))), "{task}: unsuitable GPU");
        assert!(!part.gpus.iter().any(|i| node.is_fenced(*i)), "{task}: fenced GPU");
        let islands: BTreeSet<_> = part.gpus.iter().map(|i| gpu(i).island).collect();
        assert!(d.within != Topology::Island || islands.len() < 2, "{task} spans islands");
    }
    assert_eq!(domains.len(), 1, "{task} spans domains");
}

/// GPUs in thousandths that parts hold, all models together.
pub(crate) fn milli(parts: &[PartPlacement]) -> u64 {
    parts.iter().map(|p| p.gpus.len() as u64 * u64::from(p.share.0)).sum()
}

/// What a team holds in thousandths, everything below it included: leases of tasks that `count`,
/// and claims of others.
pub(crate) fn team_milli(state: &State, team: &str, count: &dyn Fn(TaskId) -> bool) -> u64 {
    let under = |job: &Job| state.policy.line_of(&job.team).contains(&team);
    let mut sum = 0;
    for job in state.jobs.values().filter(|j| under(j)) {
        for (_, task) in job.live_tasks().filter(|(id, _)| count(*id)) {
            let parts: Vec<_> = task
                .attempt()
                .into_iter()
                .flat_map(|a| &a.parts)
                .map(PartPlacement::from)
                .collect();
            sum += milli(&parts);
        }
    }
    sum
}

/// Whether the node is kept from the job at some time between now and its end.
pub(crate) fn is_reserved(state: &State, node: &Node, job: &Job, now: Time) -> bool {
    let assumed = state.policy.durations.assumed;
    let end = now.plus(job.spec.time.unwrap_or(assumed));
    state.policy.reservations.iter().any(|r| {
        let theirs =
            r.team.as_ref().is_some_and(|t| state.policy.line_of(&job.team).contains(&t.as_str()));
        r.nodes.contains(&node.facts.name) && r.from < end && r.until > now && !theirs
    })
}
