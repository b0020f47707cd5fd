//! A client's end of a connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite;

use crate::fault::Fault;
use crate::http::{Buffer, Io, Ticker};

/// A client's end.
pub struct Client {
    pub io: Io,
    pub inbuf: Buffer,
    pub ticker: Ticker,
}

impl Client {
    /// An error if the client has left. What it sends meanwhile is kept, up to a limit.
    pub fn poll_gone(&mut self, limit: usize, cx: &mut Context<'_>) -> Result<(), Fault> {
        while self.inbuf.has_room(limit) {
            match self.inbuf.poll_fill(&mut self.io, limit, cx) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(Fault::Gone),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Does something else meanwhile, and stops that if the client leaves.
    pub async fn unless_gone<F: Future>(
        &mut self,
        limit: usize,
        other: F,
    ) -> Result<F::Output, Fault> {
        let mut other = std::pin::pin!(other);
        poll_fn(|cx| {
            if let Poll::Ready(output) = other.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            self.poll_gone(limit, cx)?;
            Poll::Pending
        })
        .await
    }

    /// Closes so that nothing more reaches the client, and nothing is kept for it.
    pub fn abort(&self) {
        let _ = socket2::SockRef::from(self.io.tcp()).set_linger(Some(Duration::ZERO));
    }

    /// Closes so that the client gets what was written: what it still sends is read and thrown away for
    /// a moment, since the system would cut the connection off otherwise.
    pub async fn close(&mut self, patience: Duration) {
        self.inbuf = Buffer::default();
        let closing = async {
            poll_fn(|cx| Pin::new(&mut self.io).poll_shutdown(cx)).await?;
            let mut left = 1usize << 20;
            loop {
                self.inbuf.clear();
                let n = poll_fn(|cx| self.inbuf.poll_fill(&mut self.io, 16 << 10, cx)).await?;
                left = left.saturating_sub(n);
                if n == 0 || left == 0 {
                    return io::Result::Ok(());
                }
            }
        };
        let _ = tokio::time::timeout(patience, closing).await;
    }
}
