//! What nodes do, as their agents see it once a second. In memory and in files of its own, never in
//! the journal; nothing here waits for the engine, and the engine waits for nothing here.
//!
//! ```text
//!  agents ─► links ─► Store ─┬─ newest sample of each node ──────────► api, /metrics
//!                            └─ Track of each GPU and host: rings ───► api
//!                                 └─ Keeper: once a minute ─► segment files ─► the next start
//! ```

mod clock;
mod figures;
mod file;
mod keeper;
mod query;
mod ring;
mod segment;
pub mod series;
mod track;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

use tutti_model::{Bytes, GpuIndex, NodeSample, Span, TaskId, Time};

use clock::Aligned;
use series::{GPU, HOST, Layout};
use track::Track;

use crate::lock::lock;

pub use figures::total;
pub use keeper::{Keeper, keep};
pub use query::{Curve, Range};

/// More devices than any machine has; an agent that names more is not believed.
const GPUS_MAX: usize = 256;
/// Processes on GPUs of one node.
const PROCESSES_MAX: usize = 4096;
/// Tasks of a node whose peaks are remembered.
const PEAKS_MAX: usize = 4096;
/// How long a node that is gone is remembered.
const FORGET_AFTER: u64 = 7 * 24 * 3600;

#[derive(Default)]
pub struct Store {
    nodes: RwLock<BTreeMap<String, Arc<Mutex<Book>>>>,
}

/// A node's newest sample.
#[derive(Clone, Debug)]
pub struct Newest {
    pub sample: Arc<NodeSample>,
    /// When it came, by our clock.
    pub heard: Time,
}

impl Newest {
    pub fn age(&self, now: Time) -> Span {
        now.since(self.heard)
    }
}

/// A device of a node, or the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    Host,
    Gpu(GpuIndex),
}

impl Of {
    fn layout(self) -> &'static Layout {
        match self {
            Of::Host => Layout::host(),
            Of::Gpu(_) => Layout::gpu(),
        }
    }
}

/// All that is known of one node.
#[derive(Clone, Debug, Default)]
struct Book {
    newest: Option<Newest>,
    aligned: Aligned,
    tracks: BTreeMap<Of, Track>,
    /// The most that tasks took of the machine, as far as is remembered.
    peaks: BTreeMap<TaskId, Peak>,
}

/// The most of each that was ever seen, not all in one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    pub cpus: f32,
    pub mem: Bytes,
}

impl Book {
    fn push(&mut self, sample: NodeSample, now: Time) {
        let second = self.aligned.second(sample.at, now);
        self.track(Of::Host).seconds.put(second, &series::row(HOST, &sample.host));
        for gpu in sample.gpus.iter().take(GPUS_MAX) {
            self.track(Of::Gpu(gpu.index)).seconds.put(second, &series::row(GPU, gpu));
        }
        for task in &sample.tasks {
            let peak = self.peaks.entry(task.task).or_default();
            peak.cpus = peak.cpus.max(task.cpus);
            peak.mem = peak.mem.max(task.mem);
        }
        // The oldest jobs have the smallest ids.
        while self.peaks.len() > PEAKS_MAX {
            self.peaks.pop_first();
        }
        self.newest = Some(Newest { sample: Arc::new(sample), heard: now });
    }

    /// One sample stands for its whole minute.
    fn recall(&mut self, sample: NodeSample) {
        let (minute, heard) = (sample.at.0 / 60_000, sample.at);
        let host = series::row(HOST, &sample.host);
        self.track(Of::Host).minutes.put(minute, &[host.as_slice(), &host].concat());
        for gpu in sample.gpus.iter().take(GPUS_MAX) {
            let row = series::row(GPU, gpu);
            let of = self.track(Of::Gpu(gpu.index));
            of.minutes.put(minute, &[row.as_slice(), &row].concat());
        }
        self.newest = Some(Newest { sample: Arc::new(sample), heard });
    }

    fn track(&mut self, of: Of) -> &mut Track {
        self.tracks.entry(of).or_insert_with(|| Track::new(of.layout()))
    }
}

impl Store {
    pub fn push(&self, node: &str, mut sample: NodeSample, now: Time) {
        // The newest is kept as it is, and a node decides how long it is.
        sample.gpus.truncate(GPUS_MAX);
        sample.processes.truncate(PROCESSES_MAX);
        sample.tasks.truncate(PEAKS_MAX);
        lock(&self.book(node)).push(sample, now);
    }

    /// What a node would have said of a minute that is over. Minutes come in their order, and before
    /// any [`Store::push`] of the same node.
    pub(crate) fn recall(&self, node: &str, sample: NodeSample) {
        lock(&self.book(node)).recall(sample);
    }

    pub fn newest(&self, node: &str) -> Option<Newest> {
        let book = self.known(node)?;
        lock(&book).newest.clone()
    }

    /// The most that a task took of this node. None if it was never seen there.
    pub fn peak(&self, node: &str, task: TaskId) -> Option<Peak> {
        let book = self.known(node)?;
        lock(&book).peaks.get(&task).copied()
    }

    fn known(&self, node: &str) -> Option<Arc<Mutex<Book>>> {
        self.read().get(node).cloned()
    }

    fn book(&self, node: &str) -> Arc<Mutex<Book>> {
        match self.known(node) {
            Some(book) => book,
            None => {
                let mut nodes = self.nodes.write().unwrap_or_else(|p| p.into_inner());
                Arc::clone(nodes.entry(node.to_owned()).or_default())
            }
        }
    }

    /// Every node that is known, by name.
    fn books(&self) -> Vec<(String, Arc<Mutex<Book>>)> {
        self.read().iter().map(|(name, book)| (name.clone(), Arc::clone(book))).collect()
    }

    // A panic elsewhere leaves the map whole: every change is one insert.
    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Arc<Mutex<Book>>>> {
        self.nodes.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes minutes of what is over, and drops what nobody has heard of for a week.
    pub(crate) fn close(&self, now: u64) {
        let mut gone = Vec::new();
        for (name, book) in self.books() {
            let mut book = lock(&book);
            book.tracks.values_mut().for_each(|track| track.close(now));
            book.tracks.retain(|_, track| track.newest() + FORGET_AFTER > now);
            if book.tracks.is_empty() {
                gone.push(name);
            }
        }
        if !gone.is_empty() {
            let mut nodes = self.nodes.write().unwrap_or_else(|p| p.into_inner());
            gone.iter().for_each(|name| drop(nodes.remove(name)));
        }
    }

    /// What an earlier controller kept goes below what was heard since.
    fn take_over(&self, loaded: BTreeMap<String, BTreeMap<Of, Track>>) {
        for (node, tracks) in loaded {
            let book = self.book(&node);
            let mut book = lock(&book);
            for (of, old) in tracks {
                let saved = old.saved;
                let mut merged = match book.tracks.get(&of) {
                    Some(since) => old.put_on_top(since),
                    None => old,
                };
                merged.saved = saved;
                book.tracks.insert(of, merged);
            }
        }
    }
}

#[cfg(test)]
mod tests;
