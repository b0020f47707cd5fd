//! The way back: the answer goes to the client as it comes, and what is in it is counted on the way.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use super::{Exchange, poll_write_two};
use crate::client::Client;
use crate::fault::Fault;
use crate::http::{Framing, Io, RequestHead};
use crate::pipe::Pipe;
use crate::visit::Visit;

/// How the answer's body is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    AsItIs,
    /// It ends with the connection; the client learns by a last chunk that it is whole.
    IntoChunks,
    /// The client does not know chunks.
    OutOfChunks,
}

impl Exchange {
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
        self.early = !self.all_sent;
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
        let clean = self.up_buf.is_empty() && self.framing.is_done() && !self.early;
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
