//! Placement that knows nothing of racks, as plain first-fit and best-fit do: nodes in their order,
//! inside a domain only where the job itself demands one.

use tutti_model::Topology;

use super::{Offer, by_domain, sum, widest};
use crate::ask::Ask;
use crate::cluster::{Cluster, Share};

pub(super) fn gang(
    cluster: &Cluster,
    offers: &[Offer],
    widest: Topology,
    wanted: u32,
    gpus: u32,
) -> Option<Vec<Share>> {
    let nodes = first_domain(cluster, offers, widest, wanted)?;
    Some(nodes.iter().take(wanted as usize).map(|o| Share { slot: o.slot, gpus }).collect())
}

pub(super) fn total(
    cluster: &Cluster,
    offers: &[Offer],
    ask: &Ask,
    total: u32,
) -> Option<Vec<Share>> {
    if let Some(one) = offers.iter().find(|o| o.gives >= total) {
        return Some(vec![Share { slot: one.slot, gpus: total }]);
    }
    let nodes = first_domain(cluster, offers, widest(ask, 2)?, total)?;
    let (mut shares, mut left) = (Vec::new(), total);
    for offer in nodes {
        let gpus = offer.gives.min(left);
        shares.extend((gpus > 0).then_some(Share { slot: offer.slot, gpus }));
        left -= gpus;
    }
    Some(shares)
}

/// Of the domains that give enough, the one with the first node.
fn first_domain(
    cluster: &Cluster,
    offers: &[Offer],
    widest: Topology,
    wanted: u32,
) -> Option<Vec<Offer>> {
    let mut domains = by_domain(cluster, offers, widest);
    domains.retain(|_, of| sum(of) >= u64::from(wanted));
    let first = offers.iter().map(|o| cluster.get(o.slot).path.at(widest));
    let first = first.into_iter().find(|domain| domains.contains_key(domain))?;
    domains.remove(&first)
}
