//! What happened, as data: what `--json` prints and the summary is made from. Every figure was
//! measured in this run or comes from the API.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use tutti_model::{JobState, Restarts, TaskId};

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: String,
    /// Processes are real; GPUs are not.
    pub simulated_gpus: bool,
    pub cluster: ClusterFigures,
    pub gang: GangFigures,
    pub array: ArrayFigures,
    pub chain: ChainFigures,
    pub node_loss: NodeLossFigures,
    pub serving: ServingFigures,
    pub totals: Totals,
    /// From the first process to the last check.
    pub seconds: f64,
    /// With `--keep`: the data dir of the cluster that is still up.
    pub kept_in: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClusterFigures {
    pub nodes: u32,
    pub gpus_per_node: u32,
    pub gpu_model: String,
    pub up_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct GangFigures {
    pub job: TaskId,
    pub nodes: u32,
    pub ranks: u32,
    /// From submission until all ranks were seen running.
    pub start_seconds: f64,
    pub steps: u64,
    pub first_loss: f64,
    pub loss: f64,
    pub tokens_per_s: f64,
    pub exit_code: i32,
    pub waiting: WaitingFigures,
}

/// A job that did not fit beside the gang.
#[derive(Clone, Debug, Serialize)]
pub struct WaitingFigures {
    pub job: TaskId,
    pub note: String,
    pub waited_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ArrayFigures {
    pub job: TaskId,
    pub tasks: u64,
    /// From submission to the end of the last task.
    pub seconds: f64,
    pub tasks_per_second: f64,
    /// How many tasks ended with which code.
    pub exit_codes: BTreeMap<i32, u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ChainFigures {
    pub jobs: Vec<ChainJob>,
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct ChainJob {
    pub job: TaskId,
    pub name: String,
    pub after: Vec<String>,
    pub state: JobState,
    pub exit_code: Option<i32>,
    pub note: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeLossFigures {
    pub job: TaskId,
    pub ranks: u32,
    pub killed_node: String,
    pub killed_processes: usize,
    pub nodes_before: Vec<String>,
    pub nodes_after: Vec<String>,
    /// All from the moment of the kill.
    pub noticed_seconds: f64,
    pub running_again_seconds: f64,
    pub steps: u64,
    /// How far the killed attempt had come.
    pub reached_step: u64,
    /// What it had saved, and where the next one went on.
    pub resumed_after_step: u64,
    /// At the end: that of the undisturbed run.
    pub loss: f64,
    /// The loss until the node died, and from the checkpoint on, as small pictures.
    pub curves: [String; 2],
    pub attempts: u32,
    pub restarts: Restarts,
    pub exit_code: i32,
    /// From the restart of the node's agent until the node was ready.
    pub node_back_seconds: f64,
}

/// What was trained, asked through the router.
#[derive(Clone, Debug, Serialize)]
pub struct ServingFigures {
    pub endpoint: String,
    /// Of its replica.
    pub job: TaskId,
    /// From the command until a router had an answer of its health path.
    pub ready_seconds: f64,
    pub prompt: String,
    pub answer: String,
    pub answer_tokens: u32,
    pub answer_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Totals {
    pub jobs: u64,
    /// Tasks by state, as the controller counts them.
    pub tasks: BTreeMap<String, u64>,
    pub exit_codes: BTreeMap<i32, u64>,
    pub restarts: Restarts,
}
