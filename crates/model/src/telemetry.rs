//! What devices and machines do, once a second. Never in the journal: it is kept in rings of fixed
//! size, and only what follows from it becomes an event.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bytes, GpuIndex, TaskId, Time};

/// Everything one agent saw at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeSample {
    pub at: Time,
    pub gpus: Vec<GpuSample>,
    pub host: HostSample,
    /// Memory on GPUs by process, with the task that it belongs to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<GpuProcess>,
    /// What tasks take of the machine besides, as of some seconds ago.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSample>,
}

/// The processes of one task on a machine, together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskSample {
    pub task: TaskId,
    /// Processors that they keep busy.
    pub cpus: f32,
    /// Memory that they have. What several share is counted once.
    pub mem: Bytes,
}

/// None: the device does not tell. Counters count since the driver was loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuSample {
    pub index: GpuIndex,
    /// Percent of the last moment in which any kernel ran, and in which memory was busy.
    pub util: Option<u8>,
    pub mem_util: Option<u8>,
    pub mem_used: Option<Bytes>,
    pub mem_free: Option<Bytes>,
    pub power_mw: Option<u32>,
    pub power_limit_mw: Option<u32>,
    pub energy_mj: Option<u64>,
    pub temp: Option<i16>,
    pub mem_temp: Option<i16>,
    pub sm_clock: Option<u32>,
    pub mem_clock: Option<u32>,
    /// NVML's bits of why clocks are held down.
    pub throttle: Option<u64>,
    /// Shares of time, 0 to 1: engine, SMs, warps' slots, tensor cores, memory interface.
    pub engine_active: Option<f32>,
    pub sm_active: Option<f32>,
    pub occupancy: Option<f32>,
    pub tensor_active: Option<f32>,
    pub dram_active: Option<f32>,
    /// Bytes per second.
    pub pcie_tx: Option<u64>,
    pub pcie_rx: Option<u64>,
    pub nvlink_tx: Option<u64>,
    pub nvlink_rx: Option<u64>,
    pub pcie_replays: Option<u64>,
    pub nvlink_errors: Option<u64>,
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    pub remapped_corrected: Option<u32>,
    pub remapped_uncorrected: Option<u32>,
    pub remap_pending: Option<bool>,
    pub remap_failed: Option<bool>,
    /// The newest XID, as an event said.
    pub xid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HostSample {
    /// Of all processors together, 0 to 1.
    pub cpu: f32,
    pub load1: f32,
    pub mem_total: Bytes,
    pub mem_available: Bytes,
    /// Of the file system with the agent's data.
    pub disk_total: Bytes,
    pub disk_free: Bytes,
    /// Bytes per second.
    pub disk_read: u64,
    pub disk_write: u64,
    pub net_rx: u64,
    pub net_tx: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicSample>,
}

/// One port of an RDMA adapter. Traffic in bytes per second, errors since the driver was loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NicSample {
    /// "mlx5_0:1".
    pub port: String,
    pub up: bool,
    pub rx: u64,
    pub tx: u64,
    pub symbol_errors: u64,
    pub link_downed: u64,
    pub rcv_errors: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuProcess {
    pub gpu: GpuIndex,
    pub pid: u32,
    pub mem: Bytes,
    /// None: it is nobody's that tutti started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
}
