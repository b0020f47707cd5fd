//! For every kind of demand, the nodes where it fits, best first, and why it does not fit on the
//! others. Kept up to date by reading what changed, so that a pass costs what it changes and not
//! the size of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{Demand, Shortage, Spread, Topology, Verdict};

use crate::ask::{Ask, Room};
use crate::cluster::{Cluster, SlotNo, Standing};
use crate::value::{Valuer, Worths};

/// All demands that were asked for of late.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pages: Vec<Page>,
    by_demand: BTreeMap<Demand, usize>,
    worths: Worths,
}

/// Demands remembered although nobody asked for them in the last pass.
const IDLE_PAGES_MAX: usize = 512;
/// Nodes on all pages. Beyond that all are forgotten, which costs time and changes no answer.
const SPOTS_MAX: usize = 16_000_000;

pub(crate) type PageNo = usize;

#[derive(Debug)]
pub(crate) struct Page {
    pub ask: Ask,
    spots: Vec<Spot>,
    /// Nodes where the least part of it fits now, best first.
    order: BTreeSet<(i64, SlotNo)>,
    tally: Tally,
    /// How far the cluster's log was read.
    read: usize,
    /// Somebody asked for it in this pass.
    is_used: bool,
}

/// How one node stands to a demand.
#[derive(Clone, Copy, Debug)]
struct Spot {
    stamp: u32,
    why: Why,
    score: i64,
    /// GPUs it could use of an open node now, and if it were empty.
    free: u32,
    empty: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Fits,
    Unsuitable,
    Labels,
    GpusBusy,
    CpusBusy,
    MemBusy,
    Draining,
    Away,
    /// It would do if GPUs of it were not fenced.
    Fenced,
    /// It would have room now if GPUs of it were not fenced.
    FencedBusy,
    /// The task wants it for itself, and others are there.
    NotEmpty,
    /// Another has it for itself.
    Alone,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    shortage: Shortage,
    /// Open nodes that could take a part if they were empty, and the GPUs they would give.
    open_nodes: u32,
    open_gpus: u64,
}

impl Book {
    /// Makes room for new demands. Page numbers from before are not valid afterwards.
    pub fn trim(&mut self) {
        let spots: usize = self.pages.iter().map(|page| page.spots.len()).sum();
        let idle = self.pages.iter().filter(|page| !page.is_used).count();
        if spots > SPOTS_MAX {
            self.pages.clear();
        } else if idle > IDLE_PAGES_MAX {
            self.pages.retain(|page| page.is_used);
        }
        if self.pages.len() != self.by_demand.len() {
            let pages = self.pages.iter().enumerate();
            self.by_demand = pages.map(|(no, page)| (page.ask.demand.clone(), no)).collect();
        }
        self.pages.iter_mut().for_each(|page| page.is_used = false);
    }

    /// The log starts again: everything was read.
    pub fn restart_log(&mut self) {
        self.pages.iter_mut().for_each(|page| page.read = 0);
    }

    pub fn page_of(&mut self, demand: &Demand) -> PageNo {
        if let Some(&no) = self.by_demand.get(demand) {
            self.pages[no].is_used = true;
            return no;
        }
        self.pages.push(Page::new(Ask::new(demand)));
        self.by_demand.insert(demand.clone(), self.pages.len() - 1);
        self.pages.len() - 1
    }

    pub fn ask(&self, no: PageNo) -> &Ask {
        &self.pages[no].ask
    }

    /// The page as it was when last read.
    pub fn page(&self, no: PageNo) -> &Page {
        &self.pages[no]
    }

    /// The page as of now.
    pub fn read(&mut self, no: PageNo, cluster: &Cluster, valuer: &Valuer) -> &Page {
        let page = &mut self.pages[no];
        page.catch_up(cluster, valuer, &mut self.worths);
        page
    }

    pub fn catch_up_all(&mut self, cluster: &Cluster, valuer: &Valuer) {
        let worths = &mut self.worths;
        self.pages.iter_mut().for_each(|page| page.catch_up(cluster, valuer, worths));
    }
}

