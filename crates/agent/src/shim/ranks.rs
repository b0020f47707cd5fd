//! The ranks of a part: starting them, and what they read and write.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag};
use nix::poll::{PollFd, PollFlags};
use tutti_model::{Blame, PartError, Rank};
use tutti_wire::stream::LogStream;

use super::feed::{Feed, FeedError};
use super::link::Link;
use super::{Pipe, Place, Token, unix_ms};
use crate::logs::write::LogWriter;
use crate::messages::FromShim;
use crate::plan::Plan;
use crate::spawn::{Program, Setting, Stdio, spawn};

/// A line without its newline is shown when nothing was written for this long.
const QUIET: Duration = Duration::from_millis(100);
const READ_SIZE: usize = 64 << 10;

struct RankProcess {
    rank: Rank,
    pid: Option<i32>,
    stdout: Option<File>,
    stderr: Option<File>,
    stdin: Option<Feed>,
    log: LogWriter,
    flush_at: Option<Instant>,
    /// The agent wants to know when the log is longer than this.
    watch: Option<u64>,
}

pub struct Ranks<'a> {
    plan: &'a Plan,
    all: Vec<RankProcess>,
    /// Only its capacity is used; clearing it would cost more than most jobs write.
    buf: Vec<u8>,
}

impl<'a> Ranks<'a> {
    pub fn new(plan: &'a Plan) -> Ranks<'a> {
        Ranks {
            plan,
            all: Vec::with_capacity(plan.ranks as usize),
            buf: Vec::with_capacity(READ_SIZE),
        }
    }

    pub fn any_alive(&self) -> bool {
        self.all.iter().any(|r| r.pid.is_some())
    }

    /// Of those that live, in rank order.
    pub fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.all.iter().filter_map(|r| r.pid)
    }

    /// The rank whose process this is.
    pub fn rank_of(&self, pid: i32) -> Option<Rank> {
        self.all.iter().find(|r| r.pid == Some(pid)).map(|r| r.rank)
    }

    /// A word to the job, in the log of this rank, or of the first if it has none here.
    pub fn note(&mut self, rank: Rank, text: &str) {
        let slot = self.all.iter().position(|r| r.rank == rank).unwrap_or(0);
        if let Some(r) = self.all.get_mut(slot) {
            r.log.output(unix_ms(), LogStream::Err, format!("[tutti: {text}]\n").as_bytes());
            // Whoever follows the log hears of it.
            r.flush_at = Some(Instant::now());
        }
    }

    pub fn start(&mut self, place: &Place) -> Result<(), PartError> {
        let first = self.plan.first_rank;
        for rank in first.0..first.0 + self.plan.ranks {
            let rank = Rank(rank);
            let started = self.start_one(rank, place).map_err(|e| PartError {
                message: format!("rank {rank} can't be started: {e}"),
                blame: Blame::Node,
            })?;
            self.all.push(started);
        }
        Ok(())
    }

    fn start_one(&self, rank: Rank, place: &Place) -> io::Result<RankProcess> {
        let plan = self.plan;
        let program = program(plan, rank, &plan.argv).map_err(io::Error::other)?;
        let setting = setting(plan, place);
        let (stdout, stdout_child) = pipe()?;
        let (stderr, stderr_child) = pipe()?;
        let stdin = if plan.stdin { Some(pipe()?) } else { None };
        let null = io::stdin();
        let stdio = Stdio {
            // The zygote's own standard input is /dev/null.
            stdin: stdin.as_ref().map_or_else(|| null.as_fd(), |(read, _)| read.as_fd()),
            stdout: stdout_child.as_fd(),
            stderr: stderr_child.as_fd(),
        };
        let pid = spawn(&program, &setting, &stdio)?;
        Ok(RankProcess {
            rank,
            pid: Some(pid),
            stdout: Some(nonblocking(stdout)?.into()),
            stderr: Some(nonblocking(stderr)?.into()),
            stdin: stdin.map(|(_, write)| nonblocking(write).map(Feed::new)).transpose()?,
            log: LogWriter::new(plan.log_dir.clone(), rank, plan.log_limits),
            flush_at: None,
            watch: None,
        })
    }

