//! One request and its answer between a client and a replica over HTTP/1.1, byte by byte, both ways at
//! once, with a bounded buffer in each direction.
//!
//! ```text
//!  client ──► inbuf ──► (body, kept for another try) ──► replica
//!  client ◄── head, then up_buf as it is ◄────────────── replica
//! ```

mod answer;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use self::answer::Passing;
use crate::client::Client;
use crate::config::{PACE, ServerLimits, Timeouts};
use crate::fault::Fault;
use crate::http::{BadHead, Buffer, Framing, RequestHead, ResponseHead};
use crate::retry::Sent;

/// Of memory that a connection keeps from one request to the next.
const KEPT: usize = 16 << 10;

/// Kept by a connection from one request to the next, for its buffers.
pub struct Exchange {
    limits: ServerLimits,
    timeouts: Timeouts,
    /// The request as the replica gets it: its head, and what was read of its body.
    pub up_head: Vec<u8>,
    pub body: Vec<u8>,
    sent: usize,
    /// What is still to come of the body, and how much at the front of the client's buffer is known to
    /// belong to it.
    pub rest: Framing,
    live: usize,
    taken: u64,
    /// Some of the body was passed on and not kept.
    streamed: bool,
    all_sent: bool,
    /// The answer came before that: the replica may never read the rest.
    early: bool,
    /// The replica takes nothing more. It may have answered already.
    refused: bool,
    pub answer: ResponseHead,
    up_buf: Buffer,
    framing: Framing,
    passing: Passing,
    /// To be written before what lies in `up_buf`, and how much of it was.
    down: Vec<u8>,
    down_at: usize,
    /// Bytes at the front of `up_buf` that belong to the body.
    ready: usize,
}

impl Exchange {
    pub fn new(limits: ServerLimits, timeouts: Timeouts) -> Exchange {
        Exchange {
            limits,
            timeouts,
            up_head: Vec::new(),
            body: Vec::new(),
            sent: 0,
            rest: Framing::EMPTY,
            live: 0,
            taken: 0,
            streamed: false,
            all_sent: false,
            early: false,
            refused: false,
            answer: ResponseHead::default(),
            up_buf: Buffer::default(),
            framing: Framing::EMPTY,
            passing: Passing::AsItIs,
            down: Vec::new(),
            down_at: 0,
            ready: 0,
        }
    }

    /// A new request.
    pub fn begin(&mut self, head: &RequestHead) {
        self.up_head.clear();
        self.body.clear();
        self.rest = head.framing();
        (self.live, self.taken, self.streamed) = (0, 0, false);
        self.up_buf.clear();
    }

    /// Nothing is under way: gives back what a large request took.
    pub fn rest(&mut self) {
        self.body.clear();
        self.body.shrink_to(KEPT);
        self.down.shrink_to(KEPT);
        self.up_head.shrink_to(KEPT);
        self.up_buf.clear();
        self.up_buf.rest();
    }

    /// An answer is passed on, so nothing is sent twice any more. True: the body is no longer kept.
    pub fn let_go(&mut self) -> bool {
        if self.all_sent && self.body.capacity() > KEPT {
            self.body = Vec::new();
        }
        self.all_sent
    }

    /// The request goes to a replica, perhaps to another one than before.
    pub fn begin_try(&mut self) {
        (self.sent, self.all_sent, self.refused) = (0, false, false);
        self.up_buf.clear();
        self.down.clear();
        (self.down_at, self.ready) = (0, 0);
    }

    /// Throws away what is known to belong to the body and will not be sent: else it would be read as the
    /// next request. True: nothing more of the body is to come.
    pub fn body_is_over(&mut self, client: &mut Client) -> bool {
        client.inbuf.consume(std::mem::take(&mut self.live));
        self.rest.is_done()
    }

    /// All that was sent of the request can be sent again.
    pub fn can_repeat(&self) -> bool {
        !self.streamed
    }

    /// How much of the request is on its way.
    pub fn sent(&self) -> Sent {
        match self.all_sent {
            true => Sent::All,
            false if self.sent == 0 => Sent::Nothing,
            false => Sent::Some,
        }
    }

    /// Moves what is there of the body into memory; true if that is all, or as much as is kept.
    fn take_body(&mut self, client: &mut Client, most: usize) -> Result<bool, Fault> {
        let room = most.saturating_sub(self.body.len());
        let bytes = &client.inbuf.bytes()[..client.inbuf.len().min(room)];
        let n = self.rest.advance(bytes, |_| {}).map_err(Fault::BadBody)?;
        self.body.extend_from_slice(&bytes[..n]);
        client.inbuf.consume(n);
        self.count(n)?;
        Ok(self.rest.is_done() || self.body.len() >= most)
    }

    fn count(&mut self, n: usize) -> Result<(), Fault> {
        self.taken += n as u64;
        match self.limits.body {
            Some(most) if self.taken > most => Err(Fault::TooLarge),
            _ => Ok(()),
        }
    }

