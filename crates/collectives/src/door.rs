//! How a rank opens further connections to another: one dials, the other's door hands it over.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::auth::{self, Key};
use crate::control::Waker;
use crate::error::{Error, Result};
use crate::health::{Patience, lock};
use crate::peer::Peer;
use crate::sys;
use crate::wire::{Reader, Writer};

/// How long one step of a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at a time; a crowd of strangers can't make threads without end.
const CROWD: usize = 256;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Purpose {
    pub from: usize,
    /// The group it serves.
    pub group: u64,
    pub kind: Kind,
    /// Which of several.
    pub index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// One stream of a link that collective operations use.
    Lane,
    /// Tagged messages, one way.
    Mail,
}

impl Purpose {
    fn encode(self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Lane => 0,
            Kind::Mail => 1,
        };
        Writer::default().u32(self.from as u32).u64(self.group).u8(kind).u32(self.index).0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader(bytes);
        let (from, group) = (r.u32()? as usize, r.u64()?);
        let kind = match r.u8()? {
            0 => Kind::Lane,
            1 => Kind::Mail,
            _ => return None,
        };
        Some(Self { from, group, kind, index: r.u32()? })
    }
}

#[derive(Default)]
struct Hall {
    waiting: Mutex<HashMap<Purpose, TcpStream>>,
    arrived: Condvar,
}

/// What to do with a connection for tagged messages: nobody waits for it.
pub(crate) type OnMail = Box<dyn Fn(usize, TcpStream) + Send + Sync>;

pub(crate) struct Door {
    me: usize,
    key: Key,
    hall: Arc<Hall>,
    waker: Arc<Waker>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    pub fn open(me: usize, key: Key, listener: TcpListener, on_mail: OnMail) -> Result<Self> {
        let hall = Arc::new(Hall::default());
        let waker = Arc::new(Waker::new()?);
        let closing = Arc::new(AtomicBool::new(false));
        let porter = Porter {
            listener,
            key,
            hall: Arc::clone(&hall),
            on_mail: on_mail.into(),
            waker: Arc::clone(&waker),
            closing: Arc::clone(&closing),
            crowd: Arc::new(AtomicUsize::new(0)),
        };
        let thread = thread::Builder::new().name("tutti-door".into()).spawn(move || porter.run());
        let thread = thread.map_err(|e| Error::io("start the door thread", e))?;
        Ok(Self { me, key, hall, waker, closing, thread: Some(thread) })
    }

    pub fn dial(&self, peer: &Peer, group: u64, kind: Kind, index: u32) -> Result<TcpStream> {
        let who = format!("rank {} at {}", peer.rank, peer.addr);
        let io = |e| Error::io(format!("connect to {who}"), e);
        let mut stream = TcpStream::connect_timeout(&peer.addr, HANDSHAKE).map_err(io)?;
        set_up(&stream)?;
        let purpose = Purpose { from: self.me, group, kind, index };
        auth::dial(&mut stream, self.key, &purpose.encode(), &who)?;
        Ok(stream)
    }

    /// The connection that a peer dials.
    pub fn expect(&self, purpose: Purpose, mut patience: Patience<'_>) -> Result<TcpStream> {
        let mut waiting = lock(&self.hall.waiting);
        loop {
            if let Some(stream) = waiting.remove(&purpose) {
                return Ok(stream);
            }
            let slept = self.hall.arrived.wait_timeout(waiting, Patience::SLICE);
            waiting = slept.unwrap_or_else(PoisonError::into_inner).0;
            if !waiting.contains_key(&purpose) {
                // Not under the lock: giving up asks rank 0, which takes a while.
                drop(waiting);
                patience.tick()?;
                waiting = lock(&self.hall.waiting);
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn set_up(stream: &TcpStream) -> Result<()> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(HANDSHAKE)))
        .and_then(|()| stream.set_write_timeout(Some(HANDSHAKE)))
        .map_err(|e| Error::io("set up a connection", e))
}

struct Porter {
    listener: TcpListener,
    key: Key,
    hall: Arc<Hall>,
    on_mail: Arc<dyn Fn(usize, TcpStream) + Send + Sync>,
    waker: Arc<Waker>,
    closing: Arc<AtomicBool>,
    crowd: Arc<AtomicUsize>,
}

impl Porter {
    fn run(self) {
        while !self.closing.load(Ordering::Acquire) {
            let mut fds = [
                sys::pollfd(self.listener.as_raw_fd(), libc::POLLIN),
                sys::pollfd(self.waker.source().as_raw_fd(), libc::POLLIN),
            ];
            sys::poll(&mut fds, Duration::from_secs(60));
            if fds[0].revents == 0 {
                continue;
            }
            // A connection that is gone again, or no descriptor left: the dialler will see it.
            let Ok((stream, from)) = self.listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            self.admit(stream, from.to_string());
        }
    }

    fn admit(&self, stream: TcpStream, from: String) {
        if self.crowd.fetch_add(1, Ordering::AcqRel) >= CROWD {
            self.crowd.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (key, hall, on_mail) = (self.key, Arc::clone(&self.hall), Arc::clone(&self.on_mail));
        let crowd = Arc::clone(&self.crowd);
        thread::spawn(move || {
            // A stranger gets no answer; one of ours sees its connection close and says so.
            if let Ok((purpose, stream)) = greet(stream, key, &from) {
                match purpose.kind {
                    Kind::Mail => on_mail(purpose.from, stream),
                    Kind::Lane => {
                        lock(&hall.waiting).insert(purpose, stream);
                        hall.arrived.notify_all();
                    }
                }
            }
            crowd.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

fn greet(mut stream: TcpStream, key: Key, from: &str) -> Result<(Purpose, TcpStream)> {
    set_up(&stream)?;
    let hello = auth::accept(&mut stream, key, from)?;
    let purpose = Purpose::decode(&hello).ok_or_else(|| Error::Stranger { who: from.into() })?;
    Ok((purpose, stream))
}
