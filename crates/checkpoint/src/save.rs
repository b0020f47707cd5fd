//! Saving: a rank's tensors are taken over, and written by a thread of their own.
//!
//! ```text
//!  add ─► finish ──┬─► hash (threads) ───────────┐
//!   waits until    ├─► nearest place ─► staged ──┤─► ShardReport ─► publish, on one rank
//!   the last save  └─► every other place ────────┘
//!   is staged
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::geometry::{Region, volume};
use crate::hash::{self, TreeHash};
use crate::layout::{self, Attempt};
use crate::manifest::FileEntry;
use crate::shard::{self, Shard, Tensor};
use crate::store::Store;
use crate::tier::{Tier, TierError};

/// Who saves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub rank: u32,
    pub world: u32,
    pub attempt: Attempt,
}

impl Writer {
    /// As tutti tells a rank: `RANK`, `WORLD_SIZE`, `TUTTI_TASK_ID`, `TUTTI_GENERATION`. A process
    /// that was started by hand is rank 0 of 1.
    pub fn from_env() -> Writer {
        fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
            std::env::var(name).ok()?.parse().ok()
        }
        Writer {
            rank: number("RANK").unwrap_or(0),
            world: number("WORLD_SIZE").unwrap_or(1),
            attempt: Attempt {
                owner: std::env::var("TUTTI_TASK_ID").unwrap_or_default(),
                generation: number("TUTTI_GENERATION").unwrap_or(0),
            },
        }
    }
}

/// What one rank wrote. Ranks send theirs to the one that publishes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardReport {
    pub step: u64,
    pub rank: u32,
    pub world: u32,
    pub attempt: Attempt,
    pub files: Vec<FileEntry>,
    pub pieces: Vec<ReportedPiece>,
    /// Copies that could not be made. The checkpoint is complete without them.
    pub warnings: Vec<String>,
    /// How long the writing took, beside the training.
    pub took_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedPiece {
    pub name: String,
    pub dtype: crate::Dtype,
    pub shape: Vec<u64>,
    #[serde(flatten)]
    pub region: Region,
    /// Index in `files`.
    pub file: usize,
    pub at: u64,
}

/// Takes the tensors of one rank for one step.
pub struct Save {
    store: Store,
    writer: Writer,
    step: u64,
    tensors: Vec<Tensor>,
    added: BTreeSet<(String, Region)>,
}

impl Save {
    pub(crate) fn new(store: Store, writer: Writer, step: u64) -> Save {
        Save { store, writer, step, tensors: Vec::new(), added: BTreeSet::new() }
    }

