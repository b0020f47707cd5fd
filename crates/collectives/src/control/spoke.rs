//! The control thread of every rank but 0.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::conn::Conn;
use super::message::Message;
use super::{Clock, Post};
use crate::error::Why;
use crate::health::Verdict;
use crate::sys;

pub(super) fn run(post: &Post, conns: Vec<Conn>) {
    let Some(mut conn) = conns.into_iter().next() else { return };
    let health = &post.health;
    let mut clock = Clock::new();
    let mut next_beat = Instant::now();
    while conn.open {
        if Instant::now() >= next_beat {
            conn.send(&Message::Beat(health.waits()));
            next_beat = Instant::now() + post.heartbeat;
        }
        let sleep = next_beat.saturating_duration_since(Instant::now());
        let mut fds = [
            sys::pollfd(conn.stream.as_raw_fd(), libc::POLLIN),
            sys::pollfd(post.waker.source().as_raw_fd(), libc::POLLIN),
        ];
        sys::poll(&mut fds, sleep);
        post.waker.drain();
        if clock.jumped(sleep) {
            conn.heard = Instant::now();
        }
        for message in conn.receive() {
            obey(post, message);
        }
        for report in health.take_reports() {
            // With the newest waits, else rank 0 might blame somebody who only waits as well.
            conn.send(&Message::Beat(health.waits()));
            conn.send(&Message::Report(report));
        }
        if conn.heard.elapsed() > post.silence && !health.has_left(0) {
            health.condemn(Verdict { rank: 0, why: Why::Silent(conn.heard.elapsed()) });
        }
        if post.leaving.load(Ordering::Acquire) {
            conn.send(&Message::Bye);
            return;
        }
    }
    if !health.has_left(0) {
        health.condemn(Verdict { rank: 0, why: Why::Died });
    }
}

fn obey(post: &Post, message: Message) {
    let health = &post.health;
    let known = |rank: usize| rank < health.peers.len();
    match message {
        Message::Verdict(verdict) if known(verdict.rank) => health.condemn(verdict),
        Message::Left(rank) if known(rank) => health.set_left(rank),
        Message::Bye => health.set_left(0),
        Message::Beat(_) | Message::Report(_) | Message::Verdict(_) | Message::Left(_) => {}
    }
}