impl Page {
    fn new(ask: Ask) -> Page {
        let (order, tally) = (BTreeSet::new(), Tally::default());
        Page { ask, spots: Vec::new(), order, tally, read: 0, is_used: true }
    }

    fn catch_up(&mut self, cluster: &Cluster, valuer: &Valuer, worths: &mut Worths) {
        if self.spots.len() != cluster.slots.len() {
            return self.build(cluster, valuer, worths);
        }
        for &no in &cluster.log()[self.read..] {
            let slot = cluster.get(no);
            let old = self.spots[no as usize];
            if old.stamp == slot.stamp {
                continue;
            }
            let new = self.spot(cluster, valuer, worths, no);
            self.tally.count(&old, -1);
            self.tally.count(&new, 1);
            if old.why == Why::Fits {
                self.order.remove(&(old.score, no));
            }
            if new.why == Why::Fits {
                self.order.insert((new.score, no));
            }
            self.spots[no as usize] = new;
        }
        self.read = cluster.log().len();
    }

    fn build(&mut self, cluster: &Cluster, valuer: &Valuer, worths: &mut Worths) {
        self.tally = Tally::default();
        self.spots = (0..cluster.slots.len() as SlotNo)
            .map(|no| self.spot(cluster, valuer, worths, no))
            .collect();
        for spot in &self.spots {
            self.tally.count(spot, 1);
        }
        let fitting = (0..).zip(&self.spots).filter(|(_, spot)| spot.why == Why::Fits);
        self.order = fitting.map(|(no, spot)| (spot.score, no)).collect();
        self.read = cluster.log().len();
    }

