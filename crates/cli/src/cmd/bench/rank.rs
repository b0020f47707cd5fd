//! `tutti bench-rank`: one rank of a measurement. Rank 0 writes the result down, in lines that a log holds.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tutti_collectives::burn_in::{self, Effort, Measured, Pair};
use tutti_collectives::{Config, World};

use crate::fail::{Fail, chain};
use crate::terminal;

const RESULT: &str = "result ";
/// Every pair of a thousand ranks is megabytes, and a line of a log holds 64 KiB.
const PIECE: usize = 32 << 10;

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
    /// `result 1/3 {…`, and so on.
    fn lines(&self) -> Result<Vec<String>, serde_json::Error> {
        let text = serde_json::to_string(self)?;
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(rest.floor_char_boundary(PIECE));
            pieces.push(piece);
            rest = more;
        }
        let count = pieces.len();
        let line = |(i, piece): (usize, &&str)| format!("{RESULT}{}/{count} {piece}", i + 1);
        Ok(pieces.iter().enumerate().map(line).collect())
    }

    /// From the lines of a log, among whatever else is there. None if a part is missing.
    pub fn parse<'a>(lines: impl Iterator<Item = &'a str>) -> Option<Found> {
        let mut text = String::new();
        let mut seen = 0;
        for line in lines.filter_map(|line| line.strip_prefix(RESULT)) {
            let (place, piece) = line.split_once(' ')?;
            let (i, count) = place.split_once('/')?;
            seen += 1;
            if i.parse() != Ok(seen) {
                return None;
            }
            text.push_str(piece);
            if count.parse() == Ok(seen) {
                return serde_json::from_str(&text).ok();
            }
        }
        None
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
        let lines = found.lines().map_err(|e| Fail::new(format!("can't write the result: {e}")))?;
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
            let lines = found.lines().unwrap();
            assert!(lines.iter().all(|l| l.len() < 64 << 10), "a log would cut it");
            let log = ["warning: x"].into_iter().chain(lines.iter().map(String::as_str));
            assert_eq!(Found::parse(log), Some(found.clone()));
            let cut = lines.iter().skip(1).map(String::as_str);
            assert_eq!(Found::parse(cut), None, "the beginning is missing");
        }
        assert!(found(512).lines().unwrap().len() > 10);
        assert_eq!(found(2).measured().pairs[0].bandwidth, 1.5e9 + 1.0);
    }
}
