//! Checkpoints in memory, with a budget: what a peer keeps for others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;

use bytes::{Bytes, BytesMut};

use super::{Item, Source, Tier, TierError};

pub struct Memory {
    label: String,
    budget: u64,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    by_path: BTreeMap<String, Bytes>,
    /// Bytes held, and promised to files that are still coming.
    used: u64,
}

impl Memory {
    pub fn new(label: impl Into<String>, budget: u64) -> Memory {
        Memory { label: label.into(), budget, files: Mutex::default() }
    }

    pub fn used(&self) -> u64 {
        self.lock().used
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn reserve(&self, path: &str, bytes: u64) -> Result<(), TierError> {
        let mut files = self.lock();
        match files.used.checked_add(bytes).filter(|&used| used <= self.budget) {
            Some(used) => files.used = used,
            None => {
                let (place, path) = (self.label.clone(), path.to_owned());
                return Err(TierError::Full { place, path, bytes });
            }
        }
        Ok(())
    }

    /// Keeps bytes that were reserved. Answers whether the name was free.
    fn keep(&self, path: &str, bytes: Bytes, replace: bool) -> bool {
        let mut files = self.lock();
        let len = bytes.len() as u64;
        if !replace && files.by_path.contains_key(path) {
            files.used -= len;
            return false;
        }
        if let Some(old) = files.by_path.insert(path.to_owned(), bytes) {
            files.used -= old.len() as u64;
        }
        true
    }

    fn fill(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<Bytes, TierError> {
        let mut whole = BytesMut::with_capacity(usize::try_from(len).unwrap_or(usize::MAX));
        for part in data {
            whole.extend_from_slice(&part?);
            if whole.len() as u64 > len {
                break;
            }
        }
        if whole.len() as u64 == len {
            return Ok(whole.freeze());
        }
        let (place, path) = (self.label.clone(), path.to_owned());
        Err(TierError::Short { place, path, wanted: len, found: whole.len() as u64 })
    }
}

impl Tier for Memory {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_near(&self) -> bool {
        true
    }

    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        self.reserve(path, len)?;
        match self.fill(path, len, data) {
            Ok(bytes) => {
                self.keep(path, bytes, true);
                Ok(())
            }
            Err(e) => {
                self.lock().used -= len;
                Err(e)
            }
        }
    }

    fn publish(&self, path: &str, _scratch: &str, bytes: &[u8]) -> Result<bool, TierError> {
        self.reserve(path, bytes.len() as u64)?;
        Ok(self.keep(path, Bytes::copy_from_slice(bytes), false))
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        let place = || self.label.clone();
        let file = self.lock().by_path.get(path).cloned();
        let file =
            file.ok_or_else(|| TierError::Missing { place: place(), path: path.to_owned() })?;
        let found = file.len() as u64;
        if range.end > found {
            let path = path.to_owned();
            return Err(TierError::Short { place: place(), path, wanted: range.end, found });
        }
        Ok(file.slice(range.start as usize..range.end as usize))
    }

    fn size(&self, path: &str) -> Result<Option<u64>, TierError> {
        Ok(self.lock().by_path.get(path).map(|f| f.len() as u64))
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let mut found = BTreeSet::new();
        for path in self.lock().by_path.keys() {
            let Some(rest) = path.strip_prefix(&prefix) else { continue };
            match rest.split_once('/') {
                Some((first, _)) => found.insert((first.to_owned(), true)),
                None => found.insert((rest.to_owned(), false)),
            };
        }
        Ok(found.into_iter().map(|(name, is_dir)| Item { name, is_dir }).collect())
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        let mut files = self.lock();
        if let Some(old) = files.by_path.remove(path) {
            files.used -= old.len() as u64;
        }
        Ok(())
    }

    fn settle(&self, _dir: &str) -> Result<(), TierError> {
        Ok(())
    }

    fn prune(&self, _dir: &str) -> Result<(), TierError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &Memory, path: &str, len: u64, bytes: &'static [u8]) -> Result<(), TierError> {
        memory.put(path, len, &mut [Ok(Bytes::from_static(bytes))].into_iter())
    }

    #[test]
    fn it_keeps_to_its_budget() {
        let memory = Memory::new("memory", 10);
        put(&memory, "a/x", 6, b"abcdef").unwrap();
        let full = put(&memory, "a/y", 5, b"12345").unwrap_err();
        assert!(matches!(full, TierError::Full { bytes: 5, .. }), "{full}");
        let short = put(&memory, "a/z", 4, b"123").unwrap_err();
        assert!(matches!(short, TierError::Short { wanted: 4, found: 3, .. }), "{short}");
        assert_eq!(memory.used(), 6);
        assert!(memory.publish("a/m", "a", b"1234").unwrap());
        memory.remove("a/x").unwrap();
        assert!(!memory.publish("a/m", "a", b"56").unwrap());
        assert_eq!(memory.used(), 4);
        assert_eq!(memory.list("a").unwrap(), [Item { name: "m".into(), is_dir: false }]);
        assert_eq!(memory.list("").unwrap(), [Item { name: "a".into(), is_dir: true }]);
    }
}
