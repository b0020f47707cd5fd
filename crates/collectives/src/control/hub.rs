//! Rank 0's control thread: it hears all, and judges.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::conn::Conn;
use super::message::Message;
use super::{Clock, Post, judge};
use crate::error::Why;
use crate::health::{Report, Verdict};
use crate::sys;

/// How long a report may wait for better evidence: a broken data connection is often the first sign
/// of a death whose control connection closes a moment later.
const EVIDENCE: Duration = Duration::from_millis(500);
/// How long rank 0 stays for the others when it leaves.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Hub {
    post: Post,
    conns: Vec<Conn>,
    pending: Option<(Instant, Report)>,
    announced: bool,
}

impl Hub {
    pub fn new(post: Post, conns: Vec<Conn>) -> Self {
        Self { post, conns, pending: None, announced: false }
    }

    pub fn run(mut self) {
        let mut clock = Clock::new();
        let mut next_beat = Instant::now();
        let mut leave_at: Option<Instant> = None;
        loop {
            if Instant::now() >= next_beat {
                self.tell_all(&Message::Beat(Vec::new()));
                next_beat = Instant::now() + self.post.heartbeat;
            }
            let mut until = next_beat;
            if let Some((at, _)) = &self.pending {
                until = until.min(*at);
            }
            let sleep = until.saturating_duration_since(Instant::now());
            self.wait(sleep);
            if clock.jumped(sleep) {
                let now = Instant::now();
                self.conns.iter_mut().for_each(|c| c.heard = now);
            }
            self.hear();
            self.judge();
            if self.post.leaving.load(Ordering::Acquire) {
                let at = *leave_at.get_or_insert_with(|| {
                    self.tell_all(&Message::Bye);
                    Instant::now() + LINGER
                });
                let alone = self.conns.iter().all(|c| !c.open);
                if alone || self.post.health.failed() || Instant::now() >= at {
                    return;
                }
            }
        }
    }

    fn wait(&self, sleep: Duration) {
        let mut fds = vec![sys::pollfd(self.post.waker.source().as_raw_fd(), libc::POLLIN)];
        let open = self.conns.iter().filter(|c| c.open);
        fds.extend(open.map(|c| sys::pollfd(c.stream.as_raw_fd(), libc::POLLIN)));
        sys::poll(&mut fds, sleep);
        self.post.waker.drain();
    }

    fn hear(&mut self) {
        let mut reports = self.post.health.take_reports();
        let mut farewells = Vec::new();
        for conn in self.conns.iter_mut().filter(|c| c.open) {
            for message in conn.receive() {
                match message {
                    Message::Beat(waits) => conn.waits = waits,
                    Message::Report(report) => reports.push(report),
                    Message::Bye => farewells.push(conn.rank),
                    // Only rank 0 says these.
                    Message::Verdict(_) | Message::Left(_) => conn.open = false,
                }
            }
        }
        for rank in farewells {
            self.post.health.set_left(rank);
            self.tell_all(&Message::Left(rank));
        }
        let in_range = |r: &Report| r.wait.on < self.post.health.peers.len();
        if let Some(report) = reports.into_iter().find(in_range) {
            self.pending.get_or_insert((Instant::now() + EVIDENCE, report));
        }
    }

    fn judge(&mut self) {
        let health = &self.post.health;
        let present = |c: &&Conn| !health.has_left(c.rank);
        let dead = self.conns.iter().filter(present).find(|c| !c.open);
        let silent =
            self.conns.iter().filter(present).find(|c| c.heard.elapsed() > self.post.silence);
        let due = self.pending.as_ref().filter(|(at, _)| Instant::now() >= *at);
        let verdict = if let Some(conn) = dead {
            Some(Verdict { rank: conn.rank, why: Why::Died })
        } else if let Some(conn) = silent {
            Some(Verdict { rank: conn.rank, why: Why::Silent(conn.heard.elapsed()) })
        } else {
            due.map(|(_, report)| self.weigh(report))
        };
        if let Some(verdict) = verdict {
            self.pending = None;
            health.condemn(verdict);
        }
        if !self.announced
            && let Some(verdict) = self.post.health.verdict()
        {
            self.announced = true;
            self.tell_all(&Message::Verdict(verdict));
        }
    }

    fn weigh(&self, report: &Report) -> Verdict {
        let health = &self.post.health;
        if health.has_left(report.wait.on) {
            return Verdict { rank: report.wait.on, why: Why::Left };
        }
        if !matches!(report.why, Why::Absent(_)) {
            return Verdict { rank: report.wait.on, why: report.why.clone() };
        }
        let rank = judge::culprit(report.wait, &|rank| match rank {
            0 => health.waits(),
            _ => self.conns[rank - 1].waits.clone(),
        });
        Verdict { rank, why: report.why.clone() }
    }

    fn tell_all(&mut self, message: &Message) {
        self.conns.iter_mut().for_each(|c| c.send(message));
    }
}
