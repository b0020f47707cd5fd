//! The control thread: heartbeats, and one verdict for all.
//!
//! Control connections form a star around rank 0. It hears every rank's heartbeat with the waits
//! that last long, sees connections close, collects reports of failed operations, and tells
//! everybody the same verdict. The others watch rank 0.
//!
//! ```text
//! rank k ── beat(waits), report, bye ──► rank 0 ── beat, verdict, left, bye ──► all
//! ```

mod conn;
mod hub;
mod judge;
mod message;
mod spoke;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::peer::Peer;

/// Wakes a thread that sits in `poll`.
pub(crate) struct Waker {
    write: UnixStream,
    read: UnixStream,
}

impl Waker {
    pub fn new() -> Result<Self> {
        let make = || -> io::Result<Self> {
            let (write, read) = UnixStream::pair()?;
            write.set_nonblocking(true)?;
            read.set_nonblocking(true)?;
            Ok(Self { write, read })
        };
        make().map_err(|e| Error::io("create a waker", e))
    }

    pub fn wake(&self) {
        // A full pipe wakes as well as one more byte would.
        let _ = (&self.write).write(&[1]);
    }

    pub fn source(&self) -> &UnixStream {
        &self.read
    }

    pub fn drain(&self) {
        while matches!((&self.read).read(&mut [0; 64]), Ok(n) if n > 0) {}
    }
}

/// Notices that this very process was stopped, or its machine asleep: then silence of the others
/// proves nothing.
pub(crate) struct Clock {
    last: Instant,
}

impl Clock {
    const JUMP: Duration = Duration::from_secs(1);

    pub fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// True if much more time has passed since the last call than was meant to be slept.
    pub fn jumped(&mut self, slept: Duration) -> bool {
        let now = Instant::now();
        let jumped = now.duration_since(self.last) > slept + Self::JUMP;
        self.last = now;
        jumped
    }
}

/// What both kinds of control thread need.
pub(crate) struct Post {
    pub health: Arc<Health>,
    pub waker: Arc<Waker>,
    pub leaving: Arc<AtomicBool>,
    pub heartbeat: Duration,
    pub silence: Duration,
}

pub(crate) struct Control {
    pub health: Arc<Health>,
    waker: Arc<Waker>,
    leaving: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    pub fn start(config: &Config, peers: Arc<[Peer]>, streams: Vec<TcpStream>) -> Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let wake = Arc::clone(&waker);
        let health = Arc::new(Health::new(peers, Box::new(move || wake.wake())));
        let leaving = Arc::new(AtomicBool::new(false));
        let post = Post {
            health: Arc::clone(&health),
            waker: Arc::clone(&waker),
            leaving: Arc::clone(&leaving),
            heartbeat: config.heartbeat,
            silence: config.silence,
        };
        let conns = streams
            .into_iter()
            .zip(if config.rank == 0 { 1.. } else { 0.. })
            .map(|(stream, rank)| conn::Conn::new(stream, rank))
            .collect::<Result<Vec<_>>>()?;
        let thread = thread::Builder::new().name("tutti-control".into());
        let hub = config.rank == 0;
        let thread = thread.spawn(move || {
            if hub { hub::Hub::new(post, conns).run() } else { spoke::run(&post, conns) }
        });
        let thread = thread.map_err(|e| Error::io("start the control thread", e))?;
        Ok(Self { health, waker, leaving, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.leaving.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread has nothing to say; a panic in it was printed when it happened.
            let _ = thread.join();
        }
    }
}
