//! The body of an answer on its way to an HTTP/2 client.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

use super::UnderWay;
use crate::desk::Lease;
use crate::fault::Fault;
use crate::http::{Buffer, Framing, Ticker};
use crate::logic::Outcome;
use crate::shared::{Count, Worker};
use crate::visit::Visit;

/// A replica's connection, from which the answer is read.
pub struct Up {
    pub read: OwnedReadHalf,
    pub sending: Sending,
}

pub enum Sending {
    /// The request is sent.
    Done(OwnedWriteHalf),
    /// The rest of its body is still being sent.
    Rest { _upload: Upload },
}

/// Stops when nobody wants the answer any more.
pub struct Upload(pub JoinHandle<Result<(), Fault>>);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer that a replica gives.
pub struct Passing {
    pub worker: Arc<Worker>,
    pub visit: Visit,
    pub lease: Option<Lease>,
    pub up: Option<Up>,
    pub buffer: Buffer,
    pub framing: Framing,
    pub ticker: Ticker,
    pub status: u16,
    /// The replica keeps its connection open after this, and all of the request was sent.
    pub reusable: bool,
    pub silence_max: Duration,
    pub buffer_max: usize,
    /// Since when the client has had something to take. None: the replica is waited for.
    pub offered: Option<Instant>,
    pub _counted: (Count, UnderWay),
}

/// Held by the stream, and by its connection, which takes an answer away from a client that does not read
/// it: while a stream may not send, nobody asks its body for anything.
pub type Slot = Mutex<Option<Passing>>;

pub enum AnswerBody {
    Own(Option<Bytes>),
    Passing(Arc<Slot>),
}

/// Gives an answer up, with everything that belongs to it, if the client has taken nothing for so long.
pub fn cut_stalled(slot: &Slot, patience: Duration, now: Instant) {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let offered = slot.as_ref().and_then(|passing| passing.offered);
    if offered.is_some_and(|at| now.saturating_duration_since(at) >= patience) {
        *slot = None;
    }
}

impl Passing {
    /// The answer is whole: the replica is free, and the books are closed.
    pub fn finish(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let now = Instant::now();
        self.visit.answered();
        let clean = self.reusable && self.buffer.is_empty() && self.framing.is_done();
        if let Some(Up { read, sending: Sending::Done(write) }) = self.up.take().filter(|_| clean)
            && let Ok(stream) = read.reunite(write)
        {
            self.worker.pool.put(&lease.choice.address, stream, now);
        }
        lease.finish(if self.status >= 500 { Outcome::Failed } else { Outcome::Ok }, now);
    }

    fn fail(&mut self, why: &'static str) -> io::Error {
        self.visit.failed();
        if let Some(lease) = self.lease.take() {
            lease.finish(Outcome::Failed, Instant::now());
        }
        self.up = None;
        io::Error::other(why)
    }

    fn digest(&mut self) -> Result<Option<Bytes>, io::Error> {
        let mut out = BytesMut::with_capacity(self.buffer.len());
        let mut tokens = 0;
        let visit = &mut self.visit;
        let used = self.framing.advance(self.buffer.bytes(), |data| {
            tokens += visit.body(data);
            out.extend_from_slice(data);
        });
        let used = used.map_err(|_| self.fail("the replica's answer is malformed"))?;
        self.buffer.consume(used);
        self.visit.came(tokens);
        if self.framing.is_done() {
            self.finish();
        }
        Ok((!out.is_empty()).then(|| out.freeze()))
    }

    fn trailers(&mut self) -> Option<HeaderMap> {
        let Framing::Chunked(_) = &self.framing else { return None };
        let mut lines = [httparse::EMPTY_HEADER; 64];
        let mut text = self.framing.trailers().to_vec();
        self.framing = Framing::EMPTY;
        if text.is_empty() {
            return None;
        }
        text.extend_from_slice(b"\r\n");
        let Ok(httparse::Status::Complete((_, lines))) = httparse::parse_headers(&text, &mut lines)
        else {
            return None;
        };
        let read = lines.iter().filter_map(|line| {
            let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_bytes(line.value).ok()?))
        });
        Some(read.collect())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if self.framing.is_done() {
                self.finish();
                return Poll::Ready(self.trailers().map(|trailers| Ok(Frame::trailers(trailers))));
            }
            if !self.buffer.is_empty() {
                match self.digest() {
                    Err(error) => return Poll::Ready(Some(Err(error))),
                    Ok(Some(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(None) => continue,
                }
            }
            let Some(up) = self.up.as_mut() else { return Poll::Ready(None) };
            match self.buffer.poll_fill(&mut up.read, self.buffer_max, cx) {
                Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => {
                    self.finish();
                    return Poll::Ready(None);
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    return Poll::Ready(Some(Err(self.fail("the replica broke off"))));
                }
                Poll::Ready(Ok(_)) => self.ticker.moved(),
                Poll::Pending if self.ticker.poll_still(self.silence_max, cx) => {
                    return Poll::Ready(Some(Err(self.fail("the replica fell silent"))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            AnswerBody::Own(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            AnswerBody::Passing(slot) => {
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(passing) = slot.as_mut() else {
                    let error = io::Error::other("the client took nothing for too long");
                    return Poll::Ready(Some(Err(error)));
                };
                let polled = passing.poll(cx);
                passing.offered = polled.is_ready().then(Instant::now);
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Own(bytes) => bytes.is_none(),
            AnswerBody::Passing(slot) => {
                let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                slot.as_ref().is_some_and(|passing| {
                    passing.lease.is_none()
                        && passing.framing.is_done()
                        && passing.framing.trailers().is_empty()
                })
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            AnswerBody::Passing(slot) => {
                let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                match slot.as_ref().map(|passing| &passing.framing) {
                    Some(Framing::Length(left)) => SizeHint::with_exact(*left),
                    _ => SizeHint::default(),
                }
            }
        }
    }
}
