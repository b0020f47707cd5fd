//! `tutti nodes`.

use std::process::ExitCode;

use tutti_model::{Gpu, Hardware};
use tutti_wire::api::{GpuRow, NodeDetail, NodeRow};
use tutti_wire::client::{Client, ClientError};

use crate::fail::Fail;
use crate::show::nodes::{Columns, NONE};
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, show, terminal};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct NodesArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Only these
    #[arg(value_name = "NODE")]
    names: Vec<String>,
    /// Show their labels as well
    #[arg(long)]
    labels: bool,
    /// Show what `tutti bench collectives` last measured
    #[arg(long)]
    links: bool,
    /// Draw what they are made of: NUMA nodes, GPUs and how they are joined, adapters
    #[arg(long, conflicts_with_all = ["labels", "links"])]
    topology: bool,
    /// Show each GPU with what it does now and who has it
    #[arg(long, conflicts_with_all = ["labels", "links", "topology"])]
    gpus: bool,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Make a node believe that something broke: a fire drill
    Inject(super::health::InjectArgs),
    /// Take findings off a node: what they fenced is used again
    Resolve(super::health::ResolveArgs),
    /// Remove nodes from the cluster for good: their keys open nothing any more
    Remove(RemoveArgs),
}

#[derive(clap::Args)]
struct RemoveArgs {
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Also if jobs run there: they are lost, as with a node that breaks, and start again elsewhere
    #[arg(long)]
    force: bool,
    #[arg(long)]
    json: bool,
}

fn remove(cluster: Option<&str>, args: &RemoveArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    for node in &args.nodes {
        let changed = client.remove_node(node, args.force)?;
        if args.json {
            terminal::json(&changed)?;
            continue;
        }
        terminal::complain(&format!(
            "{node} is removed, and its key opens nothing any more; stop `tutti agent` there. With a \
             new token (`tutti token create --join`) a machine may have the name again"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn run(cluster: Option<&str>, mut args: NodesArgs) -> Result<ExitCode, Fail> {
    match args.verb.take() {
        Some(Verb::Inject(args)) => return super::health::inject(cluster, args),
        Some(Verb::Resolve(args)) => return super::health::resolve(cluster, args),
        Some(Verb::Remove(args)) => return remove(cluster, &args),
        None => {}
    }
    let client = session::open(cluster)?;
    if args.gpus {
        return gpus(&client, &args);
    }
    let nodes = || -> Result<Vec<_>, Fail> {
        if args.names.is_empty() {
            return Ok(client.nodes()?);
        }
        args.names.iter().map(|n| client.node(n).map_err(|e| no_such(e, n))).collect()
    };
    if args.topology {
        return topology(&client, &args, &nodes);
    }
    if args.json {
        terminal::json(&nodes()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::of_stdout();
    let columns = Columns { labels: args.labels, links: args.links };
    let text = || Ok(show::nodes::table(&nodes()?, columns, style, terminal_width()));
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}

/// Some write a verb where names of nodes are.
fn no_such(error: ClientError, name: &str) -> Fail {
    let is_verb = error.is_not_found() && ["list", "ls", "get", "show", "status"].contains(&name);
    let fail = Fail::from(error);
    match is_verb {
        true => fail.hint("tutti nodes lists all of them, tutti show NODE tells all about one"),
        false => fail,
    }
}

/// What a node is made of, for programs.
#[derive(serde::Serialize)]
struct Made {
    name: String,
    simulated: bool,
    gpus: Vec<Gpu>,
    /// Null if its agent is too old to say.
    hardware: Option<Box<Hardware>>,
}

/// The list says who there is, each node what it is made of: with thousands of them, the list would be
/// too long with all of that in it.
fn topology(
    client: &Client,
    args: &NodesArgs,
    nodes: &(dyn Fn() -> Result<Vec<NodeRow>, Fail> + Sync),
) -> Result<ExitCode, Fail> {
    let details = || -> Result<Vec<NodeDetail>, Fail> {
        let names: Vec<String> = match args.names.is_empty() {
            true => nodes()?.into_iter().map(|node| node.name).collect(),
            false => args.names.clone(),
        };
        names.iter().map(|name| client.node_detail(name).map_err(Fail::from)).collect()
    };
    if args.json {
        let made = |n: NodeDetail| Made {
            name: n.row.name,
            simulated: n.row.facts.simulated,
            gpus: n.devices,
            hardware: n.hardware,
        };
        terminal::json(&details()?.into_iter().map(made).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::of_stdout();
    let text = || {
        let drawings: Vec<String> =
            details()?.iter().map(|node| show::topology::draw(node, style)).collect();
        Ok(if drawings.is_empty() { NONE.to_owned() } else { drawings.join("\n\n") })
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}

fn gpus(client: &Client, args: &NodesArgs) -> Result<ExitCode, Fail> {
    let rows = || -> Result<Vec<GpuRow>, Fail> {
        if args.names.is_empty() {
            return Ok(client.gpus(None)?);
        }
        let mut rows = Vec::new();
        for name in &args.names {
            rows.extend(client.gpus(Some(name))?);
        }
        Ok(rows)
    };
    if args.json {
        terminal::json(&rows()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style::of_stdout();
    let text = || Ok(show::gpus::table(&rows()?, style, terminal_width()));
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}
