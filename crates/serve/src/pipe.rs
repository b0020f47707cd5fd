//! One direction of a tunnel.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::fault::Fault;
use crate::http::{Buffer, Ticker};

/// Passes on what comes, and then that nothing more comes.
#[derive(Default)]
pub struct Pipe {
    ended: bool,
    closed: bool,
}

impl Pipe {
    pub fn poll<R, W>(
        &mut self,
        from: &mut R,
        buffer: &mut Buffer,
        to: &mut W,
        limit: usize,
        ticker: &mut Ticker,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Fault>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            while !buffer.is_empty() {
                match ready!(Pin::new(&mut *to).poll_write(cx, buffer.bytes())) {
                    Ok(n) if n > 0 => buffer.consume(n),
                    _ => return Poll::Ready(Err(Fault::Gone)),
                }
                ticker.moved();
            }
            ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(|_| Fault::Gone)?;
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(|_| Fault::Gone)?;
                self.closed = true;
                return Poll::Ready(Ok(()));
            }
            match ready!(buffer.poll_fill(from, limit, cx)) {
                Ok(0) => self.ended = true,
                Ok(_) => ticker.moved(),
                Err(_) => return Poll::Ready(Err(Fault::Gone)),
            }
        }
    }
}
