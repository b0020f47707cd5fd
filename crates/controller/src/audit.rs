//! Who changed what, and who was turned away: JSON lines in a file that is only ever appended to.
//!
//! Requests hand their line to a thread that writes what has gathered in one call, so a burst of
//! submissions costs few of them, and syncs at least once a second while there is something new.
//!
//! Anybody can be turned away any number of times. So refusals never wait and never take the room of
//! changes: beyond some they are counted, and the count is written. Of those who showed no token that
//! is good hardly any are written: in months of trying they do not push out what others did. A full file
//! is put aside as `audit.log.1`, and older ones move on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tutti_model::Time;

use crate::clock::now;
use crate::lock::lock;

const QUEUE_MAX: usize = 16_384;
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How often refusals that were not written are told.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// So many refusals are written at once, where there were none for a while.
const REFUSALS_AT_ONCE: u32 = 100;
/// And then one in so long a time, of people who are known and of all others.
const KNOWN_EVERY: Duration = Duration::from_millis(10);
const STRANGERS_EVERY: Duration = Duration::from_secs(5);
/// Paths and names come from outside.
const TEXT_MAX: usize = 256;
const STRANGERS_TEXT_MAX: usize = 64;
const FILE_MAX: u64 = 64 << 20;
/// Full files that are kept.
const OLD_FILES: u32 = 4;

#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub time: Time,
    pub user: Option<String>,
    /// The public part of the token.
    pub token: Option<String>,
    /// Address and port, or `local` for the socket of the data dir.
    pub peer: Option<String>,
    /// The user of this machine who connected to that socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    pub action: String,
    pub target: String,
    /// `ok`, or the code of the error.
    pub result: String,
}

impl Line {
    /// No token that is good was shown.
    fn is_of_stranger(&self) -> bool {
        self.token.is_none() && self.user.is_none()
    }

    fn cut(mut self, max: usize) -> Line {
        for text in [&mut self.action, &mut self.target] {
            text.truncate(text.floor_char_boundary(max));
        }
        self
    }
}

#[derive(Clone)]
pub struct Audit {
    lines: SyncSender<Line>,
    failed: Arc<AtomicBool>,
    refusals: Arc<Refusals>,
}

struct Refusals {
    known: Mutex<Pace>,
    strangers: Mutex<Pace>,
    not_written: AtomicU64,
}

impl Refusals {
    fn new(now: Instant) -> Refusals {
        Refusals {
            known: Mutex::new(Pace::new(KNOWN_EVERY, now)),
            strangers: Mutex::new(Pace::new(STRANGERS_EVERY, now)),
            not_written: AtomicU64::new(0),
        }
    }

    fn may_pass(&self, line: &Line) -> bool {
        let pace = if line.is_of_stranger() { &self.strangers } else { &self.known };
        lock(pace).may_pass(Instant::now())
    }
}

/// Some at once, and then one in a while.
struct Pace {
    every: Duration,
    left: u32,
    /// Up to when `left` says it.
    at: Instant,
}

impl Pace {
    fn new(every: Duration, now: Instant) -> Pace {
        Pace { every, left: REFUSALS_AT_ONCE, at: now }
    }

