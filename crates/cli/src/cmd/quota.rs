//! `tutti quota`.

use std::process::ExitCode;

use crate::fail::Fail;
use crate::show::quota;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct QuotaArgs {
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: QuotaArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if args.json {
        terminal::json(&client.quota()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = || Ok(quota::table(&client.quota()?, Style::of_stdout(), terminal_width()));
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
