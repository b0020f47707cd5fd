//! `n1 n2: 8 h100, 64 cpus, 512 GiB, rack r1` as the facts that agents would send.

use std::collections::BTreeMap;

use tutti_model::{Bytes, Gpu, GpuIndex, NodeFacts};

use crate::words::{Read, bytes, named_attributes, names, number, split};

/// What the attributes of a line say.
struct Shape {
    model: String,
    gpus: u16,
    gpu_mem: Bytes,
    island_of: Option<u16>,
    cpus: u32,
    mem: Bytes,
    labels: BTreeMap<String, String>,
    can_suspend: bool,
}

pub fn nodes(line: &str) -> Read<Vec<NodeFacts>> {
    let (left, attributes) = named_attributes(line)?;
    let mut shape = Shape {
        model: "h100".to_owned(),
        gpus: 0,
        gpu_mem: Bytes::gib(80),
        island_of: None,
        cpus: 64,
        mem: Bytes::gib(512),
        labels: BTreeMap::new(),
        can_suspend: false,
    };
    for attribute in attributes {
        attribute_of(&mut shape, attribute)?;
    }
    Ok(names(&split(left))?.iter().map(|name| shape.facts(name)).collect())
}

fn attribute_of(shape: &mut Shape, attribute: &str) -> Read<()> {
    let words = split(attribute);
    match words.as_slice() {
        [n, "cpus"] => shape.cpus = number(n)?,
        [n, unit @ ("GiB" | "TiB")] => shape.mem = bytes(n, unit)?,
        ["islands", "of", n] => shape.island_of = Some(number(n)?),
        ["label", pair] => {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("'{pair}' has no '='"))?;
            shape.labels.insert(key.to_owned(), value.to_owned());
        }
        [level @ ("rack" | "rail" | "site"), name] => {
            shape.labels.insert((*level).to_owned(), (*name).to_owned());
        }
        ["can", "suspend"] => shape.can_suspend = true,
        ["no", "gpus"] => shape.gpus = 0,
        [n, model] => (shape.gpus, shape.model) = (number(n)?, (*model).to_owned()),
        [n, model, "with", mem, unit] => {
            (shape.gpus, shape.model) = (number(n)?, (*model).to_owned());
            shape.gpu_mem = bytes(mem, unit)?;
        }
        _ => return Err(format!("'{attribute}' says nothing about a node")),
    }
    Ok(())
}

impl Shape {
    fn facts(&self, name: &str) -> NodeFacts {
        let gpu = |i| Gpu {
            index: GpuIndex(i),
            model: self.model.clone(),
            uuid: format!("{name}-{i}"),
            mem: self.gpu_mem,
            island: self.island_of.map(|of| i / of),
        };
        NodeFacts {
            name: name.to_owned(),
            address: "127.0.0.1".to_owned(),
            cpus: self.cpus,
            mem: self.mem,
            gpus: (0..self.gpus).map(gpu).collect(),
            simulated: true,
            isolation: "none".to_owned(),
            agent_version: "scenario".to_owned(),
            labels: self.labels.clone(),
            can_suspend: self.can_suspend,
            can_move: self.can_suspend,
            ..NodeFacts::default()
        }
    }
}
