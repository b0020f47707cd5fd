//! The agent's end of the zygote's socket.

use std::io;

use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::config::AgentError;
use crate::frames::Inbox;
use crate::plan::Plan;
use crate::zygote::{ForkFailed, Zygote, request};

pub struct ZygoteLink {
    socket: UnixStream,
    inbox: Inbox,
    out: Vec<u8>,
}

impl ZygoteLink {
    pub fn new(zygote: Zygote) -> Result<ZygoteLink, AgentError> {
        let socket = zygote.into_socket();
        let setup = |source| AgentError::SetUp { what: "the zygote's socket", source };
        socket.set_nonblocking(true).map_err(setup)?;
        let socket = UnixStream::from_std(socket).map_err(setup)?;
        Ok(ZygoteLink { socket, inbox: Inbox::default(), out: Vec::new() })
    }

    /// Sent with the next flush, together with others.
    pub fn start(&mut self, plan: &Plan) {
        request(&mut self.out, plan);
    }

    /// Writes what the socket takes; the rest goes when it takes more.
    pub fn flush(&mut self) {
        while !self.out.is_empty() {
            match self.socket.try_write(&self.out) {
                Ok(n) => {
                    self.out.drain(..n);
                }
                // Also when the zygote is dead: reading tells.
                Err(_) => return,
            }
        }
    }

    /// A shim that could not be made. An error: the zygote is dead.
    pub async fn next(&mut self) -> Result<ForkFailed, AgentError> {
        loop {
            match self.inbox.next() {
                Ok(Some(failed)) => return Ok(failed),
                Ok(None) => {}
                Err(_) => return Err(AgentError::ZygoteDied),
            }
            let wanted = if self.out.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let ready = self.socket.ready(wanted).await.map_err(|_| AgentError::ZygoteDied)?;
            if ready.is_writable() {
                self.flush();
            }
            let mut buf = [0; 4096];
            match self.socket.try_read(&mut buf) {
                Ok(0) => return Err(AgentError::ZygoteDied),
                Ok(n) => self.inbox.push(&buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(AgentError::ZygoteDied),
            }
        }
    }
}
