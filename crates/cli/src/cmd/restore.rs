//! `tutti restore`: says of a data dir that was put back from a copy that it is meant.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tutti_controller::restore::{self, AtRest};

use crate::fail::{Fail, NOT_FOUND, chain};
use crate::show::{count, time};
use crate::{local, session, terminal};

#[derive(clap::Args)]
pub struct RestoreArgs {
    /// The data dir that was put back [default: --cluster, else the default data dir]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: RestoreArgs) -> Result<ExitCode, Fail> {
    let named = args.data_dir.or_else(|| cluster.map(PathBuf::from));
    let dir = named.unwrap_or_else(session::data_dir);
    if !dir.is_dir() {
        return Err(Fail::new(format!("{} is not a directory", dir.display()))
            .exit(NOT_FOUND)
            .hint("put the copy there first, or name where it is with --data-dir"));
    }
    let dir = local::check_own(&dir)?;
    let there = restore::look(&dir).map_err(|e| Fail::new(chain(&e)))?;
    if there.last.0 == 0 {
        return Err(Fail::new(format!("the journal in {} has no records", dir.display()))
            .hint("the copy is not complete: take the whole directory of a stopped controller"));
    }
    restore::mark(&dir).map_err(|e| Fail::new(chain(&e)))?;
    if args.json {
        terminal::json(&there)?;
    } else {
        terminal::say(&words(&dir, &there));
    }
    Ok(ExitCode::SUCCESS)
}

fn words(dir: &Path, there: &AtRest) -> String {
    let jobs = there.running + there.waiting + there.ended;
    let names = |names: &[String]| match names {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    };
    let age = time::now().since(there.at).short();
    [
        format!(
            "the journal in {} has {}, the last of {}, {age} ago",
            dir.display(),
            count(there.last.0, "record"),
            time::stamp(there.at)
        ),
        format!(
            "  {}: {} running, {} waiting, {} ended",
            count(jobs, "job"),
            there.running,
            there.waiting,
            there.ended
        ),
        format!("  {}{}", count(there.nodes.len() as u64, "node"), names(&there.nodes)),
        format!("  {}{}", count(there.endpoints.len() as u64, "endpoint"), names(&there.endpoints)),
        "the next controller here goes on from there, and agents accept it; what they run and the \
         journal does not know is stopped, and jobs that ended since run again"
            .to_owned(),
    ]
    .join("\n")
}
