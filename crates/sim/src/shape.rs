//! A catalogue of servers that people own or rent, and the short way to write many of them:
//! `16xdgx-h100`, `4xh100:8`, `4xh100:8@r3` for four in rack r3.

use tutti_model::{Bytes, GpuRequest, NodeFacts};

use crate::cluster::{NodeBuilder, RACK};

/// A kind of server. CPUs are hardware threads, memory is what the maker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub name: &'static str,
    pub model: &'static str,
    pub gpus: u16,
    pub gpu_mem_gib: u64,
    pub cpus: u32,
    pub mem_gib: u64,
}

const fn shape(
    name: &'static str,
    model: &'static str,
    gpu_mem_gib: u64,
    cpus: u32,
    mem_gib: u64,
) -> Shape {
    Shape { name, model, gpus: 8, gpu_mem_gib, cpus, mem_gib }
}

pub const CATALOGUE: &[Shape] = &[
    shape("dgx-1", "v100", 32, 80, 512),
    Shape { gpus: 16, ..shape("dgx-2", "v100", 32, 96, 1536) },
    shape("dgx-a100", "a100", 80, 256, 2048),
    shape("dgx-h100", "h100", 80, 224, 2048),
    shape("dgx-h200", "h200", 141, 224, 2048),
    shape("dgx-b200", "b200", 180, 224, 2048),
    shape("p3", "v100", 16, 64, 488),
    shape("p3dn", "v100", 32, 96, 768),
    shape("p4d", "a100", 40, 96, 1152),
    shape("p4de", "a100", 80, 96, 1152),
    shape("p5", "h100", 80, 192, 2048),
    shape("p5e", "h200", 141, 192, 2048),
    shape("p6-b200", "b200", 180, 192, 2048),
    shape("g5", "a10g", 24, 192, 768),
    shape("g6", "l4", 24, 192, 768),
    shape("g6e", "l40s", 48, 192, 1536),
    shape("a2-highgpu-8g", "a100", 40, 96, 680),
    shape("a2-ultragpu-8g", "a100", 80, 96, 1360),
    shape("a3-highgpu-8g", "h100", 80, 208, 1872),
    shape("a3-ultragpu-8g", "h200", 141, 224, 2952),
    shape("nd-a100-v4", "a100", 40, 96, 900),
    shape("nd-h100-v5", "h100", 80, 96, 1900),
    shape("nd-h200-v5", "h200", 141, 96, 1850),
    shape("mi300x-8", "mi300x", 192, 192, 2048),
];

/// Memory of GPUs that are written by their model alone.
const GPU_MEM_GIB: &[(&str, u64)] = &[
    ("t4", 16),
    ("p100", 16),
    ("v100", 32),
    ("a10", 24),
    ("a10g", 24),
    ("l4", 24),
    ("l40s", 48),
    ("a100", 80),
    ("h100", 80),
    ("h200", 141),
    ("b200", 180),
    ("mi300x", 192),
];
/// What a model that is not listed counts as.
const OTHER_GPU_MEM_GIB: u64 = 80;
/// What a server that is written by its GPUs alone has for each of them.
const CPUS_PER_GPU: u32 = 16;
const MEM_PER_GPU_GIB: u64 = 128;

const NODES_MAX: u32 = 1_000_000;
const GPUS_MAX: u32 = 1024;
/// Of a whole list. More than any cluster has, and still fits into memory.
pub(crate) const ALL_GPUS_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadShape {
    #[error(
        "'{0}' is no kind of server: write model:number such as h100:8, or one of {list}",
        list = names()
    )]
    Unknown(String),
    #[error("'{0}': the number of nodes must be 1 to 1,000,000")]
    Count(String),
    #[error("'{0}': a node has 1 to 1,024 GPUs")]
    Gpus(String),
    #[error("'{0}' has {1} GPUs, and a simulation takes at most 1,048,576")]
    TooMany(String, u64),
}

fn names() -> String {
    CATALOGUE.iter().map(|s| s.name).collect::<Vec<_>>().join(", ")
}

/// How much memory a GPU of this model has, if the catalogue knows it.
pub fn gpu_mem(model: &str) -> Option<Bytes> {
    let listed = GPU_MEM_GIB.iter().find(|(name, _)| *name == model);
    listed.map(|(_, gib)| Bytes::gib(*gib))
}

/// So many servers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lot {
    pub count: u32,
    pub kind: String,
    pub gpus: GpuRequest,
    pub gpu_mem: Bytes,
    pub cpus: u32,
    pub mem: Bytes,
    pub rack: Option<String>,
}

