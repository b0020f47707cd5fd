//! The manifest: what a checkpoint consists of. Without one it does not exist.
//!
//! It is JSON with a seal: the BLAKE3 of the inner object, byte for byte. A bit that flips in the
//! manifest is found as surely as one in a shard.

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use crate::geometry::{self, Region};
use crate::hash::{CHUNK, TreeHash};
use crate::layout::{self, Attempt};

pub const VERSION: u32 = 1;

/// What is written for one step: a checkpoint, or that there is none any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Entry {
    Published(Manifest),
    /// Taken back. What it names may already be gone.
    Retracted(Manifest),
}

impl Entry {
    pub fn manifest(&self) -> &Manifest {
        match self {
            Entry::Published(manifest) | Entry::Retracted(manifest) => manifest,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub kind: Kind,
    pub step: u64,
    pub attempt: Attempt,
    /// When it was published, in milliseconds since 1970.
    pub created_ms: u64,
    /// How many ranks wrote it.
    pub world: u32,
    /// Set while somebody wants it kept, with why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Whatever the writers want to know again: mesh, position in the data, random state.
    #[serde(default)]
    pub meta: serde_json::Value,
    /// Bytes per chunk of the files' chunk hashes.
    pub chunk: u64,
    pub files: Vec<FileEntry>,
    pub tensors: Vec<TensorEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Tensors in shards that this crate wrote.
    Sharded,
    /// Files of another framework, of which only the hashes are known.
    Foreign,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Inside the location.
    pub path: String,
    pub bytes: u64,
    #[serde(flatten)]
    pub hash: TreeHash,
    /// The places that had it when it was published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorEntry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub pieces: Vec<Piece>,
}

/// A dense box of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Index in `files`.
    pub file: usize,
    /// Where its bytes begin in that file.
    pub at: u64,
    #[serde(flatten)]
    pub region: Region,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("it is not a checkpoint manifest")]
    NotOne,
    #[error("it is of version {found}, this program reads up to {VERSION}")]
    Newer { found: u32 },
    #[error("it is damaged: its seal does not match")]
    Seal,
    #[error("it can't be read")]
    Json(#[source] serde_json::Error),
    #[error("it names {path}, which is not a path inside the location")]
    Path { path: String },
    #[error("it cuts files into chunks of {chunk} bytes; this program only knows {CHUNK}")]
    Chunk { chunk: u64 },
    #[error("the chunk hashes of {path} do not belong to its hash")]
    Chunks { path: String },
    #[error("tensor {tensor}: {problem}")]
    Tensor { tensor: String, problem: TensorProblem },
}

/// What is wrong with how a tensor is cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    #[error("its name appears twice")]
    Twice,
    #[error("its shape {shape:?} has more elements than can be counted")]
    TooLarge { shape: Vec<u64> },
    #[error("a piece at {offset:?} of {extent:?} is outside its shape {shape:?}")]
    Outside { offset: Vec<u64>, extent: Vec<u64>, shape: Vec<u64> },
    #[error("a piece at {offset:?} of {extent:?} lies beyond the end of its file")]
    BeyondFile { offset: Vec<u64>, extent: Vec<u64> },
    #[error("the pieces at {first:?} and {second:?} overlap")]
    Overlap { first: Vec<u64>, second: Vec<u64> },
    #[error("{missing} of its {elements} elements are in no piece")]
    Holes { missing: u64, elements: u64 },
}

const HEAD: &str = "{\"tutti_checkpoint\":";
const SEAL: &str = ",\"blake3\":\"";
const BODY: &str = "\",\"entry\":";
const TAIL: &str = "}\n";

/// The bytes of a manifest file.
pub fn seal(entry: &Entry) -> Vec<u8> {
    let body = serde_json::to_string(entry).expect("a manifest has only keys that are strings");
    let hash = blake3::hash(body.as_bytes()).to_hex();
    format!("{HEAD}{VERSION}{SEAL}{hash}{BODY}{body}{TAIL}").into_bytes()
}

