//! Text as bytes, and the batch of each step: the same for every layout of the ranks.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::rng::Stream;

/// Trained on when no file is given.
const BUILT_IN: &[u8] = include_bytes!("data/score.txt");

#[derive(Debug, Error)]
pub enum DataError {
    #[error("cannot read {path}: give a text file that this rank can read")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} has {len} bytes; --seq {seq} needs at least {need}", need = seq + 2)]
    TooShort { path: PathBuf, len: usize, seq: usize },
}

/// The text.
#[derive(Clone, Debug)]
pub struct Corpus {
    bytes: std::sync::Arc<[u8]>,
    seq: usize,
    stream: Stream,
}

/// Sequences of a micro-batch, one after the other, and what follows each of their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub inputs: Vec<i32>,
    pub targets: Vec<i32>,
}

impl Corpus {
    pub fn load(path: Option<&Path>, seq: usize, seed: u64) -> Result<Self, DataError> {
        let (path, bytes) = match path {
            None => (PathBuf::from("the built-in text"), BUILT_IN.to_vec()),
            Some(path) => {
                let bytes = std::fs::read(path)
                    .map_err(|source| DataError::Read { path: path.to_owned(), source })?;
                (path.to_owned(), bytes)
            }
        };
        if bytes.len() < seq + 2 {
            return Err(DataError::TooShort { path, len: bytes.len(), seq });
        }
        Ok(Corpus { bytes: bytes.into(), seq, stream: Stream::new(seed, "data") })
    }

    /// Samples `first` up to `first + count` of the batch of `step`. Where a sample starts depends
    /// on seed, step and its number alone.
    pub fn batch(&self, step: u64, first: usize, count: usize) -> Batch {
        let mut batch = Batch {
            inputs: Vec::with_capacity(count * self.seq),
            targets: Vec::with_capacity(count * self.seq),
        };
        let starts = (self.bytes.len() - self.seq) as u64;
        for sample in first..first + count {
            let draw = (step << 24) | sample as u64;
            let start = self.stream.below(draw, starts) as usize;
            let window = &self.bytes[start..=start + self.seq];
            batch.inputs.extend(window[..self.seq].iter().map(|&byte| i32::from(byte)));
            batch.targets.extend(window[1..].iter().map(|&byte| i32::from(byte)));
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_the_same_however_it_is_cut() {
        let corpus = Corpus::load(None, 16, 5).unwrap();
        let whole = corpus.batch(3, 0, 4);
        let halves = [corpus.batch(3, 0, 2), corpus.batch(3, 2, 2)];
        assert_eq!(whole.inputs, [halves[0].inputs.clone(), halves[1].inputs.clone()].concat());
        assert_eq!(whole.targets[..15], whole.inputs[1..16]);
        assert_ne!(whole, corpus.batch(4, 0, 4));
    }

    #[test]
    fn a_short_text_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short.txt");
        std::fs::write(&path, "abc").unwrap();
        let error = Corpus::load(Some(&path), 16, 0).unwrap_err().to_string();
        assert!(error.contains("short.txt has 3 bytes; --seq 16 needs at least 18"), "{error}");
        let error = Corpus::load(Some(&dir.path().join("none")), 16, 0).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
