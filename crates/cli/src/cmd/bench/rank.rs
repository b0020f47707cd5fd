//! `tutti bench-rank`: one rank of a measurement. Rank 0 writes the result down as one line.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tutti_collectives::burn_in::{self, Effort, Measured, Pair};
use tutti_collectives::{Config, World};

use crate::fail::{Fail, chain};
use crate::terminal;

const RESULT: &str = "result ";

#[derive(clap::Args)]
pub struct RankArgs {
    /// Bytes of the all-reduces
    #[arg(long, value_delimiter = ',', required = true)]
    sizes: Vec<usize>,
}

/// What was measured, and on which node each rank was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub nodes: Vec<String>,
    /// Bytes and seconds.
    pub all_reduce: Vec<(usize, f64)>,
    /// Two ranks, seconds of latency, bytes per second.
    pub pairs: Vec<(usize, usize, f64, f64)>,
    /// Bytes per second.
    pub copy: Vec<f64>,
}

impl Found {
    pub fn parse(line: &str) -> Option<Found> {
        serde_json::from_str(line.strip_prefix(RESULT)?).ok()
    }

    pub fn measured(&self) -> Measured {
        let pair = |&(a, b, latency, bandwidth): &(usize, usize, f64, f64)| Pair {
            a,
            b,
            latency,
            bandwidth,
        };
        Measured {
            all_reduce: self.all_reduce.clone(),
            pairs: self.pairs.iter().map(pair).collect(),
            copy: self.copy.clone(),
        }
    }
}

pub fn run(args: RankArgs) -> Result<ExitCode, Fail> {
    let failed = |e: tutti_collectives::Error| Fail::new(chain(&e));
    let world = World::connect(Config::from_env().map_err(failed)?).map_err(failed)?;
    let group = world.group();
    let effort = Effort { sizes: args.sizes, ..Effort::default() };
    let m = burn_in::run(&group, &effort).map_err(failed)?;
    if group.rank() == 0 {
        let found = Found {
            nodes: (0..group.size()).map(|i| group.node(i).to_owned()).collect(),
            all_reduce: m.all_reduce,
            pairs: m.pairs.iter().map(|p| (p.a, p.b, p.latency, p.bandwidth)).collect(),
            copy: m.copy,
        };
        let text = serde_json::to_string(&found)
            .map_err(|e| Fail::new(format!("can't write the result: {e}")))?;
        terminal::say(&format!("{RESULT}{text}"));
    }
    // Nobody leaves before all have what they need of the others.
    group.barrier().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_rank_0_writes_is_read_back() {
        let found = Found {
            nodes: vec!["n1".into(), "n2".into()],
            all_reduce: vec![(1024, 1e-5)],
            pairs: vec![(0, 1, 2e-6, 1.5e9)],
            copy: vec![9e9, 8e9],
        };
        let line = format!("{RESULT}{}", serde_json::to_string(&found).unwrap());
        assert_eq!(Found::parse(&line), Some(found.clone()));
        assert_eq!(Found::parse("step 1"), None);
        assert_eq!(found.measured().pairs[0].bandwidth, 1.5e9);
    }
}
