//! The receiving side: one thread per sender reads, and matches messages with receives.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::{BUFFERED_MAX, HEAD};
use crate::error::{Error, Result, Verb, Why};
use crate::health::{Health, Patience, Wait, lock};
use crate::span::Span;
use crate::sys;

/// What a receive asks for. (On the sending side `from` is whom it goes to.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub from: usize,
    pub group: u64,
    pub tag: u64,
}

type Done = Box<dyn FnOnce(Result<()>) + Send>;

struct Posted {
    id: u64,
    address: Address,
    span: Span,
    done: Done,
}

#[derive(Default)]
struct State {
    next: u64,
    posted: Vec<Posted>,
    arrived: VecDeque<(Address, Vec<u8>)>,
    buffered: usize,
    /// Receives whose buffer a thread is writing to right now.
    filling: HashSet<u64>,
    /// Threads that may still bring something, per sender.
    readers: HashMap<usize, usize>,
    streams: Vec<TcpStream>,
    closed: bool,
}

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    health: OnceLock<Arc<Health>>,
}

impl Inbox {
    /// Before any message can come.
    pub fn attach(&self, health: Arc<Health>) {
        assert!(self.health.set(health).is_ok(), "attached once");
    }

    fn health(&self) -> &Arc<Health> {
        // The door opens before the world's health is known, but nobody dials before the table.
        self.health.wait()
    }

    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        for stream in &state.streams {
            // One that is closed already needs no closing.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Posts a receive. `done` is called when the buffer is filled, by whichever thread does it.
    pub fn post(&self, address: Address, span: Span, done: Done) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        let id = state.next;
        // A receive posted earlier for the same address has the older message.
        let queued = state.posted.iter().any(|p| p.address == address);
        let found = state.arrived.iter().position(|(a, _)| *a == address);
        if let (Some(at), false) = (found, queued) {
            let (_, data) = state.arrived.remove(at).expect("just found");
            state.buffered -= data.len();
            drop(state);
            self.changed.notify_all();
            done(fill(address, span, &data));
            return id;
        }
        state.posted.push(Posted { id, address, span, done });
        drop(state);
        self.changed.notify_all();
        id
    }

    /// A receive into a borrowed buffer: returns only when nothing writes to it any more.
    pub fn receive(&self, address: Address, span: Span, limit: Duration, seq: Wait) -> Result<()> {
        let slot = Arc::new(Mutex::new(None));
        let result = Arc::clone(&slot);
        let id = self.post(address, span, Box::new(move |r| *lock(&result) = Some(r)));
        let health = self.health();
        let mut patience = Patience::new(health, seq, Verb::Recv, limit);
        let mut gone = 0;
        loop {
            let state = lock(&self.state);
            if let Some(result) = lock(&slot).take() {
                return result;
            }
            let slept = self.changed.wait_timeout(state, Patience::SLICE);
            let (state, timeout) = slept.unwrap_or_else(PoisonError::into_inner);
            let lonely = !state.readers.contains_key(&address.from);
            drop(state);
            if !timeout.timed_out() {
                continue;
            }
            gone += u32::from(lonely && health.has_left(address.from));
            let given_up = match patience.tick() {
                // Long after its farewell nothing can be on the way any more.
                Ok(()) if gone > 10 => health.blame(seq, Verb::Recv, Why::Left),
                Ok(()) => continue,
                Err(e) => e,
            };
            return self.withdraw(id, &slot).unwrap_or(Err(given_up));
        }
    }

