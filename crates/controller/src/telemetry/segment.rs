//! The form of the files: pure, bytes in and bytes out.
//!
//! ```text
//!  file    "tutti-telemetry" · version u16 · tier u8 · fingerprint of the series u32 · record*
//!  record  length u32 · CRC-32 of what follows u32 · lz4(block)
//!  block   (name length u16 · name · tracks u16 · (device u16 · first u64 · rows u32 · row*)*)*
//! ```
//! Numbers are little-endian; device 0xffff is the host. A last record that is cut off was being
//! written when the power went, and is no damage; it has to go before another is appended.

use super::Of;
use super::series::Layout;
use tutti_model::GpuIndex;

const MAGIC: &[u8; 15] = b"tutti-telemetry";
const VERSION: u16 = 1;
const HEAD: usize = MAGIC.len() + 2 + 1 + 4;
/// No block is larger; a longer one is damage, not an allocation.
const BLOCK_MAX: usize = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Seconds,
    Minutes,
}

impl Tier {
    fn code(self) -> u8 {
        match self {
            Tier::Seconds => 0,
            Tier::Minutes => 1,
        }
    }

    fn width(self, of: Of) -> usize {
        match self {
            Tier::Seconds => of.layout().width,
            Tier::Minutes => 2 * of.layout().width,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    #[error("it is no telemetry of tutti")]
    NotOurs,
    #[error("it is of version {0} or has other series, which this tutti does not read")]
    Other(u16),
    #[error("its record at byte {0} is damaged")]
    Damaged(usize),
    #[error("it is cut off in its record at byte {0}")]
    CutOff(usize),
}

/// Rows of one device, one after another in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub node: String,
    pub of: Of,
    pub first: u64,
    pub bytes: Vec<u8>,
}

pub fn head(tier: Tier) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_le_bytes());
    head.push(tier.code());
    head.extend(fingerprint().to_le_bytes());
    head
}

/// Changes when a series is added or another scale is used.
fn fingerprint() -> u32 {
    let text = format!("{:?} {:?}", Layout::gpu(), Layout::host());
    crc32fast::hash(text.as_bytes())
}

/// One record of many rows. Rows of a node are next to each other.
pub fn record(rows: &[Rows], tier: Tier) -> Vec<u8> {
    let mut block = Vec::new();
    for of_node in rows.chunk_by(|a, b| a.node == b.node) {
        let name = of_node[0].node.as_bytes();
        block.extend((name.len() as u16).to_le_bytes());
        block.extend(name);
        block.extend((of_node.len() as u16).to_le_bytes());
        for rows in of_node {
            let device = match rows.of {
                Of::Host => u16::MAX,
                Of::Gpu(GpuIndex(index)) => index,
            };
            block.extend(device.to_le_bytes());
            block.extend(rows.first.to_le_bytes());
            block.extend(((rows.bytes.len() / tier.width(rows.of)) as u32).to_le_bytes());
            block.extend(&rows.bytes);
        }
    }
    let packed = lz4_flex::compress_prepend_size(&block);
    let mut record = Vec::with_capacity(packed.len() + 8);
    record.extend((packed.len() as u32).to_le_bytes());
    record.extend(crc32fast::hash(&packed).to_le_bytes());
    record.extend(packed);
    record
}

impl SegmentError {
    /// Where the last whole record ends, if what is before it can be used.
    pub fn whole(self) -> Option<usize> {
        match self {
            SegmentError::Damaged(at) | SegmentError::CutOff(at) => Some(at),
            SegmentError::NotOurs | SegmentError::Other(_) => None,
        }
    }
}

/// Gives `each` all rows of a file up to its end or to the first damage.
pub fn read(bytes: &[u8], tier: Tier, mut each: impl FnMut(Rows)) -> Result<(), SegmentError> {
    if bytes.len() < HEAD {
        // Cut off while it was made.
        return match head(tier).starts_with(bytes) {
            true if bytes.is_empty() => Ok(()),
            true => Err(SegmentError::CutOff(0)),
            false => Err(SegmentError::NotOurs),
        };
    }
    if !bytes.starts_with(MAGIC) {
        return Err(SegmentError::NotOurs);
    }
    if bytes[..HEAD] != head(tier)[..] {
        let version = [bytes[MAGIC.len()], bytes[MAGIC.len() + 1]];
        return Err(SegmentError::Other(u16::from_le_bytes(version)));
    }
    let mut at = HEAD;
    while at < bytes.len() {
        if bytes.len() - at < 8 {
            return Err(SegmentError::CutOff(at));
        }
        let damaged = SegmentError::Damaged(at);
        let number = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes);
        let (Ok(length), Ok(sum)) = (number(at), number(at + 4)) else { return Err(damaged) };
        if length as usize > BLOCK_MAX {
            return Err(damaged);
        }
        let packed = bytes.get(at + 8..at + 8 + length as usize);
        let packed = packed.ok_or(SegmentError::CutOff(at))?;
        if crc32fast::hash(packed) != sum {
            return Err(damaged);
        }
        block(packed, tier, &mut each).ok_or(damaged)?;
        at += 8 + length as usize;
    }
    Ok(())
}

