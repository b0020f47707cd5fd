//! `tutti bench`: measures the cluster itself, by a job like any other.
//!
//! ```text
//! collectives ─ submit this program as a gang ─► rank ─ measures ─► log ─► report ─► table or JSON
//! gpu ────────┘                                                              └─► keep ─► nodes
//! ```

pub mod gpu;
mod keep;
mod lines;
pub mod rank;
mod report;

use std::process::ExitCode;

use tutti_model::{Bytes, Command, GpuRequest, JobSpec, JobState, Launcher, TaskId};
use tutti_wire::api::{LogEvent, LogQuery, Submit};
use tutti_wire::client::Client;

use super::run::{INTERRUPTED, Interrupts, perhaps_runs, say_why_it_waits};
use super::submit::wait_for;
use crate::fail::{Fail, job_exit};
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::{session, terminal};
use rank::Found;
use report::Report;

#[derive(clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Speed between ranks: every pair, every domain, and which links and ranks are slow
    Collectives(CollectivesArgs),
    /// Speed of GPUs: products of matrices, memory, and which GPUs are slower than their like
    Gpu(gpu::GpuArgs),
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  tutti bench collectives -N 4 -G 8\n  \
    tutti bench collectives -N 2 --sizes 1KiB,1MiB --strict --json")]
pub struct CollectivesArgs {
    /// How many nodes
    #[arg(short = 'N', long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// GPUs on each node, with a rank for each: 8 or h100:8
    #[arg(short = 'G', long, value_name = "GPUS", default_value = "1")]
    gpus_per_node: GpuRequest,
    /// Bytes of the all-reduces
    #[arg(
        long,
        value_name = "SIZE,SIZE,...",
        value_delimiter = ',',
        default_value = "1KiB,64KiB,1MiB,16MiB"
    )]
    sizes: Vec<Bytes>,
    /// How many times worse than the median of its kind is slow
    #[arg(long, value_name = "TIMES", default_value_t = 2.0)]
    tolerance: f64,
    /// Exit with 1 if anything is slow
    #[arg(long)]
    strict: bool,
    /// Print what was measured as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: BenchArgs) -> Result<ExitCode, Fail> {
    match args.what {
        What::Collectives(args) => collectives(cluster, &args),
        What::Gpu(args) => gpu::run(cluster, &args),
    }
}

fn collectives(cluster: Option<&str>, args: &CollectivesArgs) -> Result<ExitCode, Fail> {
    if args.tolerance.is_nan() || args.tolerance <= 1.0 {
        return Err(Fail::usage(format!("--tolerance {}: must be above 1", args.tolerance)));
    }
    let client = session::open(cluster)?;
    let interrupts = Interrupts::watch(&client)?;
    let Some(id) = measure(&client, &interrupts, spec(args)?)? else {
        return Ok(job_exit(INTERRUPTED));
    };
    let report = Report::new(id, &found(&client, id)?, &client.nodes()?, args.tolerance);
    if args.json {
        terminal::json(&report)?;
    } else {
        terminal::say(&report.text(Style::of_stdout(), terminal_width()));
    }
    keep_with_nodes(&client, &report);
    let bad = args.strict && !report.slow.is_empty();
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Submits a job that measures, and waits for its end. None: somebody interrupted it.
fn measure(
    client: &Client,
    interrupts: &Interrupts,
    spec: JobSpec,
) -> Result<Option<TaskId>, Fail> {
    let submit = Submit { spec, user: session::on_behalf(client), key: None };
    let taken = client.submit(&submit).map_err(|e| session::perhaps_done(e, perhaps_runs))?;
    let id = taken.id;
    interrupts.of_job(id);
    terminal::complain(&format!("tutti: job {id} measures"));
    say_why_it_waits(client, id);
    let row = wait_for(client, id)?;
    if interrupts.happened() {
        return Ok(None);
    }
    if row.state != JobState::Completed {
        let note = if row.note.is_empty() { String::new() } else { format!(": {}", row.note) };
        let fail = Fail::new(format!("job {id} {}{note}", row.state.as_str()));
        return Err(fail.hint(format!("tutti logs {id}")));
    }
    Ok(Some(id))
}

/// What was measured is on the screen: that it can't be kept is no failure.
fn keep_with_nodes(client: &Client, report: &Report) {
    for (node, figures) in keep::by_node(report) {
        if let Err(e) = client.measured(&node, &figures) {
            terminal::complain(&format!("tutti: the result is not kept with node {node}: {e}"));
            return;
        }
    }
}

/// A job of this program, which must be at the same place on all nodes.
fn own_job(words: &[&str]) -> Result<JobSpec, Fail> {
    let program = std::env::current_exe()
        .map_err(|e| Fail::new(format!("can't tell where this program is: {e}")))?;
    let program =
        program.to_str().ok_or_else(|| Fail::new(format!("{} is not UTF-8", program.display())))?;
    let argv = [program].iter().chain(words).map(|word| (*word).to_owned()).collect();
    Ok(JobSpec::new(Command::Argv(argv)))
}

fn spec(args: &CollectivesArgs) -> Result<JobSpec, Fail> {
    let sizes: Vec<String> = args.sizes.iter().map(|b| b.0.to_string()).collect();
    let mut spec = own_job(&["bench-rank", "--sizes", &sizes.join(",")])?;
    spec.name = Some("bench-collectives".to_owned());
    spec.nodes = Some(args.nodes);
    spec.gpus_per_node = Some(args.gpus_per_node.clone());
    spec.launcher = Launcher::Torch;
    Ok(spec)
}

/// What rank 0 has written down.
fn found(client: &Client, id: TaskId) -> Result<Found, Fail> {
    let query = LogQuery { rank: Some("0".into()), ..LogQuery::default() };
    let mut texts = Vec::new();
    for event in client.logs(id, &query)? {
        if let LogEvent::Line { text, .. } = event? {
            texts.push(text);
        }
    }
    lines::read(texts.iter().map(String::as_str)).ok_or_else(|| {
        Fail::new(format!("rank 0 of job {id} completed but wrote no whole result"))
            .hint(format!("tutti logs {id}"))
    })
}
