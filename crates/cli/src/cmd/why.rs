//! `tutti why`: of a job, or of an endpoint.

use std::process::ExitCode;

use tutti_model::{JobState, TaskId};
use tutti_wire::api::JobRow;
use tutti_wire::client::Client;

use crate::fail::Fail;
use crate::show::{endpoint, harmless, why};
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct WhyArgs {
    /// A job: 12, or 12_3 for one task of an array; or an endpoint by its name
    #[arg(value_name = "ID|NAME", value_parser = about)]
    about: About,
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    Job(TaskId),
    Endpoint(String),
}

/// What is no job's id is a name; what could not be a name either is a mistyped id.
fn about(text: &str) -> Result<About, String> {
    let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match text.parse() {
        Ok(id) => Ok(About::Job(id)),
        Err(_) if !text.is_empty() && text.chars().all(named) => {
            Ok(About::Endpoint(text.to_owned()))
        }
        Err(e) => Err(format!("{e}, and no endpoint has such a name")),
    }
}

pub fn run(cluster: Option<&str>, args: WhyArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    match args.about {
        About::Job(id) => of_job(&client, id, args.json),
        About::Endpoint(name) => of_endpoint(&client, &name, args.json),
    }
}

/// Of an endpoint that is as it should be there is nothing to explain.
fn of_endpoint(client: &Client, name: &str, json: bool) -> Result<ExitCode, Fail> {
    let detail = client.endpoint_detail(name)?;
    if json {
        terminal::json(&detail.why)?;
    } else {
        terminal::say(&endpoint::why(&detail, Style::of_stdout()));
    }
    Ok(ExitCode::SUCCESS)
}

fn of_job(client: &Client, id: TaskId, json: bool) -> Result<ExitCode, Fail> {
    if json {
        terminal::json(&client.why(id)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = client.job(id)?.row;
    let asleep = row.state == JobState::Suspended && row.verdict.is_some();
    let waits = asleep
        || row.state == JobState::Pending
        || row.array.as_ref().is_some_and(|a| a.pending > 0);
    if waits {
        let explanation = client.why(id)?;
        terminal::say(&why::explanation(&explanation, session::now(client), Style::of_stdout()));
    } else {
        terminal::say(&not_waiting(&row));
    }
    Ok(ExitCode::SUCCESS)
}

fn not_waiting(row: &JobRow) -> String {
    let note =
        if row.note.is_empty() { String::new() } else { format!(": {}", harmless(&row.note)) };
    format!("job {} does not wait, it is {}{note}", row.id, row.state.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_jobs_and_words_are_endpoints() {
        assert_eq!(about("12").unwrap(), About::Job("12".parse().unwrap()));
        assert_eq!(about("12_3").unwrap(), About::Job("12_3".parse().unwrap()));
        for name in ["chat", "7b-chat"] {
            assert_eq!(about(name).unwrap(), About::Endpoint(name.to_owned()));
        }
        for text in ["", "12_x", "a b"] {
            assert!(about(text).unwrap_err().contains("no endpoint has such a name"), "{text}");
        }
    }
}