    pub fn add(&mut self, tensor: Tensor) -> Result<(), Error> {
        let name = || tensor.name.clone();
        let (offset, extent) = (tensor.offset.clone(), tensor.extent.clone());
        let region = Region::new(&offset, &extent);
        if !region.is_within(&tensor.shape) {
            let shape = tensor.shape.clone();
            return Err(Error::Outside { name: name(), offset, extent, shape });
        }
        let bytes = tensor.data.len() as u64;
        let wanted = volume(&extent).and_then(|v| v.checked_mul(tensor.dtype.size()));
        if wanted != Some(bytes) {
            let (dtype, wanted) = (tensor.dtype, wanted.unwrap_or(u64::MAX));
            return Err(Error::Length { name: name(), bytes, extent, dtype, wanted });
        }
        if !self.added.insert((name(), region)) {
            return Err(Error::AddedTwice { name: name(), offset, rank: self.writer.rank });
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// Starts writing and returns. Waits only while the save before is not staged yet, so that memory
    /// never holds more than two.
    pub fn finish(self) -> AsyncSave {
        let turn = self.store.gate().enter();
        let progress = turn.progress.clone();
        let step = self.step;
        let thread = std::thread::Builder::new()
            .name(format!("save {step}"))
            .spawn(move || self.write(turn))
            .expect("the system gives a thread");
        AsyncSave { step, progress, thread }
    }

    fn write(self, turn: Turn) -> Result<ShardReport, Error> {
        let begin = Instant::now();
        let Writer { rank, world, attempt } = self.writer;
        let about = BTreeMap::from([
            ("tutti_step", self.step.to_string()),
            ("tutti_rank", format!("{rank} of {world}")),
        ]);
        let mut report = ShardReport {
            step: self.step,
            rank,
            world,
            attempt: attempt.clone(),
            files: Vec::new(),
            pieces: Vec::new(),
            warnings: Vec::new(),
            took_ms: 0,
        };
        let shards = shard::cut(self.tensors, self.store.shard_bytes(), &about);
        let last = shards.len().wrapping_sub(1);
        for (part, shard) in shards.into_iter().enumerate() {
            let path = layout::shard(self.step, &attempt, rank, part, &layout::nonce());
            let staged = || {
                if part == last {
                    turn.staged()
                }
            };
            match write_shard(&self.store, &path, &shard, staged) {
                Ok((entry, warnings)) => {
                    report.pieces.extend(pieces(&shard, report.files.len()));
                    report.files.push(entry);
                    report.warnings.extend(warnings);
                }
                Err(e) => {
                    self.store.discard(&report.files);
                    return Err(e.into());
                }
            }
        }
        report.took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(report)
    }
}

fn pieces(shard: &Shard, file: usize) -> impl Iterator<Item = ReportedPiece> {
    shard.tensors.iter().map(move |(tensor, at)| ReportedPiece {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        region: Region::new(&tensor.offset, &tensor.extent),
        file,
        at: *at,
    })
}

/// Writes to every place at once, while the hash is computed from the same memory.
fn write_shard(
    store: &Store,
    path: &str,
    shard: &Shard,
    staged: impl FnOnce(),
) -> Result<(FileEntry, Vec<String>), TierError> {
    let put = |tier: &Arc<dyn Tier>| {
        let mut data = shard.segments.iter().cloned().map(Ok);
        tier.put(path, shard.len, &mut data)
    };
    let tiers = store.written();
    let (hash, written) = std::thread::scope(|scope| {
        let hashing = scope.spawn(|| shard.hash(hash::threads()));
        let others: Vec<_> =
            tiers[1..].iter().map(|&(_, tier)| scope.spawn(move || put(tier))).collect();
        let mut written = vec![put(tiers[0].1)];
        let hash: TreeHash = hashing.join().expect("hashing does not panic");
        staged();
        written.extend(others.into_iter().map(|t| t.join().expect("writing does not panic")));
        (hash, written)
    });
    let mut copies = Vec::new();
    let mut warnings = Vec::new();
    let mut failed = None;
    for (&(index, tier), result) in tiers.iter().zip(written) {
        match result {
            Ok(()) => copies.push(tier.label().to_owned()),
            Err(e) if index == store.home_index() => failed = Some(e),
            Err(e) => warnings.push(crate::chain(&e)),
        }
    }
    let entry = FileEntry { path: path.to_owned(), bytes: shard.len, hash, copies };
    match failed {
        None => Ok((entry, warnings)),
        Some(e) => {
            store.discard(&[entry]);
            Err(e)
        }
    }
}

/// A save under way.
pub struct AsyncSave {
    step: u64,
    progress: Arc<Progress>,
    thread: JoinHandle<Result<ShardReport, Error>>,
}

impl AsyncSave {
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Returns when the nearest place has it all, or when the save has failed: `wait` says which.
    pub fn wait_staged(&self) {
        self.progress.wait();
    }

    /// Returns when every place has it.
    pub fn wait(self) -> Result<ShardReport, Error> {
        self.thread.join().map_err(|_| Error::Panicked { step: self.step })?
    }
}

#[derive(Default)]
pub(crate) struct Progress {
    staged: Mutex<bool>,
    changed: Condvar,
}

impl Progress {
    fn wait(&self) {
        let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        let _staged = self
            .changed
            .wait_while(staged, |staged| !*staged)
            .unwrap_or_else(PoisonError::into_inner);
    }

    fn done(&self) {
        *self.staged.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Lets one save after the other stage.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Option<Arc<Progress>>>);

impl Gate {
    fn enter(&self) -> Turn {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before.take() {
            before.wait();
        }
        let progress = Arc::new(Progress::default());
        *before = Some(progress.clone());
        Turn { progress }
    }
}

/// One save's turn to stage. It ends with the save at the latest, also when that fails.
pub(crate) struct Turn {
    progress: Arc<Progress>,
}

impl Turn {
    fn staged(&self) {
        self.progress.done();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.progress.done();
    }
}
