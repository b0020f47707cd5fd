//! `tutti bench gpu`: how fast the GPUs are at what training is made of.

mod choose;
pub mod file;
mod keep;
mod last;
pub mod rank;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use tutti_gpu::speed::VARIABLE;
use tutti_model::{Gpu, GpuRequest, JobSpec, Span, TaskId, Vendor};
use tutti_wire::api::{LogEvent, LogQuery};
use tutti_wire::client::Client;

use super::super::run::{INTERRUPTED, Interrupts};
use super::{lines, measure, own_job};
use crate::fail::{Fail, IMPOSSIBLE, job_exit};
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, terminal};
use choose::{Choice, choose};
use file::of_cluster;
use rank::Found;
use report::Report;

/// It takes a minute; a GPU that hangs must not be held for ever.
const LIMIT: Span = Span::secs(30 * 60);

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tutti bench gpu\n  tutti bench gpu -N 2 -G h100:8 --strict\n  \
    tutti bench gpu --local --out here.json\n  tutti bench gpu --last"
)]
pub struct GpuArgs {
    /// How many nodes; all of a kind that are idle now, unless given
    #[arg(short = 'N', long, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,
    /// GPUs on each node, 8 or h100:8; all of a node, unless given
    #[arg(short = 'G', long, value_name = "GPUS")]
    gpus_per_node: Option<GpuRequest>,
    /// Measure the GPUs of this machine, without a cluster
    #[arg(long, conflicts_with_all = ["nodes", "gpus_per_node", "last"])]
    local: bool,
    /// Show what was measured last, and measure nothing
    #[arg(long, conflicts_with_all = ["nodes", "gpus_per_node", "strict"])]
    last: bool,
    /// Write the figures to a file that `tutti plan --measured` takes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Exit with 1 if a GPU is slow or could not be measured
    #[arg(long)]
    strict: bool,
    /// Print what was measured as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: &GpuArgs) -> Result<ExitCode, Fail> {
    // Not after minutes of everybody's GPUs.
    args.out.as_deref().map_or(Ok(()), file::writable)?;
    if args.local {
        return local(args);
    }
    let client = session::open(cluster)?;
    if args.last {
        return last(&client, args);
    }
    let interrupts = Interrupts::watch(&client)?;
    let choice = choose(&client.nodes()?, args.gpus_per_node.as_ref(), args.nodes)?;
    refuse_other_vendors(&client, &choice)?;
    for other in &choice.left_out {
        terminal::complain(&format!("tutti: {other} are left out: -G {other} measures them"));
    }
    let Some(job) = measure(&client, &interrupts, spec(&choice)?)? else {
        return Ok(job_exit(INTERRUPTED));
    };
    let found = found(&client, job)?;
    let devices = devices(&client, &found)?;
    let report = Report::new(Some(job), &found, &devices, &report::catalogue);
    // Whatever becomes of the output, it was measured.
    keep_with_nodes(&client, job, &report);
    conclude(args, &report)
}

fn local(args: &GpuArgs) -> Result<ExitCode, Fail> {
    let found = rank::here("here").map_err(|why| Fail::new(why).exit(IMPOSSIBLE))?;
    let report = Report::new(None, &[found], &BTreeMap::new(), &report::catalogue);
    conclude(args, &report)
}

