//! `tutti up`: a cluster on this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::fail::Fail;
use crate::local::{self, NodePlan, RouterSetup, RunningCluster, Setup, UpOptions, hardware};
use crate::show::count;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct UpArgs {
    /// How many simulated nodes [default: 4]
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000),
        allow_negative_numbers = true
    )]
    nodes: Option<u16>,
    #[command(flatten)]
    hardware: hardware::HardwareArgs,
    /// Simulated nodes stand in so many racks (label rack=r1 and on), in equal blocks
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000),
        allow_negative_numbers = true
    )]
    racks: Option<u16>,
    /// Becomes the running policy, now and not again when the controller is restarted
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Where everything is kept [default: --cluster, $TUTTI_DATA_DIR, else the machine's or the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port of the controller [default: 127.0.0.1:7171, or another port if taken]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address and port of the router [default: 127.0.0.1:8080, or another port if taken]
    #[arg(long, value_name = "ADDR", conflicts_with = "no_router")]
    router_listen: Option<SocketAddr>,
    /// No router: requests to endpoints go nowhere, or to one elsewhere
    #[arg(long)]
    no_router: bool,
    /// A node that was not heard for this long is lost
    #[arg(long, value_name = "TIME")]
    node_timeout: Option<tutti_model::Span>,
    /// Return when everything is ready; tutti down stops it
    #[arg(long, short = 'd')]
    detach: bool,
}

pub fn run(cluster: Option<&str>, args: UpArgs) -> Result<ExitCode, Fail> {
    let asked = args.detach;
    let options = options(cluster, args)?;
    let stop = local::StopSignals::watch()?;
    let mut cluster = local::start(&options)?;
    if let Err(fail) = cluster.wait_ready(&stop, terminal::complain) {
        cluster.give_up();
        return Err(fail);
    }
    // A Ctrl-C must not end jobs that were never tied to a terminal.
    let detach = asked || cluster.was_detached;
    summary(&cluster, detach)?;
    if detach {
        cluster.leave()?;
        return Ok(ExitCode::SUCCESS);
    }
    let ended = cluster.supervise(&stop);
    terminal::complain("stopping");
    let stopped = cluster.stop();
    terminal::complain(&format!("stopped {}", local::stopped_in_words(&stopped)));
    ended.map(|()| ExitCode::SUCCESS)
}

/// What no flag says is as it was in this data dir.
fn options(cluster: Option<&str>, args: UpArgs) -> Result<UpOptions, Fail> {
    let by_name = args.data_dir.is_none() && cluster.is_some();
    let data_dir = session::local_dir("up", args.data_dir.clone(), cluster)?;
    if by_name {
        refuse_new_word(&data_dir)?;
    }
    let policy = args.policy.as_deref().map(super::policy::read_whole).transpose()?;
    let before = Setup::read(&data_dir)?;
    let asked = args.nodes.is_some() || args.racks.is_some() || args.hardware.are_given();
    let nodes = match &before {
        // Real hardware is looked at again each time.
        Some(before) if !asked && before.is_simulated() => before.nodes.clone(),
        _ => nodes(&args)?,
    };
    let listen = args.listen.or(before.as_ref().and_then(|b| b.asked));
    let nodes = local::at_addresses(nodes, listen);
    let node_timeout = args.node_timeout.or(before.as_ref().and_then(|b| b.node_timeout));
    let before = before.map_or_else(RouterSetup::usual, |b| b.router);
    let router = match (args.no_router, args.router_listen) {
        (true, _) => None,
        (false, Some(asked)) => Some(RouterSetup::asked(asked)?),
        (false, None) => before,
    };
    Ok(UpOptions { data_dir, listen, nodes, node_timeout, policy, router })
}

/// A word that is no directory yet is more likely a mistyped name, or a host without its port.
fn refuse_new_word(dir: &Path) -> Result<(), Fail> {
    let is_path = dir.to_string_lossy().contains('/');
    if is_path || dir.is_dir() {
        return Ok(());
    }
    let named = dir.display();
    Err(Fail::usage(format!(
        "there is no directory {named} here, and it has no port of an address"
    ))
    .hint(format!("to start a new cluster in that directory, write ./{named}")))
}

fn nodes(args: &UpArgs) -> Result<Vec<NodePlan>, Fail> {
    let hardware = hardware::Hardware::find_for_up(&args.hardware)?;
    if hardware.simulated {
        let nodes = args.nodes.unwrap_or(4);
        let racks = args.racks.unwrap_or(0);
        if racks > nodes {
            let (racks, nodes) = (count(racks.into(), "rack"), count(nodes.into(), "node"));
            return Err(Fail::usage(format!("{racks} for {nodes}"))
                .hint("give at least one node for each rack with --nodes"));
        }
        return Ok(local::in_racks(local::imagined_nodes(nodes, &hardware), racks));
    }
    let real = |is: &str| {
        Fail::usage(format!("this machine has real GPUs, so it is {is}"))
            .hint("--simulate imagines several nodes instead")
    };
    if args.nodes.is_some_and(|n| n > 1) {
        return Err(real("one node"));
    }
    if args.racks.is_some() {
        return Err(real("one node in one place"));
    }
    Ok(vec![local::this_node(&hardware)?])
}

fn summary(cluster: &RunningCluster, detach: bool) -> Result<(), Fail> {
    let what = if cluster.simulated { " (simulated)" } else { "" };
    let dir = cluster.data_dir.display();
    let url = &cluster.url;
    let mut lines = vec![
        format!(
            "cluster is up: {}, {}{what}, {url}",
            count(cluster.nodes.len() as u64, "node"),
            count(cluster.gpus(), "GPU"),
        ),
        format!("  data in {dir}"),
        format!("  dashboard at {url}/, log in with the token in {dir}/admin.token"),
    ];
    if let Some(url) = &cluster.router_url {
        lines.push(format!("  endpoints at {url} (tutti serve FILE makes one)"));
    }
    if !cluster.ran_already.is_empty() {
        let started = match cluster.started() {
            none if none.is_empty() => "nothing".to_owned(),
            some => local::short_list(&some),
        };
        let ran = local::short_list(&cluster.ran_already);
        lines.insert(0, format!("started {started}; {ran} ran already"));
    }
    lines.extend(cluster.removed_in_words().map(|words| format!("  {words}")));
    let left_over = cluster.left_over()?;
    if !left_over.is_empty() {
        lines.push(format!(
            "  {} of an earlier start in this data dir did not start: --nodes says how many do",
            local::short_list(&left_over)
        ));
    }
    let flag = if cluster.data_dir == session::data_dir() {
        String::new()
    } else {
        lines.push(format!("  export TUTTI_CLUSTER={dir}    # for this shell"));
        format!(" --data-dir {dir}")
    };
    if cluster.ran_already.is_empty() {
        lines.push("try".to_owned());
        let gpus = cluster.nodes.iter().map(|n| n.gpus).max().unwrap_or(0).min(2);
        let ask = if gpus > 0 { format!(" -G {gpus}") } else { String::new() };
        lines.push(format!("  tutti run{ask} -- env | grep -E 'RANK|CUDA'"));
        lines.push("  tutti submit --wrap 'sleep 60' && tutti ps".to_owned());
        lines.push("  tutti nodes".to_owned());
    }
    lines.push(if detach {
        format!("stop it with tutti down{flag}")
    } else {
        "Ctrl-C stops it, jobs too".to_owned()
    });
    terminal::complain(&lines.join("\n"));
    Ok(())
}
