//! Nodes as they are sold, and list prices.

use super::gpus::kinds;
use crate::Cluster;

/// What one GPU costs an hour by a public list, without any discount.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ListPrice {
    pub dollars: f64,
    pub year: u16,
    /// Whose list.
    pub of: &'static str,
}

pub(super) struct Machine {
    pub name: &'static str,
    pub also: &'static [&'static str],
    kind: &'static str,
    /// Nodes that are sold together: a rack of NVL72 has 18.
    pub nodes: u32,
    pub gpus_per_node: u32,
    nic_gbps: f64,
    pub price: Option<ListPrice>,
}

impl Machine {
    pub(super) fn cluster(&self) -> Cluster {
        let kind = kinds().iter().find(|k| k.name == self.kind);
        let mut cluster =
            kind.expect("a test says that every machine has a kind").cluster(self.nodes);
        cluster.name = self.name.to_owned();
        cluster.gpus_per_node = self.gpus_per_node;
        cluster.nic_gbps = self.nic_gbps;
        cluster.price_per_gpu_hour = self.price.map(|p| p.dollars);
        cluster
    }
}

const fn price(dollars: f64, of: &'static str) -> Option<ListPrice> {
    Some(ListPrice { dollars, year: 2025, of })
}

const fn node(
    name: &'static str,
    also: &'static [&'static str],
    kind: &'static str,
    nic_gbps: f64,
    price: Option<ListPrice>,
) -> Machine {
    Machine { name, also, kind, nodes: 1, gpus_per_node: 8, nic_gbps, price }
}

/// A rack of 72 GPUs on one NVLink, in 18 trays of 4.
const fn rack(
    name: &'static str,
    also: &'static [&'static str],
    kind: &'static str,
    nic_gbps: f64,
    price: Option<ListPrice>,
) -> Machine {
    Machine { name, also, kind, nodes: 18, gpus_per_node: 4, nic_gbps, price }
}

const AWS: &str = "AWS on demand";
const AWS_BLOCK: &str = "AWS capacity block";
const GOOGLE: &str = "Google Cloud on demand";
const AZURE: &str = "Azure pay as you go";
const OCI: &str = "Oracle Cloud pay as you go";
const RENTED: &str = "GPU clouds on demand";

