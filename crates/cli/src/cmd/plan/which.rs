//! `tutti plan --deadline` and `--budget`: which cluster, and how much of it.

use tutti_planner::{Aim, Stack, pick};

use super::{PlanArgs, input, no_plan};
use crate::fail::Fail;
use crate::show::plan::which;
use crate::show::table::terminal_width;
use crate::style::Style;
use crate::terminal;

pub fn run(args: &PlanArgs) -> Result<(), Fail> {
    let arch = input::arch(args)?;
    let workload = input::workload(args, None);
    let aim = match (args.deadline, args.budget) {
        (Some(span), _) => Aim::Deadline(span.0 as f64 / 1e3),
        (None, Some(money)) => Aim::Budget(money),
        (None, None) => return Ok(()),
    };
    let found = pick(&arch, &workload, aim, Stack::Current).map_err(|e| no_plan(&e))?;
    if args.json {
        return terminal::json(&which::json(&found.picks));
    }
    let head = which::headline(&arch, &workload, aim);
    let table = which::table(&found.picks, Style::of_stdout(), terminal_width());
    let left_out = which::left_out(&found).map_or(String::new(), |line| format!("\n\n{line}"));
    terminal::say(&format!("{head}\n\n{table}{left_out}"));
    Ok(())
}
