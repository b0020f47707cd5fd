//! What nodes and GPUs do, now and before.

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, GpuIndex, GpuSample, Span, TaskId, Time};
use utoipa::{IntoParams, ToSchema};

/// Which curves, and of when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct TelemetryQuery {
    /// One node; without it all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A GPU's index, or `none` for the host alone; without it the host and all GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Names with commas between: `sm,power`; without it all. Of GPUs: util, sm, tensor, dram, temp,
    /// throttled, mem, power, clock, pcie, nvlink. Of hosts: cpu, mem, disk, load, disk_read,
    /// disk_write, net_rx, net_tx, ib_rx, ib_tx.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// How long ago the curves begin: `15m`, `2d`. Ten minutes, unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Span>,
    /// How long ago they end; now, unless told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Span>,
    /// From point to point: a second where seconds are kept (the last hour), else a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Span>,
}

/// Curves over the same points in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TelemetryCurves {
    /// When the first point begins.
    pub from: Time,
    pub step: Span,
    pub curves: Vec<TelemetryCurve>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TelemetryCurve {
    pub node: String,
    /// None: the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuIndex>,
    pub series: String,
    /// "W", "B", "B/s", "MHz", "°C", "share" (0 to 1).
    pub unit: String,
    /// Null where nothing is known.
    pub mean: Vec<Option<f32>>,
    /// The largest within each step; empty where a step is one second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max: Vec<Option<f32>>,
}

/// A GPU and what it did last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuRow {
    pub node: String,
    pub gpu: GpuIndex,
    pub model: String,
    pub uuid: String,
    pub mem: Bytes,
    /// It is imagined, and so are its values.
    #[serde(default)]
    pub simulated: bool,
    /// Who has it, whole or in part.
    pub jobs: Vec<TaskId>,
    /// What is wrong with it: nothing is placed on it while this stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<String>,
    /// None: nothing was heard of it since the controller started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<GpuSample>,
    /// How old the sample is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct GpuQuery {
    /// One node; without it all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What a task's GPUs did in this attempt. Which GPUs a task had is not known once it is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobTelemetry {
    pub id: TaskId,
    /// When the attempt began; none if the task has no GPUs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Of all its GPUs.
    pub total: GpuFigures,
    pub gpus: Vec<JobGpu>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobGpu {
    pub node: String,
    pub gpu: GpuIndex,
    #[serde(flatten)]
    pub figures: GpuFigures,
}

/// Means over time. None: the device does not tell, or nothing was heard yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuFigures {
    /// Shares of time, 0 to 1; over several GPUs the mean.
    pub util: Option<f32>,
    pub sm: Option<f32>,
    pub tensor: Option<f32>,
    pub dram: Option<f32>,
    /// Share of the time in which heat or the hardware's own brakes held the clocks down.
    pub throttled: Option<f32>,
    /// Over several GPUs the sum.
    pub mem: Option<Bytes>,
    /// The largest of the time, summed over several GPUs.
    pub mem_max: Option<Bytes>,
    /// Watts; over several GPUs the sum.
    pub power: Option<f32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams, ToSchema)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct MetricsQuery {
    /// Only these nodes, with commas between; the cluster's own values are left out then, so that
    /// several scrapes can share a large cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
}
