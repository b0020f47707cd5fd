//! Where GPU-hours went. The sums themselves are `model::Report`.

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, GpuIndex, Rank, ReportBy, ReportLine, TaskId};
use utoipa::{IntoParams, ToSchema};

/// Which hours, and how they are summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct ReportQuery {
    /// From this day on (UTC): `2026-11-01`, or the last days up to today: `7d`. 30 days unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Up to the end of this day; today unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// What a line is: `day`, `team`, `user` or `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<ReportBy>,
    /// Only of this team and those under it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What a job made of what it had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobGoodput {
    #[schema(value_type = String)]
    pub id: TaskId,
    /// All its attempts, and of an array all its tasks. The name is empty. None for one task of an
    /// array: the ledger has one sum for all of them, which is in the answer for the whole array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<ReportLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Those of its GPUs that do hardly anything now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<IdleGpu>,
    /// Memory of its GPUs, what it holds and the most that was used of it in this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_mem: Option<MemUse>,
    /// Memory of its nodes that it asked for, 0 if it said nothing of it, and the most that it took on
    /// each of them in any attempt. None: they were not heard of, or have forgotten it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<MemUse>,
    /// And of their CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuUse>,
    /// What its owner could do about it, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IdleGpu {
    pub node: String,
    pub gpu: GpuIndex,
    /// Ranks of the part that has it: the first and the last.
    pub ranks: (Rank, Rank),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemUse {
    pub asked: Bytes,
    pub peak: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CpuUse {
    pub asked: u32,
    pub peak: f32,
}
