//! `tutti agent`: this node's agent in the foreground.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;

use tutti_agent::{
    ActiveChecks, AgentConfig, ChecksConfig, Controller, IsolationMode, Runtime, Zygote,
};
use tutti_model::{Bytes, Span, check_name};
use tutti_wire::client::{ClientError, ClusterName, Endpoint};
use tutti_wire::token::TokenText;

use crate::fail::{Fail, chain};
use crate::local::hardware;
use crate::{file, session};

/// Keeps the secret out of the process list.
pub const JOIN_VARIABLE: &str = "TUTTI_JOIN_TOKEN";

const SEEN_BY_ALL: &str = "the join token is on the command line, where every user of this machine can read \
    it; write it into a file and use --token-file, or pipe it to `--token-file -`";

#[derive(clap::Args)]
pub struct AgentArgs {
    /// The controller: host:port, or on its machine its data dir [default: --cluster, else the
    /// default data dir]
    #[arg(long, value_name = "ADDR|DIR")]
    controller: Option<String>,
    /// The join token. Everybody on this machine can read it in the process list: prefer --token-file or
    /// $TUTTI_JOIN_TOKEN
    #[arg(long, alias = "token", value_name = "TOKEN", conflicts_with = "join_file")]
    join: Option<String>,
    /// A file with the join token; - reads standard input
    #[arg(long = "token-file", alias = "join-file", value_name = "PATH")]
    join_file: Option<PathBuf>,
    /// Keys, records of jobs, and their logs [default: agent/NAME in the default data dir]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// What the node is called [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// Where other nodes reach it [default: the address that leads to the controller]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    #[command(flatten)]
    pub hardware: hardware::HardwareArgs,
    /// CPUs to offer
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Memory to offer
    #[arg(long, value_name = "SIZE")]
    mem: Option<Bytes>,
    /// A label of the node; may be repeated
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A file or directory with models, in full; may be repeated. While it is there, replicas that load
    /// from it (`files` in the job file) come here first
    #[arg(long = "files", value_name = "PATH", value_parser = whole_path)]
    files: Vec<String>,
    /// How jobs are kept apart: auto (as far as this host can, where the devices are real), on
    /// (simulated devices too), required (no job starts while something is missing), off
    #[arg(long, value_name = "MODE", default_value = "auto")]
    isolation: IsolationMode,
    /// Processes and threads that the ranks of a job may have together; 0: any number
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// The container runtime for jobs with an image: podman, apptainer or enroot [default: whichever is
    /// there, in this order]
    #[arg(long, value_name = "NAME")]
    container_runtime: Option<Runtime>,
    /// A TOML file with other limits for what counts as unhealthy
    #[arg(long, value_name = "FILE")]
    health: Option<PathBuf>,
    /// Programs that check this machine: exit 0 ok, 1 a note, 2 drain [default: /etc/tutti/checks.d
    /// where the devices are real]
    #[arg(long, value_name = "DIR")]
    checks: Option<PathBuf>,
    /// Whether GPUs are made to compute something whose answer is known: auto (when they are new here, before a fence
    /// is lifted, and between jobs on suspicion), off (only by `tutti doctor NODE --active`)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    active_checks: ActiveChecks,
    /// On SIGTERM stop the jobs too, after this grace, instead of leaving them to the next agent
    #[arg(long, value_name = "GRACE")]
    stop_jobs: Option<Span>,
    /// Leave the machine's huge pages alone while jobs are suspended; that is slower
    #[arg(long)]
    no_huge_pages: bool,
    /// Give parts of a GPU to jobs even where MPS is missing: nothing holds them to their share then
    #[arg(long)]
    share_without_mps: bool,
}

pub fn run(cluster: Option<String>, args: AgentArgs) -> Result<ExitCode, Fail> {
    let from_variable = take_join_variable();
    let zygote = Zygote::fork().map_err(|e| Fail::new(chain(&e)))?;
    super::log_to_stderr("info");
    let config = config(cluster, args, from_variable)?;
    tutti_agent::run(config, zygote).map_err(|e| Fail::new(chain(&e)))?;
    Ok(ExitCode::SUCCESS)
}

/// Removed at once, so that nothing that this process starts has it.
fn take_join_variable() -> Option<String> {
    let token = std::env::var(JOIN_VARIABLE).ok().filter(|t| !t.is_empty());
    // SAFETY: main calls this before the process has a second thread.
    unsafe { std::env::remove_var(JOIN_VARIABLE) };
    token
}

