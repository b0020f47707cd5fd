//! AMD machines, from the kernel's files alone.

use nvml_wrapper::error::NvmlError;
use tutti_gpu::{Found, NvmlFailure, discover_with};
use tutti_model::{Bytes, HardwareProblemKind as Kind, LinkKind, Vendor};

use super::tree::expand;
use super::{islands, link, nearest};

pub fn without_nvidia(tree: &str) -> Found {
    let none = NvmlFailure::NoDriver(NvmlError::LibraryNotFound);
    discover_with(Err(none), expand(tree).path())
}

const MI300X: &str = include_str!("../fixtures/mi300x.tree");

#[test]
fn eight_mi300x_are_one_island() {
    let found = without_nvidia(MI300X);
    assert_eq!(found.gpus.len(), 8);
    let gpu = &found.gpus[3];
    assert_eq!((gpu.model.as_str(), gpu.mem), ("mi300x", Bytes(206_141_652_992)));
    assert_eq!(gpu.uuid, "GPU-a1b2c3d4e5f60003");
    assert_eq!(islands(&found), [Some(0); 8]);
    assert_eq!(found.hardware.links.len(), 28);
    assert_eq!(link(&found, 0, 7), LinkKind::Xgmi);

    let facts = &found.hardware.gpus[3];
    assert_eq!((facts.vendor, facts.name.as_str()), (Vendor::Amd, "AMD Instinct MI300X OAM"));
    assert_eq!(facts.pci.as_deref(), Some("0000:65:00.0"));
    assert_eq!((facts.numa, facts.cpus.as_deref()), (Some(0), Some("0-95,192-287")));
    assert_eq!(facts.device_files, ["/dev/dri/renderD132"]);
    assert_eq!(found.hardware.control_files, ["/dev/kfd"]);
    assert_eq!(found.hardware.driver.as_deref(), Some("6.12.12"));
    assert_eq!(found.hardware.runtime.as_deref(), Some("6.4.1-83"));
    assert_eq!(found.hardware.problems, []);
}

#[test]
fn each_mi300x_has_its_own_adapter() {
    let found = without_nvidia(MI300X);
    let near = nearest(&found);
    assert_eq!(near.len(), 8);
    for (i, (name, gpus)) in near.into_iter().enumerate() {
        assert_eq!((name, gpus), (format!("bnxt_re{i}").as_str(), vec![i as u16]));
    }
}

#[test]
fn a_gpu_without_a_render_node_is_missing_and_the_others_keep_their_numbers() {
    let found = without_nvidia(&MI300X.replace("renderD130/", "other/"));
    let seen: Vec<u16> = found.gpus.iter().map(|g| g.index.0).collect();
    assert_eq!(seen, [0, 2, 3, 4, 5, 6, 7]);
    let [problem] = &found.hardware.problems[..] else { panic!("{:?}", found.hardware.problems) };
    assert_eq!((problem.kind, problem.pci.as_deref()), (Kind::Missing, Some("0000:26:00.0")));
}

#[test]
fn graphics_inside_a_processor_are_not_offered() {
    let tree = "
        [sys/bus/pci/drivers]
        amdgpu/
        [sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0]
        vendor = 0x1002
        device = 0x150e
        class = 0x038000
        mem_info_vram_total = 536870912
        driver -> sys/bus/pci/drivers/amdgpu
        drm/renderD128/
        [sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0/drm/card0]
        device -> sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0
        [sys/class/drm]
        card0 -> sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0/drm/card0";
    assert_eq!(without_nvidia(tree), Found::default());
    // The same as a card with outputs and memory of its own.
    let card = tree.replace("0x038000", "0x030000").replace("536870912", "25753026560");
    let found = without_nvidia(&card);
    assert_eq!(found.gpus[0].model, "amd-gpu-0x150e");
    assert_eq!(found.gpus[0].uuid, "PCI-0000:c5:00.0");
}
