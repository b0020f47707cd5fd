//! What a GPU did when it was told to do something whose answer is known: its memory filled and read
//! back, a matrix product, and a sum over all GPUs of the machine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bytes, Finding, GpuIndex};

/// One round of active checks on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ActiveReport {
    pub gpus: Vec<ActiveGpu>,
    pub all_reduce: ActiveSum,
    /// What follows from it.
    #[schema(value_type = Vec<crate::health::Finding>)]
    pub findings: Vec<Finding>,
    /// Imagined devices compute nothing: what is said here is imagined as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActiveGpu {
    pub gpu: GpuIndex,
    pub uuid: String,
    /// "h200".
    pub model: String,
    pub outcome: ActiveOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ActiveOutcome {
    /// It did all of it; whether the answers were right is in the figures.
    Done(ActiveFigures),
    /// Somebody uses it.
    Busy { why: String },
    /// The check could not be made. That says nothing about the GPU.
    NotRun { why: String },
    /// The GPU did not do it.
    Failed { what: ActivePart, why: String },
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivePart {
    Memory,
    Matmul,
    AllReduce,
}

impl ActivePart {
    /// The name of its finding.
    pub fn check(self) -> &'static str {
        match self {
            ActivePart::Memory => "check-memory",
            ActivePart::Matmul => "check-matmul",
            ActivePart::AllReduce => "check-allreduce",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ActiveFigures {
    /// So much memory was filled and read back.
    pub memory: Bytes,
    /// Words of it that came back as others, and the first of them in words.
    pub memory_wrong: Wrong,
    /// Bytes a second, read and written, by copies within the GPU.
    pub memory_rate: u64,
    /// What the memory's clock and width allow. None: the driver does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    pub matmul: ActiveProduct,
    /// On the tensor cores. None: it has none that are known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<ActiveProduct>,
    pub took_ms: u64,
}

/// A product of two matrices of small whole numbers, again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ActiveProduct {
    /// Rows and columns.
    pub size: u32,
    pub runs: u32,
    pub wrong: Wrong,
    /// Operations a second.
    pub rate: u64,
}

/// How much was not as it must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Wrong {
    pub count: u64,
    /// Where it begins, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub first: String,
}

impl Wrong {
    pub fn is_right(&self) -> bool {
        self.count == 0
    }
}

/// The sum over all GPUs that were checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "all_reduce", rename_all = "snake_case")]
pub enum ActiveSum {
    NotApplicable {
        why: String,
    },
    Done {
        gpus: Vec<GpuIndex>,
        /// Bytes a second over the slowest link of the ring, as NCCL's tests count them.
        rate: u64,
        /// By GPU: words of its result that are not the sum.
        wrong: Vec<(GpuIndex, Wrong)>,
        /// Without peer access, through the host's memory.
        through_host: bool,
    },
    /// It could not be tried. That says nothing about GPUs.
    NotRun {
        why: String,
    },
    Failed {
        gpu: Option<GpuIndex>,
        why: String,
    },
}

impl Default for ActiveSum {
    fn default() -> ActiveSum {
        ActiveSum::NotApplicable { why: "nothing was checked".to_owned() }
    }
}