    pub fn poll<'b>(&'b self, fds: &mut Vec<PollFd<'b>>, tokens: &mut Vec<Token>) {
        for (slot, r) in self.all.iter().enumerate() {
            let mut add = |fd, pipe, flags| {
                fds.push(PollFd::new(fd, flags));
                tokens.push(Token::Rank { slot, pipe });
            };
            if let Some(f) = &r.stdout {
                add(f.as_fd(), Pipe::Stdout, PollFlags::POLLIN);
            }
            if let Some(f) = &r.stderr {
                add(f.as_fd(), Pipe::Stderr, PollFlags::POLLIN);
            }
            if let Some(feed) = r.stdin.as_ref().filter(|f| f.wants_write()) {
                add(feed.fd(), Pipe::Stdin, PollFlags::POLLOUT);
            }
        }
    }

    /// One read per turn, so that a rank that never stops writing starves nobody.
    pub fn ready(&mut self, slot: usize, pipe: Pipe, link: &mut Link) {
        match pipe {
            Pipe::Stdin => self.feed(slot),
            Pipe::Stdout | Pipe::Stderr => {
                self.read(slot, pipe);
            }
        }
        self.all[slot].nudge(link);
    }

    /// One read, and how much it gave; 0 when there is nothing more now.
    fn read(&mut self, slot: usize, pipe: Pipe) -> usize {
        let r = &mut self.all[slot];
        let (file, stream) = match pipe {
            Pipe::Stdout => (&mut r.stdout, LogStream::Out),
            _ => (&mut r.stderr, LogStream::Err),
        };
        let Some(open) = file else { return 0 };
        self.buf.clear();
        match read_some(open, &mut self.buf) {
            Ok(n @ 1..) => {
                r.log.output(unix_ms(), stream, &self.buf);
                r.flush_at = r.log.has_pending().then(|| Instant::now() + QUIET);
                n
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            Ok(_) | Err(_) => {
                *file = None;
                0
            }
        }
    }

    /// What is in the pipe by now. Not until it is empty: somebody else may hold its other end and
    /// write for ever.
    fn read_waiting(&mut self, slot: usize, pipe: Pipe) {
        // Most programs leave nothing, and then this is all.
        if self.read(slot, pipe) == 0 {
            return;
        }
        let r = &self.all[slot];
        let file = if pipe == Pipe::Stdout { &r.stdout } else { &r.stderr };
        let mut left = file.as_ref().map_or(0, waiting);
        while left > 0 {
            match self.read(slot, pipe) {
                0 => return,
                n => left = left.saturating_sub(n),
            }
        }
    }

    fn feed(&mut self, slot: usize) {
        let r = &mut self.all[slot];
        let Some(feed) = &mut r.stdin else { return };
        match feed.pump() {
            Ok(false) => {}
            Ok(true) => r.stdin = None,
            Err(error) => r.lose_input(&error),
        }
    }

    pub fn input(&mut self, rank: Rank, data: &[u8], eof: bool) {
        let Some(slot) = self.all.iter().position(|r| r.rank == rank) else { return };
        let r = &mut self.all[slot];
        if let Some(feed) = &mut r.stdin {
            match feed.push(data, eof) {
                Ok(()) => self.feed(slot),
                Err(FeedError::Full) => r.say_cut(&FeedError::Full),
                Err(FeedError::Io(error)) => r.lose_input(&error),
            }
        }
    }

    /// The agent could not keep all of it; what came before is followed by the end.
    pub fn input_cut(&mut self, rank: Rank) {
        if let Some(r) = self.all.iter_mut().find(|r| r.rank == rank && r.stdin.is_some()) {
            r.say_cut(&"too much came before the part ran");
        }
        self.input(rank, &[], true);
    }

    pub fn watch(&mut self, rank: Rank, seen: u64, link: &mut Link) {
        if let Some(r) = self.all.iter_mut().find(|r| r.rank == rank) {
            // Several may follow; whoever has seen least is told first, and all ask again.
            r.watch = Some(r.watch.map_or(seen, |least| least.min(seen)));
            r.nudge(link);
        }
    }

    /// A child has ended; says which rank it was. Its last output is written before its end is
    /// told.
    pub fn ended(&mut self, pid: i32, link: &mut Link) -> Option<Rank> {
        let slot = self.all.iter().position(|r| r.pid == Some(pid))?;
        self.all[slot].pid = None;
        self.all[slot].stdin = None;
        self.read_all(slot, link);
        Some(self.all[slot].rank)
    }

    fn read_all(&mut self, slot: usize, link: &mut Link) {
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            self.read_waiting(slot, pipe);
        }
        let r = &mut self.all[slot];
        r.log.flush_pending(unix_ms());
        r.flush_at = None;
        r.nudge(link);
    }

    /// Nobody of the part is left to write: what is in the pipes is the last of it.
    pub fn drain(&mut self, link: &mut Link) {
        for slot in 0..self.all.len() {
            if self.all[slot].stdout.is_some() || self.all[slot].stderr.is_some() {
                self.read_all(slot, link);
            }
            self.all[slot].log.finish(unix_ms());
            self.all[slot].nudge(link);
        }
    }

    /// Bytes that are in no log, because the disk had no room for them.
    pub fn output_dropped(&self) -> u64 {
        self.all.iter().map(|r| r.log.dropped()).sum()
    }

    pub fn next_flush(&self) -> Option<Instant> {
        self.all.iter().filter_map(|r| r.flush_at).min()
    }

    pub fn flush_quiet(&mut self, now: Instant, link: &mut Link) {
        for r in &mut self.all {
            if r.flush_at.is_some_and(|at| at <= now) {
                r.flush_at = None;
                r.log.flush_pending(unix_ms());
                r.nudge(link);
            }
        }
    }
}