#[rustfmt::skip]
pub(super) const MACHINES: &[Machine] = &[
    node("dgx-a100", &["dgx-a100-80gb", "hgx-a100"], "A100-SXM4-80GB", 200.0, price(1.79, RENTED)),
    node("dgx-a100-40gb", &[], "A100-SXM4-40GB", 200.0, price(1.29, RENTED)),
    node("dgx-h100", &["hgx-h100"], "H100-SXM5-80GB", 400.0, price(2.99, RENTED)),
    node("dgx-h200", &["hgx-h200"], "H200-SXM5-141GB", 400.0, price(3.79, RENTED)),
    node("dgx-b200", &["hgx-b200"], "B200-SXM-180GB", 400.0, price(4.99, RENTED)),
    node("dgx-b300", &["hgx-b300"], "B300-SXM-288GB", 800.0, None),
    rack("gb200-nvl72", &["dgx-gb200", "nvl72", "dgx-gb200-nvl72"], "GB200-NVL72", 400.0, price(10.50, RENTED)),
    rack("gb300-nvl72", &["dgx-gb300", "dgx-gb300-nvl72"], "GB300-NVL72", 800.0, None),

    node("p4d.24xlarge", &["p4d", "aws-p4d"], "A100-SXM4-40GB", 50.0, price(2.74, AWS)),
    node("p4de.24xlarge", &["p4de", "aws-p4de"], "A100-SXM4-80GB", 50.0, price(3.43, AWS)),
    node("p5.48xlarge", &["p5", "aws-p5"], "H100-SXM5-80GB", 400.0, price(6.88, AWS)),
    node("p5e.48xlarge", &["p5e", "aws-p5e"], "H200-SXM5-141GB", 400.0, price(4.98, AWS_BLOCK)),
    node("p5en.48xlarge", &["p5en", "aws-p5en"], "H200-SXM5-141GB", 400.0, price(7.91, AWS)),
    node("p6-b200.48xlarge", &["p6", "p6-b200", "aws-p6"], "B200-SXM-180GB", 400.0, price(14.24, AWS)),
    node("p6-b300.48xlarge", &["p6-b300"], "B300-SXM-288GB", 800.0, price(17.80, AWS)),
    rack("u-p6e-gb200x72", &["p6e", "p6e-gb200", "p6e-gb200.36xlarge"], "GB200-NVL72", 400.0, price(10.58, AWS_BLOCK)),

    node("a2-highgpu-8g", &["google-a2"], "A100-SXM4-40GB", 12.5, price(3.67, GOOGLE)),
    node("a2-ultragpu-8g", &["a2-ultra"], "A100-SXM4-80GB", 12.5, price(5.07, GOOGLE)),
    node("a3-highgpu-8g", &["a3", "a3-high", "google-a3"], "H100-SXM5-80GB", 100.0, price(11.06, GOOGLE)),
    node("a3-megagpu-8g", &["a3-mega", "google-a3-mega"], "H100-SXM5-80GB", 200.0, price(11.68, GOOGLE)),
    node("a3-ultragpu-8g", &["a3-ultra", "google-a3-ultra"], "H200-SXM5-141GB", 400.0, price(10.60, GOOGLE)),
    node("a4-highgpu-8g", &["a4", "a4-high", "google-a4"], "B200-SXM-180GB", 400.0, price(16.11, GOOGLE)),
    rack("a4x-highgpu-4g", &["a4x", "google-a4x"], "GB200-NVL72", 400.0, None),

    node("nd96asr-v4", &["Standard_ND96asr_v4", "nd-a100-v4", "ndv4"], "A100-SXM4-40GB", 200.0, price(3.40, AZURE)),
    node("nd96amsr-a100-v4", &["Standard_ND96amsr_A100_v4", "ndm-a100-v4"], "A100-SXM4-80GB", 200.0, price(4.10, AZURE)),
    node("nd96isr-h100-v5", &["Standard_ND96isr_H100_v5", "nd-h100-v5", "ndv5"], "H100-SXM5-80GB", 400.0, price(12.29, AZURE)),
    node("nd96isr-h200-v5", &["Standard_ND96isr_H200_v5", "nd-h200-v5"], "H200-SXM5-141GB", 400.0, price(10.60, AZURE)),
    node("nd96isr-mi300x-v5", &["Standard_ND96isr_MI300X_v5", "nd-mi300x-v5"], "MI300X", 400.0, price(6.00, AZURE)),
    rack("nd128isr-gb200-v6", &["Standard_ND128isr_NDR_GB200_v6", "nd-gb200-v6"], "GB200-NVL72", 400.0, price(27.04, AZURE)),

    node("bm.gpu.a100-v2.8", &["oci-a100"], "A100-SXM4-80GB", 200.0, price(4.00, OCI)),
    node("bm.gpu.h100.8", &["oci-h100"], "H100-SXM5-80GB", 400.0, price(10.00, OCI)),
    node("bm.gpu.mi300x.8", &["oci-mi300x"], "MI300X", 400.0, price(6.00, OCI)),
];

/// By the kind of GPU alone, as GPU clouds rent it.
pub(super) fn gpu_price(kind: &str) -> Option<ListPrice> {
    let dollars = match kind {
        "V100-SXM2-16GB" | "V100-SXM2-32GB" => 0.55,
        "A10G" => 0.75,
        "L4" => 0.71,
        "L40S" => 1.55,
        "A100-SXM4-40GB" | "A100-PCIe-40GB" => 1.29,
        "A100-SXM4-80GB" | "A100-PCIe-80GB" => 1.79,
        "H100-PCIe-80GB" => 2.49,
        "H100-SXM5-80GB" => 2.99,
        "H100-NVL-94GB" => 2.79,
        "GH200-96GB" => 1.49,
        "H200-SXM5-141GB" => 3.79,
        "B200-SXM-180GB" => 4.99,
        "GB200-NVL72" => 10.50,
        "MI300X" => 2.49,
        _ => return None,
    };
    price(dollars, RENTED)
}
