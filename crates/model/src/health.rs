//! What is wrong with a machine, and what is to be done about it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{GpuIndex, Time};

/// One thing that an agent, a check or an operator's fire drill found. A level: it stands until it
/// is no longer reported, or somebody resolves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Names it among the findings of its node: "xid-79/gpu3", "disk".
    pub key: String,
    /// Which check: "xid", "ecc", "row-remap", "bus", "throttle", "memory-held".
    pub check: String,
    /// None: the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuIndex>,
    pub action: HealthAction,
    /// A sentence for people: what was seen, with figures.
    pub text: String,
    /// When it was first seen, by the node's clock.
    pub since: Time,
    /// An operator put it there to see what happens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drill: bool,
}

/// From the mildest to the hardest. Each includes the ones that make sense before it: whoever must
/// reset a GPU fences it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthAction {
    /// Shown, nothing else.
    Note,
    /// The job on it is restarted; the device stays in use.
    RestartJob,
    /// Nothing new on this GPU; the job on it is restarted elsewhere.
    FenceGpu,
    /// Fenced, and an operator (or the agent between jobs) must reset the GPU.
    ResetGpu,
    /// Nothing new on the node; what runs goes on.
    DrainNode,
    /// What runs on the node is restarted elsewhere, and the node must be rebooted.
    RebootNode,
}
