//! Whether parts are what the spec asks for: how many, how large, of what kind, how near.

use std::collections::BTreeSet;

use tutti_model::{
    Bytes, Gpu, HealthAction, IMAGES_LABEL, Job, JobSpec, Launcher, Node, PartPlacement, Place,
    SHARES_LABEL, State, TaskId, Topology, UNABLE,
};

use super::Violation;

pub(super) fn is_met(
    state: &State,
    job: &Job,
    id: TaskId,
    parts: &[PartPlacement],
) -> Result<(), Violation> {
    whole(&job.spec, id, parts)?;
    for part in parts {
        let node = state.node(part.node).filter(|n| n.accepts_work());
        let node = node.ok_or(Violation::NodeClosed(id, part.node))?;
        suits(&job.spec, id, node, part)?;
    }
    near_enough(state, &job.spec, id, parts)
}

/// The number of nodes, GPUs, CPUs, memory and ranks is what the spec asks for.
fn whole(spec: &JobSpec, id: TaskId, parts: &[PartPlacement]) -> Result<(), Violation> {
    let wrong = |what: String| Err(Violation::NotWhole(id, what));
    let mut nodes = BTreeSet::new();
    for part in parts {
        if !nodes.insert(part.node) {
            return Err(Violation::NodeTwice(id, part.node));
        }
        part_is_whole(spec, part).or_else(wrong)?;
    }
    let gpus: usize = parts.iter().map(|p| p.gpus.len()).sum();
    if let Some(total) = spec.gpus.filter(|n| *n > 0) {
        if gpus != total as usize || parts.iter().any(|p| p.gpus.is_empty()) {
            return wrong(format!("{gpus} GPUs instead of {total}"));
        }
        return Ok(());
    }
    let (least, most) = match &spec.elastic {
        Some(elastic) => (elastic.min_nodes as usize, elastic.max_nodes as usize),
        None => (spec.nodes.unwrap_or(1) as usize, spec.nodes.unwrap_or(1) as usize),
    };
    if parts.len() < least || parts.len() > most {
        return wrong(format!("{} nodes instead of {least} to {most}", parts.len()));
    }
    let one = usize::from(spec.gpu_share.is_some());
    let each = spec.gpus_per_node.as_ref().map_or(one, |g| g.count as usize);
    match parts.iter().find(|p| p.gpus.len() != each) {
        Some(p) => wrong(format!("{} GPUs on node {} instead of {each}", p.gpus.len(), p.node)),
        None => Ok(()),
    }
}

fn part_is_whole(spec: &JobSpec, part: &PartPlacement) -> Result<(), String> {
    let gpus = part.gpus.len() as u32;
    let cpus = match (spec.cpus_per_node, spec.cpus_per_gpu) {
        (Some(n), per_gpu) => n + per_gpu.unwrap_or(0) * gpus,
        (None, Some(per_gpu)) if per_gpu > 0 && gpus > 0 => per_gpu * gpus,
        (None, _) => 1,
    };
    let mem = spec.mem_per_node.unwrap_or_default().0
        + spec.mem_per_gpu.unwrap_or_default().0 * u64::from(gpus);
    let ranks = match (spec.ranks_per_node, spec.launcher) {
        (_, Launcher::Torchrun | Launcher::Mpi | Launcher::Tf | Launcher::Ray) => 1,
        (Some(n), _) => n,
        (None, Launcher::Torch | Launcher::Deepspeed) if gpus > 0 => gpus,
        (None, _) => 1,
    };
    let share = spec.gpu_share.map_or(1000, |part| (part * 1000.0).round().max(1.0) as u16);
    let node = part.node;
    if part.cpus != cpus {
        return Err(format!("{} CPUs on node {node} instead of {cpus}", part.cpus));
    }
    if part.mem != Bytes(mem) {
        return Err(format!("{} memory on node {node} instead of {}", part.mem, Bytes(mem)));
    }
    if part.ranks != ranks {
        return Err(format!("{} ranks on node {node} instead of {ranks}", part.ranks));
    }
    if part.share.0 != share {
        return Err(format!("{} thousandths of a GPU instead of {share}", part.share.0));
    }
    match part.gpus.iter().collect::<BTreeSet<_>>().len() == part.gpus.len() {
        true => Ok(()),
        false => Err(format!("a GPU of node {node} twice")),
    }
}

