//! A shard file: safetensors with the pieces of one rank, laid out without copying them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use crate::dtype::Dtype;
use crate::geometry::Region;
use crate::hash::{TreeHash, chunk_range, chunk_value};

/// A piece of a tensor, owned, so that training may go on while it is written.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    /// Of the whole tensor.
    pub shape: Vec<u64>,
    /// Where this piece begins in it, and how far it goes.
    pub offset: Vec<u64>,
    pub extent: Vec<u64>,
    /// Row-major, little-endian.
    pub data: Bytes,
}

impl Tensor {
    /// A tensor that this rank holds all of.
    pub fn whole(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[u64],
        data: impl Into<Bytes>,
    ) -> Tensor {
        let Region { offset, extent } = Region::whole(shape);
        Tensor {
            name: name.into(),
            dtype,
            shape: extent.clone(),
            offset,
            extent,
            data: data.into(),
        }
    }

    /// The box of a tensor of `shape` that begins at `offset` and goes as far as `extent`.
    pub fn piece(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[u64],
        offset: &[u64],
        extent: &[u64],
        data: impl Into<Bytes>,
    ) -> Tensor {
        Tensor {
            name: name.into(),
            dtype,
            shape: shape.to_vec(),
            offset: offset.to_vec(),
            extent: extent.to_vec(),
            data: data.into(),
        }
    }
}

/// The bytes of one file, where they are.
pub struct Shard {
    pub segments: Vec<Bytes>,
    /// Where each segment begins.
    starts: Vec<u64>,
    pub len: u64,
    /// Each tensor, with where its bytes begin in the file.
    pub tensors: Vec<(Tensor, u64)>,
}

#[derive(Serialize)]
struct Header<'a> {
    dtype: Dtype,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

/// Cuts tensors into files of about `limit` bytes each, in an order that keeps elements aligned.
pub fn cut(mut tensors: Vec<Tensor>, limit: u64, about: &BTreeMap<&str, String>) -> Vec<Shard> {
    tensors.sort_by(|a, b| {
        let key = |t: &Tensor| std::cmp::Reverse(t.dtype.size());
        (key(a), &a.name, &a.offset).cmp(&(key(b), &b.name, &b.offset))
    });
    let mut shards = Vec::new();
    let mut group: Vec<Tensor> = Vec::new();
    let mut bytes = 0;
    for tensor in tensors {
        let len = tensor.data.len() as u64;
        if !group.is_empty() && bytes + len > limit {
            shards.push(Shard::new(std::mem::take(&mut group), about));
            bytes = 0;
        }
        bytes += len;
        group.push(tensor);
    }
    if !group.is_empty() {
        shards.push(Shard::new(group, about));
    }
    shards
}

impl Shard {
    fn new(tensors: Vec<Tensor>, about: &BTreeMap<&str, String>) -> Shard {
        let mut at = 0;
        let mut entries: BTreeMap<String, Header<'_>> = BTreeMap::new();
        let mut ends = Vec::new();
        for tensor in &tensors {
            let end = at + tensor.data.len() as u64;
            let header =
                Header { dtype: tensor.dtype, shape: &tensor.extent, data_offsets: [at, end] };
            // Two pieces of one tensor in one file are told apart by where they are.
            let at_offset = format!("{}@{:?}", tensor.name, tensor.offset);
            let at_region = format!("{at_offset}+{:?}", tensor.extent);
            let keys = [tensor.name.clone(), at_offset, at_region];
            let key = keys.into_iter().find(|k| !entries.contains_key(k)).expect("regions differ");
            entries.insert(key, header);
            ends.push(at);
            at = end;
        }
        let header = header_bytes(&entries, about);
        let base = header.len() as u64;
        let mut segments = vec![header];
        segments.extend(tensors.iter().map(|t| t.data.clone()));
        let tensors = tensors.into_iter().zip(ends).map(|(t, start)| (t, base + start)).collect();
        let mut len = 0;
        let starts = segments
            .iter()
            .map(|s| {
                len += s.len() as u64;
                len - s.len() as u64
            })
            .collect();
        Shard { segments, starts, len, tensors }
    }

    pub fn hash(&self, threads: usize) -> TreeHash {
        let value = |index| Ok::<_, std::convert::Infallible>(self.chunk(index));
        match TreeHash::compute(self.len, threads, value) {
            Ok(hash) => hash,
            Err(never) => match never {},
        }
    }

