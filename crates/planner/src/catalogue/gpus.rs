//! Kinds of GPUs by their data sheets, and what usually stands around them.

use crate::{Cluster, Gpu};

/// A generation, for how close to its peak software comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Volta,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
    Rubin,
    Cdna2,
    Cdna3,
    Cdna4,
    /// Anything else: planned by its peaks alone.
    Unknown,
}

/// Figures of one kind: dense peaks, and the links of the machines it is usually sold in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    pub name: &'static str,
    pub family: Family,
    pub memory_gb: f64,
    pub hbm_gbps: f64,
    pub bf16_tflops: f64,
    pub fp8_tflops: Option<f64>,
    pub fp4_tflops: Option<f64>,
    pub gpus_per_node: u32,
    pub island: u32,
    /// GB/s per GPU and direction.
    pub island_gbps: f64,
    pub pcie_gbps: f64,
    /// Gbit/s per GPU.
    pub nic_gbps: f64,
}

impl Kind {
    pub(crate) fn gpu(&self) -> Gpu {
        Gpu {
            name: self.name.to_owned(),
            memory_gb: self.memory_gb,
            hbm_gbps: self.hbm_gbps,
            bf16_tflops: self.bf16_tflops,
            fp8_tflops: self.fp8_tflops,
            fp4_tflops: self.fp4_tflops,
            matmul_tflops: None,
            copy_gbps: None,
        }
    }

    /// Nodes of the shape that this kind is usually sold in.
    pub(crate) fn cluster(&self, nodes: u32) -> Cluster {
        Cluster {
            name: self.name.to_owned(),
            gpu: self.gpu(),
            nodes,
            gpus_per_node: self.gpus_per_node,
            island: self.island,
            island_gbps: self.island_gbps,
            pcie_gbps: self.pcie_gbps,
            nic_gbps: self.nic_gbps,
            island_busbw: None,
            nic_busbw: None,
            price_per_gpu_hour: None,
        }
    }
}

type Compute = (f64, f64, f64, Option<f64>, Option<f64>);
type Links = (u32, u32, f64, f64, f64);

