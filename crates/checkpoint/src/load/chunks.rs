//! Chunks of files, each checked before anybody sees it, from the first place that has it right.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{LoadReport, PAUSE, TRIES};
use crate::error::Error;
use crate::geometry::Runs;
use crate::hash::{self, CHUNK, chunk_range, chunk_value};
use crate::manifest::{FileEntry, Manifest};
use crate::tier::Tier;

/// Small tensors lie side by side: their chunk is kept for a while.
const KEPT: usize = 16;

pub struct Chunks {
    step: u64,
    files: Vec<FileEntry>,
    tiers: Vec<Arc<dyn Tier>>,
    report: Arc<Mutex<LoadReport>>,
    /// Files that a place has been found to have wrong, by index of both; or that it did not answer.
    bad: Mutex<BTreeMap<(usize, usize), Fault>>,
    kept: Mutex<VecDeque<((usize, usize), Bytes)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Wrong,
    /// Asked again only when no other place has it.
    Silent,
}

/// So many bytes of a chunk, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub from: u64,
    pub to: u64,
    pub len: u64,
}

/// Cuts the runs of a piece, which begins at `base` in its file, at the bounds of chunks.
pub fn plan(base: u64, mut runs: Runs) -> impl Iterator<Item = (usize, Vec<Part>)> + Send {
    let mut rest: Option<(u64, u64, u64)> = None;
    std::iter::from_fn(move || {
        let mut current: Option<(usize, Vec<Part>)> = None;
        loop {
            let next = rest.take().or_else(|| runs.next().map(|r| (base + r.src, r.dst, r.len)));
            let Some((at, to, len)) = next else { return current };
            let index = usize::try_from(at / CHUNK).expect("a file's chunks can be counted");
            if current.as_ref().is_some_and(|(i, _)| *i != index) {
                rest = Some((at, to, len));
                return current;
            }
            let from = at % CHUNK;
            let here = len.min(CHUNK - from);
            let (_, parts) = current.get_or_insert_with(|| (index, Vec::new()));
            parts.push(Part { from, to, len: here });
            if here < len {
                rest = Some((at + here, to + here, len - here));
            }
        }
    })
}

impl Chunks {
    pub fn new(
        tiers: Vec<Arc<dyn Tier>>,
        manifest: &Manifest,
        report: Arc<Mutex<LoadReport>>,
    ) -> Chunks {
        let (step, files) = (manifest.step, manifest.files.clone());
        let (bad, kept) = (Mutex::default(), Mutex::default());
        Chunks { step, files, tiers, report, bad, kept }
    }

    /// One chunk, whole and right.
    pub fn get(&self, file: usize, index: usize) -> Result<Bytes, Error> {
        let kept = lock(&self.kept).iter().find(|(key, _)| *key == (file, index)).cloned();
        if let Some((_, bytes)) = kept {
            return Ok(bytes);
        }
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let (step, path) = (self.step, self.files[file].path.clone());
            match self.ask_all(file, index) {
                Ok(bytes) => return Ok(bytes),
                Err((tried, false)) => return Err(Error::NoGoodCopy { step, path, tried }),
                Err((tried, true)) if last => return Err(Error::NoAnswer { step, path, tried }),
                Err((_, true)) => {
                    lock(&self.bad).retain(|(f, _), fault| *f != file || *fault == Fault::Wrong);
                    std::thread::sleep(PAUSE);
                }
            }
        }
        unreachable!("the last try returns")
    }

    /// From the first place that has it right, or what each said, and whether one of them was silent.
    fn ask_all(&self, file: usize, index: usize) -> Result<Bytes, (Vec<String>, bool)> {
        let entry = &self.files[file];
        let range = chunk_range(entry.bytes, index);
        let (mut tried, mut silent) = (Vec::new(), false);
        for (place, tier) in self.tiers.iter().enumerate() {
            match lock(&self.bad).get(&(file, place)) {
                None => {}
                Some(Fault::Wrong) => {
                    tried.push(format!("{} has it wrong", tier.label()));
                    continue;
                }
                Some(Fault::Silent) => {
                    tried.push(format!("{} does not answer", tier.label()));
                    silent = true;
                    continue;
                }
            }
            let (why, fault) = match tier.read(&entry.path, range.clone()) {
                Ok(bytes) => {
                    let value = chunk_value(entry.bytes, index, std::iter::once(&bytes[..]));
                    if value == entry.hash.expected(index) {
                        self.keep(file, index, &bytes);
                        return Ok(bytes);
                    }
                    let why = format!("bytes {} to {} have another hash", range.start, range.end);
                    (why, Fault::Wrong)
                }
                Err(e) if e.is_silence() => (crate::chain(&e), Fault::Silent),
                Err(e) => (crate::chain(&e), Fault::Wrong),
            };
            silent |= fault == Fault::Silent;
            lock(&self.bad).insert((file, place), fault);
            lock(&self.report).bad_copy(self.step, &entry.path, tier.label(), why.clone());
            tried.push(format!("{}: {why}", tier.label()));
        }
        Err((tried, silent))
    }

    fn keep(&self, file: usize, index: usize, bytes: &Bytes) {
        let mut kept = lock(&self.kept);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(((file, index), bytes.clone()));
    }

    /// Gets chunks with several threads and hands them over as they come: each part says where it
    /// goes.
    pub fn each(
        &self,
        file: usize,
        plan: impl Iterator<Item = (usize, Vec<Part>)> + Send,
        mut take: impl FnMut(&[u8], &[Part]),
    ) -> Result<(), Error> {
        let mut plan = plan.peekable();
        let Some(first) = plan.next() else { return Ok(()) };
        if plan.peek().is_none() {
            take(&self.get(file, first.0)?, &first.1);
            return Ok(());
        }
        let threads = hash::threads();
        let work = Mutex::new(std::iter::once(first).chain(plan));
        let stop = AtomicBool::new(false);
        let (sender, receiver) = sync_channel(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let sender = sender.clone();
                let (work, stop) = (&work, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let Some((index, parts)) = lock(work).next() else { return };
                        let chunk = self.get(file, index);
                        if sender.send((chunk, parts)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut result = Ok(());
            for (chunk, parts) in receiver {
                match chunk {
                    Ok(chunk) if result.is_ok() => take(&chunk, &parts),
                    Ok(_) => {}
                    Err(e) => {
                        stop.store(true, Ordering::Relaxed);
                        result = Err(e);
                    }
                }
            }
            result
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Region, runs};

    #[test]
    fn runs_are_cut_at_chunks() {
        let whole = Region::whole(&[3, CHUNK]);
        let column = Region::new(&[0, CHUNK - 2], &[3, 2]);
        let parts: Vec<_> = plan(1, runs(&whole, &column, 1)).collect();
        let part = |from, to, len| Part { from, to, len };
        let want = vec![
            (0, vec![part(CHUNK - 1, 0, 1)]),
            (1, vec![part(0, 1, 1), part(CHUNK - 1, 2, 1)]),
            (2, vec![part(0, 3, 1), part(CHUNK - 1, 4, 1)]),
            (3, vec![part(0, 5, 1)]),
        ];
        assert_eq!(parts, want);
    }
}
