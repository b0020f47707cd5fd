//! `tutti doctor`: exit 0 if there are no errors, 1 if there are.

use std::path::PathBuf;
use std::process::ExitCode;

use tutti_wire::api::DoctorReport;
use tutti_wire::client::Client;

use crate::fail::Fail;
use crate::show::doctor;
use crate::style::Style;
use crate::{session, terminal};

#[derive(clap::Args)]
pub struct DoctorArgs {
    /// Check this data dir
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[arg(long)]
    json: bool,
}

pub fn run(cluster: Option<&str>, args: DoctorArgs) -> Result<ExitCode, Fail> {
    let dir = args.data_dir.as_ref().map(|d| d.to_string_lossy().into_owned());
    let report = examine(dir.as_deref().or(cluster))?;
    if args.json {
        terminal::json(&report)?;
    } else {
        terminal::say(&doctor::report(&report, Style::of_stdout()));
    }
    Ok(if doctor::has_errors(&report) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The controller knows most. Without one, the data dir is read as it lies.
fn examine(cluster: Option<&str>) -> Result<DoctorReport, Fail> {
    let error = match session::find(cluster) {
        Ok(found) => match Client::connect(&found).doctor() {
            Ok(report) => return Ok(report),
            Err(e) => e,
        },
        Err(e) => e,
    };
    let dir = cluster.map_or_else(session::data_dir, PathBuf::from);
    let away = error.is_unreachable() || error.exit_code() == i32::from(crate::fail::UNREACHABLE);
    if !away || !dir.join(tutti_controller::JOURNAL_FILE).exists() {
        return Err(error.into());
    }
    terminal::complain("the controller does not answer; reading its data dir");
    Ok(tutti_controller::doctor::examine_at_rest(&dir))
}
