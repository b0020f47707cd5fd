//! On what is planned: a cluster of the catalogue, of a file, or the one that runs.

use std::collections::BTreeMap;
use std::path::Path;

use tutti_model::{Bytes, FabricState, Gpu, Hardware, NodeState};
use tutti_planner::{Cluster, Measured, catalogue};
use tutti_wire::api::{NodeDetail, NodeRow};
use tutti_wire::client::Client;

use super::PlanArgs;
use crate::cmd::bench::gpu::file::{is_outdated, of_cluster};
use crate::fail::{DENIED, Fail, UNREACHABLE};
use crate::show::count;
use crate::show::plan::LISTED_IN;
use crate::{file, session, terminal};

pub struct Place {
    pub cluster: Cluster,
    /// What job files call its GPUs.
    pub gpu: String,
    pub currency: String,
    /// What was assumed or left out, a sentence each.
    pub notes: Vec<String>,
}

/// What the flags name, with the price and the figures that they give.
pub fn find(cluster: Option<&str>, args: &PlanArgs) -> Result<Place, Fail> {
    let mut place = match &args.on {
        Some(on) => named(on)?,
        None => running(cluster)?,
    };
    if let Some(path) = &args.measured {
        measured(&mut place.cluster, path)?;
    }
    if args.price.is_some() {
        place.cluster.price_per_gpu_hour = args.price;
    }
    place.notes.iter().for_each(|note| terminal::complain(&format!("note: {note}")));
    Ok(place)
}

/// Without a cluster that runs.
pub fn named(on: &str) -> Result<Place, Fail> {
    let cluster = if is_file(on) {
        catalogue::from_toml(&file::read_text(Path::new(on), "cluster file")?)
            .map_err(|e| Fail::usage(format!("{on}: {e}")))?
    } else {
        catalogue::find(on).map_err(|e| {
            Fail::usage(e.to_string())
                .hint("tutti plan --list clusters, or a TOML file that describes it")
        })?
    };
    let gpu = tutti_gpu::short_model(&cluster.gpu.name);
    Ok(Place { cluster, gpu, currency: LISTED_IN.to_owned(), notes: Vec::new() })
}

/// A name is never looked for on disk, so that what is planned does not depend on where.
fn is_file(on: &str) -> bool {
    on.contains(['/', '\\']) || on.ends_with(".toml") || on.ends_with(".json")
}

const ELSEWHERE: &str = "--on plans for a cluster that does not run: --on 16xdgx-h100";

fn running(cluster: Option<&str>) -> Result<Place, Fail> {
    let told = |fail: Fail| match fail.exit {
        UNREACHABLE => fail.hint("tutti up starts one; --on 16xdgx-h100 plans without one"),
        _ => fail,
    };
    let client = session::open(cluster).map_err(told)?;
    let rows = client.nodes().map_err(|e| told(e.into()))?;
    let mut notes = Vec::new();
    let Some(alike) = alike(&rows, &mut notes) else {
        return Err(Fail::new("no node of this cluster offers a GPU").hint(ELSEWHERE));
    };
    let mut cluster = joined(&client, &alike, &mut notes)?;
    let currency = price(&client, &alike.model, &mut cluster, &mut notes)?;
    Ok(Place { cluster, gpu: alike.model, currency, notes })
}

/// The running cluster's nodes with this GPU. None: none that jobs could have.
pub fn with(client: &Client, model: &str) -> Result<Option<Cluster>, Fail> {
    let mut rows = client.nodes()?;
    rows.retain(|row| row.facts.gpu_model.as_deref() == Some(model));
    // They are for whoever plans for all nodes.
    let mut notes = Vec::new();
    let Some(alike) = alike(&rows, &mut notes) else { return Ok(None) };
    joined(client, &alike, &mut notes).map(Some)
}

/// As its nodes are joined, and as fast as they were measured.
fn joined(client: &Client, alike: &Alike, notes: &mut Vec<String>) -> Result<Cluster, Fail> {
    let detail = client.node_detail(&alike.first)?;
    let mut cluster = shape(alike, &detail, notes)?;
    let of_it = |figures: &&Measured| !is_of_another(figures, &cluster);
    if let Some(figures) = alike.measured.iter().find(of_it) {
        figures.apply(&mut cluster);
    }
    Ok(cluster)
}

