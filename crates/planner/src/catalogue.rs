//! Machines that can be bought or rented: kinds of GPUs, the nodes they come in, and what those cost by the list.

mod file;
pub(crate) mod gpus;
mod larger;
mod lenient;
mod machines;

use crate::Cluster;
use crate::near::{count, did_you_mean, near, plain};
use crate::words::thousands;

pub use file::from_toml;
pub(crate) use larger::larger;
pub(crate) use lenient::kind;
pub use lenient::{gpu, gpu_with_memory};
pub use machines::ListPrice;
use machines::{MACHINES, Machine};

/// More GPUs than anybody has.
pub(crate) const MOST_GPUS: u64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    #[error("no machine or GPU is called '{name}'{}", hint(near.as_deref()))]
    Unknown { name: String, near: Option<String> },
    #[error("'{words}' asks for {n}; a cluster has 1 to {} GPUs", thousands(MOST_GPUS))]
    Count { words: String, n: String },
    #[error("{} × {kind} do not fill whole nodes of {per_node}; ask for {} or {}", thousands(*.gpus), thousands(gpus / per_node * per_node), thousands((gpus / per_node + 1) * per_node))]
    Partial { gpus: u64, kind: &'static str, per_node: u64 },
    #[error("the cluster file is not TOML: {0}")]
    NotToml(String),
    #[error("the cluster file has a key '{key}' that is not known{}", did_you_mean(near.as_deref()))]
    Key { key: String, near: Option<String> },
    #[error("the cluster file lacks '{key}'{why}")]
    Missing { key: &'static str, why: &'static str },
    #[error("{key} is {value} in the cluster file; it must be {must}")]
    Value { key: String, value: String, must: String },
}

fn hint(near: Option<&str>) -> String {
    match near {
        Some(_) => did_you_mean(near),
        None => "; the catalogue has such as 16xdgx-h100, 128xh100, 4xp5.48xlarge".to_owned(),
    }
}

/// The cluster that a few words ask for: `dgx-h100`, `16xdgx-h100`, `4xp5.48xlarge` (nodes), `128xh100` (GPUs).
pub fn find(words: &str) -> Result<Cluster, CatalogueError> {
    let (n, name) = counted(words);
    let n = n.unwrap_or("1");
    let many = n.parse::<u64>().ok().filter(|n| (1..=MOST_GPUS).contains(n));
    let many = many.ok_or_else(|| CatalogueError::Count { words: words.into(), n: n.into() })?;
    if let Some(machine) = machine(name) {
        return of_nodes(words, machine, many);
    }
    match kind(name, None) {
        Some(kind) => of_gpus(words, kind, many),
        None => Err(CatalogueError::Unknown {
            name: name.to_owned(),
            near: near(name, names()).map(str::to_owned),
        }),
    }
}

/// Names of machines and of kinds of GPUs.
pub fn names() -> Vec<&'static str> {
    machines().chain(gpus::kinds().iter().map(|k| k.name)).collect()
}

/// Names of machines alone.
pub fn machines() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|m| m.name)
}

/// $ per GPU and hour by the list, of a machine or a kind of GPU.
pub fn list_price(name: &str) -> Option<ListPrice> {
    let (_, name) = counted(name);
    match machine(name) {
        Some(m) => m.price,
        None => machines::gpu_price(kind(name, None)?.name),
    }
}

/// `16 × dgx-h100`: how many, and of what. Names themselves may have an x in them.
fn counted(words: &str) -> (Option<&str>, &str) {
    let words = words.trim();
    let digits = words.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(0);
    let (n, rest) = words.split_at(digits);
    let name = rest.trim_start().strip_prefix(['x', 'X', '×', '*']);
    match name {
        Some(name) if !n.is_empty() => (Some(n), name.trim()),
        _ => (None, words),
    }
}

fn machine(name: &str) -> Option<&'static Machine> {
    let name = plain(name);
    MACHINES.iter().find(|m| plain(m.name) == name || m.also.iter().any(|a| plain(a) == name))
}

fn of_nodes(words: &str, m: &Machine, many: u64) -> Result<Cluster, CatalogueError> {
    let nodes = many * u64::from(m.nodes);
    if nodes * u64::from(m.gpus_per_node) > MOST_GPUS {
        return Err(CatalogueError::Count { words: words.into(), n: count(many, "node") });
    }
    let mut cluster = m.cluster();
    cluster.nodes = nodes as u32;
    cluster.name = if many == 1 { m.name.to_owned() } else { format!("{many} × {}", m.name) };
    Ok(cluster)
}

fn of_gpus(words: &str, kind: &'static gpus::Kind, many: u64) -> Result<Cluster, CatalogueError> {
    let per_node = u64::from(kind.gpus_per_node);
    let alone = counted(words).0.is_none();
    let gpus = if alone { per_node } else { many };
    if gpus > per_node && !gpus.is_multiple_of(per_node) {
        return Err(CatalogueError::Partial { gpus, kind: kind.name, per_node });
    }
    let mut cluster = kind.cluster((gpus / per_node).max(1) as u32);
    cluster.gpus_per_node = per_node.min(gpus) as u32;
    cluster.island = cluster.island.min(gpus as u32);
    cluster.name = format!("{gpus} × {}", kind.name);
    cluster.price_per_gpu_hour = machines::gpu_price(kind.name).map(|p| p.dollars);
    Ok(cluster)
}

#[cfg(test)]
mod tests;
