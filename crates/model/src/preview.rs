//! What another policy would do to the cluster as it is now.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BadPolicy, ReservationOverlap, TaskId};

/// What would happen at once. What would come of it later depends on what else happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PolicyEffects {
    /// Waiting tasks that would start, and would not under the running policy.
    pub starts: Vec<TaskEffect>,
    /// Waiting tasks that would start under the running policy, and would not any more.
    pub waits: Vec<TaskEffect>,
    /// Running tasks that would be stopped, suspended or made smaller for others.
    pub preempted: Vec<PreemptedTask>,
    #[serde(flatten)]
    pub notes: PolicyNotes,
}

/// What somebody who changes the policy should know, before and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PolicyNotes {
    /// Waiting jobs that could start under the old policy and never can under the new one, and why.
    pub never: Vec<NeverStarts>,
    /// Reservations, new or changed, that begin while something still runs there.
    pub overlaps: Vec<OverlappedReservation>,
    /// What is allowed, but hardly meant: a guarantee of GPUs that are not there, a reservation of a
    /// node that nobody has.
    pub warnings: Vec<BadPolicy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskEffect {
    pub task: TaskId,
    pub name: String,
    pub user: String,
    pub team: String,
    pub gpus: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreemptedTask {
    #[serde(flatten)]
    pub task: TaskEffect,
    /// For which task.
    pub for_task: TaskId,
    pub how: PreemptedHow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreemptedHow {
    /// Stopped, and put back into the queue.
    Stopped,
    Suspended,
    /// An elastic job goes on with fewer nodes.
    Shrunk,
}

impl PreemptedHow {
    pub fn as_str(self) -> &'static str {
        match self {
            PreemptedHow::Stopped => "stopped",
            PreemptedHow::Suspended => "suspended",
            PreemptedHow::Shrunk => "made smaller",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NeverStarts {
    #[serde(flatten)]
    pub task: TaskEffect,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverlappedReservation {
    pub reservation: String,
    pub by: Vec<ReservationOverlap>,
}
