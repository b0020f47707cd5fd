//! Files and clusters that a simulation starts from.

use std::path::Path;
use std::sync::Arc;

use tutti_model::{NodeFacts, Policy};
use tutti_sim::cluster::{Cluster, NodeBuilder};
use tutti_sim::replay::Spreading;
use tutti_sim::shape::{Lot, parse_lots};
use tutti_sim::trace::{
    BadLine, MuriJob, OpenbNode, OpenbPod, Trace, read_csv, read_lingjun, read_lingjun_topology,
    read_muri, read_openb_nodes, read_openb_order, read_openb_pods, read_philly, read_sacct,
};
use tutti_wire::api::NodeRow;

use super::{Format, SimArgs, journal};
use crate::fail::{Fail, chain};
use crate::session;

/// What is run, and where.
pub struct Workload {
    pub trace: Trace,
    pub cluster: Cluster,
    pub policy: Arc<Policy>,
    /// In words.
    pub note: String,
}

pub fn text(path: &Path) -> Result<String, Fail> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|e| {
        let exit =
            if e.kind() == std::io::ErrorKind::NotFound { crate::fail::NOT_FOUND } else { 1 };
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

/// Everything but openb and muri. `flag` is the value of `--cluster` or its variable.
pub fn workload(flag: Option<&str>, args: &SimArgs) -> Result<Workload, Fail> {
    let (trace, own) = jobs(flag, args)?;
    let has_own = own.is_some();
    let (cluster, policy) = match own {
        Some(own) => own,
        None => cluster(flag, args)?,
    };
    let cluster = changed(cluster, args)?;
    let mut trace = limited(trace, args);
    trace.scale_load(args.load);
    if !args.team_quota.is_empty() {
        name_teams(&mut trace);
    }
    let skipped = match trace.skipped {
        0 => String::new(),
        n => format!(", {n} left out because they never ran"),
    };
    let whose = if has_own { " of the cluster itself" } else { "" };
    let note = format!(
        "{} jobs{skipped}, {} nodes{whose} with {} GPUs",
        trace.jobs.len(),
        cluster.nodes.len(),
        cluster.gpus()
    );
    Ok(Workload { trace, cluster, policy, note })
}

/// The jobs, and the cluster if the file has it too.
type Own = Option<(Cluster, Arc<Policy>)>;

fn jobs(flag: Option<&str>, args: &SimArgs) -> Result<(Trace, Own), Fail> {
    let file = |name| need(args.trace.as_deref(), "--trace FILE", name);
    let trace = match args.format {
        Format::Journal => {
            let (trace, cluster, policy) = journal::read(args.trace.as_deref(), flag)?;
            return Ok((trace, Some((cluster, policy))));
        }
        Format::Lingjun => {
            let trace = read(file("lingjun")?, read_lingjun)?;
            let own = match &args.topology {
                Some(path) => Some((read(path, read_lingjun_topology)?, Arc::default())),
                None => None,
            };
            return Ok((trace, own));
        }
        Format::Sacct => read(file("sacct")?, read_sacct)?,
        Format::Csv => read(file("csv")?, read_csv)?,
        Format::Philly | Format::Openb | Format::Muri => read(file("philly")?, read_philly)?,
    };
    Ok((trace, None))
}

fn limited(mut trace: Trace, args: &SimArgs) -> Trace {
    trace.jobs.truncate(args.limit_jobs.unwrap_or(usize::MAX));
    trace
}

/// With quotas a job that names no team is in the default one.
fn name_teams(trace: &mut Trace) {
    for job in &mut trace.jobs {
        job.spec.team.get_or_insert_with(|| tutti_model::DEFAULT_TEAM.to_owned());
    }
}

fn cluster(flag: Option<&str>, args: &SimArgs) -> Result<(Cluster, Arc<Policy>), Fail> {
    if let Some(nodes) = &args.nodes {
        let count = node_count(nodes)?;
        let shapes = format!("{count}xh100:{}", args.gpus_per_node);
        return Ok((shapes_cluster(&shapes)?, Arc::default()));
    }
    let Some(flag) = flag else {
        return Err(Fail::usage(
            "which cluster? --cluster FILE, shapes such as 16xdgx-h100, or running",
        )
        .hint("or --nodes 16 --gpus-per-node 8"));
    };
    let path = Path::new(flag);
    if path.is_file() {
        let bad = |e: tutti_sim::cluster::BadCluster| Fail::usage(format!("{flag}: {}", chain(&e)));
        return Ok((Cluster::from_toml(&text(path)?).map_err(bad)?, Arc::default()));
    }
    let shaped = flag != "running" && !path.exists() && !flag.contains("://");
    match shapes_cluster(flag) {
        Ok(cluster) if shaped => Ok((cluster, Arc::default())),
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

fn shapes_cluster(shapes: &str) -> Result<Cluster, Fail> {
    let nodes = parse_lots(shapes, "").map_err(|e| Fail::usage(format!("--cluster: {e}")))?;
    Cluster { nodes }.checked().map_err(|e| Fail::usage(format!("--cluster: {}", chain(&e))))
}

/// The nodes and the policy of a cluster that runs.
fn running(flag: &str) -> Result<(Cluster, Arc<Policy>), Fail> {
    let named = if flag == "running" {
        // The flag took the place of the variable.
        std::env::var("TUTTI_CLUSTER").ok().filter(|v| !v.is_empty() && v != "running")
    } else {
        Some(flag.to_owned())
    };
    let client = session::open(named.as_deref())?;
    let nodes = client.nodes()?.iter().map(facts).collect();
    let policy = Arc::new(client.policy()?);
    let cluster = Cluster { nodes }.checked().map_err(|e| Fail::new(chain(&e)))?;
    Ok((cluster, policy))
}

/// The API does not say how much memory a GPU has; the catalogue does.
fn facts(row: &NodeRow) -> NodeFacts {
    let model = row.facts.gpu_model.as_deref().unwrap_or("gpu");
    let gib = Lot::kind(&format!("{model}:1")).map_or(0, |lot| lot.gpu_mem.0 >> 30);
    let node = NodeBuilder::new(&row.name)
        .gpus(model, u16::try_from(row.facts.gpus).unwrap_or(u16::MAX), gib)
        .host(row.facts.cpus, row.facts.mem);
    let labels = row.facts.labels.iter();
    labels.fold(node, |node, (key, value)| node.label(key, value)).build()
}

/// What if there were more nodes, or fewer?
fn changed(mut cluster: Cluster, args: &SimArgs) -> Result<Cluster, Fail> {
    for rack in &args.remove_rack {
        let gone = cluster.remove_rack(rack);
        gone.map_err(|e| Fail::usage(format!("--remove-rack: {e}")))?;
    }
    for (n, shapes) in args.add.iter().enumerate() {
        let more = parse_lots(shapes, &format!("added{}-", n + 1));
        cluster.nodes.extend(more.map_err(|e| Fail::usage(format!("--add: {e}")))?);
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
    let gpus = u64::from(nodes) * u64::from(args.gpus_per_node);
    if let Some(job) = jobs.iter().find(|j| u64::from(j.gpus) > gpus) {
        let message = format!("job {} wants {} GPUs, and there are {gpus}", job.id, job.gpus);
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
