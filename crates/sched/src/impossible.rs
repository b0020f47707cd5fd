//! Could it run at all? Asked at submission, so that nobody waits for what can never be.

use std::collections::BTreeSet;

use tutti_model::{Demand, Impossible, Node, Spread, State};

use crate::ask::{Ask, Need, Room};
use crate::describe::count;

/// Whether the cluster could run it if every node that ever joined, lost and draining ones too,
/// were there and empty; if not, the first demand that exceeds what there is.
pub fn impossible(state: &State, demand: &Demand) -> Result<(), Impossible> {
    let ask = Ask::new(demand);
    let possible = match ask.spread {
        Spread::Nodes { nodes, gpus_each } => {
            let need = ask.need(gpus_each);
            let suitable = rooms(state, &ask).filter(|room| room.holds(&need));
            suitable.take(nodes as usize).count() == nodes as usize
        }
        Spread::Gpus { total } => {
            let mut left = u64::from(total);
            rooms(state, &ask).any(|room| {
                left = left.saturating_sub(ask.share_of(&room).into());
                left == 0
            })
        }
    };
    if possible { Ok(()) } else { Err(cause(state, &ask)) }
}

/// What nodes with a wanted model have for this ask when they are empty.
fn rooms<'s>(state: &'s State, ask: &'s Ask<'_>) -> impl Iterator<Item = Room> + 's {
    state.nodes.values().filter_map(|node| room(node, ask))
}

fn room(node: &Node, ask: &Ask<'_>) -> Option<Room> {
    let facts = &node.facts;
    let gpus = match ask.models {
        None => facts.gpus.len(),
        Some(_) => facts.gpus.iter().filter(|g| ask.wants(g)).count(),
    };
    let has_model = ask.models.is_none() || gpus > 0;
    has_model.then_some(Room { gpus: gpus as u32, cpus: facts.cpus, mem: facts.mem })
}

fn cause(state: &State, ask: &Ask<'_>) -> Impossible {
    let model = ask.demand.gpu_model.clone();
    if state.nodes.is_empty() {
        return Impossible::NoNodes;
    }
    let rooms: Vec<Room> = rooms(state, ask).collect();
    if let (true, Some(wanted)) = (rooms.is_empty(), &model) {
        return Impossible::NoSuchModel { wanted: wanted.clone(), have: models(state) };
    }
    let nodes = rooms.len() as u32;
    let gpus: u64 = rooms.iter().map(|r| u64::from(r.gpus)).sum();
    let gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    match ask.spread {
        Spread::Nodes { nodes: wanted, .. } if wanted > nodes => {
            Impossible::TooManyNodes { wanted, have: nodes, model }
        }
        Spread::Gpus { total: wanted } if wanted > gpus => {
            Impossible::TooManyGpus { wanted, have: gpus, model }
        }
        _ => no_node_holds(&rooms, &ask.least(), model).unwrap_or_else(|| too_few(&rooms, ask)),
    }
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
fn too_few(rooms: &[Room], ask: &Ask<'_>) -> Impossible {
    let extra = |need: Need| {
        let mut words = vec![count(need.cpus, "CPU")];
        if need.mem.0 > 0 {
            words.push(format!("{} of memory", need.mem));
        }
        words.join(" and ")
    };
    match ask.spread {
        Spread::Nodes { nodes: wanted, gpus_each } => {
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