impl RankProcess {
    fn nudge(&mut self, link: &mut Link) {
        if self.watch.is_some_and(|seen| self.log.offset() > seen) {
            self.watch = None;
            link.say(&FromShim::Grew { rank: self.rank });
        }
    }

    /// Input that can't be kept is cut off, and the log says so.
    fn lose_input(&mut self, error: &io::Error) {
        self.stdin = None;
        self.say_cut(error);
    }

    fn say_cut(&mut self, why: &dyn std::fmt::Display) {
        let note = format!("[tutti: standard input was cut off: {why}]\n");
        self.log.output(unix_ms(), LogStream::Err, note.as_bytes());
    }
}

/// One read into the free capacity.
pub fn read_some(file: &File, buf: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        let room = buf.spare_capacity_mut();
        // SAFETY: the kernel writes at most `room.len()` bytes to it.
        let n = unsafe { libc::read(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
        match usize::try_from(n) {
            Ok(n) => {
                // SAFETY: so many bytes were just written.
                unsafe { buf.set_len(buf.len() + n) };
                return Ok(n);
            }
            Err(_) => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
        }
    }
}

/// How many bytes are in this pipe now.
pub fn waiting(file: &File) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: `n` is a valid place for the answer.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &mut n) };
    // It can't fail on a pipe; if it did, there would be nothing to read either.
    if result < 0 { 0 } else { usize::try_from(n).unwrap_or(0) }
}

/// A program with the environment of this rank, inside its image if it has one.
pub fn program(
    plan: &Plan,
    rank: Rank,
    argv: &[String],
) -> Result<Program, crate::spawn::ZeroByte> {
    let own = plan.by_rank.values(rank, plan.first_rank);
    let argv: Vec<String> = plan.container_of(rank).into_iter().chain(argv.to_vec()).collect();
    match plan.podman.as_ref().filter(|podman| podman.files.is_some()) {
        Some(podman) => Program::new(&argv, podman.env.iter().cloned()),
        None => Program::new(&argv, plan.env.iter().cloned().chain(own)),
    }
}

pub fn setting<'a>(plan: &'a Plan, place: &'a Place) -> Setting<'a> {
    Setting {
        workdir: &plan.workdir,
        identity: plan.identity.as_ref(),
        new_privileges: plan.new_privileges,
        cgroup: place.cgroup.as_ref(),
        namespace: place.namespace.as_ref().map(AsFd::as_fd),
    }
}

/// Reading end, writing end; neither survives an exec.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

/// Only our own end: a program that finds its standard output non-blocking is in trouble.
pub fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    nix::fcntl::fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(fd)
}
