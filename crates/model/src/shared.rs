//! What many jobs may have in common, and is kept in memory once: commands and environments.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::heap::Heap as _;
use crate::{Command, JobSpec};

/// A value whose clones are one value, until one of them is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Whether both are one value in memory.
    pub fn is_same(&self, other: &Shared<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: Clone> Shared<T> {
    pub fn into_inner(self) -> T {
        Arc::unwrap_or_clone(self.0)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Shared<T> {
        Shared(Arc::new(value))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Shared<BTreeMap<K, V>> {
    fn from(entries: [(K, V); N]) -> Self {
        BTreeMap::from(entries).into()
    }
}

impl<T: PartialEq> PartialEq<T> for Shared<T> {
    fn eq(&self, other: &T) -> bool {
        *self.0 == *other
    }
}

/// The environment of a job: names to values.
pub type Variables = BTreeMap<String, String>;

/// The hash of a text, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TextDigest(pub String);

/// A command or an environment that is large enough to be stored once, by its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredText {
    Run(Shared<Command>),
    Env(Shared<Variables>),
}

impl StoredText {
    /// About what it takes in memory, which is more than its letters.
    pub fn bytes(&self) -> u64 {
        let bytes = match self {
            StoredText::Run(run) => run.heap(),
            StoredText::Env(env) => env.heap(),
        };
        bytes as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextRef {
    pub digest: TextDigest,
    pub bytes: u64,
}

/// Which texts of a spec are stored by their hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextRefs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<TextRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<TextRef>,
}

impl TextRefs {
    pub fn is_empty(&self) -> bool {
        self.run.is_none() && self.env.is_none()
    }

    /// Of the same texts, however they were counted.
    pub fn has_the_same(&self, other: &TextRefs) -> bool {
        self.digests() == other.digests()
    }

    fn digests(&self) -> [Option<&TextDigest>; 2] {
        [&self.run, &self.env].map(|text| text.as_ref().map(|text| &text.digest))
    }

    pub fn iter(&self) -> impl Iterator<Item = &TextRef> {
        self.run.iter().chain(&self.env)
    }
}

impl Command {
    /// Of its letters.
    pub fn bytes(&self) -> u64 {
        let bytes = match self {
            Command::Shell(line) => line.len(),
            Command::Argv(words) => words.iter().map(String::len).sum(),
        };
        bytes as u64
    }
}

/// Of its letters.
pub fn env_bytes(env: &Variables) -> u64 {
    env.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum()
}

/// What a job costs that says next to nothing.
const JOB_BYTES: u64 = 256;

impl JobSpec {
    /// About what the spec takes in the state, with all of its texts.
    pub fn bytes(&self) -> u64 {
        self.bytes_beside(&TextRefs::default())
    }

    /// The same without the texts that are stored by their hash.
    pub fn bytes_beside(&self, stored: &TextRefs) -> u64 {
        let run = if stored.run.is_some() { self.run.heap() } else { 0 };
        let env = if stored.env.is_some() { self.env.heap() } else { 0 };
        JOB_BYTES + (self.heap() - run - env) as u64
    }
}

/// What one user or one team has in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderBytes {
    /// All of it, each stored text once.
    pub bytes: u64,
    /// Stored texts, and how many of its specs have them.
    texts: BTreeMap<TextDigest, u64>,
}

impl HolderBytes {
    /// What a spec would add.
    pub fn adds(&self, own: u64, texts: &TextRefs) -> u64 {
        let new = |text: &&TextRef| !self.texts.contains_key(&text.digest);
        own + texts.iter().filter(new).map(|text| text.bytes).sum::<u64>()
    }

    pub fn has_text(&self, digest: &TextDigest) -> bool {
        self.texts.contains_key(digest)
    }

    /// Every stored text that it has.
    pub fn texts(&self) -> impl Iterator<Item = &TextDigest> {
        self.texts.keys()
    }

    pub fn add(&mut self, own: u64, texts: &TextRefs) {
        self.bytes += self.adds(own, texts);
        for text in texts.iter() {
            *self.texts.entry(text.digest.clone()).or_default() += 1;
        }
    }

    pub fn remove(&mut self, own: u64, texts: &TextRefs) {
        let mut gone = own;
        for text in texts.iter() {
            let Some(specs) = self.texts.get_mut(&text.digest) else { continue };
            *specs -= 1;
            if *specs == 0 {
                self.texts.remove(&text.digest);
                gone += text.bytes;
            }
        }
        self.bytes = self.bytes.saturating_sub(gone);
    }
}

/// What the specs of jobs that are not over, and of endpoints, take in the state. Follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecBytes {
    pub users: BTreeMap<String, HolderBytes>,
    pub teams: BTreeMap<String, HolderBytes>,
    /// Stored texts, and how many specs have them.
    texts: BTreeMap<TextDigest, u64>,
}

impl SpecBytes {
    pub fn add(&mut self, user: &str, team: &str, own: u64, texts: &TextRefs) {
        self.users.entry(user.to_owned()).or_default().add(own, texts);
        self.teams.entry(team.to_owned()).or_default().add(own, texts);
        for text in texts.iter() {
            *self.texts.entry(text.digest.clone()).or_default() += 1;
        }
    }

    pub fn remove(&mut self, user: &str, team: &str, own: u64, texts: &TextRefs) {
        for (holders, name) in [(&mut self.users, user), (&mut self.teams, team)] {
            let Some(holder) = holders.get_mut(name) else { continue };
            holder.remove(own, texts);
            if *holder == HolderBytes::default() {
                holders.remove(name);
            }
        }
        for text in texts.iter() {
            let Some(specs) = self.texts.get_mut(&text.digest) else { continue };
            *specs -= 1;
            if *specs == 0 {
                self.texts.remove(&text.digest);
            }
        }
    }

    pub fn has_text(&self, digest: &TextDigest) -> bool {
        self.texts.contains_key(digest)
    }

    /// Every stored text that a spec has.
    pub fn texts(&self) -> impl Iterator<Item = &TextDigest> {
        self.texts.keys()
    }
}
