//! What is free, as an overlay over the state: taking from it leaves the state alone.
//!
//! Nodes with the same GPU models form a pool, and each pool keeps its open nodes sorted by what
//! they have free. The best fit for a need is then found by a few lookups, however many nodes
//! there are.

use std::collections::BTreeSet;

use tutti_model::{Bytes, Gpu, GpuIndex, Link, Node, NodeId, PartPlacement, State};

use crate::ask::{Ask, Need, Room};

/// Position of a node in [`Cluster::slots`]; in the order of node ids.
pub(crate) type SlotNo = u32;

pub(crate) struct Cluster<'a> {
    pub slots: Vec<Slot<'a>>,
    pools: Vec<Pool<'a>>,
}

pub(crate) struct Slot<'a> {
    pub node: &'a Node,
    pub standing: Standing,
    pub total: Room,
    pub free: Room,
    pool: u32,
    /// Which GPUs are free, lowest first; listed when the first is taken.
    gpus: Option<Vec<&'a Gpu>>,
}

/// Whether a node takes work, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    /// Lost, away or cleaning up.
    Away,
    Draining,
}

/// Order of preference: fewest free GPUs first, so that large gaps stay whole; then the tightest
/// in CPUs and memory; then the node id.
type Key = (u32, u32, Bytes, SlotNo);

struct Pool<'a> {
    /// Sorted, no doubles. None for nodes without GPUs.
    models: Vec<&'a str>,
    open: BTreeSet<Key>,
}

/// A part of a gang before GPUs are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub slot: SlotNo,
    pub gpus: u32,
}

impl Standing {
    pub fn of(node: &Node) -> Standing {
        if node.link != Link::Up || !node.stale.is_empty() {
            Standing::Away
        } else if node.drain.is_some() {
            Standing::Draining
        } else {
            Standing::Open
        }
    }
}

impl Slot<'_> {
    fn key(&self, no: SlotNo) -> Key {
        (self.free.gpus, self.free.cpus, self.free.mem, no)
    }
}

impl<'a> Cluster<'a> {
    pub fn new(state: &'a State) -> Cluster<'a> {
        let mut cluster =
            Cluster { slots: Vec::with_capacity(state.nodes.len()), pools: Vec::new() };
        let mut keys: Vec<Vec<Key>> = Vec::new();
        for (no, node) in (0..).zip(state.nodes.values()) {
            let pool = cluster.pool_of(node);
            let slot = Slot::new(node, pool);
            keys.resize_with(cluster.pools.len(), Vec::new);
            if slot.standing == Standing::Open {
                keys[pool as usize].push(slot.key(no));
            }
            cluster.slots.push(slot);
        }
        for (pool, keys) in cluster.pools.iter_mut().zip(keys) {
            pool.open = keys.into_iter().collect();
        }
        cluster
    }

    fn pool_of(&mut self, node: &'a Node) -> u32 {
        let gpus = &node.facts.gpus;
        let same = |pool: &Pool<'_>| match (pool.models.as_slice(), gpus.as_slice()) {
            ([], []) => true,
            ([model], [_, ..]) => gpus.iter().all(|g| g.model == *model),
            (models, _) => {
                gpus.iter().all(|g| models.contains(&g.model.as_str()))
                    && models.iter().all(|m| gpus.iter().any(|g| g.model == *m))
            }
        };
        let at = self.pools.iter().position(same).unwrap_or_else(|| {
            let models: BTreeSet<&str> = gpus.iter().map(|g| g.model.as_str()).collect();
            let models = models.into_iter().collect();
            self.pools.push(Pool { models, open: BTreeSet::new() });
            self.pools.len() - 1
        });
        at as u32
    }