    fn may_pass(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at);
        if passed >= self.every * REFUSALS_AT_ONCE {
            (self.left, self.at) = (REFUSALS_AT_ONCE, now);
        } else {
            let more = (passed.as_nanos() / self.every.as_nanos()) as u32;
            self.left = (self.left + more).min(REFUSALS_AT_ONCE);
            self.at += self.every * more;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

impl Audit {
    /// Its thread ends, synced, when the last clone is gone.
    pub fn open(path: &Path) -> io::Result<(Audit, std::thread::JoinHandle<()>)> {
        Audit::open_with(path, FILE_MAX)
    }

    fn open_with(path: &Path, max: u64) -> io::Result<(Audit, std::thread::JoinHandle<()>)> {
        let file = open(path)?;
        let size = file.metadata()?.len();
        let (lines, inbox) = sync_channel(QUEUE_MAX);
        let failed = Arc::new(AtomicBool::new(false));
        let refusals = Arc::new(Refusals::new(Instant::now()));
        let writer = Writer {
            path: path.to_owned(),
            file,
            size,
            max,
            dirty_since: None,
            failed: Arc::clone(&failed),
            refusals: Arc::clone(&refusals),
            counted_at: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("tutti-audit".into())
            .spawn(move || writer.run(&inbox))?;
        Ok((Audit { lines, failed, refusals }, thread))
    }

    /// Somebody changed something, or tried to. Waits only if the disk is far behind: such a line
    /// is never dropped.
    pub fn note(&self, line: Line) {
        if self.lines.send(line.cut(TEXT_MAX)).is_err() {
            tracing::error!("the audit thread is gone");
        }
    }

    /// Somebody was turned away. Never waits.
    pub fn refused(&self, line: Line) {
        let max = if line.is_of_stranger() { STRANGERS_TEXT_MAX } else { TEXT_MAX };
        if !self.refusals.may_pass(&line) || self.lines.try_send(line.cut(max)).is_err() {
            self.refusals.not_written.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Some line could not be written since the start.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn aside(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    name.into()
}

struct Writer {
    path: PathBuf,
    file: File,
    size: u64,
    /// Where the next file begins.
    max: u64,
    dirty_since: Option<Instant>,
    failed: Arc<AtomicBool>,
    refusals: Arc<Refusals>,
    /// When refusals that were not written were last told.
    counted_at: Instant,
}

impl Writer {
    fn run(mut self, inbox: &Receiver<Line>) {
        let mut buffer = Vec::new();
        loop {
            let wait = self
                .dirty_since
                .map_or(SYNC_EVERY, |since| SYNC_EVERY.saturating_sub(since.elapsed()));
            match inbox.recv_timeout(wait) {
                Ok(first) => {
                    buffer.clear();
                    for line in std::iter::once(first).chain(inbox.try_iter().take(QUEUE_MAX)) {
                        self.append(&mut buffer, &line);
                    }
                    self.write(&buffer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.tell_count();
                    return self.sync();
                }
            }
            if self.counted_at.elapsed() >= COUNT_EVERY {
                self.tell_count();
            }
            if self.dirty_since.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
                self.sync();
            }
        }
    }

    fn write(&mut self, buffer: &[u8]) {
        if self.size > 0 && self.size + buffer.len() as u64 > self.max {
            self.rotate();
        }
        let written = self.file.write_all(buffer);
        self.check("write to", written);
        self.size += buffer.len() as u64;
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    fn tell_count(&mut self) {
        self.counted_at = Instant::now();
        let count = self.refusals.not_written.swap(0, Ordering::Relaxed);
        if count == 0 {
            return;
        }
        let line = Line {
            time: now(),
            user: None,
            token: None,
            peer: None,
            uid: None,
            action: "refuse".to_owned(),
            target: format!("{count} more were refused"),
            result: "denied".to_owned(),
        };
        let mut buffer = Vec::new();
        self.append(&mut buffer, &line);
        self.write(&buffer);
    }

    /// Starts a new file. If that fails the old one goes on, and it is tried again some time later.
    fn rotate(&mut self) {
        self.sync();
        match self.put_aside().and_then(|()| open(&self.path)) {
            Ok(file) => (self.file, self.size) = (file, 0),
            Err(error) => {
                self.size = self.max / 2;
                self.check("begin a new file of", Err(error));
            }
        }
    }

    fn put_aside(&self) -> io::Result<()> {
        let old = |n: u32| match n {
            0 => self.path.clone(),
            n => aside(&self.path, n),
        };
        for n in (0..OLD_FILES).rev() {
            match std::fs::rename(old(n), old(n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn append(&self, buffer: &mut Vec<u8>, line: &Line) {
        let written = serde_json::to_writer(&mut *buffer, line).map_err(io::Error::other);
        self.check("encode a line of", written);
        buffer.push(b'\n');
    }

    fn sync(&mut self) {
        if self.dirty_since.take().is_some() {
            let synced = self.file.sync_data();
            self.check("sync", synced);
        }
    }

    fn check(&self, what: &str, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed.store(true, Ordering::Relaxed);
            tracing::error!(%error, "can't {what} the audit log: is the disk full?");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn line(n: u64) -> Line {
        Line {
            time: Time(n),
            user: Some("ada".into()),
            token: None,
            peer: None,
            uid: None,
            action: "POST /api/v1/jobs".into(),
            target: format!("job {n}\nwith a newline"),
            result: "ok".into(),
        }
    }

    fn lines_of(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    fn stranger() -> Line {
        Line { user: None, peer: Some("192.0.2.7:50123".into()), ..line(0) }
    }

    #[test]
    fn refusals_beyond_some_are_counted_and_texts_are_cut() {
        for (who, most) in [(line(0), TEXT_MAX), (stranger(), STRANGERS_TEXT_MAX)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("audit.log");
            let (audit, thread) = Audit::open(&path).unwrap();
            let long = Line { target: "/é".repeat(500), ..who };
            (0..5_000).for_each(|_| audit.refused(long.clone()));
            drop(audit);
            thread.join().unwrap();
            let (counts, written): (Vec<_>, Vec<_>) =
                lines_of(&path).into_iter().partition(|l| l["action"] == "refuse");
            assert!(written.iter().all(|l| l["target"].as_str().unwrap().len() <= most));
            let count = |l: &serde_json::Value| {
                l["target"].as_str().unwrap().split(' ').next().unwrap().parse::<usize>().unwrap()
            };
            let dropped: usize = counts.iter().map(count).sum();
            assert!(dropped > 0 && written.len() >= REFUSALS_AT_ONCE as usize);
            assert_eq!(dropped + written.len(), 5_000);
        }
    }

    #[test]
    fn strangers_do_not_fill_the_log_in_a_month() {
        let began = Instant::now();
        let long =
            Line { target: "/x".repeat(500), time: now(), ..stranger() }.cut(STRANGERS_TEXT_MAX);
        let size = serde_json::to_vec(&long).unwrap().len() as u64 + 1;
        let mut pace = Pace::new(STRANGERS_EVERY, began);
        let day = 24 * 3600;
        let tries = (0..day * 10).map(|n| began + Duration::from_millis(100) * n);
        let written = tries.filter(|at| pace.may_pass(*at)).count() as u64;
        let counts = u64::from(day) / COUNT_EVERY.as_secs();
        assert!(written >= 17_000, "{written}");
        let month = 30 * size * (written + counts);
        assert!(month < FILE_MAX * u64::from(OLD_FILES), "{} MiB", month >> 20);
    }

    #[test]
    fn strangers_do_not_take_the_place_of_people_who_are_known() {
        let refusals = Refusals::new(Instant::now());
        let passed = (0..1000).filter(|_| refusals.may_pass(&stranger())).count();
        assert!(passed < 200, "{passed}");
        assert!(refusals.may_pass(&line(0)));
        let mut pace = Pace::new(STRANGERS_EVERY, Instant::now());
        let later = Instant::now() + STRANGERS_EVERY * 1000;
        assert_eq!((0..1000).filter(|_| pace.may_pass(later)).count(), REFUSALS_AT_ONCE as usize);
    }

    #[test]
    fn full_files_are_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        for n in 0..7 {
            // Each is more than half a file, so each begins one.
            let (audit, thread) = Audit::open_with(&path, 200).unwrap();
            audit.note(line(n));
            drop(audit);
            thread.join().unwrap();
        }
        assert_eq!(lines_of(&path)[0]["time"], 6);
        for n in 1..=4 {
            assert_eq!(lines_of(&aside(&path, n))[0]["time"], 6 - n);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[test]
    fn lines_are_appended_and_the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        for round in 0..2 {
            let (audit, thread) = Audit::open(&path).unwrap();
            (0..100).for_each(|n| audit.note(line(round * 100 + n)));
            assert!(!audit.has_failed());
            drop(audit);
            thread.join().unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let times: Vec<u64> = text
            .lines()
            .map(|l| {
                serde_json::from_str::<serde_json::Value>(l).unwrap()["time"].as_u64().unwrap()
            })
            .collect();
        assert_eq!(times, (0..200).collect::<Vec<_>>());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
