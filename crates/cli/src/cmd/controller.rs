//! `tutti controller`: the controller in the foreground.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use tutti_controller::{ControllerConfig, ControllerError};
use tutti_model::Span;

use crate::fail::{Fail, JOURNAL_GONE, chain};
use crate::session;

#[derive(clap::Args)]
pub struct ControllerArgs {
    /// Where everything is kept [default: --cluster, $TUTTI_DATA_DIR, else the machine's or the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port; port 0 picks a free one. Beyond loopback only TLS is spoken
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// A name by which it is reached from elsewhere; may be repeated
    #[arg(long = "name", value_name = "DNSNAME")]
    names: Vec<String>,
    /// A node that was not heard for this long is lost
    #[arg(long, value_name = "TIME")]
    node_timeout: Option<Span>,
    /// How often agents report
    #[arg(long, value_name = "TIME")]
    heartbeat: Option<Span>,
    /// Between SIGTERM and SIGKILL, unless the job says otherwise
    #[arg(long, value_name = "TIME")]
    grace: Option<Span>,
    /// Becomes the running policy at every start [default: the one that the cluster had]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Ended jobs leave memory for the archive after this long
    #[arg(long, value_name = "TIME")]
    keep_jobs_for: Option<Span>,
    /// ... or when there are more than so many
    #[arg(long, value_name = "N")]
    jobs_kept: Option<usize>,
    /// Where ended jobs are kept for good [default: archive in the data dir]
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
}

pub fn run(cluster: Option<&str>, args: ControllerArgs) -> Result<ExitCode, Fail> {
    super::log_to_stderr("info");
    tutti_controller::run(config(cluster, args)?).map_err(|e| {
        let gone = matches!(e, ControllerError::JournalGone(_));
        Fail::new(chain(&e)).exit(if gone { JOURNAL_GONE } else { 1 })
    })?;
    Ok(ExitCode::SUCCESS)
}

fn config(cluster: Option<&str>, args: ControllerArgs) -> Result<ControllerConfig, Fail> {
    fn set<T>(place: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *place = value;
        }
    }
    let data_dir = session::local_dir("controller", args.data_dir, cluster)?;
    let mut config = ControllerConfig::new(data_dir);
    set(&mut config.listen, args.listen);
    set(&mut config.heartbeat, args.heartbeat);
    config.extra_names = args.names;
    config.archive = args.archive;
    let settings = &mut config.settings;
    set(&mut settings.node_timeout, args.node_timeout);
    set(&mut settings.grace, args.grace);
    set(&mut settings.keep_jobs_for, args.keep_jobs_for);
    set(&mut settings.jobs_kept, args.jobs_kept);
    config.policy = args.policy.as_deref().map(super::policy::read_whole).transpose()?;
    Ok(config)
}
