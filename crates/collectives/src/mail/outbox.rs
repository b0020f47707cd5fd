//! The sending side.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, OnceLock};

use super::{Address, HEAD};
use crate::door::Kind;
use crate::error::{Error, Result, Verb, Why};
use crate::health::{Patience, Wait, lock};
use crate::pending::{Ticket, Turnstile, Worker};
use crate::sys;
use crate::world::Shared;

/// The way to one rank.
#[derive(Default)]
pub(crate) struct Way {
    turns: Turnstile,
    stream: Mutex<Option<TcpStream>>,
    worker: OnceLock<Worker>,
}

#[derive(Default)]
pub(crate) struct Outbox {
    ways: Mutex<HashMap<usize, Arc<Way>>>,
}

impl Outbox {
    pub fn way(&self, to: usize) -> Arc<Way> {
        Arc::clone(lock(&self.ways).entry(to).or_default())
    }
}

impl Way {
    /// Announces a message, so that those to the same rank keep their order.
    pub fn ticket(&self) -> Ticket {
        self.turns.ticket()
    }

    pub fn worker(&self) -> Result<&Worker> {
        if self.worker.get().is_none() {
            // Two may start at once; the second thread ends when its sender is dropped.
            let _ = self.worker.set(Worker::start("tutti-send")?);
        }
        Ok(self.worker.get().expect("just set"))
    }

    /// `to.from` is the receiver here.
    pub fn send(&self, shared: &Shared, ticket: Ticket, to: Address, data: &[u8]) -> Result<()> {
        let _turn = self.turns.enter(ticket);
        shared.health.check(Verb::Send)?;
        let mut slot = lock(&self.stream);
        let wait = Wait { group: to.group, seq: to.tag, on: to.from };
        let lost = |e: &io::Error| {
            let gone = matches!(
                e.kind(),
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::UnexpectedEof
            );
            let why = if gone { Why::Died } else { Why::Broken(e.to_string()) };
            shared.health.blame(wait, Verb::Send, why)
        };
        if slot.is_none() {
            let peer = &shared.health.peers[to.from];
            let dialled = shared.door().dial(peer, 0, Kind::Mail, 0);
            let stream = dialled.map_err(|e| match e {
                Error::Io { source, .. } => lost(&source),
                e => e,
            })?;
            stream.set_nonblocking(true).map_err(|e| lost(&e))?;
            *slot = Some(stream);
        }
        let stream = slot.as_ref().expect("just set");
        let patience = || Patience::new(&shared.health, wait, Verb::Send, shared.config.op_timeout);
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&to.group.to_le_bytes());
        head[8..16].copy_from_slice(&to.tag.to_le_bytes());
        head[16..].copy_from_slice(&(data.len() as u64).to_le_bytes());
        write(stream, &head, data, patience, lost)
    }
}

fn write<'a>(
    stream: &TcpStream,
    mut head: &[u8],
    mut data: &[u8],
    patience: impl Fn() -> Patience<'a>,
    lost: impl Fn(&io::Error) -> Error,
) -> Result<()> {
    let mut waited: Option<Patience<'a>> = None;
    while !head.is_empty() || !data.is_empty() {
        match sys::send_now(stream.as_raw_fd(), head, data).map_err(|e| lost(&e))? {
            Some(n) => {
                let of_head = n.min(head.len());
                head = &head[of_head..];
                data = &data[n - of_head..];
                waited = None;
            }
            None => {
                let mut fds = [sys::pollfd(stream.as_raw_fd(), libc::POLLOUT)];
                sys::poll(&mut fds, Patience::SLICE);
                if fds[0].revents == 0 {
                    waited.get_or_insert_with(&patience).tick()?;
                }
            }
        }
    }
    Ok(())
}
