//! `tutti bench-rank`: one rank of a measurement. Rank 0 writes the result down, in lines that a log holds.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tutti_collectives::burn_in::{self, Effort, Measured, Pair};
use tutti_collectives::{Config, World};

use super::lines;
use crate::fail::{Fail, chain};
use crate::terminal;

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
        let lines =
            lines::write(&found).map_err(|e| Fail::new(format!("can't write the result: {e}")))?;
        lines.iter().for_each(|line| terminal::say(line));
    }
    // Nobody leaves before all have what they need of the others.
    group.barrier().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ranks: usize) -> Found {
        let pair = |a| (a + 1..ranks).map(move |b| (a, b, 2.5e-6, 1.5e9 + b as f64));
        Found {
            nodes: (0..ranks).map(|r| format!("nö{r}")).collect(),
            all_reduce: vec![(1024, 1e-5)],
            pairs: (0..ranks).flat_map(pair).collect(),
            copy: vec![9e9; ranks],
        }
    }

    #[test]
    fn what_rank_0_writes_is_read_back_from_among_other_lines() {
        for ranks in [2, 512] {
            let found = found(ranks);
            let lines = lines::write(&found).unwrap();
            assert!(lines.iter().all(|l| l.len() < 64 << 10), "a log would cut it");
            let log = ["warning: x"].into_iter().chain(lines.iter().map(String::as_str));
            assert_eq!(lines::read(log), Some(found.clone()));
            let cut = lines.iter().skip(1).map(String::as_str);
            assert_eq!(lines::read::<Found>(cut), None, "the beginning is missing");
        }
        assert!(lines::write(&found(512)).unwrap().len() > 10);
        assert_eq!(found(2).measured().pairs[0].bandwidth, 1.5e9 + 1.0);
    }
}
