//! `tutti nodes`.

use std::process::ExitCode;

use crate::fail::Fail;
use crate::show::nodes::Columns;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, show, terminal};

#[derive(clap::Args)]
pub struct NodesArgs {
    /// Only these
    #[arg(value_name = "NODE")]
    names: Vec<String>,
    /// Show their labels as well
    #[arg(long)]
    labels: bool,
    /// Show what `tutti bench collectives` last measured
    #[arg(long)]
    links: bool,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: NodesArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    let nodes = || -> Result<Vec<_>, Fail> {
        if args.names.is_empty() {
            return Ok(client.nodes()?);
        }
        args.names.iter().map(|n| client.node(n).map_err(Fail::from)).collect()
    };
    if args.json {
        terminal::json(&nodes()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::of_stdout();
    let columns = Columns { labels: args.labels, links: args.links };
    let text = || Ok(show::nodes::table(&nodes()?, columns, style, terminal_width()));
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
