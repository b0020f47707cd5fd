//! Which nodes and GPUs a gang gets: all of them, or none. The narrowest domain that holds it, the
//! fewest domains inside that, the best nodes inside those.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{NodeId, PartPlacement, Spread, Topology};

mod flat;

use crate::ask::Ask;
use crate::candidates::Page;
use crate::cluster::{Card, Cluster, Share, Slot, SlotNo};
use crate::domains::{DomainNo, LEVELS};
use crate::value::Valuer;

/// Whether so many GPUs of a node that has room may be used, too: it may be reserved or kept for
/// somebody.
pub(crate) type Guard<'g> = dyn Fn(SlotNo, u32) -> bool + 'g;

/// A node that could take part, and how much it would give: GPUs where only they count, else 1.
#[derive(Clone, Copy, Debug)]
struct Offer {
    slot: SlotNo,
    gives: u32,
}

/// Shares in rank order. Nodes to avoid are used only for what fits nowhere else.
pub(crate) fn find(
    cluster: &Cluster,
    page: &Page,
    guard: &Guard<'_>,
    avoid: &BTreeSet<NodeId>,
) -> Option<Vec<Share>> {
    if page.is_empty() {
        return None;
    }
    let mut shares = match page.ask.spread {
        Spread::Nodes { gpus_each, .. } => on_nodes(cluster, page, guard, avoid, gpus_each)?,
        Spread::Gpus { total } => {
            let offers = gpu_offers(cluster, &page.ask, page.fitting(), guard);
            of_gpus(cluster, &page.ask, offers, avoid, total)?
        }
    };
    shares.sort_by_key(|share| cluster.get(share.slot).rank);
    Some(shares)
}

/// As [`find`], but over these nodes only, which all have room for the least part.
pub(crate) fn find_among(
    cluster: &Cluster,
    ask: &Ask,
    nodes: impl Iterator<Item = SlotNo>,
) -> Option<Vec<Share>> {
    let mut shares = match (ask.spread, ask.node_counts()) {
        (Spread::Nodes { gpus_each, .. }, Some(counts)) => {
            let offers = nodes.map(|slot| Offer { slot, gives: 1 }).collect();
            gang(cluster, ask, offers, counts, gpus_each)?
        }
        (Spread::Gpus { total }, _) | (Spread::Nodes { gpus_each: total, .. }, None) => {
            let offers = gpu_offers(cluster, ask, nodes, &|_, _| true);
            of_gpus(cluster, ask, offers, &BTreeSet::new(), total)?
        }
    };
    shares.sort_by_key(|share| cluster.get(share.slot).rank);
    Some(shares)
}

fn on_nodes(
    cluster: &Cluster,
    page: &Page,
    guard: &Guard<'_>,
    avoid: &BTreeSet<NodeId>,
    gpus: u32,
) -> Option<Vec<Share>> {
    let (most, least) = page.ask.node_counts()?;
    let avoided = |slot: &SlotNo| avoid.contains(&cluster.get(*slot).node);
    let allowed = || page.fitting().filter(|slot| guard(*slot, gpus));
    if most == 1 {
        let slot = if avoid.is_empty() {
            allowed().next()
        } else {
            allowed().find(|slot| !avoided(slot)).or_else(|| allowed().next())
        }?;
        return Some(vec![Share { slot, gpus }]);
    }
    let offer = |slot| Offer { slot, gives: 1 };
    let good: Vec<Offer> = allowed().filter(|slot| !avoided(slot)).map(offer).collect();
    gang(cluster, &page.ask, good, (most, least), gpus).or_else(|| {
        let all = || {
            let unwanted = allowed().filter(avoided);
            allowed().filter(|slot| !avoided(slot)).chain(unwanted).map(offer).collect()
        };
        (!avoid.is_empty()).then(|| gang(cluster, &page.ask, all(), (most, least), gpus))?
    })
}

