//! `tutti doctor`: the controller, exit 0 if there are no errors and 1 if there are; or a node or this
//! machine, exit 0 if all is well, 1 if there is something to know, 2 if something is broken.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tutti_agent::active::Checker;
use tutti_agent::{ChecksConfig, examine_here};
use tutti_gpu::Found;
use tutti_gpu::health::Addresses;
use tutti_gpu::health::rules::Thresholds;
use tutti_gpu::sample::{Machine, Marks, Round, Sampler};
use tutti_model::{ActiveReport, GpuIndex, Time};
use tutti_wire::api::{DoctorReport, Examination, Finding, FindingLevel};
use tutti_wire::client::Client;

use crate::fail::Fail;
use crate::local::Remains;
use crate::show::table::terminal_width;
use crate::show::{active, count, doctor};
use crate::style::Style;
use crate::{local, session, terminal};

/// Where operators put their own checks.
pub const CHECKS_DIR: &str = "/etc/tutti/checks.d";

#[derive(clap::Args)]
pub struct DoctorArgs {
    /// A node instead of the controller
    #[arg(value_name = "NODE", conflicts_with_all = ["data_dir", "here"])]
    node: Option<String>,
    /// This machine, without any cluster
    #[arg(long, conflicts_with = "data_dir")]
    here: bool,
    /// With --here: other limits for what counts as unhealthy
    #[arg(long, value_name = "FILE", requires = "here")]
    health: Option<PathBuf>,
    /// With --here: the operator's own checks [default: /etc/tutti/checks.d]
    #[arg(long, value_name = "DIR", requires = "here")]
    checks: Option<PathBuf>,
    /// Make the GPUs that nobody uses do something whose answer is known: memory, matrix products, a sum
    /// over all of them. Takes some seconds
    #[arg(long, conflicts_with = "data_dir")]
    active: bool,
    /// Check this data dir
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: DoctorArgs) -> Result<ExitCode, Fail> {
    if let Some(node) = &args.node {
        return of_node(cluster, node, &args);
    }
    if args.here {
        return of_this_machine(&args);
    }
    if args.active {
        return Err(Fail::usage("--active is for a NODE, or for this machine with --here"));
    }
    let dir = args.data_dir.as_ref().map(|d| d.to_string_lossy().into_owned());
    let report = match &dir {
        Some(dir) => examine(Some(dir), FindingLevel::Warning)?,
        None => examine(cluster, FindingLevel::Error)?,
    };
    if args.json {
        terminal::json(&report)?;
    } else {
        terminal::say(&doctor::report(&report, Style::of_stdout()));
    }
    Ok(if doctor::has_errors(&report) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The controller knows most. Without one, the data dir is read as it lies, and that there is none is
/// as bad as `silent` says: who asks for a directory may know.
fn examine(cluster: Option<&str>, silent: FindingLevel) -> Result<DoctorReport, Fail> {
    let error = match session::find(cluster) {
        Ok(found) => match session::connect(&found).doctor() {
            Ok(report) => return Ok(report),
            Err(e) => e,
        },
        Err(e) => e,
    };
    let dir = match session::local_dir("doctor", None, cluster) {
        Ok(dir) => dir,
        Err(_) => return Err(error.into()),
    };
    let away = error.is_unreachable() || error.exit_code() == i32::from(crate::fail::UNREACHABLE);
    let remains = Remains::of(&dir);
    if !away || !(remains.journal || remains.lost_its_journal()) {
        return Err(error.into());
    }
    terminal::complain("the controller does not answer; reading its data dir");
    if remains.lost_its_journal() {
        return Ok(lost(&dir, &remains));
    }
    let mut report = tutti_controller::doctor::examine_at_rest(&dir);
    let process = local::controller_process(&dir);
    let fail = Fail::from(error);
    let way_out = process.or(fail.hint).map_or_else(String::new, |hint| format!("; {hint}"));
    let message = format!("does not answer: {}{way_out}", fail.message);
    let subject = "controller".to_owned();
    report.findings.insert(0, Finding { level: silent, subject, message });
    Ok(report)
}

/// Of a cluster without its journal nothing else is worth a look.
fn lost(dir: &Path, remains: &Remains) -> DoctorReport {
    let error = |subject: &str, message: String| Finding {
        level: FindingLevel::Error,
        subject: subject.to_owned(),
        message,
    };
    let path = dir.join(tutti_controller::JOURNAL_FILE);
    let missing = format!(
        "{} is missing: it was deleted or moved away, and the controller does not run without it; {}",
        path.display(),
        remains.way_out(dir)
    );
    let mut findings = vec![error("journal", missing)];
    if let Some(running) = remains.still_run() {
        let shown = dir.display();
        let words = format!("{running}, with nobody to lead: tutti down --data-dir {shown} stops");
        findings.push(error("processes", format!("{words} them, and their jobs")));
    }
    DoctorReport { findings }
}

fn of_node(cluster: Option<&str>, name: &str, args: &DoctorArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    // First, so that what it finds is among what is known.
    let report = args.active.then(|| check_node(&client, name)).transpose()?;
    let row = client.node(name)?;
    let (health, silent) = match client.health(name) {
        Ok(health) => (Some(health), None),
        // The controller still knows what the agent last said.
        Err(error) if error.exit_code() == i32::from(crate::fail::UNREACHABLE) => {
            (None, Some(error.to_string()))
        }
        Err(error) => return Err(error.into()),
    };
    let version = client.cluster_info()?.version;
    let told = doctor::Node { row: &row, health: health.as_ref(), silent, controller: &version };
    let exit = told.exit().max(report.as_ref().map_or(0, active::exit));
    if args.json {
        let mut value = told.json();
        value["exit"] = exit.into();
        if let Some(report) = &report {
            value["active"] = serde_json::to_value(report).expect("plain data");
        }
        terminal::json(&value)?;
    } else {
        terminal::say(&told.text(Style::of_stdout()));
        say_active(report.as_ref());
    }
    Ok(ExitCode::from(exit))
}

fn check_node(client: &Client, name: &str) -> Result<ActiveReport, Fail> {
    terminal::complain(&format!("checking the GPUs of {name} that nobody uses"));
    Ok(client.check(name)?)
}

fn say_active(report: Option<&ActiveReport>) {
    if let Some(report) = report {
        let table = active::table(report, Style::of_stdout(), terminal_width());
        terminal::say(&format!("\n{table}"));
    }
}

fn of_this_machine(args: &DoctorArgs) -> Result<ExitCode, Fail> {
    let thresholds = args.health.as_deref().map(thresholds).transpose()?.unwrap_or_default();
    let found = tutti_gpu::discover();
    let mut addresses = Addresses::default();
    for gpu in &found.hardware.gpus {
        gpu.pci.iter().for_each(|pci| addresses.add(pci, gpu.index));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Time(now.as_millis() as u64);
    let hardware = Some(Box::new(found.hardware.clone()));
    let machine = Machine { gpus: found.gpus.clone(), hardware, simulated: false };
    let marks = Marks { parts: PathBuf::from("/nonexistent"), cgroup: None };
    let mut sampler = Sampler::open(&machine, std::env::temp_dir(), marks);
    let sample = sampler.round(Round { at: now, clock: Duration::ZERO, held: &[] });
    let named = args.checks.clone().map(checks_dir).transpose()?;
    let checks = ChecksConfig::new(named.unwrap_or_else(|| PathBuf::from(CHECKS_DIR)));
    let examined = examine_here(&sample, &addresses, thresholds.clone(), &checks, now);
    let report = args.active.then(|| check_here(&found, thresholds, now)).transpose()?;
    if args.json {
        terminal::json(&HereJson { health: &examined, active: report.as_ref() })?;
    } else {
        let here = doctor::Here { found: &found, health: &examined };
        terminal::say(&here.text(Style::of_stdout()));
        say_active(report.as_ref());
    }
    let exit = doctor::exit_of(&examined.findings);
    Ok(ExitCode::from(exit.max(report.as_ref().map_or(0, active::exit))))
}

#[derive(serde::Serialize)]
struct HereJson<'a> {
    #[serde(flatten)]
    health: &'a Examination,
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<&'a ActiveReport>,
}

fn check_here(found: &Found, limits: Thresholds, now: Time) -> Result<ActiveReport, Fail> {
    let program = std::env::current_exe()
        .map_err(|e| Fail::new(format!("can't find this program to run it again: {e}")))?;
    let gpus: Vec<GpuIndex> = found.gpus.iter().map(|gpu| gpu.index).collect();
    terminal::complain(&format!("checking {}", count(gpus.len() as u64, "GPU")));
    let checker = Checker::new(&found.gpus, &found.hardware, limits, program);
    Ok(checker.check(&gpus, &[], now).report)
}

/// A directory that somebody names must be there, or its checks are missed in silence.
pub fn checks_dir(dir: PathBuf) -> Result<PathBuf, Fail> {
    let wrong = |why: &str| {
        Fail::usage(format!("--checks {}: {why}", dir.display()))
            .hint("name the directory that holds the checks, or leave --checks out")
    };
    match std::fs::metadata(&dir) {
        Ok(meta) if meta.is_dir() => Ok(dir),
        Ok(_) => Err(wrong("this is no directory")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(wrong("there is no such directory"))
        }
        Err(e) => Err(wrong(&e.to_string())),
    }
}

/// Reads the operator's limits.
pub fn thresholds(file: &Path) -> Result<Thresholds, Fail> {
    let text = crate::file::read_text(file, "file of limits")?;
    let wrong = |why: &dyn std::fmt::Display| Fail::usage(format!("{}: {why}", file.display()));
    let limits: Thresholds = toml::from_str(&text).map_err(|e| wrong(&e))?;
    limits.check().map_err(|e| wrong(&e))?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_looked_for_where_they_are_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(checks_dir(dir.path().to_owned()).unwrap(), dir.path());
        let missing = dir.path().join("nosuch.d");
        let fail = checks_dir(missing.clone()).unwrap_err();
        let words = format!("--checks {}: there is no such directory", missing.display());
        assert_eq!((fail.exit, fail.message), (crate::fail::USAGE, words));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(checks_dir(file).unwrap_err().message.ends_with("this is no directory"));
    }
}
