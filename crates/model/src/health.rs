//! What is wrong with a machine, and what is to be done about it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{GpuIndex, Time};

/// One thing that an agent, a check or an operator's fire drill found. A level: it stands until it
/// is no longer reported, or somebody resolves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = HealthFinding)]
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
    /// Most likely the program's own doing: its own retries pay for the restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_job: bool,
}

impl Finding {
    /// The GPU that nothing may be placed on while this stands.
    pub fn fences(&self) -> Option<GpuIndex> {
        self.gpu.filter(|_| self.action >= HealthAction::FenceGpu)
    }

    /// Whether anything new may start on the node while this stands.
    pub fn closes_node(&self) -> bool {
        self.action >= HealthAction::DrainNode
    }

    /// What follows from it, as a table of nodes says it.
    pub fn in_words(&self) -> &'static str {
        match self.action {
            HealthAction::RestartJob if self.by_job => {
                "left to its job, whose own fault it likely is"
            }
            action => action.in_words(),
        }
    }

    /// Other words for the same thing are no news; the same thing again is.
    pub fn same(&self, other: &Finding) -> bool {
        let what = |f: &Finding| (f.gpu, f.action, f.since, f.drill, f.by_job);
        self.key == other.key && self.check == other.check && what(self) == what(other)
    }
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

impl HealthAction {
    pub const ALL: [HealthAction; 6] = [
        HealthAction::Note,
        HealthAction::RestartJob,
        HealthAction::FenceGpu,
        HealthAction::ResetGpu,
        HealthAction::DrainNode,
        HealthAction::RebootNode,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            HealthAction::Note => "note",
            HealthAction::RestartJob => "restart_job",
            HealthAction::FenceGpu => "fence_gpu",
            HealthAction::ResetGpu => "reset_gpu",
            HealthAction::DrainNode => "drain_node",
            HealthAction::RebootNode => "reboot_node",
        }
    }

    /// As a table of nodes says it.
    pub fn in_words(self) -> &'static str {
        match self {
            HealthAction::Note => "note",
            HealthAction::RestartJob => "its job is restarted",
            HealthAction::FenceGpu => "fenced",
            HealthAction::ResetGpu => "fenced, needs a reset",
            HealthAction::DrainNode => "asks for a drain",
            HealthAction::RebootNode => "needs a reboot",
        }
    }
}

impl std::str::FromStr for HealthAction {
    type Err = BadAction;

    fn from_str(text: &str) -> Result<HealthAction, BadAction> {
        let known = HealthAction::ALL.into_iter().find(|a| a.as_str() == text.replace('-', "_"));
        known.ok_or_else(|| BadAction(text.to_owned()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no action: note, restart_job, fence_gpu, reset_gpu, drain_node or reboot_node")]
pub struct BadAction(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_have_the_names_that_are_stored() {
        for action in HealthAction::ALL {
            assert_eq!(action.as_str().parse(), Ok(action));
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
        }
        assert_eq!("fence-gpu".parse(), Ok(HealthAction::FenceGpu));
        assert!("explode".parse::<HealthAction>().is_err());
    }

    #[test]
    fn nothing_is_said_to_be_restarted_that_is_not() {
        let finding = |by_job| Finding {
            key: "xid-31/gpu0".into(),
            check: "xid".into(),
            gpu: Some(GpuIndex(0)),
            action: HealthAction::RestartJob,
            text: String::new(),
            since: Time(0),
            drill: false,
            by_job,
        };
        assert_eq!(finding(false).in_words(), "its job is restarted");
        assert!(finding(true).in_words().starts_with("left to its job"));
    }
}
