//! How a job ended, in one short sentence.

use tutti_model::{EndReason, Ended, State};

pub fn end_note(state: &State, ended: &Ended) -> String {
    let code = ended.exit_code.map_or_else(String::new, |c| format!(" with exit code {c}"));
    match &ended.reason {
        EndReason::Finished => String::new(),
        EndReason::RankFailed { rank, signal: Some(signal) } => {
            format!("rank {rank} was killed by signal {signal}")
        }
        EndReason::RankFailed { rank, signal: None } => format!("rank {rank} ended{code}"),
        EndReason::LaunchFailed { node, error } => {
            format!("did not start on {}: {error}", state.node_name(*node))
        }
        EndReason::TimeLimit => "ran out of its time limit".to_owned(),
        EndReason::Cancelled { by } => format!("cancelled by {by}"),
        EndReason::DependencyUnmet { job } => {
            format!("job {job}, which it waited for, ended the other way")
        }
        EndReason::NodeFailures { last } => {
            format!("nodes failed under it too often, {} last", state.node_name(*last))
        }
        EndReason::Preemptions => "preempted too often".to_owned(),
    }
}
