//! AMD cards, from the files of the amdgpu driver and of its compute half, kfd.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tutti_model::{Bytes, HardwareProblem, HardwareProblemKind as Kind, Vendor};

use crate::drm::{self, Device};
use crate::files;
use crate::model_name::short_model;
use crate::readings::{Card, Readings};

const VENDOR: u32 = 0x1002;
/// A PCI class: accelerators that have no outputs.
const ACCELERATOR: u32 = 0x1200;
const DISPLAY: u32 = 0x0300;
/// Kfd's number for a link of the Infinity Fabric.
const XGMI: u32 = 11;
/// The graphics of a desktop processor have a piece of the host's memory. A card of its own is larger.
const CARD_AT_LEAST: Bytes = Bytes::gib(8);

pub fn read(root: &Path, readings: &mut Readings) {
    let ours = |d: &Device| d.vendor == VENDOR && d.driver == "amdgpu";
    let links = xgmi(root);
    let mut cards = Vec::new();
    for device in drm::devices(root).into_iter().filter(ours) {
        let mem = files::number(&device.path.join("mem_info_vram_total")).map(Bytes);
        if !computes(&device, mem) {
            continue;
        }
        match card(&device, mem, &links) {
            Ok(card) => cards.push(card),
            Err(problem) => {
                readings.problems.push(problem);
                let place = device.place;
                cards.push(Card { vendor: Vendor::Amd, place, dead: true, ..Card::default() });
            }
        }
    }
    if cards.is_empty() {
        return;
    }
    if readings.driver.is_none() {
        readings.driver = files::text(&root.join("sys/module/amdgpu/version"));
        readings.runtime = files::text(&root.join("opt/rocm/.info/version"));
    }
    if root.join("dev/kfd").exists() {
        readings.control_files.push("/dev/kfd".to_owned());
    }
    readings.cards.extend(cards);
}

fn computes(device: &Device, mem: Option<Bytes>) -> bool {
    let class = files::hex(&device.path.join("class")).map(|class| class >> 8);
    drm::amd(device.id).is_some()
        || class == Some(ACCELERATOR)
        || class == Some(DISPLAY) && mem >= Some(CARD_AT_LEAST)
}

fn card(
    device: &Device,
    mem: Option<Bytes>,
    links: &BTreeMap<String, BTreeSet<String>>,
) -> Result<Card, HardwareProblem> {
    let problem = |kind, message: &str| HardwareProblem {
        kind,
        pci: device.place.address.clone(),
        message: message.to_owned(),
    };
    let product = drm::amd(device.id);
    let told = files::text(&device.path.join("product_name"));
    let known = product.as_ref().map(|p| p.name.to_owned());
    let name = told.or(known).unwrap_or_else(|| format!("AMD GPU {:#06x}", device.id));
    // An accelerator with a processor in it has no memory of its own and says 0.
    let mem = mem.filter(|m| m.0 > 0).or(product.as_ref().map(|p| p.mem));
    let lost = "the amdgpu driver has this GPU but no render node for it: look for amdgpu in the \
                kernel log";
    let render = device.render.clone().ok_or_else(|| problem(Kind::Missing, lost))?;
    let unread = "the driver does not say how much memory this GPU has, so it is not offered";
    let mem = mem.ok_or_else(|| problem(Kind::Unread, unread))?;
    let address = device.place.address.clone().unwrap_or_default();
    // As ROCm names it, so that it can be given to ROCR_VISIBLE_DEVICES.
    let uuid = match files::text(&device.path.join("unique_id")) {
        Some(id) => format!("GPU-{}", id.to_ascii_lowercase()),
        None => format!("PCI-{address}"),
    };
    Ok(Card {
        vendor: Vendor::Amd,
        model: product.map_or_else(|| short_model(&name), |p| p.model.to_owned()),
        name,
        uuid,
        mem,
        place: device.place.clone(),
        device_files: vec![render],
        xgmi: links.get(&address).cloned().unwrap_or_default(),
        ..Card::default()
    })
}

/// By PCI address, the addresses at the other ends.
fn xgmi(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let nodes = files::numbered(&root.join("sys/class/kfd/kfd/topology/nodes"), "");
    let address_of: BTreeMap<u32, String> =
        nodes.iter().filter_map(|(node, dir)| Some((*node, address(&properties(dir))?))).collect();
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (node, dir) in &nodes {
        let Some(from) = address_of.get(node) else { continue };
        for (_, link) in files::numbered(&dir.join("io_links"), "") {
            let link = properties(&link);
            let to = link.get("node_to").and_then(|to| address_of.get(&(*to as u32)));
            if link.get("type") == Some(&XGMI.into())
                && let Some(to) = to
            {
                all.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    all
}

/// None for a processor.
fn address(properties: &BTreeMap<String, u64>) -> Option<String> {
    let location = *properties.get("location_id").filter(|location| **location > 0)?;
    let domain = properties.get("domain").copied().unwrap_or(0);
    let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

/// Lines of a name and a number.
fn properties(dir: &Path) -> BTreeMap<String, u64> {
    let text = files::text(&dir.join("properties")).unwrap_or_default();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}
