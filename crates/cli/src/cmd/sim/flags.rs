//! Which flags go with which format. A flag that would do nothing is refused: an answer to another
//! question than was asked is worse than none.

use clap::ValueEnum as _;

use super::Format::{self, Csv, Day, Journal, Lingjun, Muri, Openb, Philly, Sacct};
use super::SimArgs;
use crate::fail::Fail;

const ENGINE: &[Format] = &[Philly, Lingjun, Sacct, Csv, Journal, Day];
const NOT_OPENB: &[Format] = &[Muri, Philly, Lingjun, Sacct, Csv, Journal, Day];
const NOT_MURI: &[Format] = &[Openb, Philly, Lingjun, Sacct, Csv, Journal, Day];
const FILES: &[Format] = &[Muri, Philly, Lingjun, Sacct, Csv, Journal];

/// `cluster` is the value of `--cluster` or its variable.
pub fn check(cluster: Option<&str>, args: &SimArgs) -> Result<(), Fail> {
    let explicit = explicit(cluster);
    for (flag, given, formats) in flags(explicit.is_some(), args) {
        if given && !formats.contains(&args.format) {
            return Err(foreign(flag, args.format, formats));
        }
    }
    let own_nodes = args.topology.is_some();
    let pairs = [
        ("--topology", own_nodes, "--nodes", args.nodes.is_some()),
        ("--topology", own_nodes, "--cluster", explicit.is_some()),
        ("--nodes", args.nodes.is_some(), "--cluster", explicit.is_some()),
    ];
    if let Some((one, _, other, _)) = pairs.into_iter().find(|(_, one, _, other)| *one && *other) {
        return Err(Fail::usage(format!("{one} and {other} both say which nodes there are"))
            .hint(format!("leave out {other}")));
    }
    if args.gpus_per_node.is_some() && args.nodes.is_none() && args.format != Muri {
        return Err(Fail::usage("--gpus-per-node goes with --nodes"));
    }
    one_show(args)
}

/// There is one dashboard, and it shows one run.
fn one_show(args: &SimArgs) -> Result<(), Fail> {
    let outputs = [
        ("--json", args.json),
        ("--csv", args.csv.is_some()),
        ("--html", args.html.is_some()),
        ("a second --policy", args.policy.len() > 1),
        ("a second --seed", args.seed.len() > 1),
    ];
    match outputs.into_iter().find(|(_, given)| *given && args.serve.is_some()) {
        Some((what, _)) => Err(Fail::usage(format!("{what} does nothing with --serve"))
            .hint("--serve shows one run, on a dashboard")),
        None => Ok(()),
    }
}

/// The value of `--cluster`, unless it is there only because the variable is set for other commands.
pub fn explicit(cluster: Option<&str>) -> Option<&str> {
    let variable = std::env::var("TUTTI_CLUSTER").ok();
    cluster.filter(|c| variable.as_deref() != Some(*c))
}

type Flag = (&'static str, bool, &'static [Format]);

fn flags(cluster: bool, args: &SimArgs) -> [Flag; 19] {
    [
        ("--cluster", cluster, ENGINE),
        ("--trace", args.trace.is_some(), FILES),
        ("--gpus-per-node", args.gpus_per_node.is_some(), NOT_OPENB),
        ("--pods", args.pods.is_some(), &[Openb]),
        ("--order", args.order.is_some(), &[Openb]),
        ("--topology", args.topology.is_some(), &[Lingjun]),
        ("--policy-file", args.policy_file.is_some(), NOT_MURI),
        ("--load", args.load.is_some(), NOT_OPENB),
        ("--seed", !args.seed.is_empty(), ENGINE),
        ("--failures", args.failures.is_some(), ENGINE),
        ("--restart", args.restart.is_some(), ENGINE),
        ("--slowdown", args.slowdown.is_some(), ENGINE),
        ("--add", !args.add.is_empty(), ENGINE),
        ("--remove-rack", !args.remove_rack.is_empty(), ENGINE),
        ("--team-quota", !args.team_quota.is_empty(), ENGINE),
        ("--csv", args.csv.is_some(), NOT_OPENB),
        ("--html", args.html.is_some(), NOT_OPENB),
        ("--days", args.days.is_some(), &[Day]),
        ("--serve", args.serve.is_some(), ENGINE),
    ]
}

fn name(format: Format) -> String {
    format.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

fn foreign(flag: &str, format: Format, formats: &[Format]) -> Fail {
    let takes: Vec<String> = formats.iter().map(|f| name(*f)).collect();
    Fail::usage(format!("{flag} does nothing with --format {}", name(format)))
        .hint(format!("it is for {}", takes.join(", ")))
}
