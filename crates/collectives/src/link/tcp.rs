//! A link over one or several TCP connections.
//!
//! With several, a message is cut into stripes that go out in turn, so that both sides know without
//! a word what lies where. One thread moves all of them; nothing here blocks.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use super::{HEAD, Step, Transfer, closed};
use crate::sys;

pub(crate) const STREAMS_MAX: usize = 8;
/// Whole elements of every type, and whole cache lines.
const STRIPE: usize = 256 << 10;
/// At most so much in one call over a single connection: the other direction wants its turn. With
/// less, ranks that share a processor take turns so often that it shows.
const BITE: usize = 4 << 20;

pub(crate) struct TcpLink {
    streams: Vec<TcpStream>,
    /// Per stream: what came but is not folded yet, aligned for every type.
    spill: Vec<Vec<u64>>,
    filled: Vec<usize>,
}

impl TcpLink {
    pub fn new(streams: Vec<TcpStream>) -> io::Result<Self> {
        assert!((1..=STREAMS_MAX).contains(&streams.len()), "{}", streams.len());
        for s in &streams {
            s.set_nonblocking(true)?;
        }
        let n = streams.len();
        Ok(Self { streams, spill: vec![Vec::new(); n], filled: vec![0; n] })
    }

    /// The next contiguous piece that stream `s` carries of a message of `len` bytes.
    fn piece(&self, s: usize, done: usize, len: usize) -> std::ops::Range<usize> {
        let n = self.streams.len();
        if n == 1 {
            return done..len.min(done + BITE);
        }
        let stripe = (done / STRIPE) * n + s;
        let start = stripe * STRIPE + done % STRIPE;
        start.min(len)..((stripe + 1) * STRIPE).min(len)
    }

    fn is_finished(&self, t: &Transfer) -> bool {
        let len = t.span.len();
        t.head_done == HEAD
            && (0..self.streams.len())
                .all(|s| self.piece(s, t.done[s], len).is_empty() && self.filled[s] == 0)
    }

    pub fn send(&mut self, t: &mut Transfer) -> io::Result<Step> {
        let mut moved = false;
        for s in 0..self.streams.len() {
            let piece = self.piece(s, t.done[s], t.span.len());
            let head = if s == 0 { &t.head[t.head_done..] } else { &[] };
            if head.is_empty() && piece.is_empty() {
                continue;
            }
            // SAFETY: the operation owns the buffer, and nothing writes to a part being sent.
            let data = unsafe { t.span.part(piece).get() };
            if let Some(n) = sys::send_now(self.streams[s].as_raw_fd(), head, data)? {
                moved = true;
                let of_head = n.min(head.len());
                t.head_done += of_head;
                t.done[s] += n - of_head;
            }
        }
        Ok(self.step(t, moved, true))
    }

    pub fn recv(&mut self, t: &mut Transfer) -> io::Result<Step> {
        let mut moved = false;
        for s in 0..self.streams.len() {
            moved |= match t.reduce {
                None => self.recv_plain(s, t)?,
                Some(_) => self.recv_fold(s, t)?,
            };
        }
        Ok(self.step(t, moved, false))
    }

    fn step(&self, t: &Transfer, moved: bool, sending: bool) -> Step {
        let sent = sending
            && t.head_done == HEAD
            && (0..self.streams.len()).all(|s| self.piece(s, t.done[s], t.span.len()).is_empty());
        match moved {
            _ if sent || (!sending && self.is_finished(t)) => Step::Finished,
            true => Step::Moved,
            false => Step::Nothing,
        }
    }

    fn recv_plain(&self, s: usize, t: &mut Transfer) -> io::Result<bool> {
        let piece = self.piece(s, t.done[s], t.span.len());
        let head = if s == 0 { &mut t.head[t.head_done..] } else { &mut [] };
        if head.is_empty() && piece.is_empty() {
            return Ok(false);
        }
        let in_head = head.len();
        // SAFETY: the operation owns the buffer, and nothing else touches a part being received.
        let data = unsafe { t.span.part(piece).get_mut() };
        let Some(n) = sys::recv_now(self.streams[s].as_raw_fd(), head, data)? else {
            return Ok(false);
        };
        if n == 0 {
            return Err(closed());
        }
        let of_head = n.min(in_head);
        t.head_done += of_head;
        t.done[s] += n - of_head;
        Ok(true)
    }

    /// Receives into the spill, and folds whole elements from there while they are in the cache.
    fn recv_fold(&mut self, s: usize, t: &mut Transfer) -> io::Result<bool> {
        let reducer = t.reduce.expect("only called with one");
        let piece = self.piece(s, t.done[s], t.span.len());
        let head = if s == 0 { &mut t.head[t.head_done..] } else { &mut [] };
        if head.is_empty() && piece.is_empty() {
            return Ok(false);
        }
        let room = if self.streams.len() == 1 { BITE } else { STRIPE };
        let spill = &mut self.spill[s];
        if spill.is_empty() {
            spill.resize(room / 8, 0);
        }
        // SAFETY: u64s are plain bytes.
        let spill =
            unsafe { std::slice::from_raw_parts_mut(spill.as_mut_ptr().cast::<u8>(), room) };
        let filled = self.filled[s];
        let want = piece.len().min(room);
        let in_head = head.len();
        let fd = self.streams[s].as_raw_fd();
        let Some(n) = sys::recv_now(fd, head, &mut spill[filled..want])? else {
            return Ok(false);
        };
        if n == 0 {
            return Err(closed());
        }
        let of_head = n.min(in_head);
        t.head_done += of_head;
        let filled = filled + n - of_head;
        let whole = filled - filled % reducer.size;
        let start = piece.start;
        // SAFETY: as in `recv_plain`.
        let into = unsafe { t.span.part(start..start + whole).get_mut() };
        reducer.fold_before(into, &spill[..whole]);
        spill.copy_within(whole..filled, 0);
        self.filled[s] = filled - whole;
        t.done[s] += whole;
        Ok(true)
    }

    /// What to wait for until the transfer can go on.
    pub fn interest(&self, t: &Transfer, sending: bool, fds: &mut Vec<libc::pollfd>) {
        let events = if sending { libc::POLLOUT } else { libc::POLLIN };
        for (s, stream) in self.streams.iter().enumerate() {
            let head = s == 0 && t.head_done < HEAD;
            if head || !self.piece(s, t.done[s], t.span.len()).is_empty() {
                fds.push(sys::pollfd(stream.as_raw_fd(), events));
            }
        }
    }
}
