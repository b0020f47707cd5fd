//! `tutti show`.

use std::process::ExitCode;

use tutti_model::{JobState, TaskId};

use crate::fail::Fail;
use crate::show::{gpus, job, table::terminal_width};
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct ShowArgs {
    /// A job: 12, or 12_3 for one task of an array
    id: TaskId,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: ShowArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if args.json {
        terminal::json(&client.job(args.id)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = || {
        let detail = client.job(args.id)?;
        let history = match &detail.row.progress {
            Some(_) => client.progress(args.id)?.history,
            None => Vec::new(),
        };
        let does = match detail.row.state {
            JobState::Running => gpus::figures(&client.job_telemetry(args.id)?),
            _ => None,
        };
        let (now, style) = (session::now(&client), Style::of_stdout());
        let text = job::detail(&detail, &history, now, style, terminal_width());
        Ok([Some(text), does].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
