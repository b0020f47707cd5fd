//! Pins, removal and retention.
//!
//! Removal has two phases. The checkpoint is taken back by one more entry in its register, from
//! which moment it is gone for every reader; then its files go, and the register last. A process
//! that dies in between leaves an entry that says so, and the next sweep goes on.

use std::collections::BTreeSet;

use super::publish::Verdict;
use super::{Registered, Store, revisions_of};
use crate::error::Error;
use crate::layout;
use crate::manifest::{Entry, Manifest};
use crate::retention::{Candidate, Keep};
use crate::tier::{Tier, TierError};

impl Store {
    /// Keeps a checkpoint whatever retention says, until it is unpinned.
    pub fn pin(&self, step: u64, why: &str) -> Result<(), Error> {
        self.set_pin(step, Some(why.to_owned()))
    }

    pub fn unpin(&self, step: u64) -> Result<(), Error> {
        self.set_pin(step, None)
    }

    fn set_pin(&self, step: u64, pinned: Option<String>) -> Result<(), Error> {
        let was = self.published(step)?;
        if was.pinned == pinned {
            return Ok(());
        }
        let manifest = Manifest { pinned, ..was.clone() };
        let (revision, _) =
            self.append(step, Entry::Published(manifest.clone()), |now| unchanged(&was, now))?;
        for warning in self.mirror(step, revision, &manifest) {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// The manifest of a step in the home.
    pub fn published(&self, step: u64) -> Result<Manifest, Error> {
        match self.registered(&**self.home(), step)? {
            Some(Registered { entry: Entry::Published(manifest), .. }) => Ok(manifest),
            _ => Err(Error::NoSuchStep { step, place: self.label().to_owned() }),
        }
    }

    /// Removes a checkpoint. The newest complete one only goes by force, and so does one whose
    /// manifest is damaged: it may have been pinned.
    pub fn remove(&self, step: u64, force: bool) -> Result<(), Error> {
        let manifest = match self.published(step) {
            Err(Error::Manifest { .. }) if force => return self.remove_damaged(step),
            found => found?,
        };
        if let Some(why) = manifest.pinned {
            return Err(Error::Pinned { step, why });
        }
        if !force && self.newest_complete()? == Some(step) {
            return Err(Error::Newest { step });
        }
        self.retract(step, &manifest)
    }

    /// What it named is not known any more, but its own directory is.
    fn remove_damaged(&self, step: u64) -> Result<(), Error> {
        let nothing = Manifest::nothing(step);
        self.append(step, Entry::Retracted(nothing.clone()), |now| match now {
            None => Ok(Verdict::Replace),
            Some(_) => Err(Error::Raced { step }),
        })?;
        let dir = layout::step_dir(step);
        for item in self.home().list(&dir)?.into_iter().filter(|i| i.is_dir) {
            let attempt = format!("{dir}/{}", item.name);
            for file in self.home().list(&attempt)? {
                self.home().remove(&format!("{attempt}/{}", file.name))?;
            }
            self.home().prune(&attempt)?;
        }
        self.finish_removal(step, &nothing)
    }

    /// Removes what is not to be kept, and answers with the steps that are gone.
    pub fn retain(&self, keep: &Keep) -> Result<Vec<u64>, Error> {
        if self.is_scattered() {
            return Ok(self.retain_anywhere(keep));
        }
        let mut candidates = Vec::new();
        let mut manifests = Vec::new();
        for listed in self.list()? {
            let step = listed.step;
            match listed.manifest {
                Ok(manifest) => {
                    let complete = self.missing_file(&manifest)?.is_none();
                    let pinned = manifest.pinned.is_some();
                    candidates.push(Candidate { step, pinned, complete });
                    manifests.push(manifest);
                }
                // It may be pinned for all we know: it stays until somebody looks at it.
                Err(Error::Manifest { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        let doomed = keep.doomed(&candidates);
        for manifest in manifests.iter().filter(|m| doomed.contains(&m.step)) {
            self.retract(manifest.step, manifest)?;
        }
        Ok(doomed)
    }

    pub(crate) fn newest_complete(&self) -> Result<Option<u64>, Error> {
        for step in self.steps(&**self.home())?.into_iter().rev() {
            match self.published(step) {
                Ok(manifest) if self.missing_file(&manifest)?.is_none() => return Ok(Some(step)),
                Ok(_) | Err(Error::NoSuchStep { .. } | Error::Manifest { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// The first file that the home does not have at its full length.
    fn missing_file<'m>(&self, manifest: &'m Manifest) -> Result<Option<&'m str>, TierError> {
        for file in &manifest.files {
            if self.home().size(&file.path)? != Some(file.bytes) {
                return Ok(Some(&file.path));
            }
        }
        Ok(None)
    }

    fn retract(&self, step: u64, was: &Manifest) -> Result<(), Error> {
        self.append(step, Entry::Retracted(was.clone()), |now| match now {
            Some(now) if !now.is_published() => Ok(Verdict::SameAlready),
            now => unchanged(was, now),
        })?;
        self.finish_removal(step, was)
    }

    /// The second phase. Doing it again, or from the middle, is the same as doing it once.
    pub(crate) fn finish_removal(&self, step: u64, manifest: &Manifest) -> Result<(), Error> {
        for tier in self.followers() {
            if let Err(e) = self.remove_copy(&**tier, step, manifest) {
                tracing::warn!("a copy of step {step} is left: {}", crate::chain(&e));
            }
        }
        self.remove_files(&**self.home(), manifest)?;
        remove_register(&**self.home(), step)?;
        Ok(())
    }

    /// In a place that only holds copies the manifest goes first: nobody shall find half of it.
    pub(crate) fn remove_copy(
        &self,
        tier: &dyn Tier,
        step: u64,
        manifest: &Manifest,
    ) -> Result<(), Error> {
        remove_register(tier, step)?;
        self.remove_files(tier, manifest)?;
        tier.prune(&layout::step_dir(step))?;
        Ok(())
    }

    fn remove_files(&self, tier: &dyn Tier, manifest: &Manifest) -> Result<(), Error> {
        let mut dirs = BTreeSet::new();
        for file in &manifest.files {
            tier.remove(&file.path)?;
            let mut path = file.path.as_str();
            while let Some((dir, _)) = path.rsplit_once('/') {
                dirs.insert(dir.to_owned());
                path = dir;
            }
        }
        dirs.remove(&layout::step_dir(manifest.step));
        // The longest first, so that each is empty when its turn comes.
        for dir in dirs.iter().rev() {
            tier.prune(dir)?;
        }
        tier.prune(&layout::attempt_dir(manifest.step, &manifest.attempt))?;
        Ok(())
    }
}

/// Removes all of a step's register, the newest entry last and only when the others are gone for
/// good: an entry that was taken back must never be what is left.
pub(super) fn remove_register(tier: &dyn Tier, step: u64) -> Result<(), Error> {
    let dir = layout::step_dir(step);
    let revisions = revisions_of(tier, step)?;
    let Some((last, older)) = revisions.split_last() else { return Ok(()) };
    for &revision in older {
        tier.remove(&layout::manifest(step, revision))?;
    }
    if !older.is_empty() {
        tier.settle(&dir)?;
    }
    tier.remove(&layout::manifest(step, *last))?;
    tier.settle(&dir)?;
    tier.prune(&dir)?;
    Ok(())
}

/// Allows a change to what was looked at, and to nothing else.
fn unchanged(was: &Manifest, now: Option<&Registered>) -> Result<Verdict, Error> {
    match now.map(|now| &now.entry) {
        Some(Entry::Published(manifest)) if manifest == was => Ok(Verdict::Replace),
        _ => Err(Error::Raced { step: was.step }),
    }
}