/// Nodes that are the same to a plan.
struct Alike {
    model: String,
    gpus: u32,
    nodes: u32,
    /// The name of one of them.
    first: String,
    /// One for each name that drivers have for their GPUs.
    measured: Vec<Measured>,
}

/// The kind of node that has most of the GPUs; the others are left out, and said so.
fn alike(rows: &[NodeRow], notes: &mut Vec<String>) -> Option<Alike> {
    let gone =
        |n: &NodeRow| matches!(n.state, NodeState::Draining | NodeState::Drained | NodeState::Lost);
    let mut kinds: BTreeMap<(&str, u32), Vec<&NodeRow>> = BTreeMap::new();
    for row in rows.iter().filter(|n| !gone(n)) {
        if let Some(model) = row.facts.gpu_model.as_deref().filter(|_| row.facts.gpus > 0) {
            kinds.entry((model, row.facts.gpus)).or_default().push(row);
        }
    }
    let most = kinds.iter().max_by_key(|((_, gpus), rows)| u64::from(*gpus) * rows.len() as u64);
    let (&(model, gpus), chosen) = most?;
    let others: Vec<String> = kinds
        .iter()
        .filter(|(kind, _)| **kind != (model, gpus))
        .map(|((model, gpus), rows)| {
            format!("{} with {model}:{gpus}", count(rows.len() as u64, "node"))
        })
        .collect();
    if !others.is_empty() {
        notes.push(format!("a plan is for equal nodes; left out: {}", others.join(", ")));
    }
    let drained = rows.iter().filter(|n| gone(n)).count() as u64;
    if drained > 0 {
        notes.push(format!("{} drained or lost, and left out", count(drained, "node")));
    }
    let outdated = chosen.iter().filter(|row| is_outdated(row)).count() as u64;
    if outdated > 0 {
        let nodes = count(outdated, "node");
        notes.push(format!(
            "{nodes} had other GPUs when measured, and count as not measured: tutti bench gpu"
        ));
    }
    Some(Alike {
        model: model.to_owned(),
        gpus,
        nodes: u32::try_from(chosen.len()).unwrap_or(u32::MAX),
        first: chosen[0].name.clone(),
        measured: of_cluster(chosen.iter().copied()),
    })
}

/// The catalogue knows the GPU; how GPUs and nodes are joined is as it was discovered.
fn shape(alike: &Alike, detail: &NodeDetail, notes: &mut Vec<String>) -> Result<Cluster, Fail> {
    let unknown = || {
        Fail::usage(format!("the planner does not know the GPU '{}'", alike.model))
            .hint("describe the cluster in a TOML file and give it with --on FILE")
    };
    let facts = detail.hardware.as_deref().and_then(|h| h.gpus.first());
    if detail.hardware.iter().flat_map(|h| &h.gpus).any(|gpu| gpu.mig.is_some()) {
        return Err(sliced(alike));
    }
    let name = facts.map_or(alike.model.as_str(), |gpu| gpu.name.as_str());
    let mut cluster = catalogue::find(name).map_err(|_| unknown())?;
    if let Some(mem) = detail.devices.iter().map(|device| device.mem).min() {
        cluster.gpu = with_memory(name, mem).ok_or_else(unknown)?;
    }
    cluster.name = format!("{} of the running cluster", count(alike.nodes.into(), "node"));
    (cluster.nodes, cluster.gpus_per_node) = (alike.nodes, alike.gpus);
    if !spans_nodes(detail.hardware.as_deref()) {
        cluster.island = island(&detail.devices);
    }
    match adapters(detail.hardware.as_deref()) {
        Some(gbits) => cluster.nic_gbps = f64::from(gbits) / f64::from(alike.gpus),
        None if alike.nodes > 1 => notes.push(format!(
            "its network is not known: {} Gbit/s for each GPU is assumed, as is usual with {}",
            cluster.nic_gbps, alike.model
        )),
        None => {}
    }
    Ok(cluster)
}

