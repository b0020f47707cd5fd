//! `tutti demo`: a cluster at work, in less than a minute.
//!
//! One file per scene; a scene does something through the API as any user would, checks that it
//! came out as it should, and returns figures. What is shown is in `view` (while it runs) and
//! `summary` (afterwards); neither decides anything.
//!
//! ```text
//! run ─► House (cluster in a dir of its own) ─► gang ─► array ─► chain ─► node_loss ─► serving ─► totals
//!            │                                    └─ Stage: submit, watch, read logs ─► View
//!            └─ always stopped and removed, also on Ctrl-C and panic, unless --keep
//! ```

mod array;
mod chain;
mod gang;
mod house;
mod node_loss;
mod report;
mod serving;
mod stage;
mod summary;
mod totals;
mod training;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::fail::{Fail, job_exit};
use crate::local::StopSignals;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::terminal;
use house::House;
use report::{ClusterFigures, Report};
use stage::Stage;
use view::View;

pub const NODES: u16 = 5;
pub const GPUS_PER_NODE: u16 = 2;
/// A gang takes all but one, which is the spare.
pub const GANG_NODES: u16 = NODES - 1;
const GPU_MODEL: &str = "h100";

/// 128 + SIGINT.
const INTERRUPTED: i32 = 130;

#[derive(clap::Args)]
pub struct DemoArgs {
    /// Leave the cluster up afterwards
    #[arg(long)]
    keep: bool,
    /// Where its data goes: a new or empty directory [default: one in the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print what happened as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: DemoArgs) -> Result<ExitCode, Fail> {
    // Whoever reads along may stop reading; the cluster must still be cleaned up.
    terminal::ignore_closed_pipe();
    let stop = StopSignals::watch()?;
    let mut house = House::open(args.data_dir.as_deref())?;
    let view = View::new();
    view.title(&format!(
        "tutti demo: {NODES} nodes × {GPUS_PER_NODE} simulated GPUs on this machine. \
         Processes and network are real, only the GPUs are imagined."
    ));
    let began = Instant::now();
    let played = play(&mut house, &view, &stop, began);
    let mut report = match played {
        Ok(report) => report,
        Err(_) if stop.asked() => return interrupted(house, &view),
        Err(fail) => return Err(give_up(house, &view, fail)),
    };
    if args.keep {
        report.kept_in = Some(house.leave()?);
    } else {
        view.begin("end", "stopping the cluster");
        house.close()?;
        view.done("stopped everything and removed its data");
    }
    view.finish();
    terminal::die_quietly_on_closed_pipe();
    if args.json {
        terminal::json(&report)?;
    } else {
        if terminal::stderr_is_live() {
            terminal::complain("");
        }
        terminal::say(&summary::text(&report, &own_name(), Style::of_stdout(), terminal_width()));
    }
    Ok(ExitCode::SUCCESS)
}

fn play(
    house: &mut House,
    view: &View,
    stop: &StopSignals,
    began: Instant,
) -> Result<Report, Fail> {
    let cluster = start(house, view, stop)?;
    let mut stage = Stage::new(house, view, stop)?;
    let gang = scene(&mut stage, "gang", gang::play)?;
    let array = scene(&mut stage, "array", array::play)?;
    let chain = scene(&mut stage, "chain", chain::play)?;
    let node_loss = scene(&mut stage, "node loss", |stage| node_loss::play(stage, &gang))?;
    let serving = scene(&mut stage, "serving", serving::play)?;
    let totals = scene(&mut stage, "totals", totals::play)?;
    Ok(Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        simulated_gpus: true,
        cluster,
        gang,
        array,
        chain,
        node_loss,
        serving,
        totals,
        seconds: began.elapsed().as_secs_f64(),
        kept_in: None,
    })
}

fn start(house: &mut House, view: &View, stop: &StopSignals) -> Result<ClusterFigures, Fail> {
    view.begin("cluster", &format!("starting a controller, {NODES} agents and a router"));
    let began = Instant::now();
    let in_scene = |fail| named("cluster", fail);
    house.start().map_err(in_scene)?;
    house.cluster()?.wait_ready(stop, |_| {}).map_err(in_scene)?;
    let up_seconds = began.elapsed().as_secs_f64();
    let cluster = house.cluster()?;
    view.watch_nodes(&cluster.client);
    view.done(&format!(
        "{NODES} nodes × {GPUS_PER_NODE} simulated {GPU_MODEL} GPUs up in {}, \
         controller at {}",
        summary::seconds_text(up_seconds),
        cluster.url
    ));
    Ok(ClusterFigures {
        nodes: NODES.into(),
        gpus_per_node: GPUS_PER_NODE.into(),
        gpu_model: GPU_MODEL.to_owned(),
        up_seconds,
    })
}

/// An error says in which scene it came up.
fn scene<T>(
    stage: &mut Stage<'_>,
    name: &'static str,
    play: impl FnOnce(&mut Stage<'_>) -> Result<T, Fail>,
) -> Result<T, Fail> {
    play(stage).map_err(|fail| named(name, fail))
}

fn named(scene: &str, fail: Fail) -> Fail {
    Fail { message: format!("{scene}: {}", fail.message), ..fail }
}

fn interrupted(mut house: House, view: &View) -> Result<ExitCode, Fail> {
    view.failed("interrupted");
    view.begin("end", "stopping the cluster");
    house.close()?;
    view.done("stopped everything and removed its data");
    view.finish();
    Ok(job_exit(INTERRUPTED))
}

/// The cluster is stopped; its logs stay for a look.
fn give_up(mut house: House, view: &View, fail: Fail) -> Fail {
    view.failed(&fail.message);
    view.finish();
    let logs = house.stop_and_leave_data().join("logs");
    let stopped = format!("the cluster was stopped; its logs are in {}", logs.display());
    let hint = fail.hint.map_or(stopped.clone(), |hint| format!("{hint}\n  {stopped}"));
    Fail::new(format!("the demo did not do what it should: {}", fail.message)).hint(hint)
}

/// How the user called this program, for commands to copy.
fn own_name() -> String {
    std::env::args().next().filter(|n| !n.is_empty()).unwrap_or_else(|| "tutti".to_owned())
}
