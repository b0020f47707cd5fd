//! How a job ended, in one short sentence.

use tutti_model::{EndReason, Ended, State, StopCause};

use super::job::{launch_failed, stopped_before, unhealthy};

/// How it ended, and what is missing of its output.
pub fn end_note(state: &State, ended: &Ended) -> String {
    let why = reason(state, ended);
    match (ended.output_dropped, why.is_empty()) {
        (0, _) => why,
        (bytes, true) => dropped_words(bytes),
        (bytes, false) => format!("{why}; {}", dropped_words(bytes)),
    }
}

/// For a job whose log does not have everything.
pub fn dropped_words(bytes: u64) -> String {
    format!("{bytes} bytes of its output were dropped: the node's disk had no room")
}

fn reason(state: &State, ended: &Ended) -> String {
    let code = ended.exit_code.map_or_else(String::new, |c| format!(" with exit code {c}"));
    match &ended.reason {
        EndReason::Finished => String::new(),
        EndReason::RankFailed { rank, signal, saw } => {
            let how = signal.map_or_else(
                || format!("ended{code}"),
                |signal| format!("was killed by signal {signal}"),
            );
            format!("rank {rank} {how}{}", meanwhile(saw.as_deref()))
        }
        EndReason::LaunchFailed { node, error, ran } => launch_failed(state, *node, error, *ran),
        EndReason::TimeLimit => "ran out of its time limit".to_owned(),
        EndReason::Cancelled { by } => format!("cancelled by {by}"),
        EndReason::DependencyUnmet { job } => {
            format!("job {job}, which it waited for, ended the other way")
        }
        EndReason::NodeFailures { last } => {
            format!("nodes failed under it too often, {} last", state.node_name(*last))
        }
        EndReason::Preemptions => "preempted too often".to_owned(),
        EndReason::PeerFault { rank, node, op, why } => {
            let (node, what) = (state.node_name(*node), fault_words(op, why));
            format!("rank {rank} on {node} was dead or hung{what}")
        }
        EndReason::Stalled { rank: Some(rank), idle } => {
            format!("no step for {}, rank {rank} was behind", idle.short())
        }
        EndReason::Stalled { rank: None, idle } => format!("no step for {}", idle.short()),
        EndReason::Unhealthy { node, gpu, text } => {
            format!("{} was broken too often: {text}", unhealthy(state, *node, *gpu))
        }
        EndReason::Watched { rule, text } => {
            format!("stopped by the rule '{}': {text}", rule.as_str())
        }
        EndReason::CrashLoop { attempts, nodes, last } => {
            let names: Vec<String> = nodes.iter().map(|n| state.node_name(*n)).collect();
            let on = match names.as_slice() {
                [] => String::new(),
                names => format!(", on {}", names.join(", ")),
            };
            let last = reason(state, &Ended { reason: (**last).clone(), ..ended.clone() });
            let times = tutti_model::count((*attempts).into(), "time");
            format!("failed {times} in a row and got nowhere{on}; the last time {last}")
        }
    }
}

/// What the driver of its GPUs said while it ran.
pub fn meanwhile(saw: Option<&str>) -> String {
    saw.map_or_else(String::new, |saw| format!("; meanwhile {saw}"))
}

/// Why an attempt had to go, once it has.
pub fn cause_words(state: &State, why: &StopCause) -> String {
    stopped_before(state, why)
}

/// What the accuser waited for, and what it saw.
pub fn fault_words(op: &str, why: &str) -> String {
    match (op, why) {
        ("", "") => String::new(),
        (op, "") => format!(" ({op})"),
        ("", why) => format!(" ({why})"),
        (op, why) => format!(" ({op}: {why})"),
    }
}
