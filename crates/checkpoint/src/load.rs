//! Loading: any box of any tensor, from whichever place has good bytes, out of whatever layout it was
//! saved with.
//!
//! No byte is handed out before the chunk that it is in has been hashed and compared. A chunk that is
//! missing, cut or flipped in one place is read from the next one. When no place is left the
//! checkpoint is given up, and [`Store::load_with`] goes back to the one before.

mod chunks;
mod report;

pub use report::{Fallback, LoadReport};

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::dtype::Dtype;
use crate::error::Error;
use crate::geometry::{self, Region, runs};
use crate::hash;
use crate::manifest::{Entry, FileEntry, Kind, Manifest, TensorEntry};
use crate::store::{Registered, Selector, Store};
use crate::tier::Tier;
use chunks::Chunks;

/// A place that does not answer is asked so often before a load is given up.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(500);

/// A checkpoint that was found whole. Its bytes are read, and checked, when they are asked for.
pub struct Loaded {
    manifest: Manifest,
    chunks: Chunks,
    report: Arc<Mutex<LoadReport>>,
}

/// A tensor, or a box of one, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Store {
    /// The newest checkpoint that the selector admits and of which every file is in some place, with
    /// its full length.
    pub fn load(&self, selector: Selector) -> Result<Loaded, Error> {
        self.find(selector, &mut LoadReport::default())
    }

    /// One whose manifest another rank has found: all of them read the same.
    pub fn load_manifest(&self, manifest: Manifest) -> Result<Loaded, Error> {
        self.complete(manifest, &mut LoadReport::default())
    }

    /// Loads by `read`, and when a checkpoint turns out to be damaged beyond its copies, goes back to
    /// the one before and calls `read` again. When several ranks load together, `read` ends with
    /// their agreement: if one of them found damage, all return that error.
    pub fn load_with<T>(
        &self,
        selector: Selector,
        mut read: impl FnMut(&Loaded) -> Result<T, Error>,
    ) -> Result<(T, LoadReport), Error> {
        let mut report = LoadReport::default();
        let mut next = selector;
        loop {
            let loaded = self.find(next, &mut report)?;
            let step = loaded.step();
            let result = read(&loaded);
            report = loaded.report();
            match result {
                Ok(value) => {
                    report.step = Some(step);
                    return Ok((value, report));
                }
                Err(e) if e.is_damage() && !matches!(selector, Selector::Step(_)) => {
                    report.gave_up(step, &e);
                    next = Selector::Before(step);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn find(&self, selector: Selector, report: &mut LoadReport) -> Result<Loaded, Error> {
        let place = || self.label().to_owned();
        for step in self.candidates(selector, report)? {
            let loaded = self.manifest_of(step, report).and_then(|manifest| match manifest {
                Some(manifest) => self.complete(manifest, report).map(Some),
                None => Ok(None),
            });
            match loaded {
                Ok(Some(loaded)) => return Ok(loaded),
                Ok(None) => {}
                Err(e) if e.is_damage() => match selector {
                    Selector::Step(_) => return Err(e),
                    _ => report.gave_up(step, &e),
                },
                Err(e) => return Err(e),
            }
        }
        match selector {
            Selector::Step(step) => Err(Error::NoSuchStep { step, place: place() }),
            // What could not be asked may have some.
            _ if !report.is_clean() => {
                Err(Error::NothingLoads { place: place(), tried: report.lines() })
            }
            _ => Err(Error::Nothing { place: place() }),
        }
    }

    /// Steps to try, newest first: those of the home, then those that only copies know of.
    fn candidates(&self, selector: Selector, report: &mut LoadReport) -> Result<Vec<u64>, Error> {
        if self.is_scattered() {
            let mut found = self.steps_anywhere(report);
            found.retain(|&step| selector.admits(step));
            found.reverse();
            return Ok(found);
        }
        let mut found: Vec<u64> = match self.steps(&**self.home()) {
            Ok(steps) => steps,
            Err(e) => {
                if self.tiers().len() == 1 {
                    return Err(e);
                }
                report.unreachable(self.label(), &e);
                Vec::new()
            }
        };
        found.reverse();
        let mut elsewhere = Vec::new();
        for (index, tier) in self.tiers().iter().enumerate() {
            if index == self.home_index() {
                continue;
            }
            match self.steps(&**tier) {
                Ok(steps) => elsewhere.extend(steps.into_iter().filter(|s| !found.contains(s))),
                Err(e) => report.unreachable(tier.label(), &e),
            }
        }
        elsewhere.sort_unstable();
        elsewhere.dedup();
        found.extend(elsewhere.into_iter().rev());
        found.retain(|&step| selector.admits(step));
        Ok(found)
    }

    /// The manifest from the home, or from a copy where the home has lost it. None if the step was
    /// never published, or taken back.
    pub(crate) fn manifest_of(
        &self,
        step: u64,
        report: &mut LoadReport,
    ) -> Result<Option<Manifest>, Error> {
        if self.is_scattered() {
            return self.newest_anywhere(step, report);
        }
        let order = std::iter::once(self.home_index())
            .chain((0..self.tiers().len()).filter(|&i| i != self.home_index()));
        let mut problem = None;
        for index in order {
            let tier = &self.tiers()[index];
            match self.registered(&**tier, step) {
                Ok(Some(Registered { entry: Entry::Published(manifest), .. })) => {
                    if index != self.home_index() {
                        report.manifest_from(step, tier.label());
                    }
                    return Ok(Some(manifest));
                }
                Ok(Some(Registered { entry: Entry::Retracted(_), .. })) => return Ok(None),
                Ok(None) => {}
                Err(e @ Error::Manifest { .. }) => {
                    report.bad_manifest(step, &e);
                    problem = Some(e);
                }
                Err(e) => report.unreachable(tier.label(), &e),
            }
        }
        problem.map_or(Ok(None), Err)
    }

    fn complete(&self, manifest: Manifest, report: &mut LoadReport) -> Result<Loaded, Error> {
        for file in &manifest.files {
            self.find_file(manifest.step, file)?;
        }
        let shared = Arc::new(Mutex::new(std::mem::take(report)));
        let tiers: Vec<Arc<dyn Tier>> = self.tiers().to_vec();
        let chunks = Chunks::new(tiers, &manifest, shared.clone());
        Ok(Loaded { manifest, chunks, report: shared })
    }

    /// A place that does not answer may have the file: that is no reason for an older checkpoint.
    fn find_file(&self, step: u64, file: &FileEntry) -> Result<(), Error> {
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let (mut tried, mut silent) = (Vec::new(), false);
            for tier in self.tiers() {
                match tier.size(&file.path) {
                    Ok(Some(size)) if size == file.bytes => return Ok(()),
                    Ok(Some(size)) => {
                        tried.push(format!("{} has {size} of {} bytes", tier.label(), file.bytes));
                    }
                    Ok(None) => tried.push(format!("{} does not have it", tier.label())),
                    Err(e) => {
                        silent |= e.is_silence();
                        tried.push(crate::chain(&e));
                    }
                }
            }
            let path = file.path.clone();
            match (silent, last) {
                (false, _) => return Err(Error::NoGoodCopy { step, path, tried }),
                (true, true) => return Err(Error::NoAnswer { step, path, tried }),
                (true, false) => std::thread::sleep(PAUSE),
            }
        }
        unreachable!("the last try returns")
    }
}

impl Loaded {
    pub fn step(&self) -> u64 {
        self.manifest.step
    }
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
    /// What the writers wanted to know again.
    pub fn meta(&self) -> &serde_json::Value {
        &self.manifest.meta
    }
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.manifest.tensors.iter().map(|t| t.name.as_str())
    }
    /// What had to be read elsewhere so far.
    pub fn report(&self) -> LoadReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn entry(&self, name: &str) -> Result<&TensorEntry, Error> {
        let step = self.manifest.step;
        if self.manifest.kind == Kind::Foreign {
            return Err(Error::Foreign { step });
        }
        let none = || Error::NoTensor { step, name: name.to_owned() };
        self.manifest.tensor(name).ok_or_else(none)
    }

    /// All of a tensor, however it was cut.
    pub fn tensor(&self, name: &str) -> Result<TensorData, Error> {
        let shape = self.entry(name)?.shape.clone();
        self.slice(name, &vec![0; shape.len()], &shape)
    }

    /// A box of a tensor, wherever the pieces of it are.
    pub fn slice(&self, name: &str, offset: &[u64], extent: &[u64]) -> Result<TensorData, Error> {
        let entry = self.entry(name)?;
        let want = Region::new(offset, extent);
        if !want.is_within(&entry.shape) {
            return Err(Error::Outside {
                name: name.to_owned(),
                offset: want.offset,
                extent: want.extent,
                shape: entry.shape.clone(),
            });
        }
        let item = entry.dtype.size();
        let len = geometry::volume(extent).expect("it is within the shape") * item;
        let mut bytes = vec![0; usize::try_from(len).expect("a tensor fits into memory")];
        for piece in &entry.pieces {
            self.copy(piece.file, piece.at, runs(&piece.region, &want, item), &mut bytes)?;
        }
        Ok(TensorData { dtype: entry.dtype, shape: extent.to_vec(), bytes })
    }

    /// Copies runs out of a file. They come in the order of the file, so each chunk is read once.
    fn copy(
        &self,
        file: usize,
        base: u64,
        runs: geometry::Runs,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let plan = chunks::plan(base, runs);
        self.chunks.each(file, plan, |chunk, parts| {
            for part in parts {
                let (from, to, len) = (part.from as usize, part.to as usize, part.len as usize);
                out[to..to + len].copy_from_slice(&chunk[from..from + len]);
            }
        })
    }

    /// All of a file, chunk by chunk, each checked.
    pub fn file_chunks(
        &self,
        file: usize,
    ) -> impl Iterator<Item = Result<Bytes, Error>> + Send + '_ {
        let len = self.manifest.files[file].bytes;
        (0..hash::chunk_count(len)).map(move |index| self.chunks.get(file, index))
    }

    /// Reads everything once and checks it. Damage with a good copy elsewhere is in the report.
    pub fn verify(&self, mut done: impl FnMut(u64)) -> Result<(), Error> {
        for (file, entry) in self.manifest.files.iter().enumerate() {
            let all = (0..hash::chunk_count(entry.bytes)).map(|index| (index, Vec::new()));
            self.chunks.each(file, all, |chunk, _| done(chunk.len() as u64))?;
        }
        Ok(())
    }
}
