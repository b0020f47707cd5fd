//! Imagined GPUs, and an imagined machine around them.

use tutti_model::{Bytes, Gpu, GpuFacts, GpuIndex, GpuLink, Hardware, LinkKind, NumaNode, Vendor};

use crate::model_name::{known_memory, nvlinks, short_model};

/// `n` imagined GPUs, with the memory that the real ones have. Models that come on boards with
/// NVSwitches are one island.
pub fn gpus(n: u16, model: &str) -> Vec<Gpu> {
    let model = short_model(model);
    let island = nvlinks(&model).map(|_| 0);
    let gpu = |i| Gpu {
        index: GpuIndex(i),
        uuid: format!("SIM-{model}-{i}"),
        mem: known_memory(&model),
        model: model.clone(),
        island,
    };
    (0..n).map(gpu).collect()
}

/// The machine that such GPUs would be in: two processors, half of the GPUs at each.
pub fn hardware(gpus: &[Gpu], cpus: u32, mem: Bytes) -> Hardware {
    let numa = match cpus {
        0 | 1 => vec![NumaNode { id: 0, cpus: "0".into(), mem }],
        _ => [(0, 0..cpus / 2), (1, cpus / 2..cpus)]
            .map(|(id, range)| NumaNode { id, cpus: span(range), mem: Bytes(mem.0 / 2) })
            .to_vec(),
    };
    let facts = |(i, gpu): (usize, &Gpu)| {
        let node = numa.get(usize::from(i >= gpus.len().div_ceil(2))).or(numa.first());
        GpuFacts {
            index: gpu.index,
            vendor: Vendor::Simulated,
            name: format!("simulated {}", gpu.model),
            numa: node.map(|n| n.id),
            cpus: node.map(|n| n.cpus.clone()),
            ..GpuFacts::default()
        }
    };
    let facts: Vec<GpuFacts> = gpus.iter().enumerate().map(facts).collect();
    Hardware { links: links(gpus, &facts), gpus: facts, numa, ..Hardware::default() }
}

fn links(gpus: &[Gpu], facts: &[GpuFacts]) -> Vec<GpuLink> {
    let mut all = Vec::new();
    for (i, a) in gpus.iter().enumerate() {
        for (j, b) in gpus.iter().enumerate().skip(i + 1) {
            let kind = match nvlinks(&a.model) {
                Some(links) => LinkKind::Nvlink { links },
                None if facts[i].numa == facts[j].numa => LinkKind::SameNuma,
                None => continue,
            };
            all.push(GpuLink { a: a.index, b: b.index, kind });
        }
    }
    all
}

/// As the kernel writes it: "0-63".
fn span(range: std::ops::Range<u32>) -> String {
    match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_gpus_say_so() {
        let gpus = gpus(2, "h100");
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[1].uuid, "SIM-h100-1");
        assert_eq!(gpus[1].mem, Bytes::gib(80));
        let hardware = hardware(&gpus, 32, Bytes::gib(256));
        assert!(hardware.gpus.iter().all(|g| g.vendor == Vendor::Simulated));
        assert!(hardware.gpus.iter().all(|g| g.device_files.is_empty() && g.pci.is_none()));
    }

    #[test]
    fn boards_with_switches_are_one_island_and_cards_are_not() {
        let board = gpus(8, "h200");
        assert!(board.iter().all(|g| g.island == Some(0)));
        let machine = hardware(&board, 128, Bytes::gib(1024));
        assert_eq!(machine.links.len(), 28);
        assert!(machine.links.iter().all(|l| l.kind == LinkKind::Nvlink { links: 18 }));
        let nodes: Vec<_> = machine.numa.iter().map(|n| (n.id, n.cpus.as_str())).collect();
        assert_eq!(nodes, [(0, "0-63"), (1, "64-127")]);
        assert_eq!(machine.gpus[3].numa, Some(0));
        assert_eq!(machine.gpus[4].cpus.as_deref(), Some("64-127"));

        let cards = gpus(4, "l40s");
        assert!(cards.iter().all(|g| g.island.is_none()));
        let kinds: Vec<_> = hardware(&cards, 64, Bytes::gib(512)).links;
        let pairs: Vec<_> = kinds.iter().map(|l| (l.a.0, l.b.0, l.kind)).collect();
        assert_eq!(pairs, [(0, 1, LinkKind::SameNuma), (2, 3, LinkKind::SameNuma)]);
    }

    #[test]
    fn a_machine_with_one_processor_is_whole() {
        let machine = hardware(&gpus(2, "t4"), 1, Bytes::gib(4));
        let nodes: Vec<_> = machine.numa.iter().map(|n| n.cpus.as_str()).collect();
        assert_eq!(nodes, ["0"]);
        assert!(machine.gpus.iter().all(|g| g.numa == Some(0)));
    }
}
