//! What `tutti bench gpu` found out about the GPUs of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{TaskId, Time};

/// What a product of matrices is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MatmulPrecision {
    Bf16,
    Fp8,
}

impl MatmulPrecision {
    pub const ALL: [MatmulPrecision; 2] = [MatmulPrecision::Bf16, MatmulPrecision::Fp8];

    pub fn as_str(self) -> &'static str {
        match self {
            MatmulPrecision::Bf16 => "bf16",
            MatmulPrecision::Fp8 => "fp8",
        }
    }
}

/// How fast an `m × k` and a `k × n` matrix are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct MatmulRate {
    pub precision: MatmulPrecision,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Operations a second.
    pub rate: u64,
}

/// What `tutti bench gpu` last found out about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuBench {
    pub at: Time,
    pub by: String,
    #[serde(flatten)]
    pub figures: GpuBenchFigures,
}

/// Of the GPUs of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuBenchFigures {
    /// The job that measured.
    pub job: TaskId,
    /// The driver's name for them: "NVIDIA H100 80GB HBM3".
    pub gpu: String,
    /// How many of the node were measured.
    pub gpus: u32,
    /// Operations a second in bf16, of each GPU at the shape that it is best at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul: Option<GpuRates>,
    /// The same in fp8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fp8: Option<GpuRates>,
    /// Bytes a second, read and written, by copies within a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<GpuRates>,
    /// Medians over the GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shapes: Vec<MatmulRate>,
    /// What is slower than its like, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<String>,
}

/// Over several GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuRates {
    pub median: u64,
    pub worst: u64,
}
