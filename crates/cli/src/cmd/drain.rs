//! `tutti drain` and `tutti resume`.

use std::process::ExitCode;

use tutti_model::TaskId;
use tutti_wire::client::ClientError;

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
    for which in &args.which {
        // What looks like a job is one: no node is named by a number alone.
        if let Ok(job) = which.parse::<TaskId>() {
            client.resume_job(job)?;
            terminal::complain(&format!("{job} goes on when GPUs of its nodes are free"));
            continue;
        }
        client.resume(which).map_err(|e| not_found(which, e))?;
        terminal::complain(&format!("{which} is used again"));
    }
    Ok(ExitCode::SUCCESS)
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
