//! Where every GPU-second went. Each is in exactly one class, and the classes of a node add up to
//! its GPUs times the time since it joined.
//!
//! ```text
//!  nobody holds it ─► NodeBook: free, reserved, unhealthy ──────────────┐
//!  an attempt does ─► RunBook: starting, suspended, idle ───────────────┤► days, jobs, nodes
//!                        └► work that is not safe yet ─► productive or lost ┘
//! ```
//! A book is closed only when something about it changes, so a quiet node costs nothing. The clock
//! is the time of the events, and amounts are whole numbers: a replay gives the same.

mod books;
mod day;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use books::*;
pub use day::*;
pub use report::*;

use crate::{Generation, JobId, LeaseId, NodeId, TaskId, Time};

/// GPU-microseconds: a thousandth of a GPU for a millisecond. Shares of a GPU are whole thousandths
/// and time is whole milliseconds, so nothing is ever rounded.
pub type GpuMicros = u64;

/// GPU-microseconds in an hour of one GPU.
pub const GPU_HOUR: GpuMicros = 3_600_000_000;

/// What a GPU-second was.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TimeClass {
    /// Work that ended well, or that a checkpoint has made safe.
    Productive,
    /// From the placement until all ranks run.
    Starting,
    /// Work since the last checkpoint that a failure threw away.
    LostToFailure,
    /// The same, when it had to make room.
    LostToPreemption,
    /// Held while GPU state moved out or back in.
    Suspended,
    /// Held, and hardly used.
    Idle,
    /// Kept for somebody who has not come yet.
    Reserved,
    /// Nothing may start there: drained, out of reach, or broken.
    Unhealthy,
    Free,
}

impl TimeClass {
    pub const ALL: [TimeClass; 9] = [
        TimeClass::Productive,
        TimeClass::Starting,
        TimeClass::LostToFailure,
        TimeClass::LostToPreemption,
        TimeClass::Suspended,
        TimeClass::Idle,
        TimeClass::Reserved,
        TimeClass::Unhealthy,
        TimeClass::Free,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TimeClass::Productive => "productive",
            TimeClass::Starting => "starting",
            TimeClass::LostToFailure => "lost_to_failure",
            TimeClass::LostToPreemption => "lost_to_preemption",
            TimeClass::Suspended => "suspended",
            TimeClass::Idle => "idle",
            TimeClass::Reserved => "reserved",
            TimeClass::Unhealthy => "unhealthy",
            TimeClass::Free => "free",
        }
    }

    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            TimeClass::Productive => "productive",
            TimeClass::Starting => "starting up",
            TimeClass::LostToFailure => "lost to failure",
            TimeClass::LostToPreemption => "lost to preemption",
            TimeClass::Suspended => "suspended",
            TimeClass::Idle => "held but idle",
            TimeClass::Reserved => "reserved",
            TimeClass::Unhealthy => "draining or unhealthy",
            TimeClass::Free => "free",
        }
    }

    /// Somebody's job had the GPU.
    pub fn is_held(self) -> bool {
        !matches!(self, TimeClass::Reserved | TimeClass::Unhealthy | TimeClass::Free)
    }

    /// Held and not productive: what a job wasted.
    pub fn is_waste(self) -> bool {
        self.is_held() && self != TimeClass::Productive
    }
}

/// An amount for each class; a class that is not there has nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Amounts(pub BTreeMap<TimeClass, GpuMicros>);

impl Amounts {
    pub fn add(&mut self, class: TimeClass, amount: GpuMicros) {
        if amount > 0 {
            let sum = self.0.entry(class).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    pub fn merge(&mut self, other: &Amounts) {
        other.0.iter().for_each(|(&class, &amount)| self.add(class, amount));
    }
    pub fn of(&self, class: TimeClass) -> GpuMicros {
        self.0.get(&class).copied().unwrap_or(0)
    }
    pub fn total(&self) -> GpuMicros {
        self.0.values().sum()
    }
    fn sum_of(&self, want: fn(TimeClass) -> bool) -> GpuMicros {
        self.0.iter().filter(|(class, _)| want(**class)).map(|(_, n)| n).sum()
    }
    /// What jobs held.
    pub fn held(&self) -> GpuMicros {
        self.sum_of(TimeClass::is_held)
    }
    /// What jobs held in vain.
    pub fn waste(&self) -> GpuMicros {
        self.sum_of(TimeClass::is_waste)
    }
}

/// Whose time on what. Nobody's: team and user are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowKey {
    pub team: String,
    pub user: String,
    /// Of the GPU.
    pub model: String,
}

/// One line of a day, as it is archived and reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerRow {
    #[schema(value_type = String)]
    pub day: Day,
    pub team: String,
    pub user: String,
    pub model: String,
    pub class: TimeClass,
    #[schema(value_type = u64)]
    pub gpu_micros: GpuMicros,
}

