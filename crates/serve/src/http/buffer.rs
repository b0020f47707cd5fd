//! Bytes that were read and not yet used.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// What a connection starts with. Idle ones stay at that.
const SMALL: usize = 4 << 10;

/// A byte buffer with a read end and a write end, that grows up to a limit and never beyond.
#[derive(Default)]
pub struct Buffer {
    data: Vec<u8>,
    start: usize,
    end: usize,
    /// The last read filled it to the end: more at a time would do.
    short: bool,
}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub fn consume(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end, "more was used than there is");
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Gives memory back that a large head or a fast stream needed.
    pub fn rest(&mut self) {
        if self.is_empty() && self.data.len() > 4 * SMALL {
            self.data = Vec::new();
        }
    }

    /// Room for more, up to `limit` bytes in all. False: there is none.
    fn make_room(&mut self, limit: usize) -> bool {
        let grows = self.short && self.is_empty() && self.data.len() < limit;
        if self.end < self.data.len() && !grows {
            return self.len() < limit;
        }
        if self.start > 0 {
            self.data.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            return self.len() < limit;
        }
        if self.data.len() >= limit {
            return false;
        }
        let larger = (2 * self.data.len()).clamp(SMALL.min(limit), limit);
        self.data.resize(larger, 0);
        true
    }

    pub fn has_room(&self, limit: usize) -> bool {
        self.len() < limit
    }

    /// Reads once. `Ok(0)` is the end of the stream; there must be room.
    pub fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if !self.make_room(limit) {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let mut room = ReadBuf::new(&mut self.data[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        let n = room.filled().len();
        self.end += n;
        self.short = self.end == self.data.len();
        Poll::Ready(Ok(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn fill(buffer: &mut Buffer, mut from: &[u8], limit: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| buffer.poll_fill(&mut from, limit, cx)).await
    }

    #[tokio::test]
    async fn it_grows_to_the_limit_and_no_further() {
        let bytes: Vec<u8> = (0..20_000).map(|n| n as u8).collect();
        let mut buffer = Buffer::default();
        let mut have = 0;
        while buffer.has_room(10_000) {
            have += fill(&mut buffer, &bytes[have..], 10_000).await.unwrap();
        }
        assert_eq!(buffer.bytes(), &bytes[..10_000]);
        assert!(fill(&mut buffer, &bytes, 10_000).await.is_err());
        buffer.consume(9_000);
        assert_eq!(fill(&mut buffer, &bytes[10_000..], 10_000).await.unwrap(), 9_000);
        assert_eq!(buffer.bytes(), &bytes[9_000..19_000]);
    }

    #[tokio::test]
    async fn reads_become_larger_while_they_fill_it() {
        let bytes = vec![7; 100_000];
        let mut buffer = Buffer::default();
        let mut sizes = Vec::new();
        for from in [&bytes[..], &bytes, &bytes, &bytes[..100], &bytes, &bytes] {
            sizes.push(fill(&mut buffer, from, 10_000).await.unwrap());
            buffer.consume(buffer.len());
        }
        assert_eq!(sizes, [4096, 8192, 10_000, 100, 10_000, 10_000]);
    }
}
