//! Reads pieces of a rank's log, over segments, from an offset or from the end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tutti_model::Rank;
use tutti_wire::stream::{LogFrom, LogLine};

use super::{record, segment_path, segments};

/// Longer than any record, so that a piece holds at least one, however small the reader's limit.
const READ_MIN: usize = 256 << 10;
const READ_MAX: usize = 4 << 20;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    pub lines: Vec<LogLine>,
    /// Where to go on.
    pub next: u64,
    /// Bytes that were gone already.
    pub skipped: u64,
}

pub fn piece(dir: &Path, rank: Rank, from: LogFrom, max_bytes: u32) -> io::Result<Piece> {
    let bases = segments(dir, rank)?;
    let (Some(&oldest), Some(&newest)) = (bases.first(), bases.last()) else {
        return Ok(Piece::default());
    };
    let from = match from {
        LogFrom::Offset(offset) => offset,
        LogFrom::Tail(lines) => tail_start(dir, rank, &bases, lines)?,
    };
    let start = from.max(oldest);
    let mut piece = Piece { lines: Vec::new(), next: start, skipped: start - from };
    let first = bases.partition_point(|&b| b <= start) - 1;
    for &base in &bases[first..] {
        read_segment(dir, rank, base, max_bytes, &mut piece)?;
        // The writer has moved on to the next segment only if this one was read to its end.
        if !piece.lines.is_empty() || base == newest {
            break;
        }
    }
    Ok(piece)
}

/// Whole records of one segment, beginning at `piece.next`.
fn read_segment(
    dir: &Path,
    rank: Rank,
    base: u64,
    max_bytes: u32,
    piece: &mut Piece,
) -> io::Result<()> {
    let file = match File::open(segment_path(dir, rank, base)) {
        Ok(file) => file,
        // Removed since it was listed; the next segment counts what is missing.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if piece.next < base {
        piece.skipped += base - piece.next;
        piece.next = base;
    }
    let local = piece.next - base;
    let at_boundary = local == 0 || read_at(&file, local - 1, 1)?.first() == Some(&b'\n');
    let bytes = read_at(&file, local, (max_bytes as usize).clamp(READ_MIN, READ_MAX))?;
    let mut rest = bytes.as_slice();
    if !at_boundary {
        // An offset that somebody made up: the record that it cuts is left out.
        let Some(end) = rest.iter().position(|&b| b == b'\n') else { return Ok(()) };
        piece.next += end as u64 + 1;
        rest = &rest[end + 1..];
    }
    let mut taken = 0;
    while let Some(end) = rest.iter().position(|&b| b == b'\n') {
        if taken > 0 && taken + end > max_bytes as usize {
            break;
        }
        piece.lines.push(record::parse(&rest[..end]));
        taken += end + 1;
        piece.next += end as u64 + 1;
        rest = &rest[end + 1..];
    }
    Ok(())
}

fn read_at(file: &File, offset: u64, max: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; max];
    let mut filled = 0;
    while filled < max {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    buf.truncate(filled);
    Ok(buf)
}

/// Where the last `lines` records begin, going back over segments.
fn tail_start(dir: &Path, rank: Rank, bases: &[u64], lines: u32) -> io::Result<u64> {
    let mut left = lines as usize;
    let mut start = *bases.last().expect("called with segments");
    for (i, &base) in bases.iter().enumerate().rev() {
        let file = match File::open(segment_path(dir, rank, base)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            Err(e) => return Err(e),
        };
        let len = file.metadata()?.len();
        if i + 1 == bases.len() {
            start = base + len;
        }
        let mut end = len;
        while end > 0 && left > 0 {
            let from = end.saturating_sub(READ_MIN as u64);
            let bytes = read_at(&file, from, (end - from) as usize)?;
            for (at, _) in bytes.iter().enumerate().rev().filter(|(_, b)| **b == b'\n') {
                let after = from + at as u64 + 1;
                if after == len {
                    continue;
                }
                start = base + after;
                left -= 1;
                if left == 0 {
                    return Ok(start);
                }
            }
            end = from;
        }
        if left == 0 {
            break;
        }
        if len > 0 {
            start = base;
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    Ok(start)
}

#[cfg(test)]
mod tests;