fn last(client: &Client, args: &GpuArgs) -> Result<ExitCode, Fail> {
    let nodes = client.nodes()?;
    if let Some(file) = &args.out {
        file::write(file, &of_cluster(&nodes))?;
    }
    let rows = last::rows(&nodes);
    match args.json {
        true => terminal::json(&rows)?,
        false => terminal::say(&last::table(&rows, Style::of_stdout(), terminal_width())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints it, writes it down, and says whether all is well.
fn conclude(args: &GpuArgs, report: &Report) -> Result<ExitCode, Fail> {
    if report.gpus.is_empty() {
        return Err(Fail::new(report.problem_lines()).exit(IMPOSSIBLE));
    }
    match args.json {
        true => terminal::json(report)?,
        false => terminal::say(&report.text(Style::of_stdout(), terminal_width())),
    }
    if let Some(file) = &args.out {
        file::write(file, &file::of_report(report))?;
    }
    let bad = args.strict && !report.all_is_well();
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The list of nodes has no vendors; one of the kind that is measured tells.
fn refuse_other_vendors(client: &Client, choice: &Choice) -> Result<(), Fail> {
    let hardware = client.node_detail(&choice.first)?.hardware;
    let vendor = hardware.and_then(|h| h.gpus.first().map(|gpu| gpu.vendor));
    let name = match vendor {
        Some(Vendor::Amd) => "AMD",
        Some(Vendor::Intel) => "Intel",
        Some(Vendor::Nvidia | Vendor::Simulated) | None => return Ok(()),
    };
    let message = format!("{} has {name} GPUs: only NVIDIA's can be measured", choice.first);
    Err(Fail::new(message).exit(IMPOSSIBLE))
}

fn spec(choice: &Choice) -> Result<JobSpec, Fail> {
    let mut spec = own_job(&["bench-gpu-rank"])?;
    spec.name = Some("bench-gpu".to_owned());
    spec.nodes = Some(choice.nodes);
    spec.gpus_per_node = Some(choice.gpus.clone());
    spec.ranks_per_node = Some(1);
    spec.time = Some(LIMIT);
    if let Ok(place) = std::env::var(VARIABLE) {
        spec.env.insert(VARIABLE.to_owned(), place);
    }
    Ok(spec)
}

/// What each node has written down. One that wrote nothing hides no other, and is a problem.
fn found(client: &Client, job: TaskId) -> Result<Vec<Found>, Fail> {
    let mut texts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for event in client.logs(job, &LogQuery::default())? {
        if let LogEvent::Line { rank, text, .. } = event? {
            texts.entry(rank).or_default().push(text);
        }
    }
    let read = |texts: &Vec<String>| lines::read(texts.iter().map(String::as_str));
    let found: Vec<Found> = texts.values().filter_map(read).collect();
    if found.is_empty() {
        let fail = Fail::new(format!("job {job} completed but wrote no whole result"));
        return Err(fail.hint(format!("tutti logs {job}")));
    }
    Ok(with_missing(found, job, &client.job(job)?.row.node_names))
}

/// Nodes that had the job and of which there is no whole result.
fn with_missing(mut found: Vec<Found>, job: TaskId, nodes: &[String]) -> Vec<Found> {
    let is_missing = |node: &&String| found.iter().all(|found| found.node != **node);
    let missing: Vec<Found> = nodes
        .iter()
        .filter(is_missing)
        .map(|node| Found {
            node: node.clone(),
            gpus: Vec::new(),
            problem: Some(format!("{node}: it wrote no whole result: tutti logs {job}")),
        })
        .collect();
    found.extend(missing);
    found
}

/// The GPUs of the nodes that measured, to name them as everybody does.
fn devices(client: &Client, found: &[Found]) -> Result<BTreeMap<String, Vec<Gpu>>, Fail> {
    let of = |found: &Found| -> Result<(String, Vec<Gpu>), Fail> {
        Ok((found.node.clone(), client.node_detail(&found.node)?.devices))
    };
    found.iter().filter(|found| !found.gpus.is_empty()).map(of).collect()
}

/// What was measured is shown next: that it can't be kept is no failure.
fn keep_with_nodes(client: &Client, job: TaskId, report: &Report) {
    for (node, figures) in keep::by_node(job, report) {
        if let Err(e) = client.gpus_measured(&node, &figures) {
            terminal::complain(&format!("tutti: the result is not kept with node {node}: {e}"));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_gpu::speed::Speed;

    #[test]
    fn a_node_that_wrote_nothing_is_a_problem() {
        let job = "7".parse().unwrap();
        let speed = Speed { copy: Some(1_000_000_000), ..Speed::default() };
        let whole = Found { node: "n2".into(), gpus: vec![speed], problem: None };
        let nodes = ["n1", "n2"].map(str::to_owned);
        let report = |nodes: &[String]| {
            let found = with_missing(vec![whole.clone()], job, nodes);
            Report::new(Some(job), &found, &BTreeMap::new(), &|_| None)
        };
        let missing = report(&nodes);
        assert_eq!(missing.problem_lines(), "n1: it wrote no whole result: tutti logs 7");
        assert!(!missing.all_is_well(), "--strict must not pass");
        assert_eq!(missing.gpus.len(), 1, "it hides no other");
        assert!(report(&nodes[1..]).all_is_well());
    }
}