impl Lot {
    /// `4xh100:8@r3`.
    pub fn parse(text: &str) -> Result<Lot, BadShape> {
        let (what, rack) = match text.trim().split_once('@') {
            Some((what, rack)) => (what, Some(rack.to_owned())),
            None => (text.trim(), None),
        };
        let digits = what.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let (count, kind) = match what[digits..].strip_prefix('x') {
            Some(kind) if digits > 0 => (what[..digits].parse().unwrap_or(0), kind),
            _ => (1, what),
        };
        if !(1..=NODES_MAX).contains(&count) {
            return Err(BadShape::Count(text.to_owned()));
        }
        Ok(Lot { count, rack, ..Lot::kind(kind)? })
    }

    /// One server, from the catalogue or by its GPUs.
    pub fn kind(kind: &str) -> Result<Lot, BadShape> {
        let name = kind.to_ascii_lowercase();
        if let Some(s) = CATALOGUE.iter().find(|s| s.name == name) {
            let gpus = GpuRequest { model: Some(s.model.to_owned()), count: s.gpus.into() };
            return Ok(Lot {
                count: 1,
                kind: name,
                gpus,
                gpu_mem: Bytes::gib(s.gpu_mem_gib),
                cpus: s.cpus,
                mem: Bytes::gib(s.mem_gib),
                rack: None,
            });
        }
        let unknown = || BadShape::Unknown(kind.to_owned());
        // A bare word is more likely a misspelt shape than a model with one GPU.
        let gpus: GpuRequest =
            name.contains(':').then(|| name.parse().ok()).flatten().ok_or_else(unknown)?;
        let model = gpus.model.clone().filter(|m| !m.contains('|')).ok_or_else(unknown)?;
        if !(1..=GPUS_MAX).contains(&gpus.count) {
            return Err(BadShape::Gpus(kind.to_owned()));
        }
        Ok(Lot {
            count: 1,
            gpu_mem: gpu_mem(&model).unwrap_or(Bytes::gib(OTHER_GPU_MEM_GIB)),
            kind: model,
            cpus: CPUS_PER_GPU * gpus.count,
            mem: Bytes::gib(MEM_PER_GPU_GIB * u64::from(gpus.count)),
            gpus,
            rack: None,
        })
    }

    pub fn all_gpus(&self) -> u64 {
        u64::from(self.count) * u64::from(self.gpus.count)
    }

    /// The servers, named after `prefix` and a number.
    pub fn nodes(&self, prefix: &str) -> impl Iterator<Item = NodeFacts> + '_ {
        let prefix = prefix.to_owned();
        (1..=self.count).map(move |n| {
            let model = self.gpus.model.as_deref().unwrap_or("gpu");
            let gib = self.gpu_mem.0 >> 30;
            let node = NodeBuilder::new(&format!("{prefix}{n}"))
                .gpus(model, self.gpus.count as u16, gib)
                .host(self.cpus, self.mem);
            match &self.rack {
                Some(rack) => node.label(RACK, rack).build(),
                None => node.build(),
            }
        })
    }
}

/// A list such as `16xdgx-h100,4xa100:8@r3`. Names start with `prefix` and the kind.
pub fn parse_lots(text: &str, prefix: &str) -> Result<Vec<NodeFacts>, BadShape> {
    let lots = text.split(',').map(Lot::parse).collect::<Result<Vec<Lot>, BadShape>>()?;
    let all: u64 = lots.iter().map(Lot::all_gpus).sum();
    if all > ALL_GPUS_MAX {
        return Err(BadShape::TooMany(text.to_owned(), all));
    }
    let mut nodes = Vec::new();
    for (n, lot) in lots.into_iter().enumerate() {
        // Two lots of one kind must not share names.
        let lots = if n == 0 { String::new() } else { format!("{}-", n + 1) };
        nodes.extend(lot.nodes(&format!("{prefix}{}-{lots}", lot.kind)));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_are_read_as_people_write_them() {
        let lot = Lot::parse("4xh100:8@r3").unwrap();
        assert_eq!((lot.count, lot.gpus.to_string()), (4, "h100:8".to_owned()));
        assert_eq!((lot.rack.as_deref(), lot.cpus), (Some("r3"), 128));
        let nodes = parse_lots("2xdgx-h100,dgx-h100,1xt4:4", "").unwrap();
        let names: Vec<_> = nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(names, ["dgx-h100-1", "dgx-h100-2", "dgx-h100-2-1", "t4-3-1"]);
        assert_eq!(nodes[0].gpus.len(), 8);
        assert_eq!(nodes[3].gpus[0].mem, Bytes::gib(16));
    }

    #[test]
    fn what_is_no_lot_is_refused_with_a_reason() {
        for (text, part) in [
            ("4xfoo", "no kind of server"),
            ("h100", "no kind of server"),
            ("0xh100:8", "number of nodes"),
            ("99999999999xh100:8", "number of nodes"),
            ("1xh100:0", "GPUs"),
            ("1xh100|a100:8", "no kind of server"),
            ("", "no kind of server"),
            ("1000000xh100:1024", "1024000000 GPUs"),
            ("600xh100:1024,600xh100:1024", "1228800 GPUs"),
        ] {
            let error = parse_lots(text, "").unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
