//! Files and clusters that a simulation starts from.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tutti_model::{NodeFacts, NodeState, Policy, TopologyMap, count};
use tutti_sim::cluster::{Cluster, NodeBuilder};
use tutti_sim::day::{Day, days};
use tutti_sim::replay::{Incident, Spreading};
use tutti_sim::shape::{gpu_mem, parse_lots};
use tutti_sim::trace::{
    BadLine, MuriJob, OpenbNode, OpenbPod, Trace, read_csv, read_lingjun, read_lingjun_topology,
    read_muri, read_openb_nodes, read_openb_order, read_openb_pods, read_philly, read_sacct,
};
use tutti_wire::api::NodeRow;

use super::{SimArgs, Source, flags, journal};
use crate::fail::{Fail, chain};
use crate::session;
use crate::terminal;

/// What is run, and where.
pub struct Workload {
    pub trace: Trace,
    pub cluster: Cluster,
    /// Of the cluster that the jobs or the nodes are from, if it has one.
    pub policy: Option<Arc<Policy>>,
    /// The nodes are from the same place as the jobs.
    own_nodes: bool,
    /// What happens beside the jobs.
    pub incidents: Vec<Incident>,
}

pub fn text(path: &Path) -> Result<String, Fail> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let exit = if missing { crate::fail::USAGE } else { 1 };
        Fail::new(format!("can't read {name}: {e}")).exit(exit)
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let upto = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..upto].iter().filter(|b| **b == b'\n').count() + 1;
        Fail::usage(format!("{name}: line {line}: is not UTF-8 text"))
    })
}

fn read<T>(path: &Path, reader: impl FnOnce(&str) -> Result<T, BadLine>) -> Result<T, Fail> {
    reader(&text(path)?).map_err(|e| Fail::usage(format!("{}: {e}", path.display())))
}

fn need<'a, T: ?Sized>(value: Option<&'a T>, flag: &str, format: &str) -> Result<&'a T, Fail> {
    value.ok_or_else(|| Fail::usage(format!("--format {format} needs {flag}")))
}

/// `flag` is the value of `--cluster` or its variable.
pub fn workload(source: Source, flag: Option<&str>, args: &SimArgs) -> Result<Workload, Fail> {
    let file = |name| need(args.trace.as_deref(), "--trace FILE", name);
    let trace = match source {
        Source::Journal => return past(flag, args),
        Source::Day => return made_up(flag, args),
        Source::Lingjun => {
            let trace = read(file("lingjun")?, read_lingjun)?;
            if let Some(path) = &args.topology {
                let cluster = read(path, read_lingjun_topology)?;
                return Ok(limited(trace, cluster, None, true, args));
            }
            trace
        }
        Source::Sacct => read(file("sacct")?, read_sacct)?,
        Source::Csv => read(file("csv")?, read_csv)?,
        Source::Philly => read(file("philly")?, read_philly)?,
    };
    let (cluster, policy) = cluster(flag, args)?;
    Ok(limited(trace, cluster, policy, false, args))
}

/// Days for the cluster that is named.
fn made_up(flag: Option<&str>, args: &SimArgs) -> Result<Workload, Fail> {
    let (cluster, policy) = cluster(flags::explicit(flag), args)?;
    let seed = args.seeds().first().copied().unwrap_or(1);
    let Day { trace, policy: own, incidents } = days(&cluster, args.days.unwrap_or(1), seed);
    let policy = policy.unwrap_or_else(|| Arc::new(own));
    Ok(Workload { incidents, ..limited(trace, cluster, Some(policy), false, args) })
}

/// The jobs of a journal, on its own nodes unless others are named.
fn past(flag: Option<&str>, args: &SimArgs) -> Result<Workload, Fail> {
    let at = journal::locate(args.trace.as_deref(), flag)?;
    let (trace, own, policy) = journal::read(&at.file)?;
    let other = flags::explicit(flag).filter(|_| !at.named_by_cluster);
    if args.nodes.is_none() && other.is_none() {
        return Ok(limited(trace, own, Some(policy), true, args));
    }
    let (cluster, its) = cluster(other, args)?;
    Ok(limited(trace, cluster, its.or(Some(policy)), false, args))
}

