//! What a measurement says of each node, to be kept with it.

use std::collections::BTreeMap;

use tutti_collectives::burn_in::median;
use tutti_model::{BurnInFigures, LinkFigures};

use super::report::{PairRow, Report, SlowRow};

/// What is slower by less may be chance, whatever was asked for on the screen.
const SLOW_FROM: f64 = 2.0;
/// Slow things that are kept by name; the rest is counted.
const SLOW_KEPT: usize = 8;

/// Nothing if there was one rank alone: it has no links.
pub fn by_node(report: &Report) -> BTreeMap<String, BurnInFigures> {
    if report.ranks.len() < 2 {
        return BTreeMap::new();
    }
    let names: Vec<&str> = report.ranks.iter().map(|r| r.node.as_str()).collect();
    names.iter().map(|name| ((*name).to_owned(), figures(report, &names, name))).collect()
}

fn figures(report: &Report, names: &[&str], name: &str) -> BurnInFigures {
    let ends = |p: &PairRow| usize::from(names[p.a] == name) + usize::from(names[p.b] == name);
    let with_ends = |n: usize| medians(report.pairs.iter().filter(|p| ends(p) == n));
    let copies = report.ranks.iter().filter(|r| r.node == name).map(|r| r.copy_gb_per_s);
    let copy = copies.fold(f64::INFINITY, f64::min);
    BurnInFigures {
        job: report.job,
        ranks: names.len() as u32,
        inside: with_ends(2),
        outside: with_ends(1),
        copy: (copy * 1e9) as u64,
        slow: slow(report, name),
    }
}

fn medians<'a>(pairs: impl Iterator<Item = &'a PairRow>) -> Option<LinkFigures> {
    let pairs: Vec<&PairRow> = pairs.collect();
    let of = |figure: fn(&PairRow) -> f64| median(pairs.iter().map(|p| figure(p))) as u64;
    (!pairs.is_empty()).then(|| LinkFigures {
        latency_ns: of(|p| p.latency_us * 1e3),
        bandwidth: of(|p| p.gb_per_s * 1e9),
    })
}

fn slow(report: &Report, name: &str) -> Vec<String> {
    let counts = |s: &&SlowRow| s.times >= SLOW_FROM && s.nodes.iter().any(|n| n == name);
    let mine: Vec<&SlowRow> = report.slow.iter().filter(counts).collect();
    let mut words: Vec<String> = mine.iter().take(SLOW_KEPT).map(|s| s.words(name)).collect();
    if mine.len() > SLOW_KEPT {
        words.push(format!("{} more", mine.len() - SLOW_KEPT));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::report::testing::report;
    use super::*;

    #[test]
    fn each_node_has_its_own_links() {
        let kept = by_node(&report(true));
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["n1", "n2", "n3"]);
        let n1 = &kept["n1"];
        assert_eq!((n1.ranks, n1.copy), (4, 10_000_000_000));
        assert_eq!(n1.inside.unwrap().latency_ns, 10_000);
        assert_eq!(n1.outside.unwrap().bandwidth, 1_000_000_000);
        assert_eq!(n1.slow, ["bandwidth to n3 is 10.0 times worse"]);
        assert_eq!(kept["n2"].inside, None, "one rank alone");
        assert!(kept["n2"].slow.is_empty());
        assert_eq!(kept["n3"].slow, ["bandwidth to n1 is 10.0 times worse"]);
    }
}