    /// Reads the body, or its first `most` bytes, before anybody gets it.
    pub async fn gather(&mut self, client: &mut Client, most: usize) -> Result<(), Fault> {
        if self.take_body(client, most)? {
            return Ok(());
        }
        client.ticker.restart();
        let mut came = 0;
        poll_fn(|cx| {
            loop {
                match client.inbuf.poll_fill(&mut client.io, self.limits.buffer, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(Fault::Gone)),
                    Poll::Ready(Ok(n)) => came += n,
                    Poll::Pending => break,
                }
                if came >= PACE {
                    came = 0;
                    client.ticker.moved();
                }
                if self.take_body(client, most)? {
                    return Poll::Ready(Ok(()));
                }
            }
            match client.ticker.poll_still(self.timeouts.body, cx) {
                true => Poll::Ready(Err(Fault::Slow)),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// What was read of the body, without marks between chunks.
    pub fn plain_body(&self, head: &RequestHead) -> std::borrow::Cow<'_, [u8]> {
        let mut framing = head.framing();
        if !matches!(framing, Framing::Chunked(_)) {
            return (&self.body[..]).into();
        }
        let mut plain = Vec::with_capacity(self.body.len());
        // It was read with the same rules before.
        let _ = framing.advance(&self.body, |data| plain.extend_from_slice(data));
        plain.into()
    }

    /// Sends what there is of the request. Ready when all of it is on its way.
    fn poll_send(
        &mut self,
        client: &mut Client,
        up: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>> {
        while !self.all_sent && !self.refused {
            let kept = self.up_head.len() + self.body.len();
            if self.sent < kept || self.live > 0 {
                let written = if self.sent < kept {
                    let head = &self.up_head[self.sent.min(self.up_head.len())..];
                    let body = &self.body[self.sent.saturating_sub(self.up_head.len())..];
                    ready!(poll_write_two(up, head, body, cx))
                } else {
                    ready!(Pin::new(&mut *up).poll_write(cx, &client.inbuf.bytes()[..self.live]))
                };
                client.ticker.moved();
                match written {
                    // It may have answered before it left; that is found out by reading.
                    Err(_) | Ok(0) => self.refused = true,
                    Ok(n) if self.sent < kept => self.sent += n,
                    Ok(n) => {
                        client.inbuf.consume(n);
                        self.live -= n;
                        self.streamed = true;
                    }
                }
            } else if self.rest.is_done() {
                self.all_sent = true;
            } else if client.inbuf.is_empty() {
                match ready!(client.inbuf.poll_fill(&mut client.io, self.limits.buffer, cx)) {
                    Ok(0) | Err(_) => return Poll::Ready(Err(Fault::Gone)),
                    Ok(_) => client.ticker.moved(),
                }
            } else {
                let advanced = self.rest.advance(client.inbuf.bytes(), |_| {});
                self.live = advanced.map_err(Fault::BadBody)?;
                self.count(self.live)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The client is waited for, not the replica.
    fn waits_for_client(&self, client: &Client) -> bool {
        let kept = self.up_head.len() + self.body.len();
        !self.all_sent && !self.refused && self.sent >= kept && client.inbuf.is_empty()
    }

    /// Sends, and notices when the client leaves.
    fn poll_client(
        &mut self,
        client: &mut Client,
        up: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        if let Poll::Ready(result) = self.poll_send(client, up, cx) {
            result?;
        }
        // Also while the replica takes nothing, for as long as that may last.
        match self.waits_for_client(client) {
            true => Ok(()),
            false => client.poll_gone(self.limits.buffer, cx),
        }
    }

    /// Waits for the head of an answer, in `self.answer` afterwards.
    pub async fn head(&mut self, client: &mut Client, up: &mut TcpStream) -> Result<(), Fault> {
        client.ticker.restart();
        poll_fn(|cx| {
            self.poll_client(client, up, cx)?;
            loop {
                if !self.up_buf.is_empty() {
                    if let Some(len) =
                        self.answer.read(self.up_buf.bytes()).map_err(Fault::BadAnswer)?
                    {
                        self.up_buf.consume(len);
                        return Poll::Ready(Ok(()));
                    }
                    if !self.up_buf.has_room(self.limits.head) {
                        return Poll::Ready(Err(Fault::BadAnswer(BadHead::TooMany)));
                    }
                }
                let before_answer = self.up_buf.is_empty();
                match self.up_buf.poll_fill(up, self.limits.head, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => {
                        return Poll::Ready(Err(Fault::Broken { before_answer }));
                    }
                    Poll::Ready(Ok(_)) => client.ticker.moved(),
                    Poll::Pending => break,
                }
            }
            let (limit, fault) = match self.waits_for_client(client) {
                true => (self.timeouts.body, Fault::Slow),
                false => (self.timeouts.answer, Fault::Silent),
            };
            match client.ticker.poll_still(limit, cx) {
                true => Poll::Ready(Err(fault)),
                false => Poll::Pending,
            }
        })
        .await
    }
}

fn poll_write_two<W: AsyncWrite + Unpin>(
    to: &mut W,
    first: &[u8],
    second: &[u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match (first.is_empty(), second.is_empty()) {
        (false, true) => Pin::new(to).poll_write(cx, first),
        (true, _) => Pin::new(to).poll_write(cx, second),
        _ => {
            let both = [IoSlice::new(first), IoSlice::new(second)];
            Pin::new(to).poll_write_vectored(cx, &both)
        }
    }
}
