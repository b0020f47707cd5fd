//! What GPUs do now, summed up: as much as a screen shows, and no more. The cluster's sums are always
//! there; nodes and jobs only those that are asked for, so that it stays small on a large cluster.

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, GpuIndex, Span, TaskId};
use utoipa::{IntoParams, ToSchema};

/// What is shown besides the cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct LoadQuery {
    /// These nodes with each of their GPUs; names with commas between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// These jobs; ids with commas between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<String>,
}

/// Nodes and jobs that are not there, and jobs without GPUs, are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Load {
    pub cluster: GpuLoad,
    #[serde(default)]
    pub nodes: Vec<NodeLoad>,
    #[serde(default)]
    pub jobs: Vec<JobLoad>,
}

/// Some GPUs together. Values older than ten seconds do not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuLoad {
    pub gpus: u32,
    /// Those that somebody has, whole or in part.
    pub used: u32,
    /// Those that have values.
    pub heard: u32,
    /// Means over those that tell, 0 to 1: of the time in which a kernel ran, and of the SMs at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub util: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<f32>,
    /// Of those that have values.
    pub mem_used: Bytes,
    pub mem: Bytes,
    /// Watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<f32>,
    /// The hottest, in °C.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temp: Option<i16>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeLoad {
    pub node: String,
    /// How old its values are; none if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
    /// Of all processors together, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f32>,
    pub load: GpuLoad,
    pub gpus: Vec<GpuCell>,
}

/// One GPU. Values older than ten seconds are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuCell {
    pub gpu: GpuIndex,
    /// How much of it somebody has, in thousandths.
    #[serde(default)]
    pub milli: u32,
    /// Something is wrong with it, and nothing is placed there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<TaskId>,
    /// Percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub util: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<u8>,
    /// Watts, and how much it may draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temp: Option<i16>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobLoad {
    pub id: TaskId,
    pub load: GpuLoad,
}