fn block(packed: &[u8], tier: Tier, each: &mut impl FnMut(Rows)) -> Option<()> {
    let size = u32::from_le_bytes(packed.get(..4)?.try_into().ok()?) as usize;
    if size > BLOCK_MAX {
        return None;
    }
    let block = lz4_flex::decompress_size_prepended(packed).ok()?;
    let mut left = Left(&block);
    while !left.0.is_empty() {
        let length = usize::from(left.u16()?);
        let node = String::from_utf8(left.take(length)?.to_vec()).ok()?;
        for _ in 0..left.u16()? {
            let device = left.u16()?;
            let of = if device == u16::MAX { Of::Host } else { Of::Gpu(GpuIndex(device)) };
            let first = left.u64()?;
            let count = left.u32()? as usize;
            let bytes = left.take(count.checked_mul(tier.width(of))?)?.to_vec();
            each(Rows { node: node.clone(), of, first, bytes });
        }
    }
    Some(())
}

struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(node: &str, of: Of, first: u64, count: usize) -> Rows {
        let width = of.layout().width;
        let bytes = (0..count * width).map(|i| (i % 251) as u8).collect();
        Rows { node: node.into(), of, first, bytes }
    }

    fn sample() -> Vec<Rows> {
        vec![
            rows("n1", Of::Host, 100, 3),
            rows("n1", Of::Gpu(GpuIndex(0)), 100, 3),
            rows("n1", Of::Gpu(GpuIndex(7)), 101, 1),
            rows("n2", Of::Host, 100, 60),
        ]
    }

    fn file() -> Vec<u8> {
        let mut file = head(Tier::Seconds);
        file.extend(record(&sample()[..2], Tier::Seconds));
        file.extend(record(&sample()[2..], Tier::Seconds));
        file
    }

    fn read_all(bytes: &[u8]) -> (Vec<Rows>, Result<(), SegmentError>) {
        let mut all = Vec::new();
        let result = read(bytes, Tier::Seconds, |rows| all.push(rows));
        (all, result)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read_all(&file()), (sample(), Ok(())));
    }

    #[test]
    fn a_file_that_was_cut_off_is_read_up_to_there() {
        let whole = file();
        let (mut fewest, mut most) = (usize::MAX, 0);
        for end in 0..whole.len() {
            let (all, result) = read_all(&whole[..end]);
            assert!(sample().starts_with(&all));
            // What remains when it is cut there is whole, and has all that was read.
            if let Err(error) = result {
                assert_eq!(error, SegmentError::CutOff(error.whole().unwrap()), "{end}");
                let kept = &whole[..error.whole().unwrap()];
                assert_eq!(read_all(kept), (all.clone(), Ok(())), "{end}");
            }
            (fewest, most) = (fewest.min(all.len()), most.max(all.len()));
        }
        assert_eq!((fewest, most), (0, 2));
    }

    #[test]
    fn every_flipped_byte_is_seen() {
        let whole = file();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            let (all, result) = read_all(&bad);
            assert!(sample().starts_with(&all), "{at}");
            // A length that has grown looks like a record that was cut off.
            assert!(result.is_err(), "{at}");
        }
    }

    #[test]
    fn files_of_others_are_not_taken_for_ours() {
        assert_eq!(
            read_all(b"#!/bin/sh\necho this is something else\n").1,
            Err(SegmentError::NotOurs)
        );
        let mut newer = file();
        newer[MAGIC.len()] = 9;
        assert_eq!(read_all(&newer).1, Err(SegmentError::Other(9)));
        let minutes = head(Tier::Minutes);
        assert_eq!(read_all(&minutes).1, Err(SegmentError::Other(1)));
    }
}
