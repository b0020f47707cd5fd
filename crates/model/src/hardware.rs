//! What a machine is made of, as its agent found it: devices, how they are joined, and where they
//! hang. The scheduler takes islands from it, launchers the nearest adapters, isolation the device
//! files.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bytes, GpuIndex};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Hardware {
    /// "580.159.04", of the vendor whose devices are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The newest CUDA (or ROCm) that the driver can run: "13.0".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    pub gpus: Vec<GpuFacts>,
    /// How pairs of GPUs are joined; a pair that is not named goes through the processors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLink>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaNode>,
    /// Device files that every job with a GPU needs besides its own: "/dev/nvidiactl".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_files: Vec<String>,
    /// What should be there and is not, or does not answer. The rest of the machine is offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<HardwareProblem>,
}

/// One GPU, or one MIG instance of a GPU, beyond what the scheduler needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuFacts {
    pub index: GpuIndex,
    pub vendor: Vendor,
    /// The driver's name for it: "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// "0000:1b:00.0", in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u16>,
    /// Processors near it, as "0-47,96-143"; imagined if the GPU is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// What a job must open to use it: "/dev/nvidia0", "/dev/dri/renderD128".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_files: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    #[default]
    Nvidia,
    Amd,
    Intel,
    /// Imagined.
    Simulated,
}

/// Something about a machine's devices that its operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HardwareProblem {
    pub kind: HardwareProblemKind,
    /// Of the device that it is about: "0000:1b:00.0".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// In words, with the way out.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HardwareProblemKind {
    /// The machine has this GPU, but it does not answer its driver.
    Missing,
    /// The driver as a whole does not answer, or there is none for a GPU that is there.
    Driver,
    /// The GPU hangs on NVSwitches but has not joined their fabric.
    Fabric,
    /// MIG is on and the operator has made no instances, so the GPU is not offered.
    NoInstances,
    /// Something that should be readable was not.
    Unread,
}

/// A slice of a GPU that the operator has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mig {
    /// Of the whole GPU.
    pub parent_uuid: String,
    /// Which GPU of the machine, as the driver counts them.
    pub parent: u16,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// "1g.18gb".
    pub profile: String,
}

/// Whether the GPU has joined the NVLink fabric of its machine or rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fabric {
    pub state: FabricState,
    /// GPUs with the same cluster and clique can reach each other over NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    NotSupported,
    NotStarted,
    InProgress,
    Completed,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuLink {
    pub a: GpuIndex,
    pub b: GpuIndex,
    pub kind: LinkKind,
}

/// From the nearest to the farthest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// So many NVLinks, straight or through a switch.
    Nvlink {
        links: u16,
    },
    /// AMD's Infinity Fabric.
    Xgmi,
    /// At most one PCIe bridge.
    OneSwitch,
    /// Several bridges, not the host's.
    SwitchTree,
    HostBridge,
    /// The same NUMA node, but between host bridges.
    SameNuma,
    /// Across processors.
    System,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nic {
    /// "mlx5_0".
    pub name: String,
    pub port: u16,
    pub infiniband: bool,
    pub up: bool,
    /// Gigabits per second; 0 if it is not known.
    pub gbits: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u16>,
    /// GPUs that no other adapter is nearer to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nearest: Vec<GpuIndex>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NumaNode {
    pub id: u16,
    pub cpus: String,
    pub mem: Bytes,
}
