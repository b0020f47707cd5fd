//! Scrubbing: every byte in every place is read again and compared, and bad copies are mended from
//! good ones.

use std::sync::Mutex;

use serde::Serialize;

use super::Store;
use crate::error::Error;
use crate::hash::{self, chunk_range, chunk_value};
use crate::load::LoadReport;
use crate::manifest::{FileEntry, Manifest};
use crate::tier::Tier;

/// What a scrub of one checkpoint found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    pub step: u64,
    pub files: usize,
    /// Bytes that were read, over all places.
    pub bytes: u64,
    /// Whether every file is good in at least one place.
    pub loads: bool,
    pub bad: Vec<BadCopy>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadCopy {
    pub path: String,
    pub place: String,
    pub why: String,
    pub mended: bool,
}

/// Told how many bytes more have been read. Several threads call it.
pub type Reading<'a> = dyn Fn(u64) + Sync + 'a;

impl Store {
    /// Re-reads a checkpoint in every place. With `mend`, copies that are bad are written again from
    /// a good one.
    pub fn verify(&self, step: u64, mend: bool, reading: &Reading<'_>) -> Result<Verified, Error> {
        let place = || self.label().to_owned();
        let manifest = self
            .manifest_of(step, &mut LoadReport::default())?
            .ok_or_else(|| Error::NoSuchStep { step, place: place() })?;
        let read = Mutex::new(0);
        let reading = |bytes| {
            *read.lock().expect("nobody panics here") += bytes;
            reading(bytes);
        };
        let mut found =
            Verified { step, files: manifest.files.len(), bytes: 0, loads: true, bad: Vec::new() };
        for file in &manifest.files {
            self.verify_file(&manifest, file, mend, &reading, &mut found);
        }
        found.bytes = *read.lock().expect("nobody panics here");
        Ok(found)
    }

    fn verify_file(
        &self,
        manifest: &Manifest,
        file: &FileEntry,
        mend: bool,
        reading: &Reading<'_>,
        found: &mut Verified,
    ) {
        let mut good = None;
        let mut bad = Vec::new();
        for (index, tier) in self.tiers().iter().enumerate() {
            // Copies are a bonus: only the home must have it, or who said that they do.
            let expected =
                index == self.home_index() || file.copies.iter().any(|c| c == tier.label());
            match check(&**tier, file, reading) {
                Ok(true) => good = good.or(Some(tier)),
                Ok(false) if expected => bad.push((tier, "it is missing".to_owned())),
                Ok(false) => {}
                Err(why) => bad.push((tier, why)),
            }
        }
        found.loads &= good.is_some();
        for (tier, why) in bad {
            let mended = match good {
                Some(good) if mend => copy(&**good, &**tier, file)
                    .inspect_err(|e| tracing::warn!("step {}: {}", manifest.step, crate::chain(e)))
                    .is_ok(),
                _ => false,
            };
            let (path, place) = (file.path.clone(), tier.label().to_owned());
            found.bad.push(BadCopy { path, place, why, mended });
        }
    }
}

/// Reads one copy of a file. `false` if there is none.
pub(crate) fn check(
    tier: &dyn Tier,
    file: &FileEntry,
    reading: &Reading<'_>,
) -> Result<bool, String> {
    match tier.size(&file.path) {
        Ok(None) => return Ok(false),
        Ok(Some(size)) if size == file.bytes => {}
        Ok(Some(size)) => return Err(format!("it has {size} of {} bytes", file.bytes)),
        Err(e) => return Err(crate::chain(&e)),
    }
    let value = |index| {
        let range = chunk_range(file.bytes, index);
        let bytes = tier.read(&file.path, range.clone()).map_err(|e| crate::chain(&e))?;
        reading(bytes.len() as u64);
        let value = chunk_value(file.bytes, index, std::iter::once(&bytes[..]));
        if value != file.hash.expected(index) {
            return Err(format!("bytes {} to {} have another hash", range.start, range.end));
        }
        Ok(value)
    };
    hash::TreeHash::compute(file.bytes, hash::threads(), value).map(|_| true)
}

fn copy(from: &dyn Tier, to: &dyn Tier, file: &FileEntry) -> Result<(), crate::tier::TierError> {
    to.remove(&file.path)?;
    let chunks = 0..hash::chunk_count(file.bytes);
    let mut data = chunks.map(|index| from.read(&file.path, chunk_range(file.bytes, index)));
    to.put(&file.path, file.bytes, &mut data)
}
