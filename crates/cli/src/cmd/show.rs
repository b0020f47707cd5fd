//! `tutti show`.

use std::process::ExitCode;

use tutti_model::TaskId;

use crate::fail::Fail;
use crate::show::{job, table::terminal_width, time};
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
        Ok(job::detail(&detail, &history, time::now(), Style::of_stdout(), terminal_width()))
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
