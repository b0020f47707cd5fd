//! `tutti sim`: the scheduler of this cluster, run on a trace, a file or its own past.

pub(super) mod flags;
mod input;
mod journal;
mod output;
mod policies;
mod progress;
mod serve;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use tutti_model::{Span, count};
use tutti_sim::replay::{self, Options, Restart, Run, muri, openb};
use tutti_sim::report::{Figures, figures};

use crate::fail::{Fail, chain};
use policies::Choice;
use progress::Progress;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Alibaba's openb pods: one by one, never leaving, for allocation under fragmentation
    Openb,
    /// Muri's traces under the rules of its simulator
    Muri,
    Philly,
    Lingjun,
    /// `sacct -P -o JobID,JobName,User,Account,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES`
    Sacct,
    /// Our own: name,submit_s,duration_s,gpus,nodes,gpus_per_node,...
    Csv,
    /// This cluster's journal, or the one in a data dir
    Journal,
    /// Made up: days of several teams, with everything that happens on a day
    Day,
}

#[derive(clap::Args)]
#[command(
    after_help = "The cluster is --cluster FILE.toml, a list such as 16xdgx-h100,4xa100:8@r3, `running`, \
    or --nodes N --gpus-per-node G.\n\nExamples:\n  \
    tutti sim --format philly --trace philly.csv --cluster 260xp3dn --policy default,fifo --html out.html\n  \
    tutti sim --format journal --add 4xh100:8        what if there were four more nodes?\n  \
    tutti sim --format sacct --trace dump.txt --cluster cluster.toml --failures 5 --json\n  \
    tutti sim --format day --cluster 128xdgx-h100 --serve 127.0.0.1:7272   the dashboard of a made-up day"
)]
pub struct SimArgs {
    /// What the trace is
    #[arg(long, value_enum)]
    format: Format,
    /// The trace; for `journal` a data dir or a journal file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many nodes; for `openb` the file that lists them
    #[arg(long, value_name = "N|FILE")]
    nodes: Option<String>,
    /// With --nodes [default: 8]
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u16).range(1..=1024))]
    gpus_per_node: Option<u16>,
    /// openb: the pods
    #[arg(long, value_name = "FILE")]
    pods: Option<PathBuf>,
    /// openb: the order in which they arrive, one row number per line
    #[arg(long, value_name = "FILE")]
    order: Option<PathBuf>,
    /// lingjun: the switches of each host
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Side by side: own default default-known fifo srtf srsf first-fit best-fit, or policy files
    /// [default: own where there is a policy file or a cluster with one, else default]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<String>,
    /// Teams, classes and everything else that the names do not say
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,
    /// Jobs come so many times as fast
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    load: Option<f64>,
    /// For failures; several give one run each [default: 1]
    #[arg(long, visible_alias = "seeds", value_name = "SEED", value_delimiter = ',')]
    seed: Vec<u64>,
    /// Failures that take a node down, per 1,000 node-days
    #[arg(long, value_name = "RATE", value_parser = rate)]
    failures: Option<f64>,
    /// How long a failed node is down [default: 4h]
    #[arg(long, value_name = "TIME", requires = "failures")]
    repair: Option<Span>,
    /// A stopped job goes on from: scratch, served (where it was), or its last checkpoint, saved
    /// every TIME [default: scratch]
    #[arg(long, value_name = "scratch|served|TIME", value_parser = restart)]
    restart: Option<Restart>,
    /// Measured speed of gangs that are spread out, with columns n_gpus and spread_over_consolidated
    #[arg(long, value_name = "FILE")]
    slowdown: Option<PathBuf>,
    /// What if there were more nodes: 4xh100:8, 2xdgx-h200@r3
    #[arg(long, value_name = "SHAPES")]
    add: Vec<String>,
    /// What if this rack were gone?
    #[arg(long, value_name = "RACK")]
    remove_rack: Vec<String>,
    /// What if this team were guaranteed so many GPUs?
    #[arg(long, value_name = "TEAM=GPUS", value_delimiter = ',', value_parser = quota)]
    team_quota: Vec<(String, u32)>,
    /// Only the first N jobs
    #[arg(long, value_name = "N")]
    limit_jobs: Option<usize>,
    #[arg(long)]
    json: bool,
    /// One line per job into this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// A page with plots into this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// day: how many, one after the other [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=366))]
    days: Option<u32>,
    /// Show the simulated cluster on the dashboard at this address instead; port 0 picks one
    #[arg(long, value_name = "ADDR")]
    serve: Option<SocketAddr>,
    /// --serve: so long after the start of the trace [default: 18h]
    #[arg(long, value_name = "TIME", requires = "serve")]
    at: Option<Span>,
    /// --serve: from there time goes on, so many times as fast as outside [default: it stands still]
    #[arg(long, value_name = "FACTOR", requires = "serve", value_parser = pace)]
    pace: Option<f64>,
}

