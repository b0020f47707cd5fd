//! What follows from the readings: which GPUs are offered, how they are joined, and what is near them.

use std::collections::BTreeMap;

use tutti_model::{FabricState, Gpu, GpuFacts, GpuIndex, GpuLink, Hardware, LinkKind, Mig, Nic};

use crate::readings::{Card, FarEnd, Readings, Slice};
use crate::{pci, rdma};

/// A machine as it is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub gpus: Vec<Gpu>,
    pub hardware: Hardware,
}

/// One thing that a job can be given: a card, or a MIG instance of it.
struct Unit<'r> {
    index: GpuIndex,
    /// Which card of the machine.
    number: u16,
    card: &'r Card,
    slice: Option<&'r Slice>,
}

pub fn assemble(readings: &Readings) -> Found {
    let units = units(&readings.cards);
    let links = links(&units);
    let islands = islands(&units, &links);
    let gpus = units.iter().zip(&islands).map(|(unit, island)| gpu(unit, *island)).collect();
    let hardware = Hardware {
        driver: readings.driver.clone(),
        runtime: readings.runtime.clone(),
        gpus: units.iter().map(facts).collect(),
        links,
        nics: nics(readings, &units),
        numa: readings.numa.clone(),
        control_files: readings.control_files.clone(),
        problems: readings.problems.clone(),
    };
    Found { gpus, hardware }
}

/// A card that does not answer keeps its number, so that those behind it are not called otherwise
/// than yesterday: jobs may still run on them.
fn units(cards: &[Card]) -> Vec<Unit<'_>> {
    let mut all = Vec::new();
    let mut next = 0u16;
    for (number, card) in cards.iter().enumerate() {
        let mut push = |slice| {
            let index = GpuIndex(next);
            next += 1;
            if !card.dead {
                all.push(Unit { index, number: number as u16, card, slice });
            }
        };
        match &card.slices {
            None => push(None),
            Some(slices) => slices.iter().for_each(|slice| push(Some(slice))),
        }
    }
    all
}

fn gpu(unit: &Unit<'_>, island: u16) -> Gpu {
    let (model, uuid, mem) = match unit.slice {
        None => (unit.card.model.clone(), &unit.card.uuid, unit.card.mem),
        Some(s) => (format!("{}-{}", unit.card.model, s.profile), &s.uuid, s.mem),
    };
    Gpu { index: unit.index, model, uuid: uuid.clone(), mem, island: Some(island) }
}

fn facts(unit: &Unit<'_>) -> GpuFacts {
    let card = unit.card;
    let mig = unit.slice.map(|slice| Mig {
        parent_uuid: card.uuid.clone(),
        parent: unit.number,
        gpu_instance: slice.gpu_instance,
        compute_instance: slice.compute_instance,
        profile: slice.profile.clone(),
    });
    GpuFacts {
        index: unit.index,
        vendor: card.vendor,
        name: card.name.clone(),
        pci: card.place.address.clone(),
        numa: card.place.numa,
        cpus: card.place.cpus.clone(),
        device_files: unit.slice.map_or(&card.device_files, |s| &s.device_files).clone(),
        mig,
        fabric: card.fabric.clone(),
    }
}

/// Pairs that are nearer to each other than across the processors.
fn links(units: &[Unit<'_>]) -> Vec<GpuLink> {
    let mut all = Vec::new();
    for (i, a) in units.iter().enumerate() {
        for b in &units[i + 1..] {
            let kind = link(a, b);
            if kind != LinkKind::System {
                all.push(GpuLink { a: a.index, b: b.index, kind });
            }
        }
    }
    all
}

fn link(a: &Unit<'_>, b: &Unit<'_>) -> LinkKind {
    // NVLink and xGMI join whole cards only.
    if a.slice.is_none() && b.slice.is_none() {
        let links = nvlinks(a.card, b.card);
        if links > 0 {
            return LinkKind::Nvlink { links };
        }
        if xgmi(a.card, b.card) {
            return LinkKind::Xgmi;
        }
    }
    pci::distance(&a.card.place, &b.card.place).unwrap_or(LinkKind::System)
}

/// How many join two cards, straight or over switches.
fn nvlinks(a: &Card, b: &Card) -> u16 {
    let straight = |from: &Card, to: &Card| {
        let ends = |end: &&FarEnd| matches!(end, FarEnd::Gpu(address) if Some(address) == to.place.address.as_ref());
        from.nvlinks.iter().filter(ends).count()
    };
    let over_switch = |card: &Card| card.nvlinks.iter().filter(|e| **e == FarEnd::Switch).count();
    let switched = match same_fabric(a, b) {
        true => over_switch(a).min(over_switch(b)),
        false => 0,
    };
    (straight(a, b).min(straight(b, a)) + switched) as u16
}

/// Cards before Hopper know no fabric: what hangs on the switches of a machine is joined. Later ones
/// must have registered, and in the same clique.
fn same_fabric(a: &Card, b: &Card) -> bool {
    let known = |card: &Card| card.fabric.clone().filter(|f| f.state != FabricState::NotSupported);
    match (known(a), known(b)) {
        (None, None) => true,
        (Some(a), Some(b)) => a.state == FabricState::Completed && a == b,
        _ => false,
    }
}

fn xgmi(a: &Card, b: &Card) -> bool {
    let leads = |from: &Card, to: &Card| {
        to.place.address.as_ref().is_some_and(|address| from.xgmi.contains(address))
    };
    leads(a, b) || leads(b, a)
}

/// GPUs that reach each other over NVLink or xGMI have the same number. One that reaches nobody is an
/// island of its own: without a number it would count as joined to all others without one.
fn islands(units: &[Unit<'_>], links: &[GpuLink]) -> Vec<u16> {
    let mut lowest: BTreeMap<GpuIndex, GpuIndex> =
        units.iter().map(|u| (u.index, u.index)).collect();
    let joins = |l: &&GpuLink| matches!(l.kind, LinkKind::Nvlink { .. } | LinkKind::Xgmi);
    for link in links.iter().filter(joins) {
        let (a, b) = (lowest[&link.a], lowest[&link.b]);
        let (low, high) = (a.min(b), a.max(b));
        lowest.values_mut().filter(|l| **l == high).for_each(|l| *l = low);
    }
    let mut numbers = BTreeMap::new();
    for low in lowest.values() {
        let next = numbers.len() as u16;
        numbers.entry(*low).or_insert(next);
    }
    units.iter().map(|unit| numbers[&lowest[&unit.index]]).collect()
}

fn nics(readings: &Readings, units: &[Unit<'_>]) -> Vec<Nic> {
    let usable = rdma::usable(&readings.ports);
    let near: Vec<(GpuIndex, Vec<&rdma::Port>)> = units
        .iter()
        .filter(|unit| !unit.card.place.way.is_empty())
        .map(|unit| (unit.index, rdma::nearest(&unit.card.place, &usable)))
        .collect();
    let nic = |port: &rdma::Port| Nic {
        name: port.device.clone(),
        port: port.number,
        infiniband: port.infiniband,
        up: port.up,
        gbits: port.gbits,
        pci: port.place.address.clone(),
        numa: port.place.numa,
        nearest: near.iter().filter(|(_, ports)| ports.contains(&port)).map(|(i, _)| *i).collect(),
    };
    readings.ports.iter().map(nic).collect()
}