    fn spot(&self, cluster: &Cluster, valuer: &Valuer, worths: &mut Worths, no: SlotNo) -> Spot {
        let slot = cluster.get(no);
        let ask = &self.ask;
        let least = ask.least();
        let (free, empty) = (cluster.usable(slot, ask), cluster.usable_when_empty(slot, ask));
        let not_empty = ask.demand.exclusive && !slot.is_empty();
        let too_small = |room: &Room| !room.holds(&least) || (ask.names_models() && room.gpus == 0);
        let why = if too_small(&cluster.usable_when_mended(slot, ask)) {
            Why::Unsuitable
        } else if !cluster.labels_hold(slot, ask) {
            Why::Labels
        } else {
            match slot.standing {
                Standing::Away => Why::Away,
                Standing::Draining => Why::Draining,
                Standing::Open if too_small(&empty) => Why::Fenced,
                Standing::Open if slot.alone => Why::Alone,
                Standing::Open if not_empty => Why::NotEmpty,
                Standing::Open if free.gpus < least.gpus => {
                    match cluster.usable_but_for_fences(slot, ask).gpus < least.gpus {
                        true => Why::GpusBusy,
                        false => Why::FencedBusy,
                    }
                }
                Standing::Open if free.cpus < least.cpus => Why::CpusBusy,
                Standing::Open if free.mem < least.mem => Why::MemBusy,
                Standing::Open => Why::Fits,
            }
        };
        let score = match why {
            Why::Fits => {
                let before = worths.of(valuer, slot, no as usize);
                valuer.score(cluster, slot, ask, &least, before)
            }
            _ => 0,
        };
        let open = slot.standing == Standing::Open && !matches!(why, Why::Labels | Why::Fenced);
        Spot {
            stamp: slot.stamp,
            why,
            score,
            free: if open { free.gpus } else { 0 },
            empty: ask.share_of(&empty),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Nodes where the least part fits, best first.
    pub fn fitting(&self) -> impl Iterator<Item = SlotNo> + '_ {
        self.order.iter().map(|&(_, no)| no)
    }

    /// Whether the node would do if it were empty and took work.
    pub fn is_suitable(&self, no: SlotNo) -> bool {
        !matches!(self.spots[no as usize].why, Why::Unsuitable | Why::Labels | Why::Fenced)
    }

    pub fn is_suitable_and_open(&self, no: SlotNo) -> bool {
        self.is_suitable(no) && !matches!(self.spots[no as usize].why, Why::Draining | Why::Away)
    }

    /// Why it does not fit: waiting may help, or nodes must come back first.
    pub fn verdict(&self, cluster: &Cluster) -> Verdict {
        let (nodes_wanted, enough) = match (self.ask.spread, self.ask.node_counts()) {
            (Spread::Nodes { .. }, Some((_, least))) => (least, self.tally.open_nodes >= least),
            _ => (0, self.tally.open_gpus >= self.ask.least_gpus()),
        };
        let unreachable = self.unreachable(cluster);
        let mut shortage = Shortage {
            nodes_wanted,
            gpus_wanted: u32::try_from(self.ask.least_gpus()).unwrap_or(u32::MAX),
            nodes_total: cluster.slots.len() as u32,
            within: self.ask.within(),
            share: self.ask.demand.share,
            best_domain: best_domain(cluster, &self.ask, self.free_by_slot()),
            ..self.tally.shortage.clone()
        };
        shortage.blocked.unreachable = unreachable;
        shortage.nodes_fitting -= unreachable.min(shortage.nodes_fitting);
        if enough { Verdict::Busy(shortage) } else { Verdict::NodesUnavailable(shortage) }
    }

    /// Of the nodes that fit, those that are not reached from where most of them are. A task on one
    /// node has nobody to reach.
    fn unreachable(&self, cluster: &Cluster) -> u32 {
        if self.ask.node_counts().is_some_and(|(_, least)| least <= 1) {
            return 0;
        }
        let mut nodes: BTreeMap<u32, u32> = BTreeMap::new();
        for &(_, no) in &self.order {
            *nodes.entry(cluster.get(no).path.at(Topology::Any)).or_default() += 1;
        }
        nodes.values().sum::<u32>() - nodes.values().max().copied().unwrap_or(0)
    }

    fn free_by_slot(&self) -> impl Iterator<Item = (SlotNo, u32)> {
        self.fitting().map(|no| (no, self.spots[no as usize].free))
    }
}

/// The most nodes, or GPUs, free together in one domain that a task may span, of nodes with so many
/// GPUs free.
pub(crate) fn best_domain(
    cluster: &Cluster,
    ask: &Ask,
    free: impl Iterator<Item = (SlotNo, u32)>,
) -> u32 {
    let gpus_count = ask.node_counts().is_none();
    let within = ask.within();
    let mut sums: BTreeMap<u32, u32> = BTreeMap::new();
    for (no, gpus) in free {
        let slot = cluster.get(no);
        let domain = if within <= Topology::Node { no } else { slot.path.at(within) };
        *sums.entry(domain).or_default() += if gpus_count { gpus } else { 1 };
    }
    sums.into_values().max().unwrap_or(0)
}

impl Tally {
    fn count(&mut self, spot: &Spot, by: i32) {
        let add = |n: &mut u32, by: i32| *n = n.saturating_add_signed(by);
        add(&mut self.shortage.gpus_free, spot.free as i32 * by);
        let blocked = &mut self.shortage.blocked;
        let reason = match spot.why {
            Why::Fits => &mut self.shortage.nodes_fitting,
            Why::Unsuitable => &mut blocked.unsuitable,
            Why::Labels => &mut blocked.labels,
            Why::GpusBusy => &mut blocked.gpus_busy,
            Why::CpusBusy => &mut blocked.cpus_busy,
            Why::MemBusy => &mut blocked.mem_busy,
            Why::Draining => &mut blocked.draining,
            Why::Away => &mut blocked.away,
            Why::Fenced => &mut blocked.fenced,
            Why::FencedBusy => &mut blocked.fenced_busy,
            Why::NotEmpty => &mut blocked.not_empty,
            Why::Alone => &mut blocked.alone,
        };
        add(reason, by);
        let open = match spot.why {
            Why::Fits | Why::GpusBusy | Why::CpusBusy | Why::MemBusy => true,
            Why::FencedBusy | Why::NotEmpty | Why::Alone => true,
            Why::Unsuitable | Why::Labels | Why::Draining | Why::Away | Why::Fenced => false,
        };
        if open {
            add(&mut self.open_nodes, by);
            self.open_gpus =
                self.open_gpus.saturating_add_signed(i64::from(spot.empty) * i64::from(by));
        }
    }
}