fn limited(
    mut trace: Trace,
    cluster: Cluster,
    policy: Option<Arc<Policy>>,
    own_nodes: bool,
    args: &SimArgs,
) -> Workload {
    trace.jobs.truncate(args.limit_jobs.unwrap_or(usize::MAX));
    trace.scale_load(args.load());
    Workload { trace, cluster, policy, own_nodes, incidents: Vec::new() }
}

/// In words. `cluster` is what became of the nodes after every what-if.
pub fn note(work: &Workload, cluster: Option<&Cluster>) -> String {
    let cluster = cluster.unwrap_or(&work.cluster);
    let skipped = match work.trace.skipped {
        0 => String::new(),
        n => format!(" and {n} more left out because they never ran"),
    };
    let arrays = work.trace.jobs.iter().any(|job| job.spec.array.is_some());
    let arrays = if arrays { " (each task of an array is one)" } else { "" };
    let whose = if work.own_nodes { " of the cluster itself" } else { "" };
    let nodes = count(cluster.nodes.len() as u64, "node");
    let (jobs, gpus) = (count(work.trace.job_count(), "job"), count(cluster.gpus(), "GPU"));
    format!("{jobs}{arrays}{skipped}, {nodes}{whose} with {gpus}")
}

/// Nodes, and the policy if they are a cluster's that has one.
type Found = (Cluster, Option<Arc<Policy>>);

fn cluster(flag: Option<&str>, args: &SimArgs) -> Result<Found, Fail> {
    if let Some(nodes) = &args.nodes {
        let count = node_count(nodes)?;
        let shapes = format!("{count}xh100:{}", args.gpus_per_node());
        return Ok((shapes_cluster("--nodes", &shapes)?, None));
    }
    let Some(flag) = flag else {
        return Err(Fail::usage(
            "which cluster? --cluster FILE, shapes such as 16xdgx-h100, or running",
        )
        .hint("or --nodes 16 --gpus-per-node 8"));
    };
    let path = Path::new(flag);
    if path.is_file() || path.extension().is_some_and(|e| e == "toml") {
        let bad = |e: tutti_sim::cluster::BadCluster| Fail::usage(format!("{flag}: {}", chain(&e)));
        return Ok((Cluster::from_toml(&text(path)?).map_err(bad)?, None));
    }
    let shaped = flag != "running" && !path.exists() && !flag.contains("://");
    match shapes_cluster("--cluster", flag) {
        Ok(cluster) if shaped => Ok((cluster, None)),
        // What has digits and an x is meant as a shape; anything else is the way to a cluster.
        Err(fail) if shaped && flag.split(',').any(looks_like_lot) => Err(fail),
        _ => running(flag),
    }
}

