//! What a measurement comes to, as data and as a table.

use serde::Serialize;
use tutti_collectives::burn_in::{Domain, Place, Slow, What, judge};
use tutti_model::TaskId;
use tutti_wire::api::NodeRow;

use super::rank::Found;
use crate::show::table::{Grid, plain};
use crate::style::{Ink, Style};

#[derive(Debug, Serialize)]
pub struct Report {
    pub job: TaskId,
    pub ranks: Vec<RankRow>,
    pub all_reduce: Vec<ReduceRow>,
    pub domains: Vec<DomainRow>,
    pub pairs: Vec<PairRow>,
    /// How many times worse than the median of its kind counts as slow.
    pub tolerance: f64,
    /// The worst first.
    pub slow: Vec<SlowRow>,
}

#[derive(Debug, Serialize)]
pub struct RankRow {
    pub rank: usize,
    pub node: String,
    pub rack: Option<String>,
    pub copy_gb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct ReduceRow {
    pub bytes: usize,
    pub us: f64,
    pub gb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct DomainRow {
    pub domain: String,
    pub pairs: usize,
    pub latency_us: f64,
    pub worst_latency_us: f64,
    pub gb_per_s: f64,
    pub worst_gb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct PairRow {
    pub a: usize,
    pub b: usize,
    pub domain: String,
    pub latency_us: f64,
    pub gb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub struct SlowRow {
    /// `bandwidth`, `latency`, `links` or `copy`.
    pub what: &'static str,
    pub ranks: Vec<usize>,
    pub nodes: Vec<String>,
    pub times: f64,
}

impl Report {
    pub fn new(job: TaskId, found: &Found, nodes: &[NodeRow], tolerance: f64) -> Report {
        let rack_of =
            |name: &str| nodes.iter().find(|n| n.name == name).and_then(|n| n.place.rack.clone());
        let places: Vec<Place> = found
            .nodes
            .iter()
            .map(|node| Place { node: node.clone(), rack: rack_of(node) })
            .collect();
        Report::of_places(job, found, &places, tolerance)
    }

    fn of_places(job: TaskId, found: &Found, places: &[Place], tolerance: f64) -> Report {
        let m = found.measured();
        let judged = judge(&m, places, tolerance);
        let ranks = places.iter().zip(&m.copy).enumerate().map(|(rank, (place, copy))| RankRow {
            rank,
            node: place.node.clone(),
            rack: place.rack.clone(),
            copy_gb_per_s: copy / 1e9,
        });
        let all_reduce = m.all_reduce.iter().map(|&(bytes, seconds)| ReduceRow {
            bytes,
            us: seconds * 1e6,
            gb_per_s: bytes as f64 / seconds / 1e9,
        });
        let domains = judged.domains.iter().map(|d| DomainRow {
            domain: d.domain.to_string(),
            pairs: d.pairs,
            latency_us: d.latency * 1e6,
            worst_latency_us: d.worst_latency * 1e6,
            gb_per_s: d.bandwidth / 1e9,
            worst_gb_per_s: d.worst_bandwidth / 1e9,
        });
        let pairs = m.pairs.iter().map(|p| PairRow {
            a: p.a,
            b: p.b,
            domain: Domain::of(&places[p.a], &places[p.b]).to_string(),
            latency_us: p.latency * 1e6,
            gb_per_s: p.bandwidth / 1e9,
        });
        Report {
            job,
            ranks: ranks.collect(),
            all_reduce: all_reduce.collect(),
            domains: domains.collect(),
            pairs: pairs.collect(),
            tolerance,
            slow: judged.slow.iter().map(|s| slow_row(s, places)).collect(),
        }
    }

    pub fn text(&self, style: Style, width: Option<u16>) -> String {
        let mut parts = vec![self.reduce_table(style, width)];
        if !self.domains.is_empty() {
            parts.push(self.domain_table(style, width));
        }
        parts.push(match self.slow.is_empty() {
            true => format!("nothing is more than {} times slower than its like", self.tolerance),
            false => self.slow_table(style, width),
        });
        parts.join("\n\n")
    }

    fn reduce_table(&self, style: Style, width: Option<u16>) -> String {
        let mut grid = Grid::new(&[">ALL-REDUCE", ">TIME", ">GB/S"], style);
        for r in &self.all_reduce {
            let size = tutti_model::Bytes(r.bytes as u64).to_string();
            grid.row([plain(size), plain(micros(r.us)), plain(format!("{:.2}", r.gb_per_s))]);
        }
        grid.render(width)
    }

    fn domain_table(&self, style: Style, width: Option<u16>) -> String {
        let head = ["LINKS INSIDE A", ">PAIRS", ">LATENCY", ">WORST", ">GB/S", ">WORST"];
        let mut grid = Grid::new(&head, style);
        for d in &self.domains {
            grid.row([
                plain(&d.domain),
                plain(d.pairs.to_string()),
                plain(micros(d.latency_us)),
                plain(micros(d.worst_latency_us)),
                plain(format!("{:.2}", d.gb_per_s)),
                plain(format!("{:.2}", d.worst_gb_per_s)),
            ]);
        }
        grid.render(width)
    }

    fn slow_table(&self, style: Style, width: Option<u16>) -> String {
        let mut grid = Grid::new(&["SLOW", "RANKS", "NODES", ">TIMES"], style);
        for s in &self.slow {
            let ranks: Vec<String> = s.ranks.iter().map(ToString::to_string).collect();
            grid.row([
                (s.what.to_owned(), Ink::Red),
                plain(ranks.join("–")),
                plain(s.nodes.join("–")),
                plain(format!("{:.1}", s.times)),
            ]);
        }
        grid.render(width)
    }
}

impl SlowRow {
    /// As it is said of one of its nodes.
    pub fn words(&self, node: &str) -> String {
        let other = self.nodes.iter().find(|n| *n != node);
        let to = match (other, self.nodes.len()) {
            (Some(other), _) => format!(" to {other}"),
            (None, 1) => String::new(),
            (None, _) => " inside".to_owned(),
        };
        let verb = if self.what == "links" { "are" } else { "is" };
        format!("{}{to} {verb} {:.1} times worse", self.what, self.times)
    }
}

fn micros(us: f64) -> String {
    if us < 1000.0 { format!("{us:.1} µs") } else { format!("{:.2} ms", us / 1000.0) }
}

fn slow_row(slow: &Slow, places: &[Place]) -> SlowRow {
    let (what, ranks) = match slow.what {
        What::Bandwidth(a, b) => ("bandwidth", vec![a, b]),
        What::Latency(a, b) => ("latency", vec![a, b]),
        What::Links(rank) => ("links", vec![rank]),
        What::Copy(rank) => ("copy", vec![rank]),
    };
    let nodes = ranks.iter().map(|r| places[*r].node.clone()).collect();
    SlowRow { what, ranks, nodes, times: slow.times }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Two nodes in a rack and one in another; perhaps with one slow link.
    pub fn report(slow: bool) -> Report {
        let mut pairs = vec![];
        for a in 0..4 {
            for b in a + 1..4 {
                pairs.push((a, b, 10e-6, if slow && (a, b) == (0, 3) { 1e8 } else { 1e9 }));
            }
        }
        let found = Found {
            nodes: ["n1", "n1", "n2", "n3"].map(str::to_owned).to_vec(),
            all_reduce: vec![(1 << 20, 1e-3)],
            pairs,
            copy: vec![10e9; 4],
        };
        let rack = |node: &str| Some(if node == "n3" { "r2" } else { "r1" }.to_owned());
        let place = |node: &String| Place { node: node.clone(), rack: rack(node) };
        let places: Vec<Place> = found.nodes.iter().map(place).collect();
        Report::of_places("7".parse().unwrap(), &found, &places, 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::report;
    use super::*;

    #[test]
    fn domains_and_an_all_clear_are_shown() {
        let text = report(false).text(Style::PLAIN, None);
        for word in ["1MiB", "1.00 ms", "node", "rack", "cluster", "10.0 µs", "nothing is more"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
    }

    #[test]
    fn a_slow_link_is_named_with_its_nodes() {
        let report = report(true);
        let text = report.text(Style::PLAIN, None);
        assert!(text.contains("bandwidth") && text.contains("n1–n3"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["slow"][0]["ranks"], serde_json::json!([0, 3]));
        assert_eq!(json["domains"][0]["domain"], "node");
        assert_eq!(json["pairs"].as_array().unwrap().len(), 6);
    }
}