/// Reads and checks a manifest file. What comes out is consistent in itself.
pub fn unseal(bytes: &[u8]) -> Result<Entry, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::Seal)?;
    let rest = text.strip_prefix(HEAD).ok_or(ManifestError::NotOne)?;
    let (version, rest) = rest.split_once(SEAL).ok_or(ManifestError::NotOne)?;
    let found = version.parse().map_err(|_| ManifestError::NotOne)?;
    if found > VERSION {
        return Err(ManifestError::Newer { found });
    }
    let (hash, rest) = rest.split_once(BODY).ok_or(ManifestError::NotOne)?;
    let body = rest.strip_suffix(TAIL).ok_or(ManifestError::Seal)?;
    if blake3::hash(body.as_bytes()).to_hex().as_str() != hash {
        return Err(ManifestError::Seal);
    }
    let entry: Entry = serde_json::from_str(body).map_err(ManifestError::Json)?;
    entry.manifest().check()?;
    Ok(entry)
}

impl Manifest {
    /// Whether it names the same bytes, wherever copies of them are.
    pub fn has_files_of(&self, other: &Manifest) -> bool {
        let key = |f: &FileEntry| (f.path.clone(), f.bytes, f.hash.clone());
        self.files.iter().map(key).eq(other.files.iter().map(key))
    }

    /// Names nothing: what is left to say of a step whose manifest is lost.
    pub(crate) fn nothing(step: u64) -> Manifest {
        Manifest {
            kind: Kind::Sharded,
            step,
            attempt: Attempt { owner: String::new(), generation: 0 },
            created_ms: 0,
            world: 0,
            pinned: None,
            meta: serde_json::Value::Null,
            chunk: CHUNK,
            files: Vec::new(),
            tensors: Vec::new(),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        // Sorted when it was made; `check` has seen to it.
        let at = self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[at])
    }

    /// Everything that a reader relies on, so that readers need no checks of their own.
    pub fn check(&self) -> Result<(), ManifestError> {
        if self.chunk != CHUNK {
            return Err(ManifestError::Chunk { chunk: self.chunk });
        }
        for file in &self.files {
            let own = file.path.starts_with(&format!("{}/", layout::step_dir(self.step)));
            if !layout::is_inside(&file.path) || (self.kind == Kind::Sharded && !own) {
                return Err(ManifestError::Path { path: file.path.clone() });
            }
            if !file.hash.is_consistent(file.bytes) {
                return Err(ManifestError::Chunks { path: file.path.clone() });
            }
        }
        let mut before: Option<&str> = None;
        for tensor in &self.tensors {
            let fail = |problem| ManifestError::Tensor { tensor: tensor.name.clone(), problem };
            if before.is_some_and(|b| b >= tensor.name.as_str()) {
                return Err(fail(TensorProblem::Twice));
            }
            before = Some(&tensor.name);
            tensor.check(&self.files).map_err(fail)?;
        }
        Ok(())
    }
}

impl TensorEntry {
    fn check(&self, files: &[FileEntry]) -> Result<(), TensorProblem> {
        let shape = &self.shape;
        let too_large = || TensorProblem::TooLarge { shape: shape.clone() };
        let elements = geometry::volume(shape).ok_or_else(too_large)?;
        elements.checked_mul(self.dtype.size()).ok_or_else(too_large)?;
        let mut covered = 0u64;
        for piece in &self.pieces {
            let Region { offset, extent } = piece.region.clone();
            if !piece.region.is_within(shape) {
                return Err(TensorProblem::Outside { offset, extent, shape: shape.clone() });
            }
            let volume = geometry::volume(&extent).ok_or_else(too_large)?;
            covered = covered.saturating_add(volume);
            let end = piece.at.checked_add(volume * self.dtype.size());
            let held = files.get(piece.file).zip(end).is_some_and(|(f, end)| end <= f.bytes);
            if !held {
                return Err(TensorProblem::BeyondFile { offset, extent });
            }
        }
        let regions: Vec<Region> = self.pieces.iter().map(|p| p.region.clone()).collect();
        if let Some(pair) = geometry::overlap(&regions) {
            return Err(TensorProblem::Overlap {
                first: regions[pair.first].offset.clone(),
                second: regions[pair.second].offset.clone(),
            });
        }
        if covered != elements {
            let missing = elements - covered;
            return Err(TensorProblem::Holes { missing, elements });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
