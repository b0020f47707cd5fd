//! On what it runs.

use serde::{Deserialize, Serialize};

/// One GPU. Peaks are dense figures of the data sheet; `matmul_tflops` and `copy_gbps` were measured, where they are
/// known, and stand in for what the profile of the GPU's kind would say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// As in the catalogue: `H100-SXM5-80GB`.
    pub name: String,
    /// As it is sold, which is in units of 2³⁰ bytes.
    pub memory_gb: f64,
    pub hbm_gbps: f64,
    pub bf16_tflops: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8_tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp4_tflops: Option<f64>,
    /// The best bf16 GEMM that was measured on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul_tflops: Option<f64>,
    /// Memory bandwidth that a copy reached, read and written bytes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gbps: Option<f64>,
}

/// Equal nodes and what connects them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// As in the catalogue, a file's name, or the running cluster's.
    pub name: String,
    pub gpu: Gpu,
    pub nodes: u32,
    pub gpus_per_node: u32,
    /// GPUs that reach each other over NVLink or its like. May span nodes (72 in an NVL72), may be 1.
    pub island: u32,
    /// GB/s per GPU and direction inside of an island.
    pub island_gbps: f64,
    /// GB/s per GPU and direction inside of a node where islands end (PCIe).
    pub pcie_gbps: f64,
    /// Gbit/s per GPU between nodes.
    pub nic_gbps: f64,
    /// All-reduce bus bandwidth (GB/s) that was measured inside of an island and between nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub island_busbw: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_busbw: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_gpu_hour: Option<f64>,
}

impl Cluster {
    pub fn gpus(&self) -> u32 {
        self.nodes.saturating_mul(self.gpus_per_node)
    }
}

/// How good the software is, for what the same layout costs more under one trainer than under another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stack {
    /// Fused kernels, flash attention, CUDA graphs, overlapped communication: what a careful user of Megatron-Core has
    /// since the spring of 2026.
    #[default]
    Current,
    /// The same but for experts, which wait for the host and for one another (Megatron-Core of 2025).
    Recent,
    /// Fused kernels and flash attention, less overlap, launches from the host (Megatron-Core and NeMo of 2023 and 2024).
    Fused,
    /// Attention is written out to memory, little is fused, nothing overlaps (Megatron of 2021 and 2022).
    Unfused,
    /// PyTorch FSDP without compilation.
    Fsdp,
    /// PyTorch with `torch.compile`, and FSDP where there are several GPUs.
    Compiled,
    /// The same with the attention of 2023 (PyTorch of 2024 and 2025).
    Compiled2024,
}
