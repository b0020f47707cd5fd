//! One control connection: whole messages in, whole messages out, never blocking.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

use super::message::Message;
use crate::error::{Error, Result};
use crate::health::Wait;
use crate::sys;
use crate::wire::Writer;

/// No message comes near this; more is not one of ours.
const MESSAGE_MAX: usize = 1 << 20;

pub(super) struct Conn {
    pub stream: TcpStream,
    pub rank: usize,
    pub heard: Instant,
    pub waits: Vec<Wait>,
    pub open: bool,
    buffer: Vec<u8>,
}

impl Conn {
    pub fn new(stream: TcpStream, rank: usize) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|e| Error::io("set up a control connection", e))?;
        let heard = Instant::now();
        Ok(Self { stream, rank, heard, waits: Vec::new(), open: true, buffer: Vec::new() })
    }

    /// Everything that has arrived. Clears `open` at the end of the stream.
    pub fn receive(&mut self) -> Vec<Message> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.open = false,
                Ok(n) => {
                    self.buffer.extend(&chunk[..n]);
                    self.heard = Instant::now();
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => self.open = false,
            }
            return self.messages();
        }
    }

    fn messages(&mut self) -> Vec<Message> {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(head) = self.buffer.get(at..at + 4) {
            let len = u32::from_le_bytes(head.try_into().expect("4 bytes")) as usize;
            if len > MESSAGE_MAX {
                self.open = false;
                break;
            }
            let Some(body) = self.buffer.get(at + 4..at + 4 + len) else { break };
            match Message::decode(body) {
                Some(message) => found.push(message),
                None => self.open = false,
            }
            at += 4 + len;
        }
        self.buffer.drain(..at);
        found
    }

    /// Sends, unless the other side has not read for so long that its buffer is full: it will be
    /// found silent then.
    pub fn send(&mut self, message: &Message) {
        if !self.open {
            return;
        }
        let framed = Writer::default().bytes(&message.encode()).0;
        match sys::send_now(self.stream.as_raw_fd(), &[], &framed) {
            Ok(Some(n)) if n == framed.len() => {}
            Ok(None) => {}
            // Half a message, or none ever again.
            Ok(Some(_)) | Err(_) => self.open = false,
        }
    }
}
