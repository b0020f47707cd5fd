//! `tutti down`.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::fail::Fail;
use crate::{local, session, terminal};

#[derive(clap::Args)]
pub struct DownArgs {
    /// The data dir that tutti up was given [default: --cluster, else the default data dir]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub fn run(cluster: Option<&str>, args: DownArgs) -> Result<ExitCode, Fail> {
    let dir = session::local_dir("down", args.data_dir, cluster)?;
    let stopped = local::down(&dir)?;
    if stopped.is_empty() {
        terminal::complain(&format!("nothing was running in {}", dir.display()));
    } else {
        terminal::complain(&format!("stopped {}", local::stopped_in_words(&stopped)));
    }
    Ok(ExitCode::SUCCESS)
}
