//! `tutti plan --predict RUNS.csv`.

use tutti_planner::predict::{predict, to_csv};

use super::PlanArgs;
use crate::fail::Fail;
use crate::{file, terminal};

pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let Some(path) = &args.predict else { return Ok(()) };
    let runs = predict(&file::read_text(path, "table of runs")?)
        .map_err(|e| Fail::usage(format!("{}: {e}", path.display())))?;
    put(args, to_csv(&runs).trim_end())
}

/// To `--out`, else to stdout.
pub fn put(args: &PlanArgs, text: &str) -> Result<(), Fail> {
    let Some(out) = &args.out else {
        terminal::say(text);
        return Ok(());
    };
    std::fs::write(out, format!("{text}\n"))
        .map_err(|e| Fail::new(format!("{}: {e}", out.display())))
}
