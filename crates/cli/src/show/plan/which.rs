//! `tutti plan --deadline` and `--budget`.

use serde_json::{Value, json};
use tutti_planner::words::axes;
use tutti_planner::{Aim, Arch, Pick, Workload};

use super::{billions, duration, list, money, short_count};
use crate::show::table::plain;
use crate::style::Style;

/// As many as fit on a screen.
const ROWS: usize = 12;

pub fn text(
    arch: &Arch,
    workload: &Workload,
    aim: Aim,
    picks: &[Pick],
    style: Style,
    width: Option<u16>,
) -> String {
    let aim = match aim {
        Aim::Deadline(seconds) => format!("within {}, cheapest first", duration(seconds)),
        Aim::Budget(sum) => format!("for at most {}, fastest first", money(sum, "USD")),
    };
    let tokens = workload.tokens.map_or_else(String::new, short_count);
    let head =
        format!("{} ({} weights), {tokens} tokens, {aim}", arch.name, billions(arch.params()));
    let rows = picks.iter().take(ROWS).map(|p| {
        vec![
            plain(p.cluster.clone()),
            plain(p.nodes.to_string()),
            plain(p.gpus.to_string()),
            plain(duration(p.seconds)),
            plain(p.price.map_or_else(|| "-".to_owned(), |price| money(price, "USD"))),
            plain(axes(&p.layout)),
        ]
    });
    let head_row = ["CLUSTER", ">NODES", ">GPUS", ">TIME", ">PRICE", "LAYOUT"];
    format!("{head}\n\n{}", list(&head_row, rows, style, width))
}

pub fn json(picks: &[Pick]) -> Value {
    picks
        .iter()
        .map(|p| {
            json!({ "cluster": p.cluster, "nodes": p.nodes, "gpus": p.gpus, "seconds": p.seconds,
                    "price": p.price, "layout": p.layout })
        })
        .collect()
}
