//! `tutti drain` and `tutti resume`.

use std::process::ExitCode;

use tutti_model::{JobState, NodeState, TaskId};
use tutti_wire::api::{JobDetail, NodeRow};
use tutti_wire::client::{Client, ClientError};

use crate::fail::Fail;
use crate::show::harmless;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct DrainArgs {
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Shown to everybody who asks
    #[arg(long, default_value = "")]
    reason: String,
    /// Ask what runs there to save, stop it, and start it again elsewhere; costs no retry
    #[arg(long)]
    evict: bool,
}

#[derive(clap::Args)]
pub struct ResumeArgs {
    /// Jobs (12, or 12_3 for one task of an array) or nodes, by their names
    #[arg(required = true, value_name = "ID|NODE")]
    which: Vec<String>,
}

pub fn drain(cluster: Option<&str>, args: DrainArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    for node in &args.nodes {
        client.drain(node, &args.reason, args.evict)?;
        let runs = if args.evict { "moves elsewhere" } else { "goes on" };
        terminal::complain(&format!("{node} takes nothing new; what runs there {runs}"));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn resume(cluster: Option<&str>, args: ResumeArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let mut first = None;
    // Every one is tried; the first failure decides the exit code.
    for which in &args.which {
        match resume_one(&client, which) {
            Ok(said) => terminal::complain(&said),
            Err(fail) => {
                let code = fail.report();
                first.get_or_insert(code);
            }
        }
    }
    Ok(first.unwrap_or(ExitCode::SUCCESS))
}

fn resume_one(client: &Client, which: &str) -> Result<String, Fail> {
    // What looks like a job is one: no node is named by a number alone.
    if let Ok(job) = which.parse::<TaskId>() {
        client.resume_job(job)?;
        return Ok(goes_on(job, &client.job(job)?));
    }
    let before = client.node(which).map_err(|e| not_found(which, e))?;
    client.resume(which).map_err(|e| not_found(which, e))?;
    Ok(resumed(&before, &client.node(which)?))
}

/// What was suspended may have been lost since, with its node.
fn goes_on(id: TaskId, job: &JobDetail) -> String {
    match job.row.state {
        JobState::Pending if job.held => {
            format!("{id} is still held: `tutti release {}` lets it start", id.job)
        }
        JobState::Pending => format!("{id} starts again when there is room"),
        JobState::Suspended => format!("{id} goes on when GPUs of its nodes are free"),
        state => format!("{id} is {}", state.as_str()),
    }
}

/// Whether the node is used now, which a resume alone does not decide.
fn resumed(before: &NodeRow, after: &NodeRow) -> String {
    let name = &after.name;
    let drained = before.drained_by.is_some();
    let was = if drained { "is no longer drained" } else { "was not drained" };
    match after.state {
        NodeState::Ready => {}
        NodeState::Lost => {
            return format!(
                "{name} {was}, but it is lost: nothing starts there until it is heard of"
            );
        }
        NodeState::Away => return format!("{name} {was}; its stream broke a moment ago"),
        NodeState::Cleaning => {
            return format!("{name} {was}; it is used once it has stopped what must not run there");
        }
        NodeState::Draining | NodeState::Drained => {
            let reason = after.drain_reason.clone().unwrap_or_default();
            return format!("{name} is drained again: {}", harmless(&reason));
        }
    }
    let used = if drained { "is used again" } else { "was not drained; it is in use" };
    match after.fenced.as_slice() {
        [] => format!("{name} {used}"),
        gpus => {
            let list: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            let (gpus, stay) = if list.len() == 1 { ("GPU", "stays") } else { ("GPUs", "stay") };
            let list = list.join(", ");
            format!(
                "{name} {used}, but {gpus} {list} {stay} fenced: `tutti doctor {name}` says why, \
                 `tutti nodes resolve {name}` ends it"
            )
        }
    }
}

fn not_found(which: &str, error: ClientError) -> Fail {
    match &error {
        ClientError::Api(told) if told.code == "not_found" => Fail::from(error).hint(format!(
            "'{which}' is no job, either: those are numbers, such as 12 or 12_3. `tutti nodes` \
                 and `tutti ps` list both"
        )),
        _ => Fail::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::nodes::tests::node;

    #[test]
    fn a_node_is_called_used_only_if_it_is() {
        let drained = node();
        let ready =
            || NodeRow { state: NodeState::Ready, drain_reason: None, drained_by: None, ..node() };
        assert_eq!(resumed(&drained, &ready()), "n1 is used again");
        assert_eq!(resumed(&ready(), &ready()), "n1 was not drained; it is in use");
        let lost = NodeRow { state: NodeState::Lost, ..ready() };
        assert!(resumed(&lost, &lost).starts_with("n1 was not drained, but it is lost"));
        assert!(resumed(&drained, &lost).starts_with("n1 is no longer drained, but it is lost"));
        let fenced = NodeRow { fenced: vec![1, 3], ..ready() };
        let told = resumed(&drained, &fenced);
        assert!(told.starts_with("n1 is used again, but GPUs 1, 3 stay fenced"), "{told}");
        assert!(told.contains("`tutti nodes resolve n1`"), "{told}");
    }
}
