//! Reads `/dev/kmsg` without ever waiting: a record at a time, until there is none.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tutti_gpu::health::klog::{self, Event, Record};
use tutti_model::{Time, count};

pub const PATH: &str = "/dev/kmsg";

/// The longest record that the kernel makes.
const RECORD_MAX: usize = 8192;

pub struct KernelLog {
    file: AsyncFd<File>,
    reader: Reader,
}

/// How far the log was read.
#[derive(Default)]
struct Reader {
    /// The last record that was read.
    last: Option<u64>,
    read: u64,
    /// Records that were overwritten before they were read.
    missed: u64,
}

/// Something that the log says.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub event: Event,
    pub at: Time,
}

impl KernelLog {
    /// Goes on after `last`, or from the oldest record that there still is.
    pub fn open(path: &Path, last: Option<u64>) -> io::Result<KernelLog> {
        KernelLog::of(open(path)?, last)
    }

    pub(crate) fn of(file: File, last: Option<u64>) -> io::Result<KernelLog> {
        // SAFETY: the file is open, belongs to the AsyncFd from here on, and is never replaced.
        let file = unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) }?;
        Ok(KernelLog { file, reader: Reader { last, ..Reader::default() } })
    }

    pub fn last(&self) -> Option<u64> {
        self.reader.last
    }

    pub fn in_words(&self) -> String {
        let missed = match self.reader.missed {
            0 => String::new(),
            n => format!(", {} records were overwritten before they were read", count(n, "time")),
        };
        format!("{} read{missed}", count(self.reader.read, "record"))
    }

    /// Until there may be something to read.
    pub async fn ready(&self) -> io::Result<()> {
        self.file.readable().await?.clear_ready();
        Ok(())
    }

    /// Everything that is there and matters.
    pub fn read(&mut self, boot: Time) -> io::Result<Vec<Entry>> {
        self.reader.read(self.file.get_ref(), boot)
    }
}

impl Reader {
    fn read(&mut self, mut file: impl Read, boot: Time) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut buffer = vec![0; RECORD_MAX];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(found),
                Ok(n) => found.extend(self.take(&String::from_utf8_lossy(&buffer[..n]), boot)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(found),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => self.missed += 1,
                Err(e) => return Err(e),
            }
        }
    }

    fn take(&mut self, text: &str, boot: Time) -> Option<Entry> {
        let record = Record::parse(text)?;
        if self.last.is_some_and(|last| record.seq <= last) {
            return None;
        }
        self.last = Some(record.seq);
        self.read += 1;
        Some(Entry { event: klog::parse(record.text)?, at: record.at(boot) })
    }
}

/// Everything that there still is, once: how many records, and those that matter.
pub fn read_all(path: &Path, boot: Time) -> io::Result<(u64, Vec<Entry>)> {
    let mut reader = Reader::default();
    let found = reader.read(open(path)?, boot)?;
    Ok((reader.read, found))
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// When this machine was started, by its clock now.
pub fn booted_at(now: Time) -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives through the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) } != 0;
    let up_ms =
        if failed { 0 } else { time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000 };
    Time(now.0.saturating_sub(up_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    /// A datagram socket keeps records apart, as the device does.
    fn log(last: Option<u64>) -> (KernelLog, std::os::unix::net::UnixDatagram) {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let file = File::from(OwnedFd::from(ours));
        (KernelLog::of(file, last).unwrap(), theirs)
    }

    #[tokio::test]
    async fn records_are_read_once_and_what_was_known_is_passed_over() {
        let (mut log, kernel) = log(Some(4));
        for record in [
            "3,4,1000000,-;NVRM: Xid (PCI:0000:1b:00): 48, old",
            "6,5,2000000,-;something else\n SUBSYSTEM=pci",
            "3,6,3000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x",
        ] {
            kernel.send(record.as_bytes()).unwrap();
        }
        log.ready().await.unwrap();
        let found = log.read(Time(100)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, Time(3100));
        assert!(matches!(found[0].event, Event::Xid { xid: 79, .. }));
        assert_eq!((log.last(), log.in_words().as_str()), (Some(6), "2 records read"));
        assert_eq!(log.read(Time(0)).unwrap(), []);
        kernel.send(b"3,7,1,-;NVRM: Xid (PCI:0000:1b:00): 31").unwrap();
        log.ready().await.unwrap();
        assert_eq!(log.read(Time(0)).unwrap().len(), 1);
    }

    #[test]
    fn all_of_a_log_is_read_as_it_is_by_who_follows_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // A plain file has no records: all of it comes at once, as one.
        file.write_all(b"3,6,3000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x").unwrap();
        let (records, found) = read_all(file.path(), Time(100)).unwrap();
        assert_eq!((records, found.len(), found[0].at), (1, 1, Time(3100)));
    }

    #[tokio::test]
    async fn the_real_log_can_be_opened_or_says_why_not() {
        match KernelLog::open(Path::new(PATH), None) {
            Ok(mut log) => drop(log.read(booted_at(Time(u64::MAX / 2))).unwrap()),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"x").unwrap();
        assert!(KernelLog::open(Path::new("/nowhere/kmsg"), None).is_err());
    }
}
