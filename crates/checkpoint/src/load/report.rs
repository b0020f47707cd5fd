//! What had to be done otherwise than hoped while loading, as data and in words.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Empty when all was as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// The step that was loaded in the end.
    pub step: Option<u64>,
    pub fallbacks: Vec<Fallback>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fallback {
    /// A place did not answer.
    Unreachable { place: String, why: String },
    /// A file in one place is missing, cut, or not what was written; the next place was asked.
    BadCopy { step: u64, path: String, place: String, why: String },
    /// A manifest in one place is damaged.
    BadManifest { step: u64, why: String },
    /// The home had no manifest, a copy did.
    ManifestFrom { step: u64, place: String },
    /// No good copy of something: an older checkpoint was tried.
    GaveUp { step: u64, why: String },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::Unreachable { place, why } => write!(f, "{place} does not answer: {why}"),
            Fallback::BadCopy { step, path, place, why } => {
                write!(f, "step {step}: {path} in {place} is no good: {why}; asked the next place")
            }
            Fallback::BadManifest { step, why } => write!(f, "step {step}: {why}"),
            Fallback::ManifestFrom { step, place } => {
                write!(f, "step {step}: its manifest was taken from {place}")
            }
            Fallback::GaveUp { step, why } => {
                write!(f, "step {step} was given up for an older one: {why}")
            }
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl LoadReport {
    pub fn is_clean(&self) -> bool {
        self.fallbacks.is_empty()
    }

    /// A line for each thing that was not as hoped.
    pub fn lines(&self) -> Vec<String> {
        self.fallbacks.iter().map(Fallback::to_string).collect()
    }

    fn add(&mut self, fallback: Fallback) {
        if !self.fallbacks.contains(&fallback) {
            tracing::warn!("{fallback}");
            self.fallbacks.push(fallback);
        }
    }

    pub(crate) fn unreachable(&mut self, place: &str, why: &Error) {
        self.add(Fallback::Unreachable { place: place.to_owned(), why: crate::chain(why) });
    }
    pub(crate) fn bad_copy(&mut self, step: u64, path: &str, place: &str, why: String) {
        let (path, place) = (path.to_owned(), place.to_owned());
        self.add(Fallback::BadCopy { step, path, place, why });
    }
    pub(crate) fn bad_manifest(&mut self, step: u64, why: &Error) {
        self.add(Fallback::BadManifest { step, why: crate::chain(why) });
    }
    pub(crate) fn manifest_from(&mut self, step: u64, place: &str) {
        self.add(Fallback::ManifestFrom { step, place: place.to_owned() });
    }
    pub(crate) fn gave_up(&mut self, step: u64, why: &Error) {
        self.add(Fallback::GaveUp { step, why: crate::chain(why) });
    }
}
