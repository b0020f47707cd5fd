//! A link carries the bytes of collective operations between two members of a group, in order.

pub(crate) mod tcp;

use std::io;

use crate::kernel::Reducer;
use crate::span::Span;

/// Bytes in front of the first message of an operation, to see that both sides are in the same one.
pub(crate) const HEAD: usize = 24;

/// One message on its way, in one direction.
pub(crate) struct Transfer {
    pub span: Span,
    /// Fold what comes into the span instead of overwriting it.
    pub reduce: Option<Reducer>,
    pub head: [u8; HEAD],
    /// Bytes of the head that are done; `HEAD` when there is none.
    pub head_done: usize,
    /// Bytes done per stream.
    pub done: [usize; tcp::STREAMS_MAX],
}

impl Transfer {
    pub fn new(span: Span, reduce: Option<Reducer>, head: Option<[u8; HEAD]>) -> Self {
        Self {
            span,
            reduce,
            head: head.unwrap_or_default(),
            head_done: if head.is_some() { 0 } else { HEAD },
            done: [0; tcp::STREAMS_MAX],
        }
    }
}

/// What one attempt to move bytes came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Moved,
    Finished,
}

pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the other side")
}
