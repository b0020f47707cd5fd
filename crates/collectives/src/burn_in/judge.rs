//! What a measurement says: figures per domain, and which links and ranks are slow beside their like.
//!
//! Pure. A link is compared with the median of its kind, so a cluster of slow machines is not
//! flagged, but one slow machine in it is.

use std::fmt;

use super::Measured;

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub node: String,
    pub rack: Option<String>,
}

/// What two ranks have in common: the narrowest domain that holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    Node,
    Rack,
    Cluster,
}

impl Domain {
    pub const ALL: [Self; 3] = [Self::Node, Self::Rack, Self::Cluster];

    pub fn of(a: &Place, b: &Place) -> Self {
        match () {
            () if a.node == b.node => Self::Node,
            () if a.rack.is_some() && a.rack == b.rack => Self::Rack,
            () => Self::Cluster,
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Rack => "rack",
            Self::Cluster => "cluster",
        })
    }
}

/// The links inside one kind of domain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub domain: Domain,
    pub pairs: usize,
    /// Medians, and the worst.
    pub latency: f64,
    pub worst_latency: f64,
    pub bandwidth: f64,
    pub worst_bandwidth: f64,
}

/// A link or a rank that is slow beside its like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    pub what: What,
    /// How many times slower than the median of its kind.
    pub times: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A large message between two ranks.
    Bandwidth(usize, usize),
    /// A small one.
    Latency(usize, usize),
    /// Most links of one rank.
    Links(usize),
    /// A rank's own memory.
    Copy(usize),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    pub domains: Vec<Figures>,
    /// The worst first.
    pub slow: Vec<Slow>,
}

/// Judges a measurement; `places` are those of the ranks. A link or rank is slow if it is more than
/// `tolerance` times worse than the median of its kind. Links of a rank that is slow as a whole are
/// not listed one by one.
pub fn judge(m: &Measured, places: &[Place], tolerance: f64) -> Judgement {
    let domain = |p: &super::Pair| Domain::of(&places[p.a], &places[p.b]);
    let mut domains = Vec::new();
    let mut links = Vec::new();
    for kind in Domain::ALL {
        let pairs: Vec<_> = m.pairs.iter().filter(|p| domain(p) == kind).collect();
        if pairs.is_empty() {
            continue;
        }
        let figures = figures(kind, &pairs);
        for p in pairs {
            links.push(Slow {
                what: What::Bandwidth(p.a, p.b),
                times: figures.bandwidth / p.bandwidth,
            });
            links.push(Slow { what: What::Latency(p.a, p.b), times: p.latency / figures.latency });
        }
        domains.push(figures);
    }
    let mut ranks = slow_ranks(&links, places.len());
    ranks.retain(|s| s.times > tolerance);
    let known = |rank: usize| ranks.iter().any(|s| s.what == What::Links(rank));
    links.retain(|s| match s.what {
        What::Bandwidth(a, b) | What::Latency(a, b) => {
            s.times > tolerance && !known(a) && !known(b)
        }
        What::Links(_) | What::Copy(_) => true,
    });
    let usual = median(m.copy.iter().copied());
    let copies = m.copy.iter().enumerate();
    let copies = copies.map(|(rank, c)| Slow { what: What::Copy(rank), times: usual / c });
    let mut slow: Vec<Slow> = ranks.into_iter().chain(links).collect();
    slow.extend(copies.filter(|s| s.times > tolerance));
    slow.sort_by(|a, b| b.times.total_cmp(&a.times));
    Judgement { domains, slow }
}

fn figures(domain: Domain, pairs: &[&super::Pair]) -> Figures {
    let latencies = || pairs.iter().map(|p| p.latency);
    let bandwidths = || pairs.iter().map(|p| p.bandwidth);
    Figures {
        domain,
        pairs: pairs.len(),
        latency: median(latencies()),
        worst_latency: latencies().fold(0.0, f64::max),
        bandwidth: median(bandwidths()),
        worst_bandwidth: bandwidths().fold(f64::INFINITY, f64::min),
    }
}