fn looks_like_lot(text: &str) -> bool {
    text.split_once('x')
        .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn node_count(text: &str) -> Result<u32, Fail> {
    let count = text.parse().ok().filter(|n| (1..=1_000_000).contains(n));
    count.ok_or_else(|| Fail::usage(format!("--nodes: '{text}' is not a number of nodes")))
}

fn shapes_cluster(flag: &str, shapes: &str) -> Result<Cluster, Fail> {
    let nodes = parse_lots(shapes, "").map_err(|e| Fail::usage(format!("{flag}: {e}")))?;
    Cluster { nodes }.checked().map_err(|e| Fail::usage(format!("{flag}: {}", chain(&e))))
}

/// The nodes that can be used of a cluster that runs, and its policy.
fn running(flag: &str) -> Result<Found, Fail> {
    let named = if flag == "running" {
        // The flag took the place of the variable.
        std::env::var("TUTTI_CLUSTER").ok().filter(|v| !v.is_empty() && v != "running")
    } else {
        Some(flag.to_owned())
    };
    let client = session::open(named.as_deref())?;
    let (cluster, warnings) = usable(&client.nodes()?);
    warnings.iter().for_each(|w| terminal::warn(w));
    let policy = Arc::new(client.policy()?);
    let cluster = cluster.checked().map_err(|e| Fail::new(chain(&e)))?;
    Ok((cluster, Some(policy)))
}

/// Nodes that are drained or lost run nothing there, so they run nothing here; and what the API
/// does not say of the others is said.
pub fn usable(rows: &[NodeRow]) -> (Cluster, Vec<String>) {
    let gone =
        |n: &NodeRow| matches!(n.state, NodeState::Draining | NodeState::Drained | NodeState::Lost);
    let mut warnings = Vec::new();
    let out: Vec<&str> = rows.iter().filter(|n| gone(n)).map(|n| n.name.as_str()).collect();
    if !out.is_empty() {
        warnings.push(format!("drained or lost, and left out: {}", out.join(", ")));
    }
    let rows: Vec<&NodeRow> = rows.iter().filter(|n| !gone(n)).collect();
    let models = rows.iter().filter_map(|n| n.facts.gpu_model.as_deref());
    let unknown: BTreeSet<&str> = models.filter(|m| gpu_mem(m).is_none()).collect();
    for model in unknown {
        warnings.push(format!(
            "how much memory a {model} has is not known: jobs that ask for GPU memory will not fit"
        ));
    }
    (Cluster { nodes: rows.into_iter().map(facts).collect() }, warnings)
}

/// The API does not say how much memory a GPU has; the catalogue does.
fn facts(row: &NodeRow) -> NodeFacts {
    let model = row.facts.gpu_model.as_deref().unwrap_or("gpu");
    let gib = gpu_mem(model).map_or(0, |mem| mem.0 >> 30);
    let node = NodeBuilder::new(&row.name)
        .gpus(model, u16::try_from(row.facts.gpus).unwrap_or(u16::MAX), gib)
        .host(row.facts.cpus, row.facts.mem);
    let labels = row.facts.labels.iter();
    labels.fold(node, |node, (key, value)| node.label(key, value)).build()
}

/// What if there were more nodes, or fewer?
pub fn changed(cluster: &Cluster, args: &SimArgs, topology: &TopologyMap) -> Result<Cluster, Fail> {
    let mut cluster = cluster.clone();
    for rack in &args.remove_rack {
        let gone = cluster.remove_rack(rack, topology);
        gone.map_err(|e| Fail::usage(format!("--remove-rack: {e}")))?;
    }
    for (n, shapes) in args.add.iter().enumerate() {
        let more = parse_lots(shapes, &format!("added{}-", n + 1));
        cluster.add(more.map_err(|e| Fail::usage(format!("--add: {e}")))?, topology);
    }
    cluster.checked().map_err(|e| Fail::usage(chain(&e)))
}

pub fn spreading(path: Option<&Path>) -> Result<Option<Spreading>, Fail> {
    path.map(|path| read(path, Spreading::read)).transpose()
}

pub fn muri(args: &SimArgs) -> Result<(Vec<MuriJob>, u32), Fail> {
    let trace = need(args.trace.as_deref(), "--trace FILE", "muri")?;
    let jobs = read(trace, read_muri)?;
    let nodes = node_count(args.nodes.as_deref().unwrap_or("8"))?;
    let each = args.gpus_per_node();
    let gpus = u64::from(nodes) * u64::from(each);
    let uneven = |j: &&MuriJob| j.gpus > each.into() && !j.gpus.is_multiple_of(each.into());
    if let Some(job) = jobs.iter().find(uneven) {
        let (id, wants) = (job.id, job.gpus);
        let wants = count(wants.into(), "GPU");
        let message = format!("job {id} wants {wants}, which do not fill nodes of {each}");
        return Err(Fail::usage(message).hint("under Muri's rules a gang has whole nodes"));
    }
    if let Some(job) = jobs.iter().find(|j| u64::from(j.gpus) > gpus) {
        let wants = count(job.gpus.into(), "GPU");
        let message = format!("job {} wants {wants}, and the cluster has {gpus}", job.id);
        return Err(Fail::usage(message).exit(crate::fail::IMPOSSIBLE));
    }
    Ok((jobs, nodes))
}

/// Nodes, pods, and the order in which the pods come.
pub struct Openb {
    pub nodes: Vec<OpenbNode>,
    pub pods: Vec<OpenbPod>,
    pub order: Vec<usize>,
}

pub fn openb(args: &SimArgs) -> Result<Openb, Fail> {
    let nodes = need(args.nodes.as_deref(), "--nodes FILE", "openb")?;
    let nodes = read(Path::new(nodes), read_openb_nodes)?;
    let pods = read(need(args.pods.as_deref(), "--pods FILE", "openb")?, read_openb_pods)?;
    let order = match &args.order {
        Some(path) => read(path, |text| read_openb_order(text, pods.len()))?,
        None => (0..pods.len()).collect(),
    };
    Ok(Openb { nodes, pods, order })
}
