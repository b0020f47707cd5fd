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
    let under_way =
        Arc::new(Streams { open: AtomicUsize::new(0), opened: AtomicBool::new(false), room });
    let config = &worker.shared.config;
    let (limits, timeouts) = (config.limits, config.timeouts);
    let shared = worker.shared.clone();
    let counter = under_way.clone();
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
                if under_way.any_since_last_asked() {
                    (busy_at, proven) = (Instant::now(), true);
                }
                let patience = if proven { timeouts.idle } else { timeouts.first };
                let idle = busy_at.elapsed() >= patience;
                if !leaving && (idle || shared.stopping()) {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                } else if leaving && busy_at.elapsed() >= 2 * patience {
                    return;
                }
            }
        }
    }
}

/// The streams of a connection.
struct Streams {
    open: AtomicUsize,
    /// One was opened since it was last asked: it may be over by then.
    opened: AtomicBool,
    room: Arc<ClientRoom>,
}

impl Streams {
    fn any_since_last_asked(&self) -> bool {
        self.opened.swap(false, Ordering::Relaxed) || self.open.load(Ordering::Relaxed) > 0
    }
}

/// A stream of a connection, while it lives.
pub struct UnderWay(Arc<Streams>);

impl UnderWay {
    fn new(streams: &Arc<Streams>) -> UnderWay {
        streams.opened.store(true, Ordering::Relaxed);
        if streams.open.fetch_add(1, Ordering::Relaxed) == 0 {
            streams.room.working(true);
        }
        UnderWay(streams.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.room.working(false);
        }
    }
}
