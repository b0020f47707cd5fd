//! `tutti plan --deadline` and `--budget`.

use serde_json::{Value, json};
use tutti_planner::words::axes;
use tutti_planner::{Aim, Arch, Pick, Picks, Workload};

use super::json::candidate;
use super::{LISTED_IN, billions, duration, list, money, short_count};
use crate::show::count;
use crate::show::table::plain;
use crate::style::Style;

/// As many as fit on a screen.
const ROWS: usize = 12;

pub fn headline(arch: &Arch, workload: &Workload, aim: Aim) -> String {
    let aim = match aim {
        Aim::Deadline(seconds) => format!("within {}, the cheapest first", duration(seconds)),
        Aim::Budget(sum) => format!("for at most {}, the fastest first", money(sum, LISTED_IN)),
    };
    let tokens = workload.tokens.map_or_else(String::new, short_count);
    format!("{} ({} weights) on {tokens} tokens {aim}", arch.name, billions(arch.params()))
}

pub fn table(picks: &[Pick], style: Style, width: Option<u16>) -> String {
    let rows = picks.iter().take(ROWS).map(|pick| {
        let price = pick.run.price.map_or_else(|| "-".to_owned(), |sum| money(sum, LISTED_IN));
        vec![
            plain(pick.cluster.name.clone()),
            plain(pick.cluster.nodes.to_string()),
            plain(pick.plan.gpus.to_string()),
            plain(duration(pick.run.effective_seconds)),
            plain(price),
            plain(axes(&pick.plan.layout)),
        ]
    });
    list(&["CLUSTER", ">NODES", ">GPUS", ">TIME", ">PRICE", "LAYOUT"], rows, style, width)
}

/// What is not in the table, and why.
pub fn left_out(found: &Picks) -> Option<String> {
    let more = found.picks.len().saturating_sub(ROWS) as u32;
    let reasons = [
        (more, "that do it too (--json has all)"),
        (found.missed, "that do not do it in any size"),
        (found.unpriced, "without a list price"),
        (found.unfit, "that it does not run on"),
    ];
    let told: Vec<String> = reasons
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, why)| format!("{} {why}", count(u64::from(*n), "machine")))
        .collect();
    (!told.is_empty()).then(|| format!("left out: {}", told.join(", ")))
}

pub fn json(picks: &[Pick]) -> Value {
    let row = |pick: &Pick| json!({ "cluster": pick.cluster, "plan": candidate(&pick.plan), "run": pick.run });
    picks.iter().map(row).collect()
}
