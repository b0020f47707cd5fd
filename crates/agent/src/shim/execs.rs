//! Programs that somebody runs inside the part (`tutti exec`): same user, environment, directory
//! and cgroup as the rank, output straight to whoever asked.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};
use tutti_model::{ExitStatus, Rank};
use tutti_wire::stream::{LogStream, RequestId};

use super::feed::{Feed, FeedError};
use super::link::Link;
use super::ranks::{nonblocking, pipe, program, read_some, setting, waiting};
use super::{Pipe, Place, Token};
use crate::messages::FromShim;
use crate::plan::Plan;
use crate::spawn::{Stdio, spawn};

const READ_SIZE: usize = 32 << 10;

struct Exec {
    request: RequestId,
    pid: i32,
    stdout: Option<File>,
    stderr: Option<File>,
    stdin: Option<Feed>,
}

#[derive(Default)]
pub struct Execs {
    all: Vec<Exec>,
}

impl Execs {
    pub fn start(
        &mut self,
        plan: &Plan,
        request: RequestId,
        rank: Rank,
        argv: &[String],
        place: &Place,
        link: &mut Link,
    ) {
        let here = plan.first_rank.0..plan.first_rank.0 + plan.ranks;
        let started = if here.contains(&rank.0) {
            start(plan, request, rank, argv, place).map_err(|e| e.to_string())
        } else {
            Err(format!("rank {rank} does not run here"))
        };
        match started {
            Ok(exec) => self.all.push(exec),
            Err(reason) => link.say(&FromShim::ExecFailed { request, reason }),
        }
    }

    pub fn poll<'a>(&'a self, fds: &mut Vec<PollFd<'a>>, tokens: &mut Vec<Token>) {
        for (slot, e) in self.all.iter().enumerate() {
            let mut add = |fd, pipe, flags| {
                fds.push(PollFd::new(fd, flags));
                tokens.push(Token::Exec { slot, pipe });
            };
            if let Some(f) = &e.stdout {
                add(f.as_fd(), Pipe::Stdout, PollFlags::POLLIN);
            }
            if let Some(f) = &e.stderr {
                add(f.as_fd(), Pipe::Stderr, PollFlags::POLLIN);
            }
            if let Some(feed) = e.stdin.as_ref().filter(|f| f.wants_write()) {
                add(feed.fd(), Pipe::Stdin, PollFlags::POLLOUT);
            }
        }
    }

    pub fn ready(&mut self, slot: usize, pipe: Pipe, link: &mut Link) {
        let exec = &mut self.all[slot];
        match pipe {
            Pipe::Stdin => exec.feed(),
            Pipe::Stdout | Pipe::Stderr => {
                exec.read(pipe, link);
            }
        }
    }

    pub fn input(&mut self, request: RequestId, data: &[u8], eof: bool, link: &mut Link) {
        let Some(exec) = self.all.iter_mut().find(|e| e.request == request) else { return };
        if let Some(feed) = &mut exec.stdin {
            match feed.push(data, eof) {
                Ok(()) => exec.feed(),
                Err(error) => {
                    let note = format!("[tutti: standard input was cut off: {error}]\n");
                    let (stream, data) = (LogStream::Err, note.into_bytes());
                    link.say(&FromShim::ExecData { request, stream, data });
                    if matches!(error, FeedError::Io(_)) {
                        exec.stdin = None;
                    }
                }
            }
        }
    }

    pub fn kill(&mut self, request: RequestId) {
        for exec in self.all.iter().filter(|e| e.request == request) {
            exec.kill();
        }
    }

    /// Nobody waits for them any more.
    pub fn kill_all(&mut self) {
        self.all.iter().for_each(Exec::kill);
    }

    pub fn ended(&mut self, pid: i32, status: ExitStatus, link: &mut Link) {
        let Some(slot) = self.all.iter().position(|e| e.pid == pid) else { return };
        let mut exec = self.all.swap_remove(slot);
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            exec.read_waiting(pipe, link);
        }
        link.say(&FromShim::ExecExited { request: exec.request, status });
    }
}

fn start(
    plan: &Plan,
    request: RequestId,
    rank: Rank,
    argv: &[String],
    place: &Place,
) -> io::Result<Exec> {
    let program = program(plan, rank, argv).map_err(io::Error::other)?;
    let (stdout, stdout_child) = pipe()?;
    let (stderr, stderr_child) = pipe()?;
    let (stdin_child, stdin) = pipe()?;
    let stdio = Stdio {
        stdin: stdin_child.as_fd(),
        stdout: stdout_child.as_fd(),
        stderr: stderr_child.as_fd(),
    };
    let pid = spawn(&program, &setting(plan, place), &stdio)?;
    Ok(Exec {
        request,
        pid,
        stdout: Some(nonblocking(stdout)?.into()),
        stderr: Some(nonblocking(stderr)?.into()),
        stdin: Some(Feed::new(nonblocking(stdin)?)),
    })
}

impl Exec {
    /// What is in the pipe by now. Not until it is empty: a child that the program left behind may
    /// write for ever.
    fn read_waiting(&mut self, pipe: Pipe, link: &mut Link) {
        let file = if pipe == Pipe::Stdout { &self.stdout } else { &self.stderr };
        let mut left = file.as_ref().map_or(0, waiting);
        while left > 0 {
            match self.read(pipe, link) {
                0 => return,
                n => left = left.saturating_sub(n),
            }
        }
    }

    /// One read, and how much it gave; 0 when there is nothing more now.
    fn read(&mut self, pipe: Pipe, link: &mut Link) -> usize {
        let (file, stream) = match pipe {
            Pipe::Stdout => (&mut self.stdout, LogStream::Out),
            _ => (&mut self.stderr, LogStream::Err),
        };
        let Some(open) = file else { return 0 };
        let mut buf = Vec::with_capacity(READ_SIZE);
        match read_some(open, &mut buf) {
            Ok(n @ 1..) => {
                link.say(&FromShim::ExecData { request: self.request, stream, data: buf });
                n
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Ok(_) | Err(_) => {
                *file = None;
                0
            }
        }
    }

    fn feed(&mut self) {
        let Some(feed) = &mut self.stdin else { return };
        match feed.pump() {
            Ok(false) => {}
            Ok(true) | Err(_) => self.stdin = None,
        }
    }

    fn kill(&self) {
        // SAFETY: a plain system call; the group's leader is our child and not reaped yet.
        unsafe { libc::kill(-self.pid, libc::SIGKILL) };
    }
}