fn pace(text: &str) -> Result<f64, String> {
    let ok = |f: &f64| (0.0..=3600.0).contains(f);
    text.parse().ok().filter(ok).ok_or_else(|| "write a number from 0 to 3600".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let ok = |f: &f64| f.is_finite() && *f >= 0.001 && *f <= 1000.0;
    text.parse().ok().filter(ok).ok_or_else(|| "write a number from 0.001 to 1000".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let ok = |f: &f64| (0.0..=1e6).contains(f);
    text.parse().ok().filter(ok).ok_or_else(|| "write failures per 1,000 node-days".to_owned())
}

fn restart(text: &str) -> Result<Restart, String> {
    match text {
        "scratch" => Ok(Restart::Scratch),
        "served" => Ok(Restart::Served),
        _ => match text.parse::<Span>() {
            Ok(span) if span.0 >= 1000 => Ok(Restart::Checkpoint(span)),
            _ => Err("write scratch, served, or how often it saves, such as 30m".to_owned()),
        },
    }
}

fn quota(text: &str) -> Result<(String, u32), String> {
    let pair = text.split_once('=').filter(|(team, _)| !team.is_empty());
    let pair = pair.and_then(|(team, gpus)| Some((team.to_owned(), gpus.parse().ok()?)));
    pair.ok_or_else(|| "write team=64".to_owned())
}

pub fn run(cluster: Option<&str>, args: SimArgs) -> Result<ExitCode, Fail> {
    flags::check(cluster, &args)?;
    let traced = |source| run_trace(source, cluster, &args);
    match args.format {
        Format::Openb => run_openb(&args)?,
        Format::Muri => run_muri(&args)?,
        Format::Philly => traced(Source::Philly)?,
        Format::Lingjun => traced(Source::Lingjun)?,
        Format::Sacct => traced(Source::Sacct)?,
        Format::Csv => traced(Source::Csv)?,
        Format::Journal => traced(Source::Journal)?,
        Format::Day => traced(Source::Day)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats that run under the production engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Philly,
    Lingjun,
    Sacct,
    Csv,
    Journal,
    Day,
}

/// Jobs of a made-up day save so often.
const DAY_SAVES: Restart = Restart::Checkpoint(Span::secs(20 * 60));
/// Agents speak up so often, where that matters.
const HEARTBEAT: Span = Span::secs(120);

impl SimArgs {
    fn gpus_per_node(&self) -> u16 {
        self.gpus_per_node.unwrap_or(8)
    }
    fn load(&self) -> f64 {
        self.load.unwrap_or(1.0)
    }
    fn seeds(&self) -> &[u64] {
        if self.seed.is_empty() { &[1] } else { &self.seed }
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Fail {
    Fail::new(chain(error))
}

/// A trace under the production engine.
fn run_trace(source: Source, cluster: Option<&str>, args: &SimArgs) -> Result<(), Fail> {
    let work = input::workload(source, cluster, args)?;
    let choices = policies::choose(args, work.policy.as_deref(), &work.trace)?;
    let changed = |c: &Choice| input::changed(&work.cluster, args, &c.policy.topology);
    let clusters = choices.iter().map(changed).collect::<Result<Vec<_>, _>>()?;
    let spreading = input::spreading(args.slowdown.as_deref())?;
    let jobs = work.trace.job_count();
    let day = source == Source::Day;
    let defaults = Options {
        restart: if day { DAY_SAVES } else { Restart::Scratch },
        heartbeat: (day || args.serve.is_some()).then_some(HEARTBEAT),
        incidents: work.incidents.clone(),
        ..Options::default()
    };
    let mut runs = Vec::new();
    let chosen = choices.iter().zip(&clusters);
    for ((choice, cluster), &seed) in chosen.flat_map(|c| args.seeds().iter().map(move |s| (c, s)))
    {
        let options = Options {
            policy: choice.policy.clone(),
            know_durations: choice.known,
            seed,
            failures: args.failures.unwrap_or(defaults.failures),
            repair: args.repair.unwrap_or(defaults.repair),
            restart: args.restart.unwrap_or(defaults.restart),
            spreading: spreading.clone(),
            ..defaults.clone()
        };
        let trace = choice.trace.as_ref().unwrap_or(&work.trace);
        if let Some(addr) = args.serve {
            return serve::show(
                addr,
                args,
                &input::note(&work, Some(cluster)),
                cluster,
                trace,
                options,
            );
        }
        let progress = Progress::new(&choice.name, jobs);
        let run = replay::run(cluster, trace, &options, &mut |over| progress.at(over));
        let run = run.map_err(|e| failed(&e))?;
        progress.done();
        runs.push((figures(&choice.name, seed, &run), run));
    }
    let note = input::note(&work, clusters.first());
    output::runs(args, &note, work.trace.skipped, spreading.as_ref(), &runs)
}

fn run_muri(args: &SimArgs) -> Result<(), Fail> {
    let (mut jobs, nodes) = input::muri(args)?;
    if let Some(limit) = args.limit_jobs {
        jobs.truncate(limit);
    }
    jobs.iter_mut().for_each(|j| j.submit_s /= args.load());
    let mut runs: Vec<(Figures, Run)> = Vec::new();
    for Choice { name, policy, .. } in policies::orders(args)? {
        let progress = Progress::new(&name, jobs.len() as u64);
        let run =
            muri::run(&jobs, nodes, args.gpus_per_node(), policy.order, &mut |n| progress.at(n));
        progress.done();
        let run = run.into_run(&jobs);
        runs.push((figures(&name, 0, &run), run));
    }
    let note = format!(
        "{} under Muri's rules on {}",
        count(jobs.len() as u64, "job"),
        count(nodes.into(), "node")
    );
    output::runs(args, &note, 0, None, &runs)
}

fn run_openb(args: &SimArgs) -> Result<(), Fail> {
    let input::Openb { nodes, pods, mut order } = input::openb(args)?;
    if let Some(limit) = args.limit_jobs {
        order.truncate(limit);
    }
    let mut runs = Vec::new();
    for Choice { name, policy, .. } in policies::named(args)? {
        let policy = openb::without_preemption(policy);
        let progress = Progress::new(&name, order.len() as u64);
        let run = openb::run(&nodes, &pods, &order, &policy, &mut |n| progress.at(n));
        let run = run.map_err(|e| failed(&e))?;
        progress.done();
        runs.push((name, run));
    }
    output::allocations(args, &runs)
}
