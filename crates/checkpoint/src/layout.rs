//! What is called what in a location.
//!
//! ```text
//! LOCATION/
//!   step-000000000042/
//!     manifest-0000.json              the register of this step: the highest number counts
//!     a-5d41402a-g0000000007/         one attempt: whose, and its generation
//!       rank-00003-0-9f86d081884c.safetensors
//! ```
//!
//! A shard's name is never used twice, so nothing that one writer does can touch what another wrote.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One try at running the work: only the newest may publish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Whose attempt: generations of one owner have an order, those of two have none.
    pub owner: String,
    pub generation: u64,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generation = self.generation;
        match self.owner.as_str() {
            "" => write!(f, "generation {generation} without an owner"),
            // A task's id: "generation 2 of 1" would read as a count.
            task if task.starts_with(|c: char| c.is_ascii_digit()) => {
                write!(f, "job {task} (generation {generation})")
            }
            owner => write!(f, "{owner} (generation {generation})"),
        }
    }
}

const STEP: &str = "step-";
const MANIFEST: &str = "manifest-";

pub fn step_dir(step: u64) -> String {
    format!("{STEP}{step:012}")
}

pub fn parse_step_dir(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(STEP)?;
    let step = digits.parse().ok()?;
    (step_dir(step) == name).then_some(step)
}

pub fn manifest(step: u64, revision: u32) -> String {
    format!("{}/{MANIFEST}{revision:04}.json", step_dir(step))
}

/// The revision, from the name of a manifest inside a step's directory.
pub fn parse_manifest(name: &str) -> Option<u32> {
    name.strip_prefix(MANIFEST)?.strip_suffix(".json")?.parse().ok()
}

/// An attempt's directory, as far as its name tells whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptDir {
    owner_hash: String,
    pub generation: u64,
}

impl AttemptDir {
    pub fn of(attempt: &Attempt) -> AttemptDir {
        let hash = blake3::hash(attempt.owner.as_bytes()).to_hex();
        AttemptDir { owner_hash: hash[..8].to_owned(), generation: attempt.generation }
    }

    pub fn parse(name: &str) -> Option<AttemptDir> {
        let (owner_hash, generation) = name.strip_prefix("a-")?.split_once("-g")?;
        let generation = generation.parse().ok()?;
        Some(AttemptDir { owner_hash: owner_hash.to_owned(), generation })
    }

    pub fn is_of(&self, attempt: &Attempt) -> bool {
        self.owner_hash == AttemptDir::of(attempt).owner_hash
    }
}

impl fmt::Display for AttemptDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a-{}-g{:010}", self.owner_hash, self.generation)
    }
}

pub fn attempt_dir(step: u64, attempt: &Attempt) -> String {
    format!("{}/{}", step_dir(step), AttemptDir::of(attempt))
}

/// A new name for a shard, in its attempt's directory.
pub fn shard(step: u64, attempt: &Attempt, rank: u32, part: usize, nonce: &str) -> String {
    format!("{}/rank-{rank:05}-{part}-{nonce}.safetensors", attempt_dir(step, attempt))
}

/// Twelve hex digits that nobody else has.
pub fn nonce() -> String {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether a path from a manifest stays inside the location.
pub fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(['\\', '\0'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        assert_eq!(parse_step_dir(&step_dir(42)), Some(42));
        for name in ["step-42", "step-", "step-00000000004x", "checkpoint-000000000042"] {
            assert_eq!(parse_step_dir(name), None, "{name}");
        }
        let name = manifest(42, 3);
        assert_eq!(name, "step-000000000042/manifest-0003.json");
        assert_eq!(parse_manifest(name.rsplit('/').next().unwrap()), Some(3));
        assert_eq!(parse_manifest(".manifest-0003.json"), None);
        let attempt = Attempt { owner: "12".into(), generation: 7 };
        let dir = AttemptDir::of(&attempt);
        assert_eq!(AttemptDir::parse(&dir.to_string()), Some(dir.clone()));
        assert!(dir.is_of(&attempt));
        assert!(!dir.is_of(&Attempt { owner: "13".into(), generation: 7 }));
    }

    #[test]
    fn a_manifest_cannot_point_outside() {
        for path in ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\\b"] {
            assert!(!is_inside(path), "{path}");
        }
        assert!(is_inside("step-000000000001/a-1-g0/rank-0.safetensors"));
    }
}
