//! A place that takes no more than it was told to.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::{Item, Source, Tier, TierError};

/// Refuses what would make the place hold more than `max` bytes, whoever wrote what is there.
pub struct Bounded<T> {
    inner: T,
    max: u64,
    /// Files that are still coming, with the length that they will have.
    promised: Mutex<Vec<(String, u64)>>,
}

impl<T: Tier> Bounded<T> {
    pub fn new(inner: T, max: u64) -> Bounded<T> {
        Bounded { inner, max, promised: Mutex::default() }
    }

    fn promised(&self) -> std::sync::MutexGuard<'_, Vec<(String, u64)>> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn promise(&self, path: &str, bytes: u64) -> Result<(), TierError> {
        let mut promised = self.promised();
        // Others write here too, so what it holds is looked at anew.
        let is_coming = |path: &str| promised.iter().any(|(coming, _)| coming == path);
        let used = held(&self.inner, "", &is_coming)?;
        let coming: u64 = promised.iter().map(|(_, bytes)| bytes).sum();
        if used.saturating_add(coming).saturating_add(bytes) > self.max {
            let (place, path) = (self.label().to_owned(), path.to_owned());
            return Err(TierError::Full { place, path, bytes });
        }
        promised.push((path.to_owned(), bytes));
        Ok(())
    }
}

/// What is there, but for files of which only a part may be.
fn held(tier: &dyn Tier, dir: &str, is_coming: &dyn Fn(&str) -> bool) -> Result<u64, TierError> {
    let mut sum = 0;
    for item in tier.list(dir)? {
        let path = if dir.is_empty() { item.name } else { format!("{dir}/{}", item.name) };
        sum += match item.is_dir {
            true => held(tier, &path, is_coming)?,
            false if is_coming(&path) => 0,
            false => tier.size(&path)?.unwrap_or(0),
        };
    }
    Ok(sum)
}

impl<T: Tier> Tier for Bounded<T> {
    fn label(&self) -> &str {
        self.inner.label()
    }

    fn is_near(&self) -> bool {
        self.inner.is_near()
    }

    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        self.promise(path, len)?;
        let done = self.inner.put(path, len, data);
        let mut promised = self.promised();
        if let Some(kept) =
            promised.iter().position(|(coming, bytes)| coming == path && *bytes == len)
        {
            promised.swap_remove(kept);
        }
        done
    }

    fn publish(&self, path: &str, scratch: &str, bytes: &[u8]) -> Result<bool, TierError> {
        self.inner.publish(path, scratch, bytes)
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        self.inner.read(path, range)
    }

    fn size(&self, path: &str) -> Result<Option<u64>, TierError> {
        self.inner.size(path)
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        self.inner.list(dir)
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        self.inner.remove(path)
    }

    fn settle(&self, dir: &str) -> Result<(), TierError> {
        self.inner.settle(dir)
    }

    fn prune(&self, dir: &str) -> Result<(), TierError> {
        self.inner.prune(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dir;
    use super::*;

    #[test]
    fn it_takes_no_more_than_it_may_and_again_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("own")).unwrap();
        std::fs::write(dir.path().join("own/file"), [0; 60]).unwrap();
        let tier = Bounded::new(Dir::new(dir.path()), 100);
        let put = |path: &str, len: usize| {
            let mut data = [Ok(Bytes::from(vec![1; len]))].into_iter();
            tier.put(path, len as u64, &mut data)
        };
        put("a/x", 40).unwrap();
        assert!(matches!(put("a/y", 1), Err(TierError::Full { bytes: 1, .. })));
        tier.remove("a/x").unwrap();
        put("a/y", 40).unwrap();
    }

    #[test]
    fn what_is_half_written_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let tier = Bounded::new(Dir::new(dir.path()), 100);
        let mut beside = None;
        let mut pieces = 0;
        let mut data = std::iter::from_fn(|| {
            pieces += 1;
            if pieces == 2 {
                // 20 of 40 bytes are there: 60 more are all that fits.
                let put = |path, len: usize| {
                    tier.put(path, len as u64, &mut [Ok(Bytes::from(vec![1; len]))].into_iter())
                };
                beside = Some((put("a/much", 61), put("a/fits", 60)));
            }
            (pieces <= 2).then(|| Ok(Bytes::from(vec![1; 20])))
        });
        tier.put("a/slow", 40, &mut data).unwrap();
        let (much, fits) = beside.unwrap();
        assert!(matches!(much, Err(TierError::Full { bytes: 61, .. })));
        fits.unwrap();
        assert!(tier.promised().is_empty());
    }
}