    pub fn node(&self, slot: SlotNo) -> &'a Node {
        self.slots[slot as usize].node
    }

    /// What the ask could use of a node, free now.
    pub fn usable(&self, slot: &Slot<'_>, ask: &Ask<'_>) -> Room {
        let gpus = match (self.pool_wanted(slot, ask), &slot.gpus) {
            (Wanted::All, _) => slot.free.gpus,
            (Wanted::None, _) => 0,
            (Wanted::Some, Some(list)) => count(list.iter().copied(), ask),
            (Wanted::Some, None) => count(slot.node.free_gpus(), ask),
        };
        Room { gpus, ..slot.free }
    }

    /// What the ask could use of a node if it were empty.
    pub fn usable_when_empty(&self, slot: &Slot<'_>, ask: &Ask<'_>) -> Room {
        let gpus = match self.pool_wanted(slot, ask) {
            Wanted::All => slot.total.gpus,
            Wanted::None => 0,
            Wanted::Some => count(slot.node.facts.gpus.iter(), ask),
        };
        Room { gpus, ..slot.total }
    }

    /// A node without the wanted model is of no use, even to an ask for no GPUs of it.
    pub fn has_model(&self, slot: &Slot<'_>, ask: &Ask<'_>) -> bool {
        self.pool_wanted(slot, ask) != Wanted::None
    }

    fn pool_wanted(&self, slot: &Slot<'_>, ask: &Ask<'_>) -> Wanted {
        self.pools[slot.pool as usize].wanted(ask)
    }

    /// The largest number of free GPUs on one open node.
    pub fn most_free_gpus(&self, ask: &Ask<'_>) -> u32 {
        let pools = self.pools.iter().filter(|p| p.wanted(ask) != Wanted::None);
        pools.filter_map(|p| p.open.last()).map(|key| key.0).max().unwrap_or(0)
    }

    /// Open nodes with room for the need, best fit first.
    pub fn candidates<'c>(&'c self, ask: &'c Ask<'c>, need: Need) -> Candidates<'c> {
        let mut found = Candidates { cluster: self, ask, need, heads: Vec::new() };
        for (no, pool) in self.pools.iter().enumerate() {
            if pool.wanted(ask) != Wanted::None {
                found.push_next(no, (need.gpus, need.cpus, need.mem, 0));
            }
        }
        found
    }

    /// Takes the shares out of what is free and picks the GPUs, lowest first.
    pub fn take(&mut self, ask: &Ask<'_>, shares: &[Share]) -> Vec<PartPlacement> {
        shares.iter().map(|share| self.take_one(ask, *share)).collect()
    }

    fn take_one(&mut self, ask: &Ask<'_>, share: Share) -> PartPlacement {
        let need = ask.need(share.gpus);
        let mut gpus = Vec::with_capacity(share.gpus as usize);
        let node = self.change(share.slot, |slot| {
            let mut left = share.gpus;
            slot.free_list().retain(|gpu| {
                let take = left > 0 && ask.wants(gpu);
                if take {
                    left -= 1;
                    gpus.push(gpu.index);
                }
                !take
            });
            slot.free.gpus -= need.gpus;
            slot.free.cpus -= need.cpus;
            slot.free.mem.0 -= need.mem.0;
        });
        let ranks = ask.demand.ranks_for(share.gpus);
        PartPlacement { node, gpus, cpus: need.cpus, mem: need.mem, ranks, share: ask.demand.share }
    }

    /// Gives back what a lease holds on a node, to see what fits once it has ended.
    pub fn give_back(&mut self, slot: SlotNo, gpus: &[GpuIndex], cpus: u32, mem: Bytes) {
        self.change(slot, |slot| {
            let back: Vec<&Gpu> =
                slot.node.facts.gpus.iter().filter(|g| gpus.contains(&g.index)).collect();
            slot.free.gpus += back.len() as u32;
            slot.free.cpus = slot.free.cpus.saturating_add(cpus).min(slot.total.cpus);
            slot.free.mem = Bytes(slot.free.mem.0.saturating_add(mem.0)).min(slot.total.mem);
            let list = slot.free_list();
            list.extend(back);
            list.sort_by_key(|g| g.index);
        });
    }

    /// Sets whether a node takes work, to see what fits if it did.
    pub fn set_standing(&mut self, slot: SlotNo, standing: Standing) {
        self.change(slot, |slot| slot.standing = standing);
    }

    pub fn slot_of(&self, node: NodeId) -> Option<SlotNo> {
        self.slots.binary_search_by_key(&node, |s| s.node.id).ok().map(|no| no as SlotNo)
    }

    fn change(&mut self, no: SlotNo, with: impl FnOnce(&mut Slot<'a>)) -> NodeId {
        let slot = &mut self.slots[no as usize];
        let open = &mut self.pools[slot.pool as usize].open;
        if slot.standing == Standing::Open {
            open.remove(&slot.key(no));
        }
        with(slot);
        if slot.standing == Standing::Open {
            open.insert(slot.key(no));
        }
        slot.node.id
    }
}