fn config(
    cluster: Option<String>,
    args: AgentArgs,
    from_variable: Option<String>,
) -> Result<AgentConfig, Fail> {
    let name = match args.name {
        Some(name) => name,
        None => hardware::host_name()?,
    };
    check_name(&name).map_err(|bad| Fail::usage(format!("--name: {bad}")))?;
    let data_dir = args.data_dir.unwrap_or_else(|| session::data_dir().join("agent").join(&name));
    let controller = match args.controller.or(cluster) {
        None => Controller::DataDir(session::data_dir()),
        Some(named) => controller(&named)?,
    };
    let address = match args.address {
        Some(address) => address,
        None => own_address(&controller)?,
    };
    let join = read_join(args.join, args.join_file, from_variable)?;
    let hardware = hardware::Hardware::find(&args.hardware)?;
    let mut config = AgentConfig::new(data_dir, controller, &name, &address.to_string());
    config.join_token = join;
    if hardware.simulated {
        (config.cpus, config.mem) = hardware::imagined_host(hardware.gpus.len());
    }
    config.cpus = args.cpus.unwrap_or(config.cpus);
    config.mem = args.mem.unwrap_or(config.mem);
    let imagined = || tutti_gpu::simulated::hardware(&hardware.gpus, config.cpus, config.mem);
    config.hardware = Some(Box::new(hardware.facts.unwrap_or_else(imagined)));
    config.gpus = hardware.gpus;
    config.simulated = hardware.simulated;
    config.isolation = args.isolation;
    config.runtime = args.container_runtime;
    config.pids = args.pids.unwrap_or(config.pids);
    if let Some(file) = &args.health {
        config.health = super::doctor::thresholds(file)?;
    }
    let usual = (!hardware.simulated).then(|| PathBuf::from(super::doctor::CHECKS_DIR));
    let named = args.checks.map(super::doctor::checks_dir).transpose()?;
    config.checks = named.or(usual).map(ChecksConfig::new);
    config.active_checks = args.active_checks;
    config.labels = args.labels.into_iter().collect::<BTreeMap<_, _>>();
    config.files = args.files;
    config.kill_jobs_on_term = args.stop_jobs;
    config.huge_pages = !args.no_huge_pages;
    config.share_without_mps = args.share_without_mps;
    Ok(config)
}

fn controller(named: &str) -> Result<Controller, Fail> {
    match ClusterName::of(named) {
        // Not waited for as a directory that may still come: a host without its port.
        ClusterName::Dir(dir) if !named.contains('/') && !dir.is_dir() => {
            Err(ClientError::BadAddress(named.to_owned()).into())
        }
        ClusterName::Dir(dir) => Ok(Controller::DataDir(dir.to_owned())),
        ClusterName::Address(address) => Ok(Controller::Address(address.to_owned())),
    }
}

fn read_join(
    flag: Option<String>,
    file: Option<PathBuf>,
    variable: Option<String>,
) -> Result<Option<TokenText>, Fail> {
    let text = match (flag, file) {
        (Some(text), _) => {
            tracing::warn!("{SEEN_BY_ALL}");
            Some(text)
        }
        (None, Some(path)) => Some(file::read_text(&path, "token")?),
        (None, None) => variable,
    };
    text.map(|t| {
        t.trim().parse().map_err(|e: tutti_wire::token::BadToken| {
            Fail::usage(format!("the join token can't be used: {e}"))
                .hint("tutti token create --join makes one")
        })
    })
    .transpose()
}

/// The address of this machine on the way to the controller.
fn own_address(controller: &Controller) -> Result<IpAddr, Fail> {
    let Controller::Address(text) = controller else { return Ok(IpAddr::from([127, 0, 0, 1])) };
    let endpoint = Endpoint::parse(text)?;
    let unknown = |e: std::io::Error| {
        Fail::new(format!("can't tell by which address {text} is reached: {e}"))
            .hint("give this node's own with --address")
    };
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(unknown)?;
    socket.connect((endpoint.host.as_str(), endpoint.port)).map_err(unknown)?;
    Ok(socket.local_addr().map_err(unknown)?.ip())
}

/// Job files name their files in full, and an agent's own directory means nothing to them.
fn whole_path(text: &str) -> Result<String, String> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(format!("write the whole path: /…/{text}")),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}