/// How slow the links of each rank are in the middle. With fewer than three ranks a link is the
/// whole of a rank, and nobody can say whose fault it is.
fn slow_ranks(links: &[Slow], ranks: usize) -> Vec<Slow> {
    if ranks < 3 {
        return Vec::new();
    }
    let of = |rank: usize| {
        median(links.iter().filter_map(move |s| match s.what {
            What::Bandwidth(a, b) if a == rank || b == rank => Some(s.times),
            _ => None,
        }))
    };
    (0..ranks).map(|rank| Slow { what: What::Links(rank), times: of(rank) }).collect()
}

/// The lower one of two in the middle.
/// Of two in the middle, the lower; not a number if there are none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::super::Pair;
    use super::*;

    /// Four nodes of two ranks in two racks; links inside a node are ten times as fast.
    fn healthy() -> (Measured, Vec<Place>) {
        let place = |rank: usize| Place {
            node: format!("n{}", rank / 2),
            rack: Some(format!("r{}", rank / 4)),
        };
        let places: Vec<Place> = (0..8).map(place).collect();
        let mut m = Measured { copy: vec![10e9; 8], ..Measured::default() };
        for a in 0..8 {
            for b in a + 1..8 {
                let near = places[a].node == places[b].node;
                let (latency, bandwidth) = if near { (1e-6, 10e9) } else { (20e-6, 1e9) };
                m.pairs.push(Pair { a, b, latency, bandwidth });
            }
        }
        (m, places)
    }

    #[test]
    fn a_healthy_cluster_has_three_domains_and_nothing_slow() {
        let (m, places) = healthy();
        let j = judge(&m, &places, 2.0);
        let kinds: Vec<_> = j.domains.iter().map(|d| (d.domain, d.pairs)).collect();
        assert_eq!(kinds, [(Domain::Node, 4), (Domain::Rack, 8), (Domain::Cluster, 16)]);
        assert_eq!(j.domains[0].bandwidth, 10e9);
        assert!(j.slow.is_empty(), "{:?}", j.slow);
    }

    #[test]
    fn one_slow_link_is_found_and_its_ranks_are_not_blamed() {
        let (mut m, places) = healthy();
        let link = m.pairs.iter_mut().find(|p| (p.a, p.b) == (1, 6)).unwrap();
        link.bandwidth /= 5.0;
        link.latency *= 3.0;
        let j = judge(&m, &places, 2.0);
        let found: Vec<_> = j.slow.iter().map(|s| (s.what, s.times.round())).collect();
        assert_eq!(found, [(What::Bandwidth(1, 6), 5.0), (What::Latency(1, 6), 3.0)]);
        assert_eq!(j.domains[2].worst_bandwidth, 0.2e9);
    }

    #[test]
    fn a_rank_whose_links_are_all_slow_is_named_once() {
        let (mut m, places) = healthy();
        for p in m.pairs.iter_mut().filter(|p| p.a == 3 || p.b == 3) {
            p.bandwidth /= 4.0;
        }
        let j = judge(&m, &places, 2.0);
        assert_eq!(j.slow, [Slow { what: What::Links(3), times: 4.0 }]);
    }

    #[test]
    fn a_rank_with_slow_memory_is_found() {
        let (mut m, places) = healthy();
        m.copy[5] = 2e9;
        let j = judge(&m, &places, 2.0);
        assert_eq!(j.slow, [Slow { what: What::Copy(5), times: 5.0 }]);
    }

    #[test]
    fn two_ranks_are_compared_with_nobody() {
        let (mut m, mut places) = healthy();
        m.pairs.retain(|p| p.b < 2);
        m.copy.truncate(2);
        places.truncate(2);
        assert!(judge(&m, &places, 2.0).slow.is_empty());
        let alone = Measured { copy: vec![1e9], ..Measured::default() };
        assert!(judge(&alone, &places[..1], 2.0).domains.is_empty());
    }
}