/// So many nodes in the narrowest domain; an elastic gang takes as many as it may.
fn gang(
    cluster: &Cluster,
    ask: &Ask,
    offers: Vec<Offer>,
    (most, least): (u32, u32),
    gpus: u32,
) -> Option<Vec<Share>> {
    let widest = widest(ask, most)?;
    let room = by_domain(cluster, &offers, widest).into_values().map(|of| of.len()).max()?;
    let wanted = most.min(u32::try_from(room).unwrap_or(u32::MAX));
    if wanted < least {
        return None;
    }
    if cluster.is_flat {
        return flat::gang(cluster, &offers, widest, wanted, gpus);
    }
    let (level, offers) = narrowest(cluster, offers, widest, wanted)?;
    let mut picked = Vec::new();
    gather(cluster, offers, level, wanted, &mut |rack, wanted| {
        picked.extend(rack.iter().take(wanted as usize).map(|o| Share { slot: o.slot, gpus }));
    });
    Some(picked)
}

fn gpu_offers(
    cluster: &Cluster,
    ask: &Ask,
    nodes: impl Iterator<Item = SlotNo>,
    guard: &Guard<'_>,
) -> Vec<Offer> {
    let offer = |slot| {
        let room = ask.share_of(&cluster.usable(cluster.get(slot), ask));
        // What may be used of a node only shrinks with what is asked of it.
        let gives = (1..=room).rev().find(|&gpus| guard(slot, gpus))?;
        Some(Offer { slot, gives })
    };
    nodes.filter_map(offer).collect()
}

fn of_gpus(
    cluster: &Cluster,
    ask: &Ask,
    offers: Vec<Offer>,
    avoid: &BTreeSet<NodeId>,
    total: u32,
) -> Option<Vec<Share>> {
    let wanted = |o: &Offer| !avoid.contains(&cluster.get(o.slot).node);
    let (good, unwanted): (Vec<Offer>, Vec<Offer>) = offers.into_iter().partition(wanted);
    few_nodes(cluster, ask, good.clone(), total).or_else(|| {
        let all = || good.into_iter().chain(unwanted.iter().copied()).collect();
        (!unwanted.is_empty()).then(|| few_nodes(cluster, ask, all(), total))?
    })
}

/// This many GPUs on as few nodes as possible, in the narrowest domain.
fn few_nodes(cluster: &Cluster, ask: &Ask, offers: Vec<Offer>, total: u32) -> Option<Vec<Share>> {
    if cluster.is_flat {
        return flat::total(cluster, &offers, ask, total);
    }
    if let Some(one) = offers.iter().filter(|o| o.gives >= total).min_by_key(|o| o.gives) {
        return Some(vec![Share { slot: one.slot, gpus: total }]);
    }
    let (level, offers) = narrowest(cluster, offers, widest(ask, 2)?, total)?;
    let mut picked = Vec::new();
    gather(cluster, offers, level, total, &mut |rack, wanted| {
        picked.extend(largest_first(rack, wanted));
    });
    Some(picked)
}

/// The largest offers first, which needs the fewest nodes; the last is the best fit for the rest.
fn largest_first(mut offers: Vec<Offer>, total: u32) -> Vec<Share> {
    offers.sort_by_key(|o| std::cmp::Reverse(o.gives));
    let (mut shares, mut left) = (Vec::new(), total);
    for (at, offer) in offers.iter().enumerate() {
        if offer.gives < left {
            shares.push(Share { slot: offer.slot, gpus: offer.gives });
            left -= offer.gives;
            continue;
        }
        // Equal offers keep their order: the first of the smallest that is enough.
        let enough = offers[at..].iter().filter(|o| o.gives >= left);
        if let Some(last) = enough.min_by_key(|o| o.gives) {
            shares.push(Share { slot: last.slot, gpus: left });
        }
        break;
    }
    shares
}

/// A gang of several nodes can't be inside one.
fn widest(ask: &Ask, nodes: u32) -> Option<Topology> {
    match ask.within() {
        Topology::Island | Topology::Node if nodes > 1 => None,
        within => Some(within.max(Topology::Rack)),
    }
}

fn by_domain(
    cluster: &Cluster,
    offers: &[Offer],
    level: Topology,
) -> BTreeMap<DomainNo, Vec<Offer>> {
    let mut domains: BTreeMap<DomainNo, Vec<Offer>> = BTreeMap::new();
    for offer in offers {
        domains.entry(cluster.get(offer.slot).path.at(level)).or_default().push(*offer);
    }
    domains
}

fn sum(offers: &[Offer]) -> u64 {
    offers.iter().map(|o| u64::from(o.gives)).sum()
}

