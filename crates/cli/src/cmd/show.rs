//! `tutti show`: of a job, or of a node.

use std::process::ExitCode;

use tutti_model::{JobState, TaskId};
use tutti_wire::api::{JobQuery, JobRow};
use tutti_wire::client::{Client, ClientError};

use super::ps::tasks_of;
use crate::fail::Fail;
use crate::show::node::NodePage;
use crate::show::{gpus, job, table::terminal_width};
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct ShowArgs {
    /// A job: 12, or 12_3 for one task of an array; or a node by its name
    #[arg(value_name = "ID|NODE", value_parser = about)]
    about: About,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    Job(TaskId),
    Node(String),
}

/// What begins as a number is a job's id, or a mistyped one; everything else is a name.
fn about(text: &str) -> Result<About, String> {
    match text.parse() {
        Ok(id) => Ok(About::Job(id)),
        Err(e) if text.is_empty() || text.bytes().all(|b| b.is_ascii_digit() || b == b'_') => {
            Err(format!("{e}"))
        }
        Err(_) => Ok(About::Node(text.to_owned())),
    }
}

pub fn run(cluster: Option<&str>, args: ShowArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if args.json {
        match &args.about {
            About::Job(id) => terminal::json(&client.job(*id)?)?,
            About::Node(name) => {
                terminal::json(&client.node_detail(name).map_err(no_such_node)?)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = || match &args.about {
        About::Job(id) => of_job(&client, *id),
        About::Node(name) => of_node(&client, name),
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}

fn of_job(client: &Client, id: TaskId) -> Result<String, Fail> {
    let detail = client.job(id)?;
    let history = match &detail.row.progress {
        Some(_) => client.progress(id)?.history,
        None => Vec::new(),
    };
    let does = match detail.row.state {
        JobState::Running => gpus::figures(&client.job_telemetry(id)?),
        _ => None,
    };
    let failed = failed_tasks(client, &detail.row)?;
    let (now, style) = (session::now(client), Style::of_stdout());
    let text = job::detail(&detail, &failed, &history, now, style, terminal_width());
    Ok([Some(text), does].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

/// The first tasks of an array that failed; none of anything else.
fn failed_tasks(client: &Client, row: &JobRow) -> Result<Vec<JobRow>, Fail> {
    if row.array.as_ref().is_none_or(|a| a.failed == 0) {
        return Ok(Vec::new());
    }
    let state = Some(JobState::Failed.as_str().to_owned());
    let wanted = JobQuery { state, ..JobQuery::default() };
    let page = tasks_of(client, row.id.job, wanted, job::FAILED_NAMED)?;
    Ok(page.jobs)
}

fn of_node(client: &Client, name: &str) -> Result<String, Fail> {
    let node = client.node_detail(name).map_err(no_such_node)?;
    let gpus = client.gpus(Some(name))?;
    let version = client.cluster_info()?.version;
    // One that ended a moment ago is no longer there, and no reason to fail.
    let jobs: Vec<JobRow> =
        node.row.jobs.iter().filter_map(|id| client.job(*id).ok()).map(|job| job.row).collect();
    let page = NodePage { node: &node, jobs: &jobs, gpus: &gpus, version: &version };
    Ok(page.text(session::now(client), Style::of_stdout(), terminal_width()))
}

/// It may have been meant as a job.
fn no_such_node(error: ClientError) -> Fail {
    let is_unknown = error.is_not_found();
    let fail = Fail::from(error);
    match is_unknown {
        true => fail.hint("`tutti nodes` lists the nodes; a job's id is a number, such as 12"),
        false => fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_jobs_and_words_are_nodes() {
        assert_eq!(about("12_3").unwrap(), About::Job("12_3".parse().unwrap()));
        for name in ["n1", "gpu-a12", "10-0-0-1.example.org"] {
            assert_eq!(about(name).unwrap(), About::Node(name.to_owned()));
        }
        for text in ["", "12_", "99999999999999999999999"] {
            assert!(about(text).is_err(), "{text}");
        }
    }
}
