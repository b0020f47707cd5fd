//! How a task ended, and why.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Restarts;
use crate::{GpuIndex, JobId, NodeId, Rank, Span, Time, WatchRule};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub outcome: Outcome,
    /// 128 + signal when killed; none if it never ran.
    pub exit_code: Option<i32>,
    pub reason: EndReason,
    pub started_at: Option<Time>,
    pub ended_at: Time,
    pub attempts: u32,
    pub restarts: Restarts,
    /// Where the last attempt ran, in rank order; its logs are there.
    pub nodes: Vec<NodeId>,
    pub gpus: u32,
    /// How long it was suspended in all, known once the end is applied.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub away: Span,
    /// How long it waited between its attempts in all, known once the end is applied.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub between: Span,
    /// How long the last attempt lasted, known once the end is applied. None if nothing was ever
    /// placed, and in snapshots from before this was kept.
    #[serde(default)]
    pub last_ran: Option<Span>,
    /// Bytes of its output that were not kept, over all attempts, because a node's disk had no room;
    /// known once the end is applied.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_dropped: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum EndReason {
    /// Every rank returned 0.
    Finished,
    /// This rank was the first to fail.
    RankFailed {
        rank: Rank,
        signal: Option<i32>,
        /// What its GPUs' driver said meanwhile, which is most likely the program's own doing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saw: Option<String>,
    },
    LaunchFailed {
        node: NodeId,
        error: String,
        /// It had run before.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ran: bool,
    },
    TimeLimit,
    Cancelled {
        by: String,
    },
    /// A dependency can no longer be met.
    DependencyUnmet {
        job: JobId,
    },
    /// Nodes failed under it more often than its budget allows.
    NodeFailures {
        last: NodeId,
    },
    Preemptions,
    /// Ranks said that this one was dead or hung.
    PeerFault {
        rank: Rank,
        node: NodeId,
        op: String,
        why: String,
    },
    Stalled {
        rank: Option<Rank>,
        idle: Span,
    },
    /// Something was wrong with this node or GPU more often than its budget allows.
    Unhealthy {
        node: NodeId,
        gpu: Option<GpuIndex>,
        text: String,
    },
    /// An alert asked for it, or asked once too often for a new start.
    Watched {
        rule: WatchRule,
        text: String,
    },
    /// It failed so often without getting anywhere that it is not the nodes.
    CrashLoop {
        attempts: u32,
        /// Where, if on several nodes.
        nodes: Vec<NodeId>,
        #[schema(no_recursion)]
        last: Box<EndReason>,
    },
}