impl<'a> Slot<'a> {
    fn new(node: &'a Node, pool: u32) -> Slot<'a> {
        let facts = &node.facts;
        // Not `free_gpu_count`: after a node came back with fewer GPUs, leases may still name
        // some that it no longer has.
        let gpus = node.free_gpus().count() as u32;
        Slot {
            node,
            standing: Standing::of(node),
            total: Room { gpus: facts.gpus.len() as u32, cpus: facts.cpus, mem: facts.mem },
            free: Room { gpus, cpus: node.free_cpus(), mem: node.free_mem() },
            pool,
            gpus: None,
        }
    }

    fn free_list(&mut self) -> &mut Vec<&'a Gpu> {
        self.gpus.get_or_insert_with(|| {
            let mut list: Vec<&Gpu> = self.node.free_gpus().collect();
            list.sort_by_key(|g| g.index);
            list
        })
    }
}

/// How many of a pool's GPUs an ask can use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    Some,
    None,
}

impl Pool<'_> {
    fn wanted(&self, ask: &Ask<'_>) -> Wanted {
        if ask.models.is_none() {
            return Wanted::All;
        }
        match self.models.iter().filter(|m| ask.wants_model(m)).count() {
            0 => Wanted::None,
            n if n == self.models.len() => Wanted::All,
            _ => Wanted::Some,
        }
    }

    /// The first open node from `at` on with room for the need. Jumps over whole stretches of
    /// nodes that lack CPUs or memory.
    fn next_from(&self, mut at: Key, need: &Need) -> Option<Key> {
        loop {
            let &key = self.open.range(at..).next()?;
            let (gpus, cpus, mem, _) = key;
            if cpus < need.cpus {
                at = (gpus, need.cpus, need.mem, 0);
            } else if mem < need.mem {
                at = (gpus, cpus, need.mem, 0);
            } else {
                return Some(key);
            }
        }
    }
}

fn count<'g>(gpus: impl Iterator<Item = &'g Gpu>, ask: &Ask<'_>) -> u32 {
    gpus.filter(|g| ask.wants(g)).count() as u32
}

/// Merges the pools' nodes in order of preference.
pub(crate) struct Candidates<'c> {
    cluster: &'c Cluster<'c>,
    ask: &'c Ask<'c>,
    need: Need,
    heads: Vec<(Preference, usize, Key)>,
}

/// As [`Key`], but of two nodes without a free GPU the one that never has any comes first: its
/// CPUs are of no use to GPU work.
type Preference = (u32, bool, u32, Bytes, SlotNo);

impl Candidates<'_> {
    fn push_next(&mut self, no: usize, from: Key) {
        let pool = &self.cluster.pools[no];
        let mut at = from;
        while let Some(key) = pool.next_from(at, &self.need) {
            let (gpus, cpus, mem, slot) = key;
            if pool.wanted(self.ask) == Wanted::All || self.has_enough(slot) {
                let preference = (gpus, !pool.models.is_empty(), cpus, mem, slot);
                self.heads.push((preference, no, key));
                return;
            }
            at = (gpus, cpus, mem, slot + 1);
        }
    }

    /// On a node with several models, the free GPUs may be of the wrong one.
    fn has_enough(&self, slot: SlotNo) -> bool {
        let slot = &self.cluster.slots[slot as usize];
        self.cluster.usable(slot, self.ask).holds(&self.need)
    }
}

impl Iterator for Candidates<'_> {
    type Item = SlotNo;

    fn next(&mut self) -> Option<SlotNo> {
        let at = (0..self.heads.len()).min_by_key(|&i| self.heads[i].0)?;
        let (_, pool, (gpus, cpus, mem, slot)) = self.heads.swap_remove(at);
        self.push_next(pool, (gpus, cpus, mem, slot + 1));
        Some(slot)
    }
}
