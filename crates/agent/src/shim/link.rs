//! The shim's connection to the agent, which may go away and come back at any time.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
use tutti_model::{LeaseId, LimitReport, RankExit};

use super::{Token, wait};
use crate::SOCKET;
use crate::frames::{self, Inbox};
use crate::messages::{FromShim, ToShim};
use crate::plan::Plan;

/// A part that is over sooner says hello and goodbye in one breath: one wake-up of the agent and
/// one report to the controller instead of two of each.
const FIRST_DIAL: Duration = Duration::from_millis(20);
/// How often a missing agent is looked for.
const REDIAL: Duration = Duration::from_millis(200);
const REDIAL_MAX: Duration = Duration::from_secs(1);
/// With more than this unsent, output of `exec` waits in its pipe.
const CLOGGED: usize = 256 << 10;
/// How long the last words may take; they are on disk already.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub struct Link {
    lease: LeaseId,
    stream: Option<UnixStream>,
    inbox: Inbox,
    out: Vec<u8>,
    dial_at: Instant,
    redial: Duration,
    lost: bool,
}

impl Link {
    pub fn new(plan: &Plan) -> Link {
        // A program that waits for input waits for the agent.
        let delay = if plan.stdin { Duration::ZERO } else { FIRST_DIAL };
        Link {
            lease: plan.lease,
            stream: None,
            inbox: Inbox::default(),
            out: Vec::new(),
            dial_at: Instant::now() + delay,
            redial: REDIAL,
            lost: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.stream.is_some()
    }

    pub fn is_clogged(&self) -> bool {
        self.out.len() > CLOGGED
    }

    /// Whether the connection broke since the last time this was asked.
    pub fn just_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Says it if anybody listens. Everything that matters is said again after a redial.
    pub fn say(&mut self, message: &FromShim) {
        if self.is_up() {
            frames::put(&mut self.out, message);
        }
    }

    pub fn say_state(&mut self, exits: &[RankExit]) {
        self.say(&FromShim::Exits { exits: exits.to_vec() });
    }

    pub fn poll<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, tokens: &mut Vec<Token>) {
        if let Some(stream) = &self.stream {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, !self.out.is_empty());
            fds.push(PollFd::new(stream.as_fd(), flags));
            tokens.push(Token::Link);
        }
    }

    pub fn receive(&mut self, flags: PollFlags) -> Vec<ToShim> {
        let mut messages = Vec::new();
        if !flags.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            return messages;
        }
        let Some(stream) = &mut self.stream else { return messages };
        let mut buf = [0; 16 << 10];
        match stream.read(&mut buf) {
            Ok(0) => self.lose(),
            Ok(n) => self.inbox.push(&buf[..n]),
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.lose(),
        }
        loop {
            match self.inbox.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => return messages,
                // An agent that speaks nonsense: start over with it.
                Err(_) => {
                    self.lose();
                    return messages;
                }
            }
        }
    }

    pub fn flush(&mut self) {
        while !self.out.is_empty() {
            let Some(stream) = &mut self.stream else { return };
            match stream.write(&self.out) {
                Ok(n) => {
                    self.out.drain(..n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.lose(),
            }
        }
    }

    fn lose(&mut self) {
        self.stream = None;
        self.inbox = Inbox::default();
        self.out.clear();
        self.lost = true;
        self.dial_at = Instant::now() + REDIAL;
        self.redial = REDIAL;
    }

    pub fn next_dial(&self) -> Option<Instant> {
        self.stream.is_none().then_some(self.dial_at)
    }

    /// True if the agent was reached, and knows nothing yet but what hello says.
    pub fn dial_if_due(
        &mut self,
        now: Instant,
        exits: &[RankExit],
        limit: Option<LimitReport>,
    ) -> bool {
        if self.stream.is_none() && self.dial_at <= now {
            self.dial(exits, limit);
            return self.is_up();
        }
        false
    }

    fn dial(&mut self, exits: &[RankExit], limit: Option<LimitReport>) {
        match connect() {
            Ok(stream) => {
                self.stream = Some(stream);
                self.redial = REDIAL;
                let exits = exits.to_vec();
                let lease = self.lease;
                self.say(&FromShim::Hello { lease, exits, keeps_limits: true, limit });
            }
            Err(_) => {
                self.dial_at = Instant::now() + self.redial;
                self.redial = (self.redial * 2).min(REDIAL_MAX);
            }
        }
    }

    /// The end is on disk, so this is a courtesy to an agent that is there.
    pub fn say_last(&mut self, message: &FromShim) {
        if !self.is_up() {
            self.dial(&[], None);
        }
        self.say(message);
        let deadline = Instant::now() + LAST_WORDS;
        self.flush();
        while !self.out.is_empty() && Instant::now() < deadline {
            let Some(stream) = &self.stream else { return };
            wait(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], Some(deadline));
            self.flush();
        }
    }
}

/// Never waits: an agent that hangs must not take its ranks' supervisors with it. The shim lives
/// in the agent's data dir, so the name is enough.
fn connect() -> nix::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    nix::sys::socket::connect(fd.as_raw_fd(), &UnixAddr::new(SOCKET)?)?;
    Ok(fd.into())
}
