//! Sends a request's head and its body with one write. The HTTP client under us makes two, and the
//! controller then wakes twice for every submission.

use std::fmt;

use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

use super::limits::Watcher;

/// Announces a body that is at hand. One that is streamed has no length, and its head is not kept
/// back: nobody knows when the first byte of the body comes.
const LENGTH: &[u8] = b"\r\ncontent-length: ";

#[derive(Debug)]
pub(super) struct OneWrite {
    pub watcher: Watcher,
}

impl<In: Transport> Connector<In> for OneWrite {
    type Out = Joined<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let watcher = self.watcher.clone();
        Ok(chained.map(|inner| Joined { inner, kept: Vec::new(), at_head: true, watcher }))
    }
}

pub(super) struct Joined<T> {
    inner: T,
    kept: Vec<u8>,
    /// Nothing was sent since the last answer, so what comes now is a head.
    at_head: bool,
    watcher: Watcher,
}

impl<T: Transport> Joined<T> {
    fn flush(&mut self, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let kept = std::mem::take(&mut self.kept);
        let room = self.inner.buffers().output().len().max(1);
        for piece in kept.chunks(room) {
            self.inner.buffers().output()[..piece.len()].copy_from_slice(piece);
            self.inner.transmit_output(piece.len(), timeout)?;
        }
        Ok(())
    }
}

impl<T: Transport> Transport for Joined<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let at_head = std::mem::replace(&mut self.at_head, false);
        let output = &self.inner.buffers().output()[..amount];
        let is_kept = at_head && output.windows(LENGTH.len()).any(|w| w == LENGTH);
        if !is_kept && self.kept.is_empty() {
            return self.inner.transmit_output(amount, timeout);
        }
        self.kept.extend_from_slice(output);
        if is_kept { Ok(()) } else { self.flush(timeout) }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.flush(timeout)?;
        self.at_head = true;
        self.watcher.await_input(&mut self.inner, timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

impl<T: Transport> fmt::Debug for Joined<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Joined").field(&self.inner).finish()
    }
}
