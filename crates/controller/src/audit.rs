//! Who changed what, and who was turned away: JSON lines in a file that is only ever appended to.
//!
//! Requests hand their line to a thread that writes what has gathered in one call, so a burst of
//! submissions costs few of them, and syncs at least once a second while there is something new.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use tutti_model::Time;

const QUEUE_MAX: usize = 16_384;
const SYNC_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub time: Time,
    pub user: Option<String>,
    /// The public part of the token.
    pub token: Option<String>,
    pub peer: Option<SocketAddr>,
    pub action: String,
    pub target: String,
    /// `ok`, or the code of the error.
    pub result: String,
}

#[derive(Clone)]
pub struct Audit {
    lines: SyncSender<Line>,
    failed: Arc<AtomicBool>,
}

impl Audit {
    /// Its thread ends, synced, when the last clone is gone.
    pub fn open(path: &Path) -> io::Result<(Audit, std::thread::JoinHandle<()>)> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let (lines, inbox) = sync_channel(QUEUE_MAX);
        let failed = Arc::new(AtomicBool::new(false));
        let writer = Writer { file, dirty_since: None, failed: Arc::clone(&failed) };
        let thread = std::thread::Builder::new()
            .name("tutti-audit".into())
            .spawn(move || writer.run(&inbox))?;
        Ok((Audit { lines, failed }, thread))
    }

    /// Waits only if the disk is far behind: a line is never dropped.
    pub fn note(&self, line: Line) {
        if self.lines.send(line).is_err() {
            tracing::error!("the audit thread is gone");
        }
    }

    /// Some line could not be written since the start.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

struct Writer {
    file: File,
    dirty_since: Option<Instant>,
    failed: Arc<AtomicBool>,
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
                    let written = self.file.write_all(&buffer);
                    self.check("write to", written);
                    self.dirty_since.get_or_insert_with(Instant::now);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.sync(),
            }
            if self.dirty_since.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
                self.sync();
            }
        }
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
            action: "POST /api/v1/jobs".into(),
            target: format!("job {n}\nwith a newline"),
            result: "ok".into(),
        }
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
