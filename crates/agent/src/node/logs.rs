//! Serving logs to the controller. The reader sets the pace; one who waits for more is answered
//! when the shim says that the log grew, so idle jobs cost nothing.

use std::path::PathBuf;

use tutti_model::{LeaseId, Rank, TaskId};
use tutti_wire::stream::{LogFrom, LogRead, LogReply, RequestId, ToController};

use super::{Node, log_error};
use crate::logs::{attempt_dir, prune, read};
use crate::messages::ToShim;

/// A reader that wants what is not written yet.
pub struct Waiter {
    pub request: RequestId,
    read: LogRead,
    /// Settled when it first asked: a later attempt is another log.
    attempt: u32,
    seen: u64,
}

impl Waiter {
    pub fn task(&self) -> TaskId {
        self.read.task
    }
}

impl Node {
    fn logs_dir(&self) -> PathBuf {
        self.config.data_dir.join("logs")
    }

    pub(super) fn read_log(&mut self, request: RequestId, read: LogRead) {
        let attempt = read.attempt.or_else(|| self.newest_attempt(read.task));
        match attempt {
            Some(attempt) => self.answer_log(request, read, attempt),
            None => {
                let reply = self.nothing_there(read.task);
                self.say_log(request, reply);
            }
        }
    }

    /// The attempt that runs here, else the last one that left a log.
    fn newest_attempt(&self, task: TaskId) -> Option<u32> {
        if let Some(launch) = self.machine.live_part(task) {
            return Some(launch.attempt);
        }
        let entries = std::fs::read_dir(self.logs_dir().join(task.to_string())).ok()?;
        entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).max()
    }

    /// A quiet task leaves no file, and neither does one whose logs are no longer kept.
    fn nothing_there(&self, task: TaskId) -> LogReply {
        match prune::removed_up_to(&self.logs_dir()) {
            Some(job) if task.job <= job => LogReply::Missing {
                reason: format!("node {} no longer keeps logs this old", self.config.name),
            },
            _ => LogReply::Piece { lines: Vec::new(), next: 0, end: true, skipped: 0 },
        }
    }

    /// The live part of this attempt, which may still write.
    fn writer(&self, task: TaskId, attempt: u32) -> Option<LeaseId> {
        let live = self.machine.live_part(task)?;
        (live.attempt == attempt).then_some(live.lease)
    }

    fn answer_log(&mut self, request: RequestId, read: LogRead, attempt: u32) {
        let dir = attempt_dir(&self.logs_dir(), read.task, attempt);
        // Asked before reading: what is written later than this is not missed.
        let writer = self.writer(read.task, attempt);
        let piece = match read::piece(&dir, read.rank, read.from, read.max_bytes) {
            Ok(piece) => piece,
            Err(error) => {
                log_error("a log can't be read", &error);
                let reason = format!("the log can't be read: {error}");
                return self.say_log(request, LogReply::Missing { reason });
            }
        };
        if let (true, true, Some(lease)) = (piece.lines.is_empty(), read.wait, writer) {
            let (rank, seen) = (read.rank, piece.next);
            let read = LogRead { from: LogFrom::Offset(seen), ..read };
            self.requests.waiters.push(Waiter { request, read, attempt, seen });
            return self.shims.tell(lease, &ToShim::Watch { rank, seen });
        }
        if writer.is_none() && piece == read::Piece::default() {
            let reply = self.nothing_there(read.task);
            return self.say_log(request, reply);
        }
        let end = writer.is_none() && {
            let rest = read::piece(&dir, read.rank, LogFrom::Offset(piece.next), 1);
            rest.is_ok_and(|rest| rest.lines.is_empty())
        };
        let read::Piece { lines, next, skipped } = piece;
        self.say_log(request, LogReply::Piece { lines, next, end, skipped });
    }

    fn say_log(&mut self, request: RequestId, reply: LogReply) {
        self.uplink.say(&ToController::Log { request, reply });
    }

    pub(super) fn log_grew(&mut self, lease: LeaseId, rank: Rank) {
        self.answer_waiters(|w| w.read.task == lease.task && w.read.rank == rank);
    }

    pub(super) fn answer_waiters(&mut self, which: impl Fn(&Waiter) -> bool) {
        let all = std::mem::take(&mut self.requests.waiters);
        let (now, later) = all.into_iter().partition(which);
        self.requests.waiters = later;
        let now: Vec<Waiter> = now;
        for waiter in now {
            self.answer_log(waiter.request, waiter.read, waiter.attempt);
        }
    }

    /// A shim that has just connected does not know who waits.
    pub(super) fn watch_again(&mut self, lease: LeaseId) {
        for waiter in &self.requests.waiters {
            if self.writer(waiter.read.task, waiter.attempt) == Some(lease) {
                let message = ToShim::Watch { rank: waiter.read.rank, seen: waiter.seen };
                self.shims.tell(lease, &message);
            }
        }
    }

    /// Off this thread: it may remove thousands of files.
    pub(super) fn prune_logs(&self) {
        let (logs, retention) = (self.logs_dir(), self.config.log_retention);
        let live = self.machine.tasks().collect();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = prune::prune(&logs, retention, &live) {
                log_error("old logs can't be removed", &error);
            }
        });
    }
}
