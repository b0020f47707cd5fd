//! `tutti drain` and `tutti resume`.

use std::process::ExitCode;

use crate::fail::Fail;
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
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
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
    for node in &args.nodes {
        client.resume(node)?;
        terminal::complain(&format!("{node} is used again"));
    }
    Ok(ExitCode::SUCCESS)
}
