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
    let workload = input::workload(args);
    let aim = match (args.deadline, args.budget) {
        (Some(span), _) => Aim::Deadline(span.0 as f64 / 1e3),
        (None, Some(money)) => Aim::Budget(money),
        (None, None) => return Ok(()),
    };
    let picks = pick(&arch, &workload, aim, Stack::Current).map_err(|e| no_plan(&e))?;
    if args.json {
        return terminal::json(&which::json(&picks));
    }
    let head = which::headline(&arch, &workload, aim);
    terminal::say(&format!(
        "{head}\n\n{}",
        which::table(&picks, Style::of_stdout(), terminal_width())
    ));
    Ok(())
}
