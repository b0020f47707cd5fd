//! What each node and each attempt is about since its book was last closed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Amounts, Day, GpuMicros, RowKey, TimeClass, pieces};
use crate::{GpuIndex, JobId, NodeId, Time};

/// What is not held of a node, and all that ever became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeBook {
    /// `unheld` holds since then.
    pub since: Time,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unheld: Vec<Lot>,
    /// What is on record, since it joined.
    pub past: Amounts,
    pub capacity: Capacity,
    /// GPUs that are held and hardly used.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub idle: BTreeSet<GpuIndex>,
}

impl NodeBook {
    /// Adds all that became of what nobody held, and what is on record, up to now. The book stays as
    /// it is.
    pub fn sum_up(&self, windows: &[Window], at: Time, sums: &mut TimeSums) {
        sums.by_class.merge(&self.past);
        if self.since >= at {
            return;
        }
        let cuts = windows.iter().flat_map(|w| [w.from, w.until]);
        for (from, until) in pieces(self.since, at, cuts) {
            let window = Window::at(windows, from);
            for lot in &self.unheld {
                let amount = u64::from(lot.milli) * until.since(from).0;
                sums.by_class.add(lot.class_within(window), amount);
            }
        }
    }
}

/// What GPU time was, whosever it was and whenever.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeSums {
    pub by_class: Amounts,
    /// Work that is neither safe nor lost yet; it is in no class.
    pub unsaved: GpuMicros,
}

/// What a node could have done since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    pub past: GpuMicros,
    pub gpus: u32,
    pub since: Time,
}

impl Capacity {
    pub fn at(&self, now: Time) -> GpuMicros {
        self.past + u64::from(self.gpus) * 1000 * now.since(self.since).0
    }
    pub fn change(&mut self, gpus: u32, now: Time) {
        *self = Capacity { past: self.at(now), gpus, since: now };
    }
}

/// Thousandths of GPUs of one model that are the same thing for the same payer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lot {
    pub class: TimeClass,
    pub key: RowKey,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    pub milli: u32,
}

impl Lot {
    /// What it is while the node is reserved.
    pub(super) fn within(&self, window: Option<&Window>) -> Lot {
        let mut lot = Lot { class: self.class_within(window), ..self.clone() };
        if let Some(window) = window.filter(|_| self.class == TimeClass::Free) {
            lot.key.team.clone_from(&window.team);
        }
        lot
    }

    fn class_within(&self, window: Option<&Window>) -> TimeClass {
        match (self.class, window) {
            (TimeClass::Free, Some(_)) => TimeClass::Reserved,
            (class, _) => class,
        }
    }
}

/// When a node is reserved, and for which team; no name if it is for maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: Time,
    pub until: Time,
    pub team: String,
}

impl Window {
    /// The first that this moment is in.
    pub(super) fn at(windows: &[Window], at: Time) -> Option<&Window> {
        windows.iter().find(|w| w.from <= at && at < w.until)
    }
}

/// What one attempt holds, and the work of it that is neither safe nor lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunBook {
    pub team: String,
    pub user: String,
    /// What its time is while it is as it is now; none if it works, which is judged later.
    pub kind: Option<TimeClass>,
    pub slices: Vec<Slice>,
}

impl RunBook {
    /// Adds what is not on record of it yet, up to now. The book stays as it is.
    pub fn sum_up(&self, at: Time, sums: &mut TimeSums) {
        for slice in &self.slices {
            let ms = at.since(slice.since).0;
            sums.unsaved += slice.open.iter().map(|work| work.amount).sum::<GpuMicros>();
            match self.kind {
                Some(class) => sums.by_class.add(class, slice.milli() * ms),
                None => {
                    sums.by_class.add(TimeClass::Idle, u64::from(slice.idle) * ms);
                    sums.unsaved += u64::from(slice.busy) * ms;
                }
            }
        }
    }
}

/// What an attempt has of one model on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub node: NodeId,
    pub model: String,
    pub since: Time,
    /// Thousandths of GPUs that it holds, by whether they do anything.
    pub busy: u32,
    pub idle: u32,
    /// Oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<Work>,
}

/// Work that is judged later. Within one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    pub from: Time,
    pub until: Time,
    pub amount: GpuMicros,
}

/// A GPU that is now idle and now busy leaves many stretches behind; beyond so many they are put
/// together, day by day, and a checkpoint that is reported late divides them evenly.
const STRETCHES_MAX: usize = 64;

impl Slice {
    pub fn new(node: NodeId, model: &str, since: Time) -> Slice {
        Slice { node, model: model.to_owned(), since, busy: 0, idle: 0, open: Vec::new() }
    }

    pub fn milli(&self) -> u64 {
        u64::from(self.busy) + u64::from(self.idle)
    }

    /// It holds nothing, and nothing of it waits to be judged.
    pub fn is_empty(&self) -> bool {
        self.milli() == 0 && self.open.is_empty()
    }

    /// It worked within one day.
    pub(super) fn work(&mut self, from: Time, until: Time) {
        let amount = u64::from(self.busy) * until.since(from).0;
        if amount == 0 {
            return;
        }
        let many = self.open.len() >= STRETCHES_MAX;
        match self.open.last_mut() {
            Some(last)
                if Day::of(last.from) == Day::of(from)
                    && (many || last.until == from && last.is_as_dense(amount, from, until)) =>
            {
                last.until = until;
                last.amount += amount;
            }
            _ => self.open.push(Work { from, until, amount }),
        }
    }

    /// Takes out what was done before this time.
    pub(super) fn take_before(&mut self, before: Time) -> Vec<(Day, GpuMicros)> {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for work in std::mem::take(&mut self.open) {
            let (done, rest) = work.split(before);
            taken.extend(done.map(|w| (Day::of(w.from), w.amount)));
            left.extend(rest);
        }
        self.open = left;
        taken
    }

    /// Takes out what so many thousandths of its GPUs seemed to do since then.
    pub(super) fn take_idle(&mut self, milli: u32, since: Time) -> Vec<(Day, GpuMicros)> {
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        // Too many stretches are not cut further: then what is left of one is spread over it.
        let may_cut = self.open.len() < STRETCHES_MAX;
        for mut work in std::mem::take(&mut self.open) {
            let (before, after) = work.split(since);
            let Some(after) = after else {
                left.push(work);
                continue;
            };
            let idle = u64::from(milli) * after.until.since(after.from).0;
            let idle = idle.min(after.amount);
            taken.push((Day::of(after.from), idle));
            if may_cut {
                left.extend(before);
                work = after;
            }
            work.amount -= idle;
            if work.amount > 0 {
                left.push(work);
            }
        }
        self.open = left;
        taken
    }
}

impl Work {
    fn is_as_dense(&self, amount: GpuMicros, from: Time, until: Time) -> bool {
        let (mine, theirs) = (self.until.since(self.from).0, until.since(from).0);
        u128::from(self.amount) * u128::from(theirs) == u128::from(amount) * u128::from(mine)
    }

    fn split(self, at: Time) -> (Option<Work>, Option<Work>) {
        if self.until <= at {
            return (Some(self), None);
        }
        if self.from >= at {
            return (None, Some(self));
        }
        let (part, whole) = (at.since(self.from).0, self.until.since(self.from).0);
        let amount = u128::from(self.amount) * u128::from(part) / u128::from(whole);
        // Never more than all of it, so it fits.
        let amount = amount as GpuMicros;
        let first = Work { until: at, amount, ..self };
        (Some(first), Some(Work { from: at, amount: self.amount - amount, ..self }))
    }
}
