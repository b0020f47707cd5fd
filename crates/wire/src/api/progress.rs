//! How far jobs are.

use serde::{Deserialize, Serialize};
use tutti_model::{SavedPoint, Span, TaskId, Time};
use utoipa::ToSchema;

/// How far a job is, as its ranks say: what it has done as a whole, so the lowest of them counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobProgress {
    /// The lowest step of any rank. None where only `saved` is known, as after a restart of the
    /// controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_max: Option<u64>,
    /// Who is at the lowest step, and has been for the longest time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<u32>,
    /// The slowest rank, if it is behind the others by more than its report is older than theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u32>,
    /// Of the lowest rank that gives it; null when it is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Over the last few reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_s: Option<f64>,
    /// The usual time of a step of the slowest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Span>,
    /// Since the slowest rank did its last step; only while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
    /// No step for many times the usual; `age` says for how long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stalled: bool,
    /// How many ranks say how far they are.
    #[serde(default)]
    pub ranks: u32,
    /// The newest durable checkpoint: a restart goes on from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
}

/// The same in full, with its past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressDetail {
    pub id: TaskId,
    /// None if nothing was ever reported.
    pub progress: Option<JobProgress>,
    /// In rank order.
    pub ranks: Vec<RankRow>,
    /// Oldest first, over all attempts since the controller started, thinned out as it grows.
    pub history: Vec<ProgressPoint>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankRow {
    pub rank: u32,
    /// Where it runs, if the attempt is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub step: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Span>,
    /// Since its last step; only while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressPoint {
    pub at: Time,
    pub step: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}
