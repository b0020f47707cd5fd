//! Could it run at all? Asked at submission, so that nobody waits for what can never be.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Demand, Gpu, IMAGES_LABEL, Impossible, Node, Place, SHARES_LABEL, Spread, State, Topology,
};

use crate::ask::{Ask, Need, Room};
use crate::describe::count;

/// Whether the cluster could run it if every node that ever joined, lost and draining ones too,
/// were there and empty; if not, the first demand that exceeds what there is.
pub fn impossible(state: &State, demand: &Demand) -> Result<(), Impossible> {
    let ask = Ask::new(demand);
    let rooms: Vec<(Domain, Room)> = rooms(state, &ask).collect();
    let wanted = match ask.node_counts() {
        Some((_, least)) => u64::from(least),
        None => ask.least_gpus(),
    };
    let mut sums: BTreeMap<Domain, u64> = BTreeMap::new();
    let possible = rooms.iter().any(|(domain, room)| {
        let sum = sums.entry(domain.clone()).or_default();
        *sum += gives(&ask, room);
        *sum >= wanted
    });
    if possible {
        return Ok(());
    }
    let all: u64 = rooms.iter().map(|(_, room)| gives(&ask, room)).sum();
    if all >= wanted {
        let (within, have) = (demand.within, sums.into_values().max().unwrap_or(0) as u32);
        let of = match (ask.node_counts().is_some(), within) {
            (true, Topology::Any) => "nodes that reach each other".to_owned(),
            (false, Topology::Any) => "GPUs on nodes that reach each other".to_owned(),
            (true, within) => format!("nodes inside one {}", within.as_str()),
            (false, within) => format!("GPUs inside one {}", within.as_str()),
        };
        return Err(Impossible::TooFew { wanted: wanted as u32, have, of });
    }
    let rooms: Vec<Room> = rooms.into_iter().map(|(_, room)| room).collect();
    Err(cause(state, &ask, &rooms))
}

/// What a node adds: GPUs where only they count, else 1.
fn gives(ask: &Ask, room: &Room) -> u64 {
    match ask.node_counts() {
        Some(_) => room.holds(&ask.least()).into(),
        None => ask.share_of(room).into(),
    }
}

/// A domain of the level that the ask may span.
type Domain = (Option<String>, Place, Option<tutti_model::NodeId>);

fn domain(state: &State, node: &Node, within: Topology) -> Domain {
    let place = || state.policy.topology.place_of(node);
    let (place, one) = match within {
        Topology::Any => (Place::default(), None),
        Topology::Site => (Place { rack: None, rail: None, ..place() }, None),
        Topology::Rail => (Place { rack: None, ..place() }, None),
        Topology::Rack => (place(), None),
        Topology::Node | Topology::Island => (Place::default(), Some(node.id)),
    };
    (node.facts.reach().map(str::to_owned), place, one)
}

/// What nodes with a wanted model have for this ask when they are empty.
fn rooms<'s>(state: &'s State, ask: &'s Ask) -> impl Iterator<Item = (Domain, Room)> + 's {
    let within = ask.demand.within;
    state.nodes.values().filter_map(move |n| Some((domain(state, n, within), room(n, ask)?)))
}

fn room(node: &Node, ask: &Ask) -> Option<Room> {
    let facts = &node.facts;
    if !ask.demand.labels.iter().all(|rule| rule.holds(&facts.labels)) {
        return None;
    }
    let suits = |g: &&Gpu| ask.wants_model(&g.model) && g.mem >= ask.demand.gpu_mem;
    let gpus = if ask.on_one_island() {
        let mut islands: BTreeMap<Option<u16>, u32> = BTreeMap::new();
        facts.gpus.iter().filter(suits).for_each(|g| *islands.entry(g.island).or_default() += 1);
        islands.into_values().max().unwrap_or(0)
    } else {
        facts.gpus.iter().filter(suits).count() as u32
    };
    let has_model = !ask.names_models() || gpus > 0;
    has_model.then_some(Room { gpus, cpus: facts.cpus, mem: facts.mem })
}