/// The rows of one day.
pub type DayRows = BTreeMap<RowKey, Amounts>;

/// What a job had, by GPU model.
pub type JobBook = BTreeMap<String, Amounts>;

/// The ledger. Part of the state; moved by `apply` and by nothing else.
///
/// Days, jobs and attempts are behind `Arc`: a copy for somebody who reads costs pointers, and what is
/// changed while it is alive is copied then. It is stored as if they were not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goodput {
    /// Every node and attempt has its book. Not so in a state from before there was a ledger.
    pub begun: bool,
    pub days: BTreeMap<Day, Arc<DayRows>>,
    /// What was in days that are no longer here.
    pub dropped: Amounts,
    /// By job and GPU model, all its attempts and tasks together.
    pub jobs: BTreeMap<JobId, Arc<JobBook>>,
    pub nodes: BTreeMap<NodeId, NodeBook>,
    pub runs: BTreeMap<LeaseId, Arc<RunBook>>,
    /// Every book was closed at this time.
    pub settled: Time,
}

/// Where an amount belongs, but for its day and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    pub key: RowKey,
    pub node: NodeId,
    pub job: Option<JobId>,
}

impl Goodput {
    pub fn book(&mut self, bill: &Bill, day: Day, class: TimeClass, amount: GpuMicros) {
        if amount == 0 {
            return;
        }
        let rows = Arc::make_mut(self.days.entry(day).or_default());
        match rows.get_mut(&bill.key) {
            Some(row) => row.add(class, amount),
            None => rows.entry(bill.key.clone()).or_default().add(class, amount),
        }
        if let Some(job) = bill.job {
            let models = Arc::make_mut(self.jobs.entry(job).or_default());
            match models.get_mut(&bill.key.model) {
                Some(amounts) => amounts.add(class, amount),
                None => models.entry(bill.key.model.clone()).or_default().add(class, amount),
            }
        }
        self.nodes.entry(bill.node).or_default().past.add(class, amount);
    }

    /// Closes the book of a node. What is free of it belongs to whoever has reserved it.
    pub fn close_node(&mut self, node: NodeId, windows: &[Window], at: Time) {
        let Some(book) = self.nodes.get_mut(&node) else { return };
        let since = book.since;
        book.since = at.max(since);
        if since >= at || book.unheld.is_empty() {
            return;
        }
        let lots = book.unheld.clone();
        let cuts = windows.iter().flat_map(|w| [w.from, w.until]);
        for (from, until) in pieces(since, at, cuts) {
            let window = Window::at(windows, from);
            for lot in &lots {
                let (lot, ms) = (lot.within(window), until.since(from).0);
                let bill = Bill { key: lot.key, node, job: lot.job };
                self.book(&bill, Day::of(from), lot.class, u64::from(lot.milli) * ms);
            }
        }
    }

    /// Closes the slices of an attempt, on one node or on all.
    pub fn close_run(&mut self, lease: LeaseId, on: Option<NodeId>, at: Time) {
        let here = |slice: &Slice| on.is_none_or(|node| slice.node == node);
        let due = |slice: &Slice| here(slice) && slice.since < at;
        // What is closed already is not copied for it.
        if !self.runs.get(&lease).is_some_and(|run| run.slices.iter().any(due)) {
            return;
        }
        let Some(mut shared) = self.runs.remove(&lease) else { return };
        let run = Arc::make_mut(&mut shared);
        let (kind, team, user) = (run.kind, run.team.clone(), run.user.clone());
        for slice in run.slices.iter_mut().filter(|slice| here(slice)) {
            let since = slice.since;
            slice.since = at.max(since);
            if since >= at || slice.busy + slice.idle == 0 {
                continue;
            }
            let key = RowKey { team: team.clone(), user: user.clone(), model: slice.model.clone() };
            let bill = Bill { key, node: slice.node, job: Some(lease.task.job) };
            for (from, until) in pieces(since, at, std::iter::empty()) {
                let ms = until.since(from).0;
                let day = Day::of(from);
                match kind {
                    Some(class) => self.book(&bill, day, class, slice.milli() * ms),
                    None => {
                        self.book(&bill, day, TimeClass::Idle, u64::from(slice.idle) * ms);
                        slice.work(from, until);
                    }
                }
            }
        }
        self.runs.insert(lease, shared);
    }