/// The narrowest domain that gives enough; of several, the one where it spans the fewest racks, then
/// the one with least to spare.
fn narrowest(
    cluster: &Cluster,
    offers: Vec<Offer>,
    widest: Topology,
    wanted: u32,
) -> Option<(usize, Vec<Offer>)> {
    for (at, &level) in LEVELS.iter().enumerate().take_while(|(_, level)| **level <= widest) {
        let domains = by_domain(cluster, &offers, level).into_values();
        let enough = domains.filter(|of| sum(of) >= u64::from(wanted));
        if let Some(best) = enough.min_by_key(|of| (racks_spanned(cluster, of, wanted), sum(of))) {
            return Some((at, best));
        }
    }
    None
}

/// How few racks can give this much.
fn racks_spanned(cluster: &Cluster, offers: &[Offer], wanted: u32) -> usize {
    let racks = by_domain(cluster, offers, LEVELS[0]);
    let mut sums: Vec<u64> = racks.values().map(|of| sum(of)).collect();
    sums.sort_unstable_by_key(|&sum| std::cmp::Reverse(sum));
    let mut left = u64::from(wanted);
    let still_short = |sum: &&u64| {
        let short = left > 0;
        left = left.saturating_sub(**sum);
        short
    };
    sums.iter().take_while(still_short).count()
}

/// Hands out what is wanted, rack by rack: the smallest domain that gives all of it, else the
/// largest whole and the rest from the others.
fn gather(
    cluster: &Cluster,
    offers: Vec<Offer>,
    level: usize,
    wanted: u32,
    take: &mut impl FnMut(Vec<Offer>, u32),
) {
    if level == 0 {
        return take(offers, wanted);
    }
    let mut domains: Vec<Vec<Offer>> =
        by_domain(cluster, &offers, LEVELS[level - 1]).into_values().collect();
    let mut left = u64::from(wanted);
    while left > 0 && !domains.is_empty() {
        let enough = (0..domains.len()).filter(|&d| sum(&domains[d]) >= left);
        let at = enough.min_by_key(|&d| sum(&domains[d])).unwrap_or_else(|| {
            let by_size = |&d: &usize| (sum(&domains[d]), std::cmp::Reverse(d));
            (0..domains.len()).max_by_key(by_size).unwrap_or_default()
        });
        let domain = domains.remove(at);
        let part = sum(&domain).min(left);
        gather(cluster, domain, level - 1, part as u32, take);
        left -= part;
    }
}

/// Picks the cards: those of one island if possible, else the lowest.
pub(crate) fn place(
    cluster: &Cluster,
    valuer: &Valuer,
    ask: &Ask,
    shares: &[Share],
) -> Vec<PartPlacement> {
    let part = |share: &Share| {
        let slot = cluster.get(share.slot);
        let need = ask.need(share.gpus);
        let mut gpus: Vec<_> = if ask.demand.share.is_whole() {
            whole_cards(cluster, slot, ask, share.gpus).iter().map(|c| c.index).collect()
        } else {
            valuer.best_card(cluster, slot, ask).into_iter().collect()
        };
        gpus.sort();
        let ranks = ask.demand.ranks_for(share.gpus);
        PartPlacement {
            node: slot.node,
            gpus,
            cpus: need.cpus,
            mem: need.mem,
            ranks,
            share: ask.demand.share,
        }
    };
    shares.iter().map(part).collect()
}

/// The island with the fewest free cards that has enough; without one, islands from the largest.
fn whole_cards(cluster: &Cluster, slot: &Slot, ask: &Ask, wanted: u32) -> Vec<Card> {
    let mut islands: BTreeMap<u16, Vec<Card>> = BTreeMap::new();
    for card in cluster.fitting_cards(slot, ask) {
        islands.entry(card.island).or_default().push(*card);
    }
    let wanted = wanted as usize;
    let enough = islands.values().filter(|cards| cards.len() >= wanted);
    if let Some(best) = enough.min_by_key(|cards| cards.len()) {
        return best[..wanted].to_vec();
    }
    let mut by_size: Vec<&Vec<Card>> = islands.values().collect();
    by_size.sort_by_key(|cards| std::cmp::Reverse(cards.len()));
    by_size.into_iter().flatten().take(wanted).copied().collect()
}

#[cfg(test)]
mod tests;
