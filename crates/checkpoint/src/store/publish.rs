//! Publishing: the one moment at which a checkpoint comes to be.
//!
//! A step's register is a row of numbered manifests, and each number can be created once. So a
//! publisher, a pin and a removal that race are put in order by the place itself, on a file system
//! as on an object store, and the loser is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};

use super::{Registered, Selector, Store, revisions_of};
use crate::error::Error;
use crate::geometry::Region;
use crate::hash::CHUNK;
use crate::layout::{self, Attempt};
use crate::manifest::{self, Entry, FileEntry, Kind, Manifest, Piece, TensorEntry};
use crate::save::ShardReport;
use crate::tier::Tier;

/// A checkpoint that now exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    pub manifest: Manifest,
    /// The number of its manifest in the step's register.
    pub revision: u32,
    /// Copies that could not be made.
    pub warnings: Vec<String>,
}

/// What to do with a step's register, in view of what it says now.
pub(crate) enum Verdict {
    Replace,
    SameAlready,
}

impl Store {
    /// Makes what the ranks wrote a checkpoint. One rank calls this, with the reports of all.
    pub fn publish(
        &self,
        step: u64,
        reports: Vec<ShardReport>,
        meta: serde_json::Value,
    ) -> Result<Published, Error> {
        let own = self.writer()?.attempt.clone();
        let warnings: Vec<String> = reports.iter().flat_map(|r| r.warnings.clone()).collect();
        let manifest = self.gather(step, &own, &reports, meta)?;
        self.fence(&own)?;
        let files = manifest.files.clone();
        let appended = self.append(step, Entry::Published(manifest), |current| {
            match current {
                None => Ok(Verdict::Replace),
                // Our own, whose answer was lost on the way.
                Some(now) if now.is_published() && now.entry.manifest().files == files => {
                    Ok(Verdict::SameAlready)
                }
                Some(now) => self.may_replace(step, &own, now).map(|()| Verdict::Replace),
            }
        });
        self.own().under_way.remove(&step);
        match appended {
            Ok((revision, entry)) => {
                let manifest = entry.manifest().clone();
                let mut published = Published { manifest, revision, warnings };
                published.warnings.extend(self.adopt(&published));
                Ok(published)
            }
            Err(e) => {
                if matches!(e, Error::Lost { .. } | Error::Fenced { .. }) {
                    reports.iter().for_each(|r| self.discard(&r.files));
                } else {
                    self.own_up(step, &files);
                }
                Err(e)
            }
        }
    }

    /// A publish that failed may be visible all the same. Then it is no rival's, and saving the step
    /// once more may replace it.
    fn own_up(&self, step: u64, files: &[FileEntry]) {
        if let Ok(Some(found)) = self.registered(&**self.home(), step)
            && found.entry.manifest().files == files
        {
            let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.insert(step, found.revision);
        }
    }

    /// A newer attempt of the same owner has the last word everywhere.
    fn fence(&self, own: &Attempt) -> Result<(), Error> {
        let steps = self.steps(&**self.home())?;
        for &step in steps.iter().rev() {
            if self.was_here(step, None) {
                // Older than this store: `takeover` says what that means.
                continue;
            }
            let newest = match self.registered(&**self.home(), step) {
                Ok(Some(Registered { entry: Entry::Published(newest), .. })) => newest,
                // A damaged one tells nothing; the next older one may.
                Ok(_) | Err(Error::Manifest { .. }) => continue,
                Err(e) => return Err(e),
            };
            if newest.attempt.owner == own.owner && newest.attempt.generation > own.generation {
                let (own, newer) = (own.clone(), newest.attempt);
                return Err(Error::Fenced { own, newer, step });
            }
            break;
        }
        Ok(())
    }

