//! Graphics devices as the kernel lists them, and the names of those that compute in data centres.

use std::fs;
use std::path::{Path, PathBuf};

use tutti_model::Bytes;

use crate::files;
use crate::pci::{self, Place};

/// A device that the kernel's graphics layer has.
pub struct Device {
    /// Its directory below `/sys/devices`, without links.
    pub path: PathBuf,
    /// Its directory below `/sys/class/drm`.
    pub card: PathBuf,
    pub vendor: u32,
    pub id: u32,
    /// "amdgpu", "i915", "xe".
    pub driver: String,
    pub place: Place,
    /// "/dev/dri/renderD128", which is all that a job opens.
    pub render: Option<String>,
}

/// In the order of the bus.
pub fn devices(root: &Path) -> Vec<Device> {
    let cards = files::numbered(&root.join("sys/class/drm"), "card");
    let mut all: Vec<Device> = cards.into_iter().filter_map(|(_, card)| device(card)).collect();
    all.sort_by(|a, b| a.place.address.cmp(&b.place.address));
    all
}

fn device(card: PathBuf) -> Option<Device> {
    let path = fs::canonicalize(card.join("device")).ok()?;
    let render = files::numbered(&path.join("drm"), "renderD").into_iter().next();
    let driver = fs::canonicalize(path.join("driver")).ok().and_then(|d| files::name(&d));
    Some(Device {
        vendor: files::hex(&path.join("vendor"))?,
        id: files::hex(&path.join("device"))?,
        driver: driver.unwrap_or_default(),
        place: pci::at_path(&path),
        render: render.map(|(number, _)| format!("/dev/dri/renderD{number}")),
        path,
        card,
    })
}

/// What is known of a device by its number alone.
pub struct Product {
    pub model: &'static str,
    pub name: &'static str,
    pub mem: Bytes,
}

const AMD: &[(u32, &str, &str, u64)] = &[
    (0x738c, "mi100", "AMD Instinct MI100", 32),
    (0x7408, "mi250x", "AMD Instinct MI250X", 64),
    (0x740c, "mi250x", "AMD Instinct MI250X", 64),
    (0x740f, "mi210", "AMD Instinct MI210", 64),
    (0x74a0, "mi300a", "AMD Instinct MI300A", 128),
    (0x74a1, "mi300x", "AMD Instinct MI300X", 192),
    (0x74a2, "mi308x", "AMD Instinct MI308X", 192),
    (0x74a5, "mi325x", "AMD Instinct MI325X", 256),
    (0x74b5, "mi300x", "AMD Instinct MI300X VF", 192),
    (0x74b9, "mi325x", "AMD Instinct MI325X VF", 256),
    (0x75a0, "mi350x", "AMD Instinct MI350X", 288),
    (0x75a3, "mi355x", "AMD Instinct MI355X", 288),
];

const INTEL: &[(u32, &str, &str, u64)] = &[
    (0x0bd5, "max-1550", "Intel Data Center GPU Max 1550", 128),
    (0x0bd6, "max-1550", "Intel Data Center GPU Max 1550", 128),
    (0x0bd9, "max-1100", "Intel Data Center GPU Max 1100", 48),
    (0x0bda, "max-1100", "Intel Data Center GPU Max 1100", 48),
    (0x0bdb, "max-1100", "Intel Data Center GPU Max 1100", 48),
    (0x56c0, "flex-170", "Intel Data Center GPU Flex 170", 16),
    (0x56c1, "flex-140", "Intel Data Center GPU Flex 140", 6),
];

pub fn amd(id: u32) -> Option<Product> {
    product(AMD, id)
}

pub fn intel(id: u32) -> Option<Product> {
    product(INTEL, id)
}

fn product(table: &'static [(u32, &str, &str, u64)], id: u32) -> Option<Product> {
    let &(_, model, name, gib) = table.iter().find(|(known, ..)| *known == id)?;
    Some(Product { model, name, mem: Bytes::gib(gib) })
}
