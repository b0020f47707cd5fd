//! Tagged messages between two ranks, beside the collective operations.
//!
//! The sender dials; each direction has its own connection. The receiver's thread always reads on,
//! into the buffer of a receive that waits for it or into memory of its own, so a send does not
//! wait for its receive and no order of sends and receives can lock two ranks up. Beyond
//! `BUFFERED_MAX` of unclaimed messages it stops until one is fetched.

mod inbox;
mod outbox;

pub(crate) use inbox::{Address, Inbox};
pub(crate) use outbox::Outbox;

/// Bytes in front of every message: group, tag, length.
const HEAD: usize = 24;
/// Unclaimed messages that a rank holds for its receives to come.
const BUFFERED_MAX: usize = 1 << 30;
