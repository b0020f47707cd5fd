//! BLAKE3 of a file, and of its chunks, in one pass.
//!
//! BLAKE3 is a tree. The values of its subtrees of [`CHUNK`] bytes are kept beside the root, so a
//! chunk can be checked without the rest of the file, and the list of chunks can be checked against
//! the root without any of it. The root is the usual BLAKE3 of the file, as `b3sum` prints it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{Hash, Hasher};
use serde::{Deserialize, Serialize};

/// A power of two, as the tree asks. Small enough that a slice of a tensor costs little more than
/// itself, large enough that a terabyte has a list of 11 MB.
pub const CHUNK: u64 = 4 << 20;
const _: () = assert!(CHUNK.is_power_of_two());

pub type Value = [u8; 32];

/// A file's hash, with those of its chunks. A file of one chunk has no list: its root says it all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeHash {
    pub root: Hash,
    pub chunks: Vec<Value>,
}

pub fn chunk_count(len: u64) -> usize {
    usize::try_from(len.div_ceil(CHUNK)).expect("a file has fewer chunks than memory has bytes")
}

/// The bytes of one chunk in the file.
pub fn chunk_range(len: u64, index: usize) -> std::ops::Range<u64> {
    let begin = index as u64 * CHUNK;
    begin..(begin + CHUNK).min(len)
}

/// The value of one chunk, of which the parts come in order.
pub fn chunk_value<'a>(len: u64, index: usize, parts: impl Iterator<Item = &'a [u8]>) -> Value {
    let mut hasher = Hasher::new();
    if len > CHUNK {
        hasher.set_input_offset(index as u64 * CHUNK);
    }
    for part in parts {
        hasher.update(part);
    }
    if len > CHUNK { hasher.finalize_non_root() } else { *hasher.finalize().as_bytes() }
}

impl TreeHash {
    /// From the values of all chunks.
    pub fn of_chunks(len: u64, mut chunks: Vec<Value>) -> TreeHash {
        match chunks.len() {
            0 => TreeHash { root: blake3::hash(b""), chunks },
            1 if len <= CHUNK => {
                let root = Hash::from_bytes(chunks.remove(0));
                TreeHash { root, chunks }
            }
            _ => TreeHash { root: root(&chunks), chunks },
        }
    }

    /// Hashes `len` bytes with several threads. `value` is asked for each chunk, in any order.
    pub fn compute<E: Send>(
        len: u64,
        threads: usize,
        value: impl Fn(usize) -> Result<Value, E> + Sync,
    ) -> Result<TreeHash, E> {
        let count = chunk_count(len);
        let next = AtomicUsize::new(0);
        let values = Mutex::new(vec![Value::default(); count]);
        let work = || -> Result<(), E> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok(());
                }
                let found = value(index)?;
                values.lock().expect("no thread panics while it holds this")[index] = found;
            }
        };
        let threads = threads.clamp(1, count.max(1));
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut result = work();
            for other in others {
                result = result.and(other.join().expect("hashing does not panic"));
            }
            result
        })?;
        Ok(TreeHash::of_chunks(len, values.into_inner().expect("as above")))
    }

    /// Whether the list of chunks belongs to the root. Until this is known no chunk can be trusted.
    pub fn is_consistent(&self, len: u64) -> bool {
        if len <= CHUNK {
            return self.chunks.is_empty();
        }
        self.chunks.len() == chunk_count(len) && root(&self.chunks) == self.root
    }

    /// The value that a chunk must have.
    pub fn expected(&self, index: usize) -> Value {
        if self.chunks.is_empty() { *self.root.as_bytes() } else { self.chunks[index] }
    }
}

fn root(chunks: &[Value]) -> Hash {
    let (left, right) = chunks.split_at(left_len(chunks.len()));
    merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash)
}

fn subtree(chunks: &[Value]) -> Value {
    if let [only] = chunks {
        return *only;
    }
    let (left, right) = chunks.split_at(left_len(chunks.len()));
    merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
}

/// The largest power of two below: the left side of a BLAKE3 tree is always full.
fn left_len(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// How many threads to hash with: enough to keep up with a disk, few enough to leave the machine to
/// those who compute.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(8))
}

/// As written in a manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    blake3: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    chunks: String,
}

impl Serialize for TreeHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let chunks = STANDARD_NO_PAD.encode(self.chunks.as_flattened());
        Written { blake3: self.root.to_hex().to_string(), chunks }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TreeHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<TreeHash, D::Error> {
        use serde::de::Error;
        let written = Written::deserialize(deserializer)?;
        let root = Hash::from_hex(&written.blake3).map_err(D::Error::custom)?;
        let flat = STANDARD_NO_PAD.decode(&written.chunks).map_err(D::Error::custom)?;
        let (chunks, rest) = flat.as_chunks::<32>();
        if !rest.is_empty() {
            return Err(D::Error::custom("the list of chunk hashes is cut off"));
        }
        Ok(TreeHash { root, chunks: chunks.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(bytes: &[u8]) -> TreeHash {
        let len = bytes.len() as u64;
        TreeHash::compute(len, 2, |i| {
            let r = chunk_range(len, i);
            let bytes = &bytes[r.start as usize..r.end as usize];
            let half = bytes.len() / 2;
            Ok::<_, ()>(chunk_value(len, i, [&bytes[..half], &bytes[half..]].into_iter()))
        })
        .unwrap()
    }

    #[test]
    fn the_root_is_the_usual_blake3() {
        let mut bytes = vec![7u8; 5 * CHUNK as usize + 12345];
        bytes.iter_mut().enumerate().for_each(|(i, b)| *b = ((i * i) >> 8) as u8);
        let chunk = CHUNK as usize;
        for len in [0, 1, 1024, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk, bytes.len()] {
            let found = tree(&bytes[..len]);
            assert_eq!(found.root, blake3::hash(&bytes[..len]), "{len}");
            assert!(found.is_consistent(len as u64), "{len}");
            let text = serde_json::to_string(&found).unwrap();
            assert_eq!(serde_json::from_str::<TreeHash>(&text).unwrap(), found);
        }
    }

    #[test]
    fn a_forged_chunk_list_is_seen() {
        let bytes = vec![1u8; 3 * CHUNK as usize];
        let mut found = tree(&bytes);
        found.chunks[1][0] ^= 1;
        assert!(!found.is_consistent(bytes.len() as u64));
        found.chunks.pop();
        assert!(!found.is_consistent(bytes.len() as u64));
    }
}
