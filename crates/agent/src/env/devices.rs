//! How a part's GPUs are named to the runtimes of their vendors.
//!
//! A runtime counts the devices that it can open, in the order of the bus. So an index means the same
//! to it as to tutti only while nothing is missing and nothing is cut into instances; otherwise GPUs
//! are named by their uuids, which always mean the same.

use std::collections::BTreeMap;

use tutti_model::{Gpu, GpuFacts, GpuIndex, Hardware, Vendor};

/// Set besides `CUDA_VISIBLE_DEVICES` where the node's GPUs are of another vendor.
pub const VENDORS: &[(&str, &str)] = &[
    ("ROCR_VISIBLE_DEVICES", "AMD: the GPUs of this part by uuid; empty if it has none"),
    (
        "HIP_VISIBLE_DEVICES",
        "AMD: counts those of `ROCR_VISIBLE_DEVICES` from 0, as `CUDA_VISIBLE_DEVICES` does there",
    ),
    ("ZE_AFFINITY_MASK", "Intel: the GPUs of this part by index; not set if it has none"),
    ("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "Intel: `1`, so that indices mean the same to Level Zero"),
    (
        "ZE_FLAT_DEVICE_HIERARCHY",
        "Intel: `COMPOSITE`, so that an index is a card, not a tile of it",
    ),
];

/// What a node has.
#[derive(Clone, Copy, Default)]
pub struct Devices<'a> {
    pub gpus: &'a [Gpu],
    pub hardware: Option<&'a Hardware>,
    pub sees: Sees,
}

/// What a part's runtime counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sees {
    #[default]
    All,
    /// The part can open no others.
    Own,
    /// It depends on how the node is set up.
    Unclear,
}

impl Devices<'_> {
    pub fn put(&self, env: &mut BTreeMap<&str, String>, part: &[GpuIndex]) {
        let all = self.hardware.map_or(&[][..], |h| &h.gpus);
        let has = |vendor| all.iter().any(|gpu| gpu.vendor == vendor);
        let from_zero = || join((0..part.len()).map(|i| i.to_string()));
        // In another order the same indices would be somebody else's GPUs.
        env.insert("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        if has(Vendor::Amd) {
            env.insert("ROCR_VISIBLE_DEVICES", self.of_amd(part));
            // HIP counts what ROCr has left, and takes CUDA's variable for its own.
            env.insert("HIP_VISIBLE_DEVICES", from_zero());
            env.insert("CUDA_VISIBLE_DEVICES", from_zero());
            return;
        }
        if has(Vendor::Intel) && !part.is_empty() {
            env.insert("ZE_AFFINITY_MASK", join(self.positions(Vendor::Intel, part)));
            env.insert("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "1".into());
            env.insert("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE".into());
        }
        env.insert("CUDA_VISIBLE_DEVICES", self.of_nvidia(part));
    }

    fn of_nvidia(&self, part: &[GpuIndex]) -> String {
        let facts = |index: &GpuIndex| self.facts(*index);
        let sliced = part.iter().filter_map(facts).any(|gpu| gpu.mig.is_some());
        let all = self.hardware.map_or(&[][..], |h| &h.gpus);
        let whole = all.iter().all(|gpu| gpu.mig.is_none());
        let no_gap = all.iter().enumerate().all(|(i, gpu)| usize::from(gpu.index.0) == i);
        match self.sees {
            Sees::Own if !sliced => join(self.positions(Vendor::Nvidia, part)),
            Sees::All if whole && no_gap => join(part.iter().map(ToString::to_string)),
            _ => join(part.iter().map(|index| self.uuid(*index))),
        }
    }

    /// One that has no uuid of its own is named by its position.
    fn of_amd(&self, part: &[GpuIndex]) -> String {
        let positions = self.positions(Vendor::Amd, part);
        let name = |(index, position): (&GpuIndex, String)| {
            let uuid = self.uuid(*index);
            if uuid.starts_with("GPU-") { uuid } else { position }
        };
        join(part.iter().zip(positions).map(name))
    }

    /// Which of the devices that the runtime sees.
    fn positions(&self, vendor: Vendor, part: &[GpuIndex]) -> Vec<String> {
        let of_vendor = |gpu: &&GpuFacts| gpu.vendor == vendor;
        let all = self.hardware.map_or(&[][..], |h| &h.gpus).iter().filter(of_vendor);
        let mut seen: Vec<GpuIndex> = match self.sees {
            Sees::Own => part.to_vec(),
            Sees::All | Sees::Unclear => all.map(|gpu| gpu.index).collect(),
        };
        seen.sort();
        let position = |index: &GpuIndex| seen.iter().position(|s| s == index);
        let named = |index: &GpuIndex| position(index).unwrap_or(usize::from(index.0));
        part.iter().map(|index| named(index).to_string()).collect()
    }

    fn facts(&self, index: GpuIndex) -> Option<&GpuFacts> {
        self.hardware?.gpus.iter().find(|gpu| gpu.index == index)
    }

    /// The index where nobody knows more: the job then fails, and says what it could not find.
    fn uuid(&self, index: GpuIndex) -> String {
        let gpu = self.gpus.iter().find(|gpu| gpu.index == index);
        gpu.map_or_else(|| index.to_string(), |gpu| gpu.uuid.clone())
    }
}

