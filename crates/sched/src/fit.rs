//! Which nodes a gang gets: all of them, or none.

use std::collections::BTreeSet;

use tutti_model::{NodeId, Spread};

use crate::ask::Ask;
use crate::cluster::{Cluster, Share, SlotNo};

/// Shares in the order of node ids, so that neighbouring ranks are on neighbouring nodes. Nodes to
/// avoid are used only for what fits nowhere else.
pub(crate) fn find(
    cluster: &Cluster<'_>,
    ask: &Ask<'_>,
    avoid: &BTreeSet<NodeId>,
) -> Option<Vec<Share>> {
    let mut shares = match ask.spread {
        Spread::Nodes { nodes, gpus_each } => on_nodes(cluster, ask, avoid, nodes, gpus_each)?,
        Spread::Gpus { total } => on_few_nodes(cluster, ask, avoid, total)?,
    };
    shares.sort();
    Some(shares)
}

pub(crate) fn fits(cluster: &Cluster<'_>, ask: &Ask<'_>) -> bool {
    find(cluster, ask, &BTreeSet::new()).is_some()
}

fn on_nodes(
    cluster: &Cluster<'_>,
    ask: &Ask<'_>,
    avoid: &BTreeSet<NodeId>,
    nodes: u32,
    gpus: u32,
) -> Option<Vec<Share>> {
    let wanted = nodes as usize;
    let (mut shares, mut avoided) = (Vec::new(), Vec::new());
    for slot in cluster.candidates(ask, ask.need(gpus)) {
        if avoid.contains(&cluster.node(slot).id) {
            avoided.push(Share { slot, gpus });
            continue;
        }
        shares.push(Share { slot, gpus });
        if shares.len() == wanted {
            return Some(shares);
        }
    }
    let missing = wanted - shares.len();
    shares.extend(avoided.into_iter().take(missing));
    (shares.len() == wanted).then_some(shares)
}

fn on_few_nodes(
    cluster: &Cluster<'_>,
    ask: &Ask<'_>,
    avoid: &BTreeSet<NodeId>,
    total: u32,
) -> Option<Vec<Share>> {
    let mut gathering = Gathering { cluster, ask, left: total, shares: Vec::new() };
    gathering.gather(|node| !avoid.contains(&node));
    if gathering.left > 0 && !avoid.is_empty() {
        gathering.gather(|node| avoid.contains(&node));
    }
    (gathering.left == 0).then_some(gathering.shares)
}

struct Gathering<'g> {
    cluster: &'g Cluster<'g>,
    ask: &'g Ask<'g>,
    left: u32,
    shares: Vec<Share>,
}

impl Gathering<'_> {
    /// The node that can give the most comes first, which needs the fewest nodes; the last is the
    /// best fit for what is left. So a single node is found when one will do.
    fn gather(&mut self, allowed: impl Fn(NodeId) -> bool) {
        let mut seen: BTreeSet<SlotNo> = self.shares.iter().map(|s| s.slot).collect();
        let most = self.cluster.most_free_gpus(self.ask);
        for each in (1..=most.min(self.left)).rev() {
            // Whoever can give more than `each` has been taken, so these give exactly that.
            for slot in self.cluster.candidates(self.ask, self.ask.need(each)) {
                if self.left <= each {
                    break;
                }
                if allowed(self.cluster.node(slot).id) && seen.insert(slot) {
                    self.shares.push(Share { slot, gpus: each });
                    self.left -= each;
                }
            }
            if self.left <= each && self.take_last(&seen, &allowed) {
                return;
            }
        }
    }

    fn take_last(&mut self, seen: &BTreeSet<SlotNo>, allowed: &impl Fn(NodeId) -> bool) -> bool {
        let need = self.ask.need(self.left);
        let last = self
            .cluster
            .candidates(self.ask, need)
            .find(|slot| !seen.contains(slot) && allowed(self.cluster.node(*slot).id));
        let Some(slot) = last else { return false };
        self.shares.push(Share { slot, gpus: self.left });
        self.left = 0;
        true
    }
}
