//! `tutti __launch` and `tutti __rsh`: what the agent and `mpirun` call inside a job.

use std::process::ExitCode;

use tutti_agent::helper::{self, HelperError, Kind};

use crate::fail::{Fail, chain};

#[derive(clap::Args)]
pub struct LaunchArgs {
    kind: LaunchKind,
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LaunchKind {
    Mpi,
    Ray,
    Hostfile,
}

#[derive(clap::Args)]
pub struct RshArgs {
    host: String,
    /// Handed on as it is, whatever it looks like
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, num_args = 1.., required = true)]
    command: Vec<String>,
}

pub fn launch(args: LaunchArgs) -> Result<ExitCode, Fail> {
    let kind = match args.kind {
        LaunchKind::Mpi => Kind::Mpi,
        LaunchKind::Ray => Kind::Ray,
        LaunchKind::Hostfile => Kind::Hostfile,
    };
    helper::launch(kind, &args.command).map_err(|e| fail(&e))
}

pub fn rsh(args: RshArgs) -> Result<ExitCode, Fail> {
    helper::rsh(&args.host, &args.command).map_err(|e| fail(&e))
}

fn fail(error: &HelperError) -> Fail {
    Fail::new(chain(error))
}