    /// Takes a receive back; its result if it was done after all.
    fn withdraw(&self, id: u64, slot: &Mutex<Option<Result<()>>>) -> Option<Result<()>> {
        let mut state = lock(&self.state);
        state.posted.retain(|p| p.id != id);
        while state.filling.contains(&id) {
            // The reader looks at the world's health every slice, and stops.
            let slept = self.changed.wait_timeout(state, Patience::SLICE);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
        lock(slot).take()
    }

    /// Reads what one sender sends, until it closes.
    pub fn read_from(&self, from: usize, stream: TcpStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        {
            let mut state = lock(&self.state);
            if state.closed {
                return;
            }
            *state.readers.entry(from).or_default() += 1;
            if let Ok(copy) = stream.try_clone() {
                state.streams.push(copy);
            }
        }
        while self.one_message(from, &stream).is_some() {}
        let mut state = lock(&self.state);
        if let Some(n) = state.readers.get_mut(&from) {
            *n -= 1;
            if *n == 0 {
                state.readers.remove(&from);
            }
        }
        self.changed.notify_all();
    }

    /// None at the end of the stream or of the world.
    fn one_message(&self, from: usize, stream: &TcpStream) -> Option<()> {
        let mut head = [0; HEAD];
        // An end between two messages is a sender that leaves.
        self.read(stream, Span::of(&mut head)).ok()?;
        let word = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().expect("8 bytes"));
        let address = Address { from, group: word(0), tag: word(8) };
        let len = usize::try_from(word(16)).ok()?;
        match self.claim(address, len)? {
            Some(posted) if posted.span.len() == len => {
                let read = self.read(stream, posted.span);
                let alive = read.is_ok();
                self.complete(posted, read.map_err(|e| self.lost(address, &e)));
                alive.then_some(())
            }
            claimed => {
                let mut data = vec![0; len];
                let read = self.read(stream, Span::of(&mut data));
                if let Some(posted) = claimed {
                    let size =
                        Error::Size { from, tag: address.tag, sent: len, room: posted.span.len() };
                    self.complete(posted, Err(size));
                } else if read.is_ok() {
                    self.deliver(address, data);
                }
                read.ok()
            }
        }
    }

    /// The receive that waits for this message, if there is one. Waits while too much is unclaimed.
    fn claim(&self, address: Address, len: usize) -> Option<Option<Posted>> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some(at) = state.posted.iter().position(|p| p.address == address) {
                let posted = state.posted.remove(at);
                state.filling.insert(posted.id);
                return Some(Some(posted));
            }
            // A receive for something behind this message must not wait for this one.
            let wanted = state.posted.iter().any(|p| p.address.from == address.from);
            if wanted || state.buffered == 0 || state.buffered + len <= BUFFERED_MAX {
                return Some(None);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn complete(&self, posted: Posted, result: Result<()>) {
        (posted.done)(result);
        lock(&self.state).filling.remove(&posted.id);
        self.changed.notify_all();
    }

    /// A message that nobody waited for when it began to arrive.
    fn deliver(&self, address: Address, data: Vec<u8>) {
        let mut state = lock(&self.state);
        match state.posted.iter().position(|p| p.address == address) {
            Some(at) => {
                let posted = state.posted.remove(at);
                state.filling.insert(posted.id);
                drop(state);
                let result = fill(address, posted.span, &data);
                self.complete(posted, result);
            }
            None => {
                state.buffered += data.len();
                state.arrived.push_back((address, data));
            }
        }
    }

    fn read(&self, stream: &TcpStream, span: Span) -> io::Result<()> {
        // SAFETY: the buffer is the caller's, or of a receive that is marked as being filled.
        let mut rest = unsafe { span.get_mut() };
        while !rest.is_empty() {
            match sys::recv_now(stream.as_raw_fd(), &mut [], rest)? {
                Some(0) => return Err(crate::link::closed()),
                Some(n) => rest = &mut rest[n..],
                None => {
                    if self.health().failed() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                    sys::wait_readable(stream, Patience::SLICE);
                }
            }
        }
        Ok(())
    }

    fn lost(&self, address: Address, e: &io::Error) -> Error {
        let wait = Wait { group: address.group, seq: address.tag, on: address.from };
        let gone =
            e.kind() == io::ErrorKind::UnexpectedEof || e.kind() == io::ErrorKind::ConnectionReset;
        let why = if gone { Why::Died } else { Why::Broken(e.to_string()) };
        self.health().blame(wait, Verb::Recv, why)
    }
}

fn fill(address: Address, span: Span, data: &[u8]) -> Result<()> {
    if span.len() != data.len() {
        let Address { from, tag, .. } = address;
        return Err(Error::Size { from, tag, sent: data.len(), room: span.len() });
    }
    // SAFETY: the receive was taken out of the list, so nobody else writes to its buffer.
    unsafe { span.get_mut() }.copy_from_slice(data);
    Ok(())
}