    fn chunk(&self, index: usize) -> [u8; 32] {
        let range = chunk_range(self.len, index);
        let first = self.starts.partition_point(|&s| s <= range.start) - 1;
        let parts = self.segments[first..].iter().zip(&self.starts[first..]);
        let parts = parts.take_while(|&(_, &start)| start < range.end).map(|(segment, &start)| {
            let end = start + segment.len() as u64;
            let from = range.start.clamp(start, end) - start;
            let to = range.end.clamp(start, end) - start;
            &segment[from as usize..to as usize]
        });
        chunk_value(self.len, index, parts)
    }
}

/// The header of a file with whole tensors, and the order in which their bytes follow it.
pub fn whole_header<'a>(
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [u64])>,
    about: &BTreeMap<&str, String>,
) -> (Bytes, Vec<&'a str>) {
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_by_key(|&(name, dtype, _)| (std::cmp::Reverse(dtype.size()), name));
    let mut at = 0;
    let mut entries = BTreeMap::new();
    for &(name, dtype, shape) in &tensors {
        let len = crate::geometry::volume(shape).expect("a manifest's shapes are checked");
        let end = at + len * dtype.size();
        entries.insert(name.to_owned(), Header { dtype, shape, data_offsets: [at, end] });
        at = end;
    }
    (header_bytes(&entries, about), tensors.iter().map(|&(name, ..)| name).collect())
}

/// The length, and JSON padded so that the data begins at a multiple of 8.
fn header_bytes(entries: &BTreeMap<String, Header<'_>>, about: &BTreeMap<&str, String>) -> Bytes {
    #[derive(Serialize)]
    struct All<'a> {
        #[serde(rename = "__metadata__")]
        about: &'a BTreeMap<&'a str, String>,
        #[serde(flatten)]
        entries: &'a BTreeMap<String, Header<'a>>,
    }
    let mut json = serde_json::to_vec(&All { about, entries }).expect("all keys are strings");
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> Vec<Tensor> {
        vec![
            Tensor::piece("w", Dtype::Bf16, &[4, 2], &[2, 0], &[2, 2], vec![1; 8]),
            Tensor::whole("step", Dtype::I64, &[], 42i64.to_le_bytes().to_vec()),
            Tensor::piece("w", Dtype::Bf16, &[4, 2], &[0, 0], &[1, 2], vec![2; 4]),
            Tensor::whole("empty", Dtype::F32, &[0, 3], Vec::new()),
        ]
    }

    fn joined(shard: &Shard) -> Vec<u8> {
        shard.segments.concat()
    }

    #[test]
    fn others_can_read_it() {
        let about = BTreeMap::from([("step", "42".to_owned())]);
        let shards = cut(tensors(), 1 << 30, &about);
        assert_eq!(shards.len(), 1);
        let bytes = joined(&shards[0]);
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("step").unwrap().data(), 42i64.to_le_bytes());
        assert_eq!(read.tensor("w").unwrap().shape(), [1, 2]);
        assert_eq!(read.tensor("w@[2, 0]").unwrap().data(), [1; 8]);
        assert_eq!(read.tensor("empty").unwrap().shape(), [0, 3]);
        for (tensor, at) in &shards[0].tensors {
            let at = *at as usize;
            assert_eq!(bytes[at..at + tensor.data.len()], tensor.data, "{}", tensor.name);
            assert_eq!(at as u64 % tensor.dtype.size(), 0, "{}", tensor.name);
        }
        assert_eq!(shards[0].hash(2).root, blake3::hash(&bytes));
    }

    #[test]
    fn large_ranks_write_several_files() {
        let shards = cut(tensors(), 10, &BTreeMap::new());
        let names: Vec<Vec<&str>> = shards
            .iter()
            .map(|s| s.tensors.iter().map(|(t, _)| t.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["step", "empty"], vec!["w"], vec!["w"]]);
    }

    #[test]
    fn a_chunk_may_span_many_segments() {
        let chunk = crate::hash::CHUNK as usize;
        let sizes = [chunk / 2, 3, chunk * 2, 1, 0, chunk / 3];
        let tensors = sizes.iter().enumerate().map(|(i, &n)| {
            let data: Vec<u8> = (0..n).map(|b| (b * 31 + i) as u8).collect();
            Tensor::whole(format!("t{i}"), Dtype::U8, &[n as u64], data)
        });
        let shards = cut(tensors.collect(), u64::MAX, &BTreeMap::new());
        assert_eq!(shards[0].hash(3).root, blake3::hash(&joined(&shards[0])));
    }
}