/// The node's GPUs and labels are such as the spec wants.
fn suits(spec: &JobSpec, id: TaskId, node: &Node, part: &PartPlacement) -> Result<(), Violation> {
    let model = spec.gpus_per_node.as_ref().and_then(|g| g.model.as_deref());
    for &index in &part.gpus {
        let gpu = gpu(node, part, index.0).ok_or(Violation::NoSuchGpu(id, node.id, index))?;
        if node.findings.iter().any(|f| f.gpu == Some(index) && f.action >= HealthAction::FenceGpu)
        {
            return Err(Violation::Fenced(id, node.id, index));
        }
        if model.is_some_and(|wanted| !wanted.split('|').any(|m| m == gpu.model)) {
            return Err(Violation::WrongModel(id, node.id, index));
        }
        if spec.gpu_mem.is_some_and(|least| gpu.mem < least) {
            return Err(Violation::GpuTooSmall(id, node.id, index));
        }
    }
    let has = |(key, values): (&String, &String)| {
        let value = node.facts.labels.get(key);
        value.is_some_and(|v| values.split('|').any(|wanted| wanted == v))
    };
    let unable = |key: &str| node.facts.labels.get(key).is_some_and(|v| v == UNABLE);
    if spec.image.is_some() && unable(IMAGES_LABEL)
        || spec.gpu_share.is_some() && unable(SHARES_LABEL)
        || !spec.labels.iter().all(has)
        || spec.avoid_labels.iter().any(has)
    {
        return Err(Violation::WrongLabels(id, node.id));
    }
    Ok(())
}

fn gpu<'n>(node: &'n Node, part: &PartPlacement, index: u16) -> Option<&'n Gpu> {
    debug_assert_eq!(node.id, part.node);
    node.facts.gpus.iter().find(|g| g.index.0 == index)
}

/// All parts reach each other, and are inside one domain of the level that the spec names.
fn near_enough(
    state: &State,
    spec: &JobSpec,
    id: TaskId,
    parts: &[PartPlacement],
) -> Result<(), Violation> {
    let reach = |p: &PartPlacement| state.node(p.node).map(|n| n.facts.reach());
    if let Some(pair) = parts.windows(2).find(|pair| reach(&pair[0]) != reach(&pair[1])) {
        return Err(Violation::Unreachable(id, pair[0].node, pair[1].node));
    }
    let Some(level) = spec.topology else { return Ok(()) };
    let places: Vec<Place> = parts
        .iter()
        .filter_map(|p| state.node(p.node))
        .map(|node| state.policy.topology.place_of(node))
        .collect();
    let one =
        |same: fn(&Place, &Place) -> bool| places.windows(2).all(|pair| same(&pair[0], &pair[1]));
    let inside = match level {
        Topology::Any => true,
        Topology::Site => one(|a, b| a.site == b.site),
        Topology::Rail => one(|a, b| (&a.site, &a.rail) == (&b.site, &b.rail)),
        Topology::Rack => one(|a, b| a == b),
        Topology::Node => parts.len() <= 1,
        Topology::Island => parts.len() <= 1 && parts.iter().all(|p| on_one_island(state, p)),
    };
    if inside { Ok(()) } else { Err(Violation::TooWide(id, level.as_str())) }
}

fn on_one_island(state: &State, part: &PartPlacement) -> bool {
    let Some(node) = state.node(part.node) else { return false };
    // A node that does not say joins all its GPUs.
    let island = |index: &tutti_model::GpuIndex| gpu(node, part, index.0)?.island.or(Some(0));
    let islands: BTreeSet<_> = part.gpus.iter().map(island).collect();
    islands.len() <= 1
}
