//! Intel cards, from the files of their two drivers: i915 and xe.

use std::path::Path;

use tutti_model::{Bytes, HardwareProblem, HardwareProblemKind as Kind, Vendor};

use crate::drm::{self, Device};
use crate::files;
use crate::model_name::short_model;
use crate::readings::{Card, Readings};

const VENDOR: u32 = 0x8086;

pub fn read(root: &Path, readings: &mut Readings) {
    let ours = |d: &Device| d.vendor == VENDOR && matches!(d.driver.as_str(), "i915" | "xe");
    for device in drm::devices(root).into_iter().filter(ours) {
        // Graphics inside a processor have no memory of their own, and are not offered.
        let Some(mem) = local_memory(&device).or(drm::intel(device.id).map(|p| p.mem)) else {
            continue;
        };
        let card = card(&device, mem);
        if card.dead {
            readings.problems.push(HardwareProblem {
                kind: Kind::Missing,
                pci: device.place.address.clone(),
                message: format!(
                    "the {0} driver has this GPU but no render node for it: look for {0} in the \
                     kernel log",
                    device.driver
                ),
            });
        } else if readings.driver.is_none() {
            let version = root.join("sys/module").join(&device.driver).join("version");
            readings.driver = files::text(&version).or(Some(device.driver.clone()));
        }
        readings.cards.push(card);
    }
}

fn card(device: &Device, mem: Bytes) -> Card {
    let product = drm::intel(device.id);
    let known = product.as_ref().map(|p| p.name.to_owned());
    let name = known.unwrap_or_else(|| format!("Intel GPU {:#06x}", device.id));
    let address = device.place.address.clone().unwrap_or_default();
    Card {
        vendor: Vendor::Intel,
        model: product.map_or_else(|| short_model(&name), |p| p.model.to_owned()),
        name,
        // The kernel has no serial number of these; the place is all that names them.
        uuid: format!("PCI-{address}"),
        mem,
        place: device.place.clone(),
        device_files: device.render.iter().cloned().collect(),
        dead: device.render.is_none(),
        ..Card::default()
    }
}

/// Xe has it by tile, i915 for the card, where it has it.
fn local_memory(device: &Device) -> Option<Bytes> {
    let whole: Option<u64> = files::number(&device.card.join("lmem_total_bytes"));
    let tile = |(_, dir): (u32, std::path::PathBuf)| {
        files::number::<u64>(&dir.join("physical_vram_size_bytes"))
    };
    let tiles: u64 = files::numbered(&device.path, "tile").into_iter().filter_map(tile).sum();
    whole.or((tiles > 0).then_some(tiles)).filter(|bytes| *bytes > 0).map(Bytes)
}
