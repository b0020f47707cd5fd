//! `tutti nodes --topology`: what a node is made of, as a drawing.

use std::collections::BTreeMap;

use tutti_model::{
    Bytes, FabricState, Gpu, GpuFacts, GpuIndex, Hardware, LinkKind, Nic, NumaNode, Vendor,
};
use tutti_wire::api::NodeDetail;

use super::{count, harmless};
use crate::style::{Ink, Style};

/// The words of the matrix, as `nvidia-smi topo -m` has them.
const LEGEND: &[(&str, &str)] = &[
    ("NV#", "that many NVLinks"),
    ("XGMI", "AMD's Infinity Fabric"),
    ("PIX", "one PCIe switch"),
    ("PXB", "several PCIe switches"),
    ("PHB", "the host bridge"),
    ("NODE", "host bridges of one NUMA node"),
    ("SYS", "across processors"),
];

pub fn draw(node: &NodeDetail, style: Style) -> String {
    let name = harmless(&node.row.name);
    let Some(hardware) = &node.hardware else {
        return format!(
            "{name}: its agent has not said what it is made of; it is older than this tutti"
        );
    };
    let mut lines = vec![head(node, hardware, style)];
    lines.extend(places(node, hardware, style));
    lines.extend(matrix(hardware, style));
    lines.extend(islands(&node.devices));
    lines.extend(problems(hardware, style));
    lines.join("\n")
}

/// Name, GPUs, and the versions that go with them.
fn head(node: &NodeDetail, hardware: &Hardware, style: Style) -> String {
    let mut models: BTreeMap<&str, u64> = BTreeMap::new();
    node.devices.iter().for_each(|gpu| *models.entry(&gpu.model).or_default() += 1);
    let mut parts: Vec<String> =
        models.iter().map(|(model, n)| format!("{n} × {}", harmless(model))).collect();
    if parts.is_empty() {
        parts.push("no GPUs".to_owned());
    }
    if node.row.facts.simulated {
        parts.push("simulated".to_owned());
    }
    parts.extend(hardware.driver.as_ref().map(|d| format!("driver {}", harmless(d))));
    let runtime = if has(hardware, Vendor::Amd) { "ROCm" } else { "CUDA" };
    parts.extend(hardware.runtime.as_ref().map(|r| format!("{runtime} {}", harmless(r))));
    format!("{}  {}", style.paint(Ink::Bold, &harmless(&node.row.name)), parts.join(", "))
}

fn has(hardware: &Hardware, vendor: Vendor) -> bool {
    hardware.gpus.iter().any(|gpu| gpu.vendor == vendor)
}

/// Each NUMA node with what hangs on it, and at the end what hangs nowhere known.
fn places(node: &NodeDetail, hardware: &Hardware, style: Style) -> Vec<String> {
    let mut all = Vec::new();
    let known = |id: Option<u16>| id.is_some_and(|id| hardware.numa.iter().any(|n| n.id == id));
    for numa in &hardware.numa {
        all.push(style.paint(Ink::Bold, &numa_line(numa)));
        let here = |id: Option<u16>| id == Some(numa.id);
        all.extend(devices(node, hardware, &here));
    }
    let elsewhere = devices(node, hardware, &|id| !known(id));
    if !elsewhere.is_empty() {
        all.push(style.paint(Ink::Bold, "at no NUMA node that is known"));
        all.extend(elsewhere);
    }
    all
}

fn numa_line(numa: &NumaNode) -> String {
    match numa.cpus.as_str() {
        "" => format!("NUMA {}  no CPUs  {}", numa.id, gib(numa.mem)),
        cpus => format!("NUMA {}  CPUs {}  {}", numa.id, harmless(cpus), gib(numa.mem)),
    }
}

fn devices(
    node: &NodeDetail,
    hardware: &Hardware,
    here: &dyn Fn(Option<u16>) -> bool,
) -> Vec<String> {
    let gpus = hardware.gpus.iter().filter(|gpu| here(gpu.numa));
    let mut rows: Vec<Vec<String>> = gpus.map(|gpu| gpu_row(node, hardware, gpu)).collect();
    rows.extend(hardware.nics.iter().filter(|nic| here(nic.numa)).map(nic_row));
    aligned(&rows)
}

fn gpu_row(node: &NodeDetail, hardware: &Hardware, facts: &GpuFacts) -> Vec<String> {
    let gpu = node.devices.iter().find(|gpu| gpu.index == facts.index);
    let near: Vec<String> = hardware
        .nics
        .iter()
        .filter(|nic| nic.nearest.contains(&facts.index))
        .map(|nic| harmless(&nic.name))
        .collect();
    let mut notes = Vec::new();
    if !near.is_empty() {
        notes.push(format!("nearest {}", near.join(" ")));
    }
    if let Some(mig) = &facts.mig {
        let (gi, ci) = (mig.gpu_instance, mig.compute_instance);
        let parent = harmless(&mig.parent_uuid);
        notes.push(format!("MIG {gi}/{ci} of card {} ({parent})", mig.parent));
    }
    notes.extend(facts.fabric.as_ref().and_then(|f| fabric(f.state)).map(str::to_owned));
    vec![
        format!("GPU {}", facts.index),
        gpu.map_or_else(|| harmless(&facts.name), |gpu| harmless(&gpu.model)),
        gpu.map_or_else(String::new, |gpu| gib(gpu.mem)),
        facts.pci.as_deref().map(harmless).unwrap_or_default(),
        notes.join(", "),
    ]
}