    /// With takeover: whether the register of a step is as it was when the store was opened.
    fn was_here(&self, step: u64, revision: Option<u32>) -> bool {
        if !self.0.options.takeover && revision.is_none() {
            return false;
        }
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&step).is_some_and(|&r| revision.is_none_or(|revision| r == revision))
    }

    /// Whether this attempt may put its own checkpoint of a step in the place of another.
    fn may_replace(&self, step: u64, own: &Attempt, current: &Registered) -> Result<(), Error> {
        let Entry::Published(other) = &current.entry else { return Ok(()) };
        let left_over = self.was_here(step, Some(current.revision));
        let lost = || Error::Lost { step, winner: other.attempt.clone() };
        if other.attempt.owner != own.owner {
            return if left_over { Ok(()) } else { Err(lost()) };
        }
        match other.attempt.generation.cmp(&own.generation) {
            std::cmp::Ordering::Less => Ok(()),
            std::cmp::Ordering::Equal if left_over => Ok(()),
            std::cmp::Ordering::Equal => Err(lost()),
            std::cmp::Ordering::Greater if left_over && self.0.options.takeover => Ok(()),
            std::cmp::Ordering::Greater => {
                let (own, newer) = (own.clone(), other.attempt.clone());
                Err(Error::Fenced { own, newer, step })
            }
        }
    }

    /// Adds an entry to a step's register, if what is there allows it. What was there before is
    /// removed after.
    pub(crate) fn append(
        &self,
        step: u64,
        entry: Entry,
        judge: impl Fn(Option<&Registered>) -> Result<Verdict, Error>,
    ) -> Result<(u32, Entry), Error> {
        let home = &**self.home();
        let bytes = manifest::seal(&entry);
        let scratch = layout::attempt_dir(step, &entry.manifest().attempt);
        loop {
            let current = self.readable(home, step)?;
            // What is damaged is nobody's checkpoint any more.
            let found = current.as_ref().and_then(|(_, found)| found.as_ref());
            if let Verdict::SameAlready = judge(found)? {
                let found = found.expect("nothing is not the same as something");
                return Ok((found.revision, found.entry.clone()));
            }
            let before = current.map(|(revision, _)| revision);
            let revision = before.map_or(0, |r| r + 1);
            let path = layout::manifest(step, revision);
            if !home.publish(&path, &scratch, &bytes)? {
                continue;
            }
            // While the entry before is there nobody can have had this number and given it up
            // again. A removal that was quicker takes both away: then this is not the next entry.
            if let Some(before) = before
                && home.size(&layout::manifest(step, before))?.is_none()
            {
                home.remove(&path)?;
                continue;
            }
            self.drop_before(home, step, revision);
            return Ok((revision, entry));
        }
    }

    /// The newest revision of a step, with its entry unless that is damaged.
    fn readable(
        &self,
        tier: &dyn Tier,
        step: u64,
    ) -> Result<Option<(u32, Option<Registered>)>, Error> {
        match self.registered(tier, step) {
            Ok(found) => Ok(found.map(|f| (f.revision, Some(f)))),
            Err(Error::Manifest { .. }) => {
                Ok(revisions_of(tier, step)?.last().map(|&revision| (revision, None)))
            }
            Err(e) => Err(e),
        }
    }

    /// Older revisions count for nothing; that they are gone only saves room.
    pub(crate) fn drop_before(&self, tier: &dyn Tier, step: u64, revision: u32) {
        let older = match revisions_of(tier, step) {
            Ok(all) => all.into_iter().filter(|&r| r < revision).collect(),
            Err(_) => Vec::new(),
        };
        for r in older {
            if let Err(e) = tier.remove(&layout::manifest(step, r)) {
                tracing::warn!("left for the next sweep: {}", crate::chain(&e));
            }
        }
    }

    /// Tells the other places of this process about a checkpoint. A rank on a node of its own, with
    /// copies of its own, calls this with what the publisher got.
    pub fn adopt(&self, published: &Published) -> Vec<String> {
        let manifest = &published.manifest;
        let mut own = self.own();
        own.under_way.remove(&manifest.step);
        own.newest_published = own.newest_published.max(Some(manifest.step));
        drop(own);
        self.mirror(manifest.step, published.revision, manifest)
    }

    /// Writes a manifest beside the copies, so that they can be found without the home.
    pub(crate) fn mirror(&self, step: u64, revision: u32, manifest: &Manifest) -> Vec<String> {
        let bytes = manifest::seal(&Entry::Published(manifest.clone()));
        let scratch = layout::attempt_dir(step, &manifest.attempt);
        let path = layout::manifest(step, revision);
        let mut warnings = Vec::new();
        for tier in self.followers() {
            let written = revisions_of(&**tier, step).and_then(|stale| {
                for r in stale {
                    tier.remove(&layout::manifest(step, r))?;
                }
                Ok(tier.publish(&path, &scratch, &bytes)?)
            });
            if let Err(e) = written {
                warnings.push(crate::chain(&e));
            }
        }
        warnings
    }

    fn gather(
        &self,
        step: u64,
        own: &Attempt,
        reports: &[ShardReport],
        meta: serde_json::Value,
    ) -> Result<Manifest, Error> {
        let world = self.writer()?.world;
        check_ranks(step, world, own, reports)?;
        let mut manifest = Manifest {
            kind: Kind::Sharded,
            step,
            attempt: own.clone(),
            created_ms: now_ms(),
            world,
            pinned: None,
            meta,
            chunk: CHUNK,
            files: Vec::new(),
            tensors: Vec::new(),
        };
        let tensors = self.join(reports)?;
        for report in reports {
            for file in &report.files {
                let is_here = match self.is_scattered() {
                    true => self.is_anywhere(&file.path, file.bytes),
                    false => self.home().size(&file.path)? == Some(file.bytes),
                };
                if !is_here {
                    let (path, place) = (file.path.clone(), self.label().to_owned());
                    return Err(Error::NotHere { path, rank: report.rank, place });
                }
                manifest.files.push(file.clone());
            }
        }
        manifest.tensors = tensors;
        manifest.check().map_err(|e| Error::Incomplete { step, source: Box::new(e) })?;
        Ok(manifest)
    }

    /// The tensors of all ranks. A piece that two ranks wrote is kept once, if they agree.
    fn join(&self, reports: &[ShardReport]) -> Result<Vec<TensorEntry>, Error> {
        let mut tensors: BTreeMap<&str, (u32, TensorEntry)> = BTreeMap::new();
        let mut placed: BTreeMap<(&str, &Region), (usize, usize)> = BTreeMap::new();
        let mut base = 0;
        for (r, report) in reports.iter().enumerate() {
            for (p, piece) in report.pieces.iter().enumerate() {
                let (first_rank, entry) = tensors.entry(&piece.name).or_insert_with(|| {
                    let (name, shape) = (piece.name.clone(), piece.shape.clone());
                    let entry = TensorEntry { name, dtype: piece.dtype, shape, pieces: Vec::new() };
                    (report.rank, entry)
                });
                if entry.dtype != piece.dtype || entry.shape != piece.shape {
                    return Err(Error::Disagree {
                        name: piece.name.clone(),
                        first: format!("{}{:?}", entry.dtype, entry.shape),
                        first_rank: *first_rank,
                        second: format!("{}{:?}", piece.dtype, piece.shape),
                        second_rank: report.rank,
                    });
                }
                let key = (&*piece.name, &piece.region);
                if let Some(&(r0, p0)) = placed.get(&key) {
                    self.agree((&reports[r0], p0), (report, p))?;
                    continue;
                }
                placed.insert(key, (r, p));
                let (file, region) = (base + piece.file, piece.region.clone());
                entry.pieces.push(Piece { file, at: piece.at, region });
            }
            base += report.files.len();
        }
        Ok(tensors.into_values().map(|(_, tensor)| tensor).collect())
    }

    /// Reads both copies of a piece that two ranks wrote, and compares them.
    fn agree(&self, a: (&ShardReport, usize), b: (&ShardReport, usize)) -> Result<(), Error> {
        let piece = &a.0.pieces[a.1];
        let mut left = crate::geometry::volume(&piece.region.extent).unwrap_or(0);
        left *= piece.dtype.size();
        let mut done = 0;
        while done < left {
            let len = CHUNK.min(left - done);
            let read = |(report, p): (&ShardReport, usize)| {
                let piece = &report.pieces[p];
                let at = piece.at + done;
                let path = &report.files[piece.file].path;
                match self.is_scattered() {
                    true => self.read_anywhere(path, at..at + len),
                    false => self.home().read(path, at..at + len),
                }
            };
            if read(a)? != read(b)? {
                return Err(Error::Conflict {
                    name: piece.name.clone(),
                    offset: piece.region.offset.clone(),
                    first_rank: a.0.rank,
                    second_rank: b.0.rank,
                });
            }
            done += len;
        }
        Ok(())
    }
}

fn check_ranks(step: u64, world: u32, own: &Attempt, reports: &[ShardReport]) -> Result<(), Error> {
    let mut missing: BTreeSet<u32> = (0..world).collect();
    let mut twice = Vec::new();
    for report in reports {
        let rank = report.rank;
        if report.step != step {
            return Err(Error::OtherStep { rank, found: report.step, step });
        }
        if report.attempt != *own {
            let (found, own) = (report.attempt.clone(), own.clone());
            return Err(Error::OtherAttempt { rank, found, own });
        }
        if !missing.remove(&rank) {
            twice.push(rank);
        }
    }
    for (ranks, what) in
        [(twice, "here twice or not of this world"), (missing.into_iter().collect(), "missing")]
    {
        if !ranks.is_empty() {
            return Err(Error::Ranks { step, world, ranks, what });
        }
    }
    Ok(())
}

pub(crate) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

impl Selector {
    pub(crate) fn admits(self, step: u64) -> bool {
        match self {
            Selector::Latest => true,
            Selector::Step(s) => s == step,
            Selector::Before(s) => step < s,
        }
    }
}
