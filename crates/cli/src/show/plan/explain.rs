//! `tutti plan --explain`: where memory and time go, what loses, what if.

use tutti_planner::usable_gb;
use tutti_planner::words::{axes, part};

use super::{Plan, bar, percent, short, step_time};
use crate::show::table::{Field, Grid, plain};
use crate::style::{Ink, Style};

/// Where nobody looks at a terminal.
const WIDTH: usize = 80;
/// What is less is in no table.
const LEAST: f64 = 0.0005;

/// From the table of runs that nothing was fitted on.
const HOW_SURE: &str = "how sure: beside published runs of 2025 and 2026 steps are off by 13 % (dense) and 20 % (experts) on \
    average, and some by far more; docs/reference/planner.md says by what, and where";

pub fn explained(plan: &Plan<'_>, style: Style, width: Option<u16>) -> String {
    let best = &plan.answer.best;
    let memory = &best.estimate.memory;
    let usable = usable_gb(&plan.cluster.gpu);
    let gb = |n: f64| format!("{n:.2} GB");
    let mut blocks = vec![
        short(plan, style),
        format!(
            "memory of the fullest GPU, of {usable:.1} GB that can be used\n{}",
            breakdown(&memory.parts(), usable, gb, style, width)
        ),
        format!(
            "time of a step\n{}",
            breakdown(&named(plan), best.estimate.time.total(), step_time, style, width)
        ),
    ];
    blocks.extend(losers(plan, style));
    blocks.extend(what_ifs(plan, style, width));
    let (all, fit) = (plan.answer.considered, plan.answer.fitting);
    blocks.push(format!(
        "{} layouts were compared, {} of them fit",
        crate::show::thousands(all),
        crate::show::thousands(fit)
    ));
    blocks.push(HOW_SURE.to_owned());
    blocks.join("\n\n")
}

fn named(plan: &Plan<'_>) -> Vec<(&'static str, f64)> {
    let parts = &plan.answer.best.estimate.time.parts;
    parts.iter().map(|(p, s)| (part(*p), *s)).collect()
}

const INKS: [Ink; 5] = [Ink::Blue, Ink::Green, Ink::Yellow, Ink::Magenta, Ink::Cyan];

/// A bar as wide as the terminal, and a table that says what its parts are.
fn breakdown(
    parts: &[(&str, f64)],
    whole: f64,
    unit: impl Fn(f64) -> String,
    style: Style,
    width: Option<u16>,
) -> String {
    let total = parts.iter().map(|(_, n)| n).sum::<f64>().max(f64::MIN_POSITIVE);
    let shown: Vec<(&str, f64)> =
        parts.iter().copied().filter(|(_, n)| n / total >= LEAST).collect();
    let sizes: Vec<f64> = shown.iter().map(|(_, n)| *n).collect();
    let columns = width.map_or(WIDTH, usize::from).max(10);
    let widths = bar::columns(&sizes, whole, columns);
    let ink = |i: usize| INKS[i % INKS.len()];
    let mut line = String::new();
    for (i, n) in widths.iter().enumerate() {
        line.push_str(&style.paint(ink(i), &bar::fill(i).to_string().repeat(*n)));
    }
    line.push_str(&"·".repeat(columns.saturating_sub(widths.iter().sum())));
    let mut grid = Grid::new(&["", "PART", ">SIZE", ">SHARE"], style);
    for (i, (name, n)) in shown.iter().enumerate() {
        let mark: Field = (bar::fill(i).to_string().repeat(2), ink(i));
        grid.row([
            mark,
            plain(*name),
            plain(unit(*n)),
            plain(format!("{:.1} %", 100.0 * n / total)),
        ]);
    }
    grid.row([plain(""), plain("together"), plain(unit(total)), plain("")]);
    format!("{line}\n{}", grid.render(width))
}

fn losers(plan: &Plan<'_>, style: Style) -> Option<String> {
    if plan.answer.runners_up.is_empty() {
        return None;
    }
    let mut grid = Grid::new(&["LAYOUT", ">STEP", ">MEMORY", "WHY IT LOSES"], style);
    for loser in &plan.answer.runners_up {
        let estimate = &loser.candidate.estimate;
        grid.row([
            plain(axes(&loser.candidate.layout)),
            plain(step_time(estimate.time.total())),
            plain(format!("{:.1} GB", estimate.memory.total())),
            plain(loser.loses.clone()),
        ]);
    }
    // Nothing of why is cut off: the terminal may wrap it.
    Some(format!("other layouts\n{}", grid.render(None)))
}

fn what_ifs(plan: &Plan<'_>, style: Style, width: Option<u16>) -> Option<String> {
    if plan.what_ifs.is_empty() {
        return None;
    }
    let mut grid =
        Grid::new(&["WHAT IF", ">STEP", ">TIME OF A TOKEN", ">PRICE OF A TOKEN", "NOTE"], style);
    for what in plan.what_ifs {
        grid.row([
            plain(what.change.clone()),
            plain(step_time(what.step_s)),
            plain(percent(what.ratio)),
            plain(what.cost_ratio.map_or_else(|| "-".to_owned(), percent)),
            plain(what.note.clone()),
        ]);
    }
    Some(grid.render(width))
}
