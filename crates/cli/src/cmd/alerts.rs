//! `tutti alerts`.

use std::process::ExitCode;

use tutti_wire::api::AlertQuery;

use crate::fail::Fail;
use crate::show::alerts;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct AlertsArgs {
    /// Also what is over
    #[arg(short, long)]
    all: bool,
    /// What is looked for, with the terms in force
    #[arg(long, conflicts_with_all = ["all", "watch"])]
    rules: bool,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: AlertsArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let list = || client.alerts(&AlertQuery { all: args.all });
    if args.json {
        let list = list()?;
        match args.rules {
            true => terminal::json(&list.rules)?,
            false => terminal::json(&list.alerts)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = || {
        let (list, style, width) = (list()?, Style::of_stdout(), terminal_width());
        let now = session::now(&client);
        Ok(match args.rules {
            true => alerts::rules(&list.rules, style, width),
            false => alerts::table(&list.alerts, args.all, now, style, width),
        })
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
