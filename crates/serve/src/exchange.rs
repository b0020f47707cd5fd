//! One request and its answer between a client and a replica over HTTP/1.1, byte by byte, both ways at
//! once, with a bounded buffer in each direction.
//!
//! ```text
//!  client ──► inbuf ──► (body, kept for another try) ──► replica
//!  client ◄── head, then up_buf as it is ◄────────────── replica
//! ```

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::config::{PACE, ServerLimits, Timeouts};
use crate::fault::Fault;
use crate::http::{BadHead, Buffer, Framing, Io, RequestHead, ResponseHead};
use crate::pipe::Pipe;
use crate::visit::Visit;

/// Of memory that a connection keeps from one request to the next.
const KEPT: usize = 16 << 10;

/// How the answer's body is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passing {
    AsItIs,
    /// It ends with the connection; the client learns by a last chunk that it is whole.
    IntoChunks,
    /// The client does not know chunks.
    OutOfChunks,
}

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

    /// All that was sent of the request can be sent again.
    pub fn can_repeat(&self) -> bool {
        !self.streamed
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
            if self.all_sent {
                return client.poll_gone(self.limits.buffer, cx);
            }
        }
        Ok(())
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

    /// Passes an interim answer on.
    pub async fn interim(&mut self, client: &mut Client) -> Result<(), Fault> {
        self.down.clear();
        self.down_at = 0;
        self.answer.write_client(&mut self.down, &[]);
        self.flush(client).await
    }

    /// Bytes of the router's own, before anything else.
    pub async fn say(&mut self, client: &mut Client, bytes: &[u8]) -> Result<(), Fault> {
        self.down.clear();
        self.down.extend_from_slice(bytes);
        (self.down_at, self.ready) = (0, 0);
        self.flush(client).await
    }

    async fn flush(&mut self, client: &mut Client) -> Result<(), Fault> {
        client.ticker.restart();
        poll_fn(|cx| match self.poll_down(client, cx) {
            Poll::Pending if client.ticker.poll_still(self.timeouts.body, cx) => {
                Poll::Ready(Err(Fault::Slow))
            }
            other => other,
        })
        .await
    }

    /// Gets ready to pass the answer on to a client of this version. True: the client will know by itself
    /// where the answer ends.
    pub fn begin_answer(&mut self, head: &RequestHead, keep_alive: bool) -> bool {
        self.framing = self.answer.framing(head.method());
        let (passing, extra) = match (&self.framing, head.minor) {
            (Framing::Chunked(_), 1) => (Passing::AsItIs, "Transfer-Encoding: chunked\r\n"),
            (Framing::Chunked(_), _) => (Passing::OutOfChunks, ""),
            (Framing::UntilClose, 1) => (Passing::IntoChunks, "Transfer-Encoding: chunked\r\n"),
            _ => (Passing::AsItIs, ""),
        };
        self.passing = passing;
        let delimited = head.minor == 1 || matches!(self.framing, Framing::Length(_));
        let connection = match keep_alive && delimited {
            false => "Connection: close\r\n",
            true if head.minor == 0 => "Connection: keep-alive\r\n",
            true => "",
        };
        self.down.clear();
        self.down_at = 0;
        // HEAD is told what GET would have said.
        let head_of_chunked = head.method() == "HEAD" && self.answer.is_chunked();
        let extra = if head_of_chunked { "Transfer-Encoding: chunked\r\n" } else { extra };
        self.answer.write_client(&mut self.down, &[extra, connection]);
        delimited
    }

    /// Gets ready to say that the protocol is switched.
    pub fn begin_upgrade(&mut self) {
        self.down.clear();
        (self.down_at, self.ready) = (0, 0);
        self.answer.write_client(&mut self.down, &["Connection: Upgrade\r\n"]);
    }

    /// Passes the body on. True: the replica's connection can be used again.
    pub async fn relay(
        &mut self,
        client: &mut Client,
        up: &mut TcpStream,
        visit: &mut Visit,
    ) -> Result<bool, Fault> {
        client.ticker.restart();
        self.digest(visit)?;
        let mut ended = self.framing.is_done();
        poll_fn(|cx| {
            let blocked = loop {
                if self.poll_down(client, cx)?.is_pending() {
                    break true;
                }
                if ended {
                    return Poll::Ready(Ok(()));
                }
                match self.up_buf.poll_fill(up, self.limits.buffer, cx) {
                    Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => {
                        ended = true;
                        if self.passing == Passing::IntoChunks {
                            self.down.extend_from_slice(b"0\r\n\r\n");
                        }
                    }
                    Poll::Ready(Ok(0) | Err(_)) => {
                        return Poll::Ready(Err(Fault::Broken { before_answer: false }));
                    }
                    Poll::Ready(Ok(_)) => {
                        client.ticker.moved();
                        self.digest(visit)?;
                        ended = self.framing.is_done();
                    }
                    Poll::Pending => break false,
                }
            };
            self.poll_client(client, up, cx)?;
            let waits = blocked || self.waits_for_client(client);
            let (limit, fault) = match waits {
                true => (self.timeouts.body, Fault::Slow),
                false => (self.timeouts.answer, Fault::Silent),
            };
            match client.ticker.poll_still(limit, cx) {
                true => Poll::Ready(Err(fault)),
                false => Poll::Pending,
            }
        })
        .await?;
        let clean = self.up_buf.is_empty() && self.framing.is_done() && self.all_sent;
        Ok(clean && self.answer.keep_alive())
    }

    /// Looks through what came from the replica.
    fn digest(&mut self, visit: &mut Visit) -> Result<(), Fault> {
        if self.up_buf.is_empty() || self.framing.is_done() {
            return Ok(());
        }
        let mut tokens = 0;
        let bytes = self.up_buf.bytes();
        if self.passing == Passing::IntoChunks {
            self.down.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        }
        let (passing, down) = (self.passing, &mut self.down);
        let n = self.framing.advance(bytes, |data| {
            tokens += visit.body(data);
            if passing != Passing::AsItIs {
                down.extend_from_slice(data);
            }
        });
        let n = n.map_err(Fault::BadAnswerBody)?;
        visit.came(tokens);
        match self.passing {
            Passing::AsItIs => self.ready = n,
            Passing::IntoChunks => {
                self.down.extend_from_slice(b"\r\n");
                self.up_buf.consume(n);
            }
            Passing::OutOfChunks => self.up_buf.consume(n),
        }
        Ok(())
    }

    /// Writes to the client what is meant for it.
    fn poll_down(&mut self, client: &mut Client, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let mut wrote = false;
        while self.down_at < self.down.len() || self.ready > 0 {
            let (own, body) = (&self.down[self.down_at..], &self.up_buf.bytes()[..self.ready]);
            let first = own.len();
            match ready!(poll_write_two(&mut client.io, own, body, cx)) {
                Err(_) | Ok(0) => return Poll::Ready(Err(Fault::Gone)),
                Ok(n) => {
                    client.ticker.moved();
                    wrote = true;
                    self.down_at += n.min(first);
                    let of_body = n.saturating_sub(first);
                    self.ready -= of_body;
                    self.up_buf.consume(of_body);
                }
            }
        }
        if self.down_at > 0 {
            self.down.clear();
            self.down_at = 0;
        }
        if wrote || !matches!(client.io, Io::Plain(_)) {
            ready!(Pin::new(&mut client.io).poll_flush(cx)).map_err(|_| Fault::Gone)?;
        }
        Poll::Ready(Ok(()))
    }

    /// After a 101: whatever comes goes through, both ways.
    pub async fn tunnel(&mut self, client: &mut Client, up: &mut TcpStream) -> Result<(), Fault> {
        self.flush(client).await?;
        let (mut there, mut back) = (Pipe::default(), Pipe::default());
        let Client { io, inbuf, ticker } = client;
        let limit = self.limits.buffer;
        ticker.restart();
        poll_fn(|cx| {
            let a = there.poll(io, inbuf, up, limit, ticker, cx)?;
            let b = back.poll(up, &mut self.up_buf, io, limit, ticker, cx)?;
            if a.is_ready() && b.is_ready() {
                return Poll::Ready(Ok(()));
            }
            match ticker.poll_still(self.timeouts.tunnel, cx) {
                true => Poll::Ready(Err(Fault::Silent)),
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
