//! `tutti plan --deadline` and `--budget`: which cluster, and how much of it.

use tutti_planner::{Aim, pick};

use super::{PlanArgs, input};
use crate::fail::{Fail, IMPOSSIBLE};
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
    let picks = pick(&arch, &workload, aim);
    if picks.is_empty() {
        let (what, out) = match aim {
            Aim::Deadline(_) => ("is done in that time", "give it longer, or fewer tokens"),
            Aim::Budget(_) => ("does it for that money", "give it more, or fewer tokens"),
        };
        return Err(Fail::new(format!("no cluster of the catalogue {what}"))
            .hint(out)
            .exit(IMPOSSIBLE));
    }
    if args.json {
        return terminal::json(&which::json(&picks));
    }
    terminal::say(&which::text(
        &arch,
        &workload,
        aim,
        &picks,
        Style::of_stdout(),
        terminal_width(),
    ));
    Ok(())
}
