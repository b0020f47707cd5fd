//! `tutti __cuda`: speaks with the CUDA driver for a part's supervisor, or checks GPUs.

use std::path::PathBuf;
use std::process::ExitCode;

use tutti_agent::active;
use tutti_agent::suspend::serve;
use tutti_gpu::active::Asked;

use crate::fail::{Fail, chain};
use crate::terminal;

#[derive(clap::Args)]
pub struct CudaArgs {
    /// Only say what the driver can do
    #[arg(long)]
    probe: bool,
    /// Check these GPUs: a list of their numbers and UUIDs as JSON
    #[arg(long, value_name = "JSON", conflicts_with_all = ["probe", "huge_pages"])]
    check: Option<String>,
    /// Huge pages while this runs; their setting is remembered here
    #[arg(long, value_name = "DIR")]
    huge_pages: Option<PathBuf>,
}

pub fn run(args: CudaArgs) -> Result<ExitCode, Fail> {
    let fail = |e: serve::ServeError| Fail::new(chain(&e));
    if let Some(gpus) = &args.check {
        let gpus: Vec<Asked> = serde_json::from_str(gpus)
            .map_err(|e| Fail::usage(format!("--check: '{gpus}' is no list of GPUs: {e}")))?;
        active::serve(&gpus).map_err(|e| Fail::new(chain(&e)))?;
    } else if args.probe {
        let probe = serve::probe().map_err(fail)?;
        terminal::say(&serde_json::to_string(&probe).expect("plain data"));
    } else {
        serve::run(args.huge_pages.as_deref()).map_err(fail)?;
    }
    Ok(ExitCode::SUCCESS)
}
