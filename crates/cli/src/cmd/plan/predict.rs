//! `tutti plan --predict RUNS.csv`.

use tutti_planner::predict::{predict, to_csv};

use super::{PlanArgs, input};
use crate::fail::Fail;
use crate::terminal;

pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let Some(path) = &args.predict else { return Ok(()) };
    let runs = predict(&input::read(path)?)
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