/// A part of a GPU has a part of its speed and no link to others, and the catalogue knows neither.
fn sliced(alike: &Alike) -> Fail {
    let Alike { first, model, .. } = alike;
    Fail::usage(format!("{first} has MIG instances ({model}), and a plan is for whole GPUs"))
        .hint("turn MIG off, or describe the cluster in a TOML file and give it with --on FILE")
}

/// The catalogue's GPU of this name, with the memory that its driver offers: a little less than is sold.
pub fn with_memory(name: &str, mem: Bytes) -> Option<tutti_planner::Gpu> {
    if mem.0 == 0 {
        return catalogue::gpu(name);
    }
    let gb = in_gb(mem);
    let gpu = catalogue::gpu_with_memory(name, gb)?;
    // More digits tell nobody anything.
    Some(tutti_planner::Gpu { memory_gb: (gb * 10.0).floor() / 10.0, ..gpu })
}

/// As GPUs are sold, by 2³⁰ bytes.
pub fn in_gb(mem: Bytes) -> f64 {
    mem.0 as f64 / f64::from(1 << 30)
}

/// GPUs that NVLink joins, the most there are.
fn island(devices: &[Gpu]) -> u32 {
    let mut islands: BTreeMap<u16, u32> = BTreeMap::new();
    for island in devices.iter().filter_map(|g| g.island) {
        *islands.entry(island).or_default() += 1;
    }
    islands.into_values().max().unwrap_or(1)
}

/// A rack whose GPUs have all joined one fabric is one island.
fn spans_nodes(hardware: Option<&Hardware>) -> bool {
    let joined = |g: &tutti_model::GpuFacts| {
        g.fabric.as_ref().is_some_and(|f| f.state == FabricState::Completed && f.cluster.is_some())
    };
    // A cluster id is given on boards with switches too; only racks are called by their own GPUs.
    hardware.is_some_and(|h| {
        !h.gpus.is_empty() && h.gpus.iter().all(|g| joined(g) && g.name.contains("GB"))
    })
}

/// Gbit/s of a node's adapters together, if their speed is known.
fn adapters(hardware: Option<&Hardware>) -> Option<u32> {
    let up = hardware?.nics.iter().filter(|n| n.up);
    Some(up.map(|n| n.gbits).sum::<u32>()).filter(|gbits| *gbits > 0)
}

/// What the policy says that an hour costs, else the list price.
fn price(
    client: &Client,
    model: &str,
    cluster: &mut Cluster,
    notes: &mut Vec<String>,
) -> Result<String, Fail> {
    let prices = match client.policy().map_err(Fail::from) {
        Ok(policy) => policy.prices,
        // Whoever may not see prices may still plan.
        Err(fail) if fail.exit == DENIED => {
            notes
                .push(format!("list prices count, for the policy can't be read: {}", fail.message));
            return Ok(LISTED_IN.to_owned());
        }
        Err(fail) => return Err(fail),
    };
    match prices.gpus.get(model) {
        Some(price) => {
            cluster.price_per_gpu_hour = Some(price.micros as f64 / 1e6);
            Ok(prices.currency)
        }
        None => Ok(LISTED_IN.to_owned()),
    }
}

/// What was measured stands in for the catalogue's figures.
fn measured(cluster: &mut Cluster, path: &Path) -> Result<(), Fail> {
    let wrong = |why: String| Fail::usage(format!("{}: {why}", path.display()));
    let found = Measured::from_json(&file::read_text(path, "file of figures")?)
        .map_err(|e| wrong(e.to_string()))?;
    if is_of_another(&found, cluster) {
        let (is, has) = (&found.gpu, &cluster.gpu.name);
        return Err(wrong(format!("it was measured on {is}, and the cluster has {has}")));
    }
    found.apply(cluster);
    Ok(())
}

fn is_of_another(figures: &Measured, cluster: &Cluster) -> bool {
    catalogue::gpu(&figures.gpu).is_some_and(|gpu| gpu.name != cluster.gpu.name)
}

#[cfg(test)]
mod tests;
