//! The NUMA nodes of this machine.

use std::path::Path;

use tutti_model::{Bytes, NumaNode};

use crate::files;

/// None where the kernel does not say; then it is one.
pub fn numa(root: &Path) -> Vec<NumaNode> {
    let node = |(id, dir): (u32, std::path::PathBuf)| {
        Some(NumaNode {
            id: u16::try_from(id).ok()?,
            // Memory without processors, as of a GPU that is coherent with its host, has none.
            cpus: files::text(&dir.join("cpulist")).unwrap_or_default(),
            mem: memory(&dir),
        })
    };
    files::numbered(&root.join("sys/devices/system/node"), "node")
        .into_iter()
        .filter_map(node)
        .collect()
}

/// "Node 0 MemTotal:       1056437452 kB"; 0 where it can't be read.
fn memory(node: &Path) -> Bytes {
    let text = files::text(&node.join("meminfo")).unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        let (_, rest) = line.split_once("MemTotal:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    Bytes(kib.unwrap_or(0) * 1024)
}