/// Compute: memory GB, HBM GB/s, bf16, fp8 and fp4 TFLOP/s. Links: GPUs per node, island, GB/s in it, PCIe GB/s, NIC Gbit/s.
const fn kind(name: &'static str, family: Family, compute: Compute, links: Links) -> Kind {
    let (memory_gb, hbm_gbps, bf16_tflops, fp8_tflops, fp4_tflops) = compute;
    let (gpus_per_node, island, island_gbps, pcie_gbps, nic_gbps) = links;
    Kind {
        name,
        family,
        memory_gb,
        hbm_gbps,
        bf16_tflops,
        fp8_tflops,
        fp4_tflops,
        gpus_per_node,
        island,
        island_gbps,
        pcie_gbps,
        nic_gbps,
    }
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    // fp16 tensor cores: Volta has no bf16.
    kind("V100-SXM2-16GB",  Family::Volta,     (16.0, 900.0, 125.0, None, None),                      (8, 8, 150.0, 13.0, 12.5)),
    kind("V100-SXM2-32GB",  Family::Volta,     (32.0, 900.0, 125.0, None, None),                      (8, 8, 150.0, 13.0, 25.0)),
    kind("A100-SXM4-40GB",  Family::Ampere,    (40.0, 1555.0, 312.0, None, None),                     (8, 8, 300.0, 26.0, 200.0)),
    kind("A100-SXM4-80GB",  Family::Ampere,    (80.0, 2039.0, 312.0, None, None),                     (8, 8, 300.0, 26.0, 200.0)),
    kind("A100-PCIe-40GB",  Family::Ampere,    (40.0, 1555.0, 312.0, None, None),                     (8, 1, 26.0, 26.0, 100.0)),
    kind("A100-PCIe-80GB",  Family::Ampere,    (80.0, 1935.0, 312.0, None, None),                     (8, 1, 26.0, 26.0, 100.0)),
    kind("A800-SXM4-80GB",  Family::Ampere,    (80.0, 2039.0, 312.0, None, None),                     (8, 8, 200.0, 26.0, 200.0)),
    kind("A10G",            Family::Ampere,    (24.0, 600.0, 70.0, None, None),                       (8, 1, 26.0, 26.0, 12.5)),
    kind("H100-PCIe-80GB",  Family::Hopper,    (80.0, 2000.0, 756.0, Some(1513.0), None),             (8, 1, 52.0, 52.0, 200.0)),
    kind("H100-SXM5-80GB",  Family::Hopper,    (80.0, 3350.0, 989.4, Some(1979.0), None),             (8, 8, 450.0, 52.0, 400.0)),
    kind("H100-SXM5-96GB-HBM2e", Family::Hopper, (96.0, 2400.0, 989.4, Some(1979.0), None),           (8, 8, 450.0, 52.0, 400.0)),
    kind("H100-NVL-94GB",   Family::Hopper,    (94.0, 3900.0, 835.0, Some(1671.0), None),             (8, 2, 300.0, 52.0, 200.0)),
    kind("H800-SXM5-80GB",  Family::Hopper,    (80.0, 3350.0, 989.4, Some(1979.0), None),             (8, 8, 200.0, 52.0, 400.0)),
    kind("H200-SXM5-141GB", Family::Hopper,    (141.0, 4800.0, 989.4, Some(1979.0), None),            (8, 8, 450.0, 52.0, 400.0)),
    kind("H20-SXM-96GB",    Family::Hopper,    (96.0, 4000.0, 148.0, Some(296.0), None),              (8, 8, 450.0, 52.0, 400.0)),
    kind("GH200-96GB",      Family::Hopper,    (96.0, 4000.0, 989.4, Some(1979.0), None),             (4, 4, 150.0, 52.0, 200.0)),
    kind("GH200-144GB",     Family::Hopper,    (144.0, 4900.0, 989.4, Some(1979.0), None),            (4, 4, 150.0, 52.0, 200.0)),
    kind("B200-SXM-180GB",  Family::Blackwell, (180.0, 8000.0, 2250.0, Some(4500.0), Some(9000.0)),   (8, 8, 900.0, 52.0, 400.0)),
    kind("B300-SXM-288GB",  Family::Blackwell, (288.0, 8000.0, 2250.0, Some(4500.0), Some(13500.0)),  (8, 8, 900.0, 104.0, 800.0)),
    kind("GB200-NVL72",     Family::Blackwell, (186.0, 8000.0, 2500.0, Some(5000.0), Some(10000.0)),  (4, 72, 900.0, 104.0, 400.0)),
    kind("GB300-NVL72",     Family::Blackwell, (288.0, 8000.0, 2500.0, Some(5000.0), Some(15000.0)),  (4, 72, 900.0, 104.0, 800.0)),
    kind("VR200-NVL72",     Family::Rubin,     (288.0, 22000.0, 4000.0, Some(17500.0), Some(35000.0)), (4, 72, 1800.0, 104.0, 1600.0)),
    kind("L4",              Family::Ada,       (24.0, 300.0, 121.0, Some(242.0), None),               (8, 1, 26.0, 26.0, 12.5)),
    kind("L40S",            Family::Ada,       (48.0, 864.0, 362.0, Some(733.0), None),               (8, 1, 26.0, 26.0, 100.0)),
    kind("MI250X",          Family::Cdna2,     (128.0, 3280.0, 383.0, None, None),                    (4, 4, 350.0, 26.0, 100.0)),
    kind("MI300X",          Family::Cdna3,     (192.0, 5300.0, 1307.0, Some(2614.0), None),           (8, 8, 448.0, 52.0, 400.0)),
    kind("MI325X",          Family::Cdna3,     (256.0, 6000.0, 1307.0, Some(2614.0), None),           (8, 8, 448.0, 52.0, 400.0)),
    kind("MI355X",          Family::Cdna4,     (288.0, 8000.0, 2500.0, Some(5000.0), Some(10100.0)),  (8, 8, 535.5, 52.0, 400.0)),
];

/// Every kind, oldest first within a maker.
pub(crate) fn kinds() -> &'static [Kind] {
    KINDS
}

/// The generation that a GPU's name tells, whatever the rest of the name says.
pub(crate) fn family(name: &str) -> Family {
    const MARKS: &[(&str, Family)] = &[
        ("V100", Family::Volta),
        ("A100", Family::Ampere),
        ("A800", Family::Ampere),
        ("A10", Family::Ampere),
        ("A30", Family::Ampere),
        ("A40", Family::Ampere),
        ("A6000", Family::Ampere),
        ("GB200", Family::Blackwell),
        ("GB300", Family::Blackwell),
        ("B200", Family::Blackwell),
        ("B300", Family::Blackwell),
        ("B100", Family::Blackwell),
        ("VR200", Family::Rubin),
        ("GH200", Family::Hopper),
        ("H100", Family::Hopper),
        ("H200", Family::Hopper),
        ("H800", Family::Hopper),
        ("H20", Family::Hopper),
        ("L40", Family::Ada),
        ("L4", Family::Ada),
        ("MI250", Family::Cdna2),
        ("MI210", Family::Cdna2),
        ("MI300", Family::Cdna3),
        ("MI325", Family::Cdna3),
        ("MI35", Family::Cdna4),
    ];
    let name = name.to_ascii_uppercase();
    let mark = MARKS.iter().find(|(mark, _)| name.contains(mark));
    mark.map_or(Family::Unknown, |(_, family)| *family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_of_the_family_that_its_name_tells() {
        for kind in kinds() {
            assert_eq!(family(kind.name), kind.family, "{}", kind.name);
            assert!(kind.hbm_gbps > 0.0 && kind.bf16_tflops > 0.0 && kind.nic_gbps > 0.0);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = kinds().iter().map(|k| k.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
