//! Writes the log of one rank: cuts its output into records, begins new segments, survives a full
//! disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use tutti_model::Rank;
use tutti_wire::stream::LogStream;

use super::{LogLimits, record, segment_path, segments};

/// A line longer than this is written in pieces.
const LINE_MAX: usize = 64 << 10;

pub struct LogWriter {
    dir: PathBuf,
    rank: Rank,
    limits: LogLimits,
    /// Opened with the first output: most short jobs write nothing and cost no file.
    file: Option<File>,
    base: u64,
    len: u64,
    pending: [Vec<u8>; 2],
    records: Vec<u8>,
    /// Bytes of output that the disk refused, and whether a record was cut in the middle.
    lost: u64,
    torn: bool,
}

impl LogWriter {
    pub fn new(dir: PathBuf, rank: Rank, limits: LogLimits) -> LogWriter {
        LogWriter {
            dir,
            rank,
            limits,
            file: None,
            base: 0,
            len: 0,
            pending: [Vec::new(), Vec::new()],
            records: Vec::new(),
            lost: 0,
            torn: false,
        }
    }

    /// Where the next record goes, counted from the first byte ever written.
    pub fn offset(&self) -> u64 {
        self.base + self.len
    }

    /// Takes what a program wrote. Whole lines go to disk now, a rest waits for its newline.
    pub fn output(&mut self, at: u64, stream: LogStream, bytes: &[u8]) {
        for piece in bytes.chunks(LINE_MAX) {
            self.cut(at, stream, piece);
        }
        self.write_out(at);
    }

    /// Makes records of a piece that is no longer than a line may be, so that no record is longer
    /// than two lines.
    fn cut(&mut self, at: u64, stream: LogStream, mut bytes: &[u8]) {
        let mut pending = std::mem::take(&mut self.pending[stream as usize]);
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            if pending.is_empty() {
                record::put(&mut self.records, at, stream, &bytes[..end], true);
            } else {
                pending.extend_from_slice(&bytes[..end]);
                record::put(&mut self.records, at, stream, &pending, true);
                pending.clear();
            }
            bytes = &bytes[end + 1..];
        }
        pending.extend_from_slice(bytes);
        if pending.len() >= LINE_MAX {
            record::put(&mut self.records, at, stream, &pending, false);
            pending.clear();
        }
        self.pending[stream as usize] = pending;
    }

    pub fn has_pending(&self) -> bool {
        self.pending.iter().any(|p| !p.is_empty())
    }

    /// Writes lines that still wait for their newline: the program has been quiet, or is gone.
    pub fn flush_pending(&mut self, at: u64) {
        for stream in [LogStream::Out, LogStream::Err] {
            let pending = &mut self.pending[stream as usize];
            if !pending.is_empty() {
                record::put(&mut self.records, at, stream, pending, false);
                pending.clear();
            }
        }
        self.write_out(at);
    }

    fn write_out(&mut self, at: u64) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        let mut bytes = Vec::new();
        if self.torn {
            bytes.push(b'\n');
        }
        if self.lost > 0 {
            let note = format!("[tutti: the node's disk refused {} bytes of output]", self.lost);
            record::put(&mut bytes, at, LogStream::Err, note.as_bytes(), true);
        }
        let head = bytes.len();
        let all = if head == 0 {
            &records
        } else {
            bytes.extend_from_slice(&records);
            &bytes
        };
        let written = self.append(all);
        if written == all.len() {
            (self.lost, self.torn) = (0, false);
        } else {
            self.lost += (all.len() - written.max(head)) as u64;
            self.torn = written > 0 && all[written - 1] != b'\n';
        }
        self.records = records;
        self.records.clear();
    }

    /// Appends as much as the disk takes; a job must not stop because its log can't be kept.
    fn append(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let step = self.writable().and_then(|file| file.write(&bytes[written..]));
            match step {
                Ok(n) if n > 0 => {
                    written += n;
                    self.len += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        written
    }

    fn writable(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            self.file = Some(self.open(0)?);
        } else if self.len >= self.limits.segment_bytes && !self.torn {
            let base = self.offset();
            self.file = Some(self.open(base)?);
            (self.base, self.len) = (base, 0);
            self.drop_oldest();
        }
        Ok(self.file.as_mut().expect("opened above"))
    }

    fn open(&self, base: u64) -> io::Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(segment_path(&self.dir, self.rank, base))
    }

    /// A segment that can't be removed now is tried again at the next turn.
    fn drop_oldest(&self) {
        let Ok(bases) = segments(&self.dir, self.rank) else { return };
        let excess = bases.len().saturating_sub(self.limits.segments.max(1) as usize);
        for &base in &bases[..excess] {
            let _ = std::fs::remove_file(segment_path(&self.dir, self.rank, base));
        }
    }
}