    /// What an attempt did before this time is of this class for good.
    pub fn judge(&mut self, lease: LeaseId, before: Time, class: TimeClass) {
        let Some(mut shared) = self.runs.remove(&lease) else { return };
        let run = Arc::make_mut(&mut shared);
        for slice in &mut run.slices {
            let key = RowKey {
                team: run.team.clone(),
                user: run.user.clone(),
                model: slice.model.clone(),
            };
            let bill = Bill { key, node: slice.node, job: Some(lease.task.job) };
            for (day, amount) in slice.take_before(before) {
                self.book(&bill, day, class, amount);
            }
        }
        self.runs.insert(lease, shared);
    }

    /// So much of what an attempt has on a node did nothing since then. What of that time is judged
    /// already stays as it is; the rest was no work.
    pub fn was_idle(&mut self, lease: LeaseId, node: NodeId, model: &str, milli: u32, since: Time) {
        let Some(mut shared) = self.runs.remove(&lease) else { return };
        let run = Arc::make_mut(&mut shared);
        let its = |slice: &&mut Slice| slice.node == node && slice.model == model;
        for slice in run.slices.iter_mut().filter(its) {
            let (team, user) = (run.team.clone(), run.user.clone());
            let key = RowKey { team, user, model: model.to_owned() };
            let bill = Bill { key, node, job: Some(lease.task.job) };
            for (day, amount) in slice.take_idle(milli, since) {
                self.book(&bill, day, TimeClass::Idle, amount);
            }
        }
        self.runs.insert(lease, shared);
    }

    /// The day is over, every book was closed since, and no work of it is still undecided: its rows
    /// do not change any more.
    pub fn is_sealed(&self, day: Day) -> bool {
        self.is_settled(day) && !self.open_days().any(|open| open == day)
    }

    fn is_settled(&self, day: Day) -> bool {
        self.settled >= day.next().begins()
    }

    /// Of which some work is undecided; the same day may come again and again.
    fn open_days(&self) -> impl Iterator<Item = Day> {
        let slices = self.runs.values().flat_map(|run| &run.slices);
        slices.flat_map(|slice| &slice.open).map(|work| Day::of(work.from))
    }

    /// Days whose rows are final, oldest first: what can be archived and then dropped.
    pub fn sealed_days(&self) -> Vec<Day> {
        // One look at the attempts for all days.
        let open: BTreeSet<Day> = self.open_days().collect();
        let sealed = |day: &Day| self.is_settled(*day) && !open.contains(day);
        self.days.keys().copied().filter(sealed).collect()
    }

    /// The rows of a day, one for each class that has anything.
    pub fn rows_of(&self, day: Day) -> Vec<LedgerRow> {
        let rows = self.days.get(&day).into_iter().flat_map(|rows| rows.iter());
        let classes = rows.flat_map(|(key, amounts)| amounts.0.iter().map(move |a| (key, a)));
        let row = |(key, (&class, &gpu_micros)): (&RowKey, (&TimeClass, &GpuMicros))| {
            let RowKey { team, user, model } = key.clone();
            LedgerRow { day, team, user, model, class, gpu_micros }
        };
        classes.map(row).collect()
    }

    /// The rows of this day are somewhere else for good.
    pub fn drop_day(&mut self, day: Day) {
        if let Some(rows) = self.days.remove(&day) {
            rows.values().for_each(|amounts| self.dropped.merge(amounts));
        }
    }

    /// What is on record of a job.
    pub fn of_job(&self, job: JobId) -> Amounts {
        let mut sum = Amounts::default();
        self.jobs.get(&job).into_iter().flat_map(|m| m.values()).for_each(|a| sum.merge(a));
        sum
    }

    /// The attempts of a job that hold something, or whose work is not judged yet.
    pub fn runs_of(&self, job: JobId) -> impl Iterator<Item = (&LeaseId, &RunBook)> {
        let first = |job| LeaseId { task: TaskId::single(job), generation: Generation(0) };
        let of_job = self.runs.range(first(job)..first(JobId(job.0.saturating_add(1))));
        of_job.map(|(lease, run)| (lease, run.as_ref()))
    }

    /// Work that is neither safe nor lost yet: whose, on which day, and how much.
    pub fn undecided(&self) -> impl Iterator<Item = (LeaseId, RowKey, Day, GpuMicros)> + '_ {
        self.runs.iter().flat_map(|(&lease, run)| {
            run.slices.iter().flat_map(move |slice| {
                let key = RowKey {
                    team: run.team.clone(),
                    user: run.user.clone(),
                    model: slice.model.clone(),
                };
                slice.open.iter().map(move |s| (lease, key.clone(), Day::of(s.from), s.amount))
            })
        })
    }
}

#[cfg(test)]
mod tests;
