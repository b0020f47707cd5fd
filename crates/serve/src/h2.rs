//! A client's HTTP/2 connection. Replicas are asked over HTTP/1.1 all the same.
//!
//! A request's head is written as one of HTTP/1.1 and read by the same strict code; so both kinds of
//! clients are treated alike. When a client resets a stream, hyper drops what belongs to it, and with that
//! the replica's connection is closed.

mod body;
mod request;
mod stream;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use self::body::{Slot, cut_stalled};
use crate::http::Io;
use crate::shared::Worker;

/// Requests at a time on one connection.
const STREAMS_MAX: u32 = 256;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

pub async fn serve(worker: Arc<Worker>, io: Io, peer: IpAddr) {
    let streams = Arc::new(Streams::default());
    let config = &worker.shared.config;
    let (limits, timeouts) = (config.limits, config.timeouts);
    let shared = worker.shared.clone();
    let counter = streams.clone();
    let service = service_fn(move |request| {
        let counted = UnderWay::new(&counter);
        stream::answer(worker.clone(), peer, request, counted)
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(64 << 10)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let mut tick = tokio::time::interval(timeouts.tick());
    let mut busy_at = Instant::now();
    let mut leaving = false;
    loop {
        tokio::select! {
            // Clients leave as they like; there is nobody to tell.
            _ = connection.as_mut() => return,
            _ = tick.tick() => {
                streams.cut_stalled(timeouts.body, Instant::now());
                if streams.any() {
                    busy_at = Instant::now();
                }
                let idle = busy_at.elapsed() >= timeouts.idle;
                if !leaving && (idle || shared.stopping()) {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                } else if leaving && busy_at.elapsed() >= 2 * timeouts.idle {
                    return;
                }
            }
        }
    }
}

/// The streams of a connection.
#[derive(Default)]
struct Streams {
    under_way: AtomicUsize,
    answers: Mutex<Vec<Weak<Slot>>>,
}

impl Streams {
    fn any(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    fn cut_stalled(&self, patience: Duration, now: Instant) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answer| match answer.upgrade() {
            Some(slot) => {
                cut_stalled(&slot, patience, now);
                true
            }
            None => false,
        });
        answers.shrink_to(STREAMS_MAX as usize);
    }
}

/// A stream of a connection, while it lives.
pub struct UnderWay(Arc<Streams>);

impl UnderWay {
    fn new(streams: &Arc<Streams>) -> UnderWay {
        streams.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(streams.clone())
    }

    /// Sees to it that the client takes its answer.
    fn watch(&self, slot: &Arc<Slot>) {
        let mut answers = self.0.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(Arc::downgrade(slot));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
