//! `tutti __cuda`: speaks with the CUDA driver for a part's supervisor.

use std::path::PathBuf;
use std::process::ExitCode;

use tutti_agent::suspend::serve;

use crate::fail::{Fail, chain};
use crate::terminal;

#[derive(clap::Args)]
pub struct CudaArgs {
    /// Only say what the driver can do
    #[arg(long)]
    probe: bool,
    /// Huge pages while this runs; their setting is remembered here
    #[arg(long, value_name = "DIR")]
    huge_pages: Option<PathBuf>,
}

pub fn run(args: CudaArgs) -> Result<ExitCode, Fail> {
    let fail = |e: serve::ServeError| Fail::new(chain(&e));
    if args.probe {
        let probe = serve::probe().map_err(fail)?;
        terminal::say(&serde_json::to_string(&probe).expect("plain data"));
    } else {
        serve::run(args.huge_pages.as_deref()).map_err(fail)?;
    }
    Ok(ExitCode::SUCCESS)
}