/// What is worth a word.
fn fabric(state: FabricState) -> Option<&'static str> {
    match state {
        FabricState::NotSupported => None,
        FabricState::Completed => Some("in its fabric"),
        FabricState::NotStarted | FabricState::InProgress => Some("not yet in its fabric"),
        FabricState::Failed => Some("not in its fabric: joining failed"),
    }
}

fn nic_row(nic: &Nic) -> Vec<String> {
    let kind = if nic.infiniband { "InfiniBand" } else { "Ethernet" };
    let rate = if nic.gbits > 0 { format!("{} Gb/s", nic.gbits) } else { "-".to_owned() };
    vec![
        format!("{}:{}", harmless(&nic.name), nic.port),
        kind.to_owned(),
        rate,
        nic.pci.as_deref().map_or_else(|| "-".to_owned(), harmless),
        if nic.up { String::new() } else { "down".to_owned() },
    ]
}

/// How each pair of GPUs is joined. Nothing for one.
fn matrix(hardware: &Hardware, style: Style) -> Vec<String> {
    let gpus: Vec<GpuIndex> = hardware.gpus.iter().map(|gpu| gpu.index).collect();
    if gpus.len() < 2 {
        return Vec::new();
    }
    let kinds: BTreeMap<(GpuIndex, GpuIndex), LinkKind> =
        hardware.links.iter().flat_map(|l| [((l.a, l.b), l.kind), ((l.b, l.a), l.kind)]).collect();
    let cell = |a: GpuIndex, b: GpuIndex| match a == b {
        true => "X".to_owned(),
        false => kinds.get(&(a, b)).map_or_else(|| "SYS".to_owned(), |kind| word(*kind)),
    };
    let mut rows = vec![
        std::iter::once(String::new())
            .chain(gpus.iter().map(|gpu| format!("GPU{gpu}")))
            .collect::<Vec<_>>(),
    ];
    for a in &gpus {
        let cells = gpus.iter().map(|b| cell(*a, *b));
        rows.push(std::iter::once(format!("GPU{a}")).chain(cells).collect());
    }
    let words: Vec<&String> = rows.iter().flatten().collect();
    let used =
        |word: &str| words.iter().any(|w| *w == word || word == "NV#" && w.starts_with("NV"));
    let legend: Vec<String> =
        LEGEND.iter().filter(|(w, _)| used(w)).map(|(w, what)| format!("{w} {what}")).collect();
    let mut lines = vec![style.paint(Ink::Bold, "how GPUs are joined")];
    lines.extend(aligned(&rows));
    lines.push(style.paint(Ink::Dim, &format!("  {}", legend.join(" · "))));
    lines
}

fn word(kind: LinkKind) -> String {
    match kind {
        LinkKind::Nvlink { links } => return format!("NV{links}"),
        LinkKind::Xgmi => "XGMI",
        LinkKind::OneSwitch => "PIX",
        LinkKind::SwitchTree => "PXB",
        LinkKind::HostBridge => "PHB",
        LinkKind::SameNuma => "NODE",
        LinkKind::System => "SYS",
    }
    .to_owned()
}

/// Of more than one GPU: `topology = "island"` puts a job on one of these.
fn islands(gpus: &[Gpu]) -> Vec<String> {
    let mut islands: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(island) = gpu.island {
            islands.entry(island).or_default().push(gpu.index.0);
        }
    }
    let several = islands.values().filter(|members| members.len() > 1);
    let line = |members: &Vec<u16>| {
        format!("island of {}: {}", count(members.len() as u64, "GPU"), ranges(members))
    };
    several.map(line).collect()
}

/// "0-3,6".
pub fn ranges(sorted: &[u16]) -> String {
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for &n in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let text = |(a, b): &(u16, u16)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

fn problems(hardware: &Hardware, style: Style) -> Vec<String> {
    let line = |p: &tutti_model::HardwareProblem| {
        let at = p.pci.as_deref().map_or_else(String::new, |pci| format!("{}: ", harmless(pci)));
        style.paint(Ink::Red, &format!("problem: {at}{}", harmless(&p.message)))
    };
    hardware.problems.iter().map(line).collect()
}

/// Columns of equal width, two blanks in front and between, nothing at the ends of lines.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|i| width(i).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Whole where it is, else with a digit.
fn gib(bytes: Bytes) -> String {
    let gib = bytes.0 as f64 / (1u64 << 30) as f64;
    if bytes.0.is_multiple_of(1 << 30) { format!("{gib:.0} GiB") } else { format!("{gib:.1} GiB") }
}

#[cfg(test)]
mod tests;