fn cause(state: &State, ask: &Ask, rooms: &[Room]) -> Impossible {
    let model = ask.demand.gpu_model.clone();
    if state.nodes.is_empty() {
        return Impossible::NoNodes;
    }
    let labelled = |n: &Node| ask.demand.labels.iter().all(|rule| rule.holds(&n.facts.labels));
    if !state.nodes.values().any(labelled) {
        let rule = |r: &tutti_model::LabelRule| {
            match r.key.as_str() {
                IMAGES_LABEL => return "podman, apptainer or enroot to run its image".to_owned(),
                SHARES_LABEL => return "MPS, to give a part of a GPU".to_owned(),
                _ => {}
            }
            let sign = if r.wanted { "=" } else { "!=" };
            format!("{}{sign}{}", r.key, r.value)
        };
        let wanted = ask.demand.labels.iter().map(rule).collect::<Vec<_>>().join(", ");
        return Impossible::NoSuchLabels { wanted };
    }
    let suits = |g: &&Gpu| ask.wants_model(&g.model);
    let gpus = || state.nodes.values().filter(|n| labelled(n)).flat_map(|n| &n.facts.gpus);
    match (gpus().filter(suits).map(|g| g.mem).max(), &model) {
        (None, Some(wanted)) => {
            return Impossible::NoSuchModel { wanted: wanted.clone(), have: models(state) };
        }
        (Some(have), _) if have < ask.demand.gpu_mem && ask.least().gpus > 0 => {
            return Impossible::GpusTooSmall { wanted: ask.demand.gpu_mem, have, model };
        }
        _ => {}
    }
    let model = kind(&ask.demand);
    let nodes = rooms.len() as u32;
    let gpus: u64 = rooms.iter().map(|r| u64::from(r.gpus)).sum();
    let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    match ask.spread {
        Spread::Nodes { .. } if least_nodes(ask) > nodes => {
            Impossible::TooManyNodes { wanted: least_nodes(ask), have: nodes, model }
        }
        Spread::Gpus { total: wanted } if wanted > gpus => {
            Impossible::TooManyGpus { wanted, have: gpus, model }
        }
        _ => no_node_holds(rooms, &ask.least(), model).unwrap_or_else(|| too_few(rooms, ask)),
    }
}

/// Of what GPUs there are too few, if not of all.
fn kind(demand: &Demand) -> Option<String> {
    let least = || format!("at least {}", demand.gpu_mem);
    match (&demand.gpu_model, demand.gpu_mem.0 > 0) {
        (model, false) => model.clone(),
        (None, true) => Some(format!("GPUs of {}", least())),
        (Some(model), true) => Some(format!("{model} of {}", least())),
    }
}

fn least_nodes(ask: &Ask) -> u32 {
    ask.node_counts().map_or(1, |(_, least)| least)
}

fn models(state: &State) -> Vec<String> {
    let gpus = state.nodes.values().flat_map(|n| &n.facts.gpus);
    let models: BTreeSet<&String> = gpus.map(|g| &g.model).collect();
    models.into_iter().cloned().collect()
}

/// The first need that no node meets, looking for each only at nodes that met those before it.
fn no_node_holds(rooms: &[Room], need: &Need, model: Option<String>) -> Option<Impossible> {
    let largest = |pick: fn(&Room) -> u32| rooms.iter().map(pick).max().unwrap_or_default();
    let have = largest(|r| r.gpus);
    if have < need.gpus {
        return Some(Impossible::TooManyGpusPerNode { wanted: need.gpus, have, model });
    }
    let enough_gpus = || rooms.iter().filter(|r| r.gpus >= need.gpus);
    let have = enough_gpus().map(|r| r.cpus).max()?;
    if have < need.cpus {
        return Some(Impossible::TooManyCpus { wanted: need.cpus, have });
    }
    let have = enough_gpus().filter(|r| r.cpus >= need.cpus).map(|r| r.mem).max()?;
    (have < need.mem).then_some(Impossible::TooMuchMemory { wanted: need.mem, have })
}

/// Every need is met somewhere, but not on enough nodes.
fn too_few(rooms: &[Room], ask: &Ask) -> Impossible {
    let extra = |need: Need| {
        let mut words = vec![count(need.cpus, "CPU")];
        if need.mem.0 > 0 {
            words.push(format!("{} of memory", need.mem));
        }
        words.join(" and ")
    };
    match ask.spread {
        Spread::Nodes { gpus_each, .. } => {
            let wanted = least_nodes(ask);
            let need = ask.need(gpus_each);
            let have = rooms.iter().filter(|r| r.holds(&need)).count() as u32;
            let gpus = match (gpus_each, &ask.demand.gpu_model) {
                (0, _) => String::new(),
                (n, None) => format!("{}, ", count(n, "GPU")),
                (n, Some(model)) => format!("{}, ", count(n, &format!("{model} GPU"))),
            };
            let of = format!("nodes with {gpus}{} each", extra(need));
            Impossible::TooFew { wanted, have, of }
        }
        Spread::Gpus { total: wanted } => {
            let have: u64 = rooms.iter().map(|r| u64::from(ask.share_of(r))).sum();
            let have = u32::try_from(have).unwrap_or(u32::MAX);
            let model = ask.demand.gpu_model.as_ref().map_or(String::new(), |m| format!("{m} "));
            let of = format!("{model}GPUs with {} for the first on each node", extra(ask.need(1)));
            Impossible::TooFew { wanted, have, of }
        }
    }
}

#[cfg(test)]
mod tests;
