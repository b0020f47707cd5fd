//! Intel machines, from the kernel's files alone.

use tutti_model::{Bytes, LinkKind, Vendor};

use super::amd::without_nvidia;
use super::{islands, link};

const MAX: &str = include_str!("../fixtures/intel-max.tree");

#[test]
fn both_drivers_say_how_much_memory_a_card_has() {
    let found = without_nvidia(MAX);
    let seen: Vec<_> = found.gpus.iter().map(|g| (g.model.as_str(), g.mem)).collect();
    assert_eq!(seen, [("max-1550", Bytes::gib(128)); 4]);
    let facts = &found.hardware.gpus[2];
    assert_eq!((facts.vendor, facts.numa), (Vendor::Intel, Some(1)));
    assert_eq!(facts.pci.as_deref(), Some("0000:9a:00.0"));
    assert_eq!(facts.device_files, ["/dev/dri/renderD130"]);
    assert_eq!(found.hardware.control_files, [] as [&str; 0]);
    assert_eq!(link(&found, 0, 1), LinkKind::SameNuma);
    assert_eq!(islands(&found), [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn graphics_inside_a_processor_are_not_offered() {
    let inside = MAX.replace("0x0bd5", "0x9a49").replace("physical_vram_size_bytes", "other");
    let found = without_nvidia(&inside.replace("lmem_total_bytes", "other"));
    assert_eq!(found.gpus, []);
}