fn join(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{Bytes, Mig};

    /// Each with its index, its uuid and whether it is an instance.
    fn node(vendor: Vendor, gpus: &[(u16, &str, bool)]) -> (Vec<Gpu>, Hardware) {
        let gpu = |(index, uuid, _): &(u16, &str, bool)| Gpu {
            index: GpuIndex(*index),
            model: "x".into(),
            uuid: (*uuid).into(),
            mem: Bytes::gib(1),
            island: None,
        };
        let mig = Mig {
            parent_uuid: "GPU-p".into(),
            parent: 0,
            gpu_instance: 1,
            compute_instance: 0,
            profile: "1g.18gb".into(),
        };
        let facts = |(index, _, sliced): &(u16, &str, bool)| GpuFacts {
            index: GpuIndex(*index),
            vendor,
            mig: sliced.then(|| mig.clone()),
            ..GpuFacts::default()
        };
        let hardware = Hardware { gpus: gpus.iter().map(facts).collect(), ..Hardware::default() };
        (gpus.iter().map(gpu).collect(), hardware)
    }

    fn env(
        (gpus, hardware): &(Vec<Gpu>, Hardware),
        part: &[u16],
        confined: bool,
    ) -> BTreeMap<&'static str, String> {
        let mut env = BTreeMap::new();
        let part: Vec<GpuIndex> = part.iter().copied().map(GpuIndex).collect();
        let sees = if confined { Sees::Own } else { Sees::All };
        Devices { gpus, hardware: Some(hardware), sees }.put(&mut env, &part);
        env
    }

    #[test]
    fn whole_gpus_are_named_by_index_as_long_as_cuda_counts_the_same() {
        let plain =
            node(Vendor::Nvidia, &[(0, "GPU-a", false), (1, "GPU-b", false), (2, "GPU-c", false)]);
        assert_eq!(env(&plain, &[1, 2], false)["CUDA_VISIBLE_DEVICES"], "1,2");
        assert_eq!(env(&plain, &[1, 2], true)["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(env(&plain, &[], true)["CUDA_VISIBLE_DEVICES"], "");
        let imagined = node(Vendor::Simulated, &[(0, "SIM-0", false), (1, "SIM-1", false)]);
        assert_eq!(env(&imagined, &[1], false)["CUDA_VISIBLE_DEVICES"], "1");
        assert_eq!(env(&imagined, &[1], false)["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
        let mut unknown = BTreeMap::new();
        Devices::default().put(&mut unknown, &[GpuIndex(3)]);
        assert_eq!(unknown["CUDA_VISIBLE_DEVICES"], "3");
    }

    #[test]
    fn where_it_is_unclear_what_is_seen_uuids_are_used() {
        let (gpus, hardware) = node(Vendor::Nvidia, &[(0, "GPU-a", false), (1, "GPU-b", false)]);
        let devices = Devices { gpus: &gpus, hardware: Some(&hardware), sees: Sees::Unclear };
        let mut env = BTreeMap::new();
        devices.put(&mut env, &[GpuIndex(1)]);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "GPU-b");
    }

    #[test]
    fn behind_a_dead_gpu_uuids_are_used() {
        let gap = node(Vendor::Nvidia, &[(0, "GPU-a", false), (2, "GPU-c", false)]);
        assert_eq!(env(&gap, &[2], false)["CUDA_VISIBLE_DEVICES"], "GPU-c");
        assert_eq!(env(&gap, &[2], true)["CUDA_VISIBLE_DEVICES"], "0");
    }

    #[test]
    fn instances_are_named_by_uuid_whatever_else_is_seen() {
        let sliced =
            node(Vendor::Nvidia, &[(0, "MIG-a", true), (1, "MIG-b", true), (2, "GPU-c", false)]);
        for confined in [false, true] {
            assert_eq!(env(&sliced, &[1], confined)["CUDA_VISIBLE_DEVICES"], "MIG-b");
        }
        assert_eq!(env(&sliced, &[2], false)["CUDA_VISIBLE_DEVICES"], "GPU-c");
        assert_eq!(env(&sliced, &[2], true)["CUDA_VISIBLE_DEVICES"], "0");
    }

    #[test]
    fn amd_is_told_uuids_and_hip_counts_them() {
        let amd =
            node(Vendor::Amd, &[(0, "GPU-a", false), (1, "GPU-b", false), (2, "PCI-c", false)]);
        let two = env(&amd, &[1, 2], false);
        assert_eq!(two["ROCR_VISIBLE_DEVICES"], "GPU-b,2");
        assert_eq!(two["HIP_VISIBLE_DEVICES"], "0,1");
        assert_eq!(two["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(env(&amd, &[2], true)["ROCR_VISIBLE_DEVICES"], "0");
        let none = env(&amd, &[], false);
        assert_eq!(
            (none["ROCR_VISIBLE_DEVICES"].as_str(), none["HIP_VISIBLE_DEVICES"].as_str()),
            ("", "")
        );
    }

    #[test]
    fn intel_is_told_positions_in_the_order_of_the_bus() {
        let intel =
            node(Vendor::Intel, &[(0, "PCI-a", false), (1, "PCI-b", false), (3, "PCI-d", false)]);
        let one = env(&intel, &[3], false);
        assert_eq!(one["ZE_AFFINITY_MASK"], "2");
        assert_eq!(one["ZE_ENABLE_PCI_ID_DEVICE_ORDER"], "1");
        assert_eq!(one["ZE_FLAT_DEVICE_HIERARCHY"], "COMPOSITE");
        assert_eq!(env(&intel, &[3], true)["ZE_AFFINITY_MASK"], "0");
        assert!(!env(&intel, &[], false).contains_key("ZE_AFFINITY_MASK"));
    }
}
