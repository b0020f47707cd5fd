//! A client's HTTP/2 connection. Replicas are asked over HTTP/1.1 all the same.
//!
//! A request's head is written as one of HTTP/1.1 and read by the same strict code; so both kinds of
//! clients are treated alike. When a client resets a stream, hyper drops what belongs to it, and with that
//! the replica's connection is closed.

mod body;
mod request;
mod stream;
mod taken;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::http::Io;
use crate::shared::{ClientRoom, Worker};

/// Requests at a time on one connection.
const STREAMS_MAX: u32 = 256;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

pub async fn serve(worker: Arc<Worker>, io: Io, peer: IpAddr, room: Arc<ClientRoom>) {
    let streams = Arc::new(Streams::new(room));
    let config = &worker.shared.config;
    let (limits, timeouts) = (config.limits, config.timeouts);
    let shared = worker.shared.clone();
    let counter = streams.clone();
    let service = service_fn(move |request| {
        let counted = UnderWay::new(&counter);
        stream::answer(worker.clone(), peer, request, counted)
    });
    let executor = taken::Watching { limit: timeouts.body, tick: timeouts.tick() };
    let connection = hyper::server::conn::http2::Builder::new(executor)
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(64 << 10)
        // Clients get what the replica said, as over HTTP/1.1.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let mut tick = tokio::time::interval(timeouts.tick());
    let mut busy_at = Instant::now();
    let (mut proven, mut leaving) = (false, false);
    loop {
        tokio::select! {
            // Clients leave as they like; there is nobody to tell.
            _ = connection.as_mut() => return,
            _ = tick.tick() => {
                let asked = streams.asked_since_last();
                proven |= asked;
                if asked || streams.any_open() {
                    busy_at = Instant::now();
                }
                let patience = if proven { timeouts.idle } else { timeouts.first };
                let idle = busy_at.elapsed() >= patience;
                if !leaving && (idle || streams.stalled() || shared.stopping()) {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                } else if leaving && busy_at.elapsed() >= 2 * patience {
                    return;
                }
            }
        }
    }
}

/// The streams of a connection. All of them are served by one thread.
struct Streams {
    /// Those that were begun and are not over.
    open: AtomicUsize,
    /// Those of them whose client waits for us, and not the other way round.
    working: AtomicUsize,
    /// Something was asked since it was last looked at: it may be over by then.
    asked: AtomicBool,
    /// The client did not go on with what it had begun.
    stalled: AtomicBool,
    room: Arc<ClientRoom>,
}

impl Streams {
    fn new(room: Arc<ClientRoom>) -> Streams {
        Streams {
            open: AtomicUsize::new(0),
            working: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            room,
        }
    }

    fn any_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    fn asked_since_last(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed) || self.working.load(Ordering::Relaxed) > 0
    }

    /// Over HTTP/1.1 the connection would be closed at once; here others may still be served on it.
    fn stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// A stream of a connection, while it lives.
pub struct UnderWay {
    streams: Arc<Streams>,
    working: bool,
}

impl UnderWay {
    fn new(streams: &Arc<Streams>) -> UnderWay {
        streams.open.fetch_add(1, Ordering::Relaxed);
        UnderWay { streams: streams.clone(), working: false }
    }

    /// Other streams of the connection have not said their requests yet either.
    pub fn among_halves(&self) -> bool {
        let Streams { open, working, .. } = &*self.streams;
        open.load(Ordering::Relaxed) > working.load(Ordering::Relaxed) + 1
    }

    /// Its request has come as far as it must before something is done for it.
    pub fn works(&mut self) {
        self.asked();
        if !self.working && self.streams.working.fetch_add(1, Ordering::Relaxed) == 0 {
            self.streams.room.working(true);
        }
        self.working = true;
    }

    /// The client has asked something, whether or not it was let in.
    pub fn asked(&self) {
        self.streams.asked.store(true, Ordering::Relaxed);
    }

    pub fn stalled(&self) {
        self.streams.stalled.store(true, Ordering::Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.working && self.streams.working.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.streams.room.working(false);
        }
        self.streams.open.fetch_sub(1, Ordering::Relaxed);
    }
}
