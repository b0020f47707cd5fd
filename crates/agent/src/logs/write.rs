//! Writes the log of one rank: cuts its output into records, begins new segments, leaves room on the
//! disk and survives a full one.
//!
//! Output that the disk has no room for is dropped, and the log says where and how much. These notes
//! are short, so they are written into the room that is left for others.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::sys::statvfs::fstatvfs;
use tutti_model::{Rank, log_reserve};
use tutti_wire::stream::LogStream;

use super::{LogLimits, record, segment_path, segments};

/// A line longer than this is written in pieces.
const LINE_MAX: usize = 64 << 10;
/// The disk is looked at again after so many bytes.
const LOOK_EVERY: u64 = 64 << 10;

/// The disk that a log is on.
#[derive(Clone, Copy, Debug)]
struct Disk {
    bytes: u64,
    free: u64,
}

fn disk_of(file: &File) -> io::Result<Disk> {
    let found = fstatvfs(file)?;
    let unit = found.fragment_size();
    Ok(Disk { bytes: found.blocks() * unit, free: found.blocks_available() * unit })
}

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
    /// How much of the records is what programs wrote.
    text: u64,
    /// Bytes of output that were dropped since the log last said so, and whether a record was cut in
    /// the middle.
    lost: u64,
    torn: bool,
    /// All that was ever dropped.
    dropped: u64,
    /// Written since the disk was last looked at, and whether it had too little room then.
    unlooked: u64,
    short: bool,
    look: fn(&File) -> io::Result<Disk>,
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
            text: 0,
            lost: 0,
            torn: false,
            dropped: 0,
            unlooked: LOOK_EVERY,
            short: false,
            look: disk_of,
        }
    }

    /// Where the next record goes, counted from the first byte ever written.
    pub fn offset(&self) -> u64 {
        self.base + self.len
    }

    /// Bytes of output that are not in the log, because the disk had no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
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
                self.record(at, stream, &bytes[..end], true);
            } else {
                pending.extend_from_slice(&bytes[..end]);
                self.record(at, stream, &pending, true);
                pending.clear();
            }
            bytes = &bytes[end + 1..];
        }
        pending.extend_from_slice(bytes);
        if pending.len() >= LINE_MAX {
            self.record(at, stream, &pending, false);
            pending.clear();
        }
        self.pending[stream as usize] = pending;
    }

    fn record(&mut self, at: u64, stream: LogStream, text: &[u8], whole: bool) {
        record::put(&mut self.records, at, stream, text, whole);
        self.text += text.len() as u64 + u64::from(whole);
    }

    pub fn has_pending(&self) -> bool {
        self.pending.iter().any(|p| !p.is_empty())
    }

    /// Writes lines that still wait for their newline: the program has been quiet, or is gone.
    pub fn flush_pending(&mut self, at: u64) {
        for stream in [LogStream::Out, LogStream::Err] {
            let mut pending = std::mem::take(&mut self.pending[stream as usize]);
            if !pending.is_empty() {
                self.record(at, stream, &pending, false);
                pending.clear();
            }
            self.pending[stream as usize] = pending;
        }
        self.write_out(at);
    }

    /// The program is gone: what was dropped is said now or never.
    pub fn finish(&mut self, at: u64) {
        self.flush_pending(at);
        if self.lost > 0 || self.torn {
            self.append_noted(at, &[], 0);
        }
    }

    fn write_out(&mut self, at: u64) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        let text = std::mem::take(&mut self.text);
        match self.leaves_room() {
            true => self.append_noted(at, &records, text),
            false => self.drop_output(at, text),
        }
        self.records = records;
        self.records.clear();
    }

    /// Whether the disk has room for more than what others need of it.
    fn leaves_room(&mut self) -> bool {
        if !self.short && self.unlooked < LOOK_EVERY {
            return true;
        }
        self.unlooked = 0;
        let look = self.look;
        // A disk that can't be looked at is for the write itself to judge.
        let Ok(disk) = self.writable().and_then(|file| look(file)) else { return true };
        let reserve = log_reserve(disk.bytes);
        // Once it has stopped, a little more, so that it does not begin and stop with every line.
        let wanted = if self.short { reserve + reserve / 8 } else { reserve };
        self.short = disk.free < wanted;
        !self.short
    }

    fn drop_output(&mut self, at: u64, text: u64) {
        if self.lost == 0 {
            let note = "[tutti: output from here on is dropped: the node's disk is almost full]";
            let mut bytes = Vec::new();
            record::put(&mut bytes, at, LogStream::Err, note.as_bytes(), true);
            self.append_torn(&bytes);
        }
        self.lose(text);
    }

    fn lose(&mut self, text: u64) {
        self.lost += text;
        self.dropped += text;
    }

    /// Says what was dropped before, then goes on. `text` is how much of the records is output.
    fn append_noted(&mut self, at: u64, records: &[u8], text: u64) {
        let mut bytes = Vec::new();
        if self.torn {
            bytes.push(b'\n');
        }
        if self.lost > 0 {
            let lost = tutti_model::count(self.lost, "byte");
            let note =
                format!("[tutti: {lost} of output dropped here: the node's disk had no room]");
            record::put(&mut bytes, at, LogStream::Err, note.as_bytes(), true);
        }
        let head = bytes.len();
        let all = if head == 0 {
            records
        } else {
            bytes.extend_from_slice(records);
            &bytes[..]
        };
        let written = self.append(all);
        if written >= head {
            self.lost = 0;
        }
        if written == all.len() {
            self.torn = false;
        } else {
            self.torn = written > 0 && all[written - 1] != b'\n';
            let refused = (all.len() - written.max(head)) as u64;
            self.lose(refused.min(text));
        }
    }

    /// Whole, or not at all where a record is torn before it.
    fn append_torn(&mut self, note: &[u8]) {
        let mut bytes = if self.torn { vec![b'\n'] } else { Vec::new() };
        bytes.extend_from_slice(note);
        let written = self.append(&bytes);
        if written > 0 {
            self.torn = bytes[written - 1] != b'\n';
        }
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
                    self.unlooked += n as u64;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::testing::TempDir;

    const DISK: u64 = 100 << 20;

    /// Its lines, without the time.
    fn lines(dir: &TempDir) -> Vec<String> {
        let text = std::fs::read_to_string(dir.path().join("0.log")).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn output_leaves_room_on_the_disk_and_says_what_is_missing() {
        static FREE: AtomicU64 = AtomicU64::new(DISK / 2);
        let dir = TempDir::new("log-room");
        let mut log = LogWriter::new(dir.path().to_owned(), Rank(0), LogLimits::default());
        log.look = |_| Ok(Disk { bytes: DISK, free: FREE.load(Ordering::Relaxed) });
        log.output(1, LogStream::Out, b"first\n");
        FREE.store(log_reserve(DISK) - 1, Ordering::Relaxed);
        log.output(2, LogStream::Out, &[b'x'; LOOK_EVERY as usize]);
        log.output(3, LogStream::Out, b"\ndropped\n");
        log.output(4, LogStream::Err, b"dropped\n");
        FREE.store(log_reserve(DISK), Ordering::Relaxed);
        log.output(5, LogStream::Out, b"still\n");
        FREE.store(DISK / 2, Ordering::Relaxed);
        log.output(6, LogStream::Out, b"second\n");
        FREE.store(0, Ordering::Relaxed);
        log.output(7, LogStream::Out, &[b'y'; LOOK_EVERY as usize]);
        log.output(8, LogStream::Out, b"\nlast");
        log.finish(9);
        log.finish(9);
        let found = lines(&dir);
        let shown: Vec<&str> = found.iter().map(|l| l.get(..60).unwrap_or(l)).collect();
        let stops = |l: &&&str| l.starts_with("e [tutti: output from here on is dropped");
        assert_eq!(shown.iter().filter(stops).count(), 2, "{shown:#?}");
        let said = |bytes: u64| {
            let note = format!("e [tutti: {bytes} bytes of output");
            found.iter().position(|line| line.starts_with(&note))
        };
        let at = |line: &str| found.iter().position(|l| l == line);
        // A newline and three lines; then a newline and a line without one.
        assert!(at("o first") < said(23) && said(23) < at("o second"), "{shown:#?}");
        assert_eq!(said(5), Some(found.len() - 1), "{shown:#?}");
        assert_eq!((at("o dropped"), at("o still"), at("O last")), (None, None, None));
        assert_eq!(log.dropped(), 28);
    }
}
