//! The body of an answer on its way to an HTTP/2 client.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::task::JoinHandle;

use super::UnderWay;
use super::taken::Taken;
use crate::desk::Lease;
use crate::fault::Fault;
use crate::http::{Buffer, Framing, Ticker};
use crate::logic::Outcome;
use crate::shared::{Count, Worker};
use crate::visit::Visit;

/// A replica's connection.
pub enum Up {
    /// The request is sent.
    Whole(TcpStream),
    /// The rest of its body is still being sent.
    Uploading { read: OwnedReadHalf, upload: Upload },
}

/// Stops when nobody wants the answer any more.
pub struct Upload {
    pub task: JoinHandle<()>,
    /// Why it ended early.
    pub fault: Arc<OnceLock<Fault>>,
}

impl Upload {
    /// If the client is to blame for what goes wrong: what it did.
    pub fn clients_fault(&self) -> Option<&Fault> {
        self.fault.get().filter(|fault| fault.is_clients())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncRead for Up {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Up::Whole(stream) => Pin::new(stream).poll_read(cx, buf),
            Up::Uploading { read, .. } => Pin::new(read).poll_read(cx, buf),
        }
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
    pub taken: Arc<Taken>,
    pub _counted: (Count, UnderWay),
}

pub enum AnswerBody {
    Own(Option<Bytes>),
    Passing(Box<Passing>),
}

impl Passing {
    /// The answer is whole: the replica is free, and the books are closed.
    pub fn finish(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let now = Instant::now();
        self.visit.answered();
        let clean = self.reusable && self.buffer.is_empty() && self.framing.is_done();
        if let Some(Up::Whole(stream)) = self.up.take().filter(|_| clean) {
            self.worker.pool.put(lease.choice.listing, self.visit.who(), stream, now);
        }
        lease.finish(if self.status >= 500 { Outcome::Failed } else { Outcome::Ok }, now);
    }

    fn fail(&mut self, why: &'static str) -> io::Error {
        let lease = self.lease.take();
        let clients = match self.up.take() {
            Some(Up::Uploading { upload, .. }) => upload.clients_fault().is_some(),
            _ => false,
        };
        if !clients {
            self.visit.failed();
            if let Some(lease) = lease {
                lease.finish(Outcome::Failed, Instant::now());
            }
        }
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
            match self.buffer.poll_fill(up, self.buffer_max, cx) {
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
            AnswerBody::Passing(passing) => {
                passing.taken.asked();
                let polled = passing.poll(cx);
                if polled.is_ready() {
                    passing.taken.handed();
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Own(bytes) => bytes.is_none(),
            AnswerBody::Passing(passing) => {
                passing.lease.is_none()
                    && passing.framing.is_done()
                    && passing.framing.trailers().is_empty()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64))
            }
            AnswerBody::Passing(passing) => match passing.framing {
                Framing::Length(left) => SizeHint::with_exact(left),
                _ => SizeHint::default(),
            },
        }
    }
}
