//! `$TUTTI_PROGRESS`: the socket on which ranks say how far they are.
//!
//! Anybody's program writes here, so everything is bounded: the length of a line, the number of
//! connections and of ranks, and how much is read in a second. Who writes more has to wait; who
//! writes something else is not heard, and the log says so once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use tutti_model::{PartProgress, Rank};
use tutti_wire::stream::Warning;

use super::link::Link;
use super::ranks::Ranks;
use super::{Token, tree};
use crate::messages::FromShim;
use crate::plan::Plan;
use crate::progress::{Fold, News, place, read_line};

/// Longer than a path and all the rest of a line.
const LINE_MAX: usize = 8 << 10;
const SPEAKERS_MAX: usize = 256;
/// Bytes that are read in a second, and at once after a quiet time.
const RATE: u64 = 1 << 20;
/// What a new connection counts for.
const CONNECTION_COSTS: u64 = 512;
const READ_SIZE: usize = 16 << 10;
/// Who has used up the rate waits so long at least.
const PAUSE: Duration = Duration::from_millis(20);
/// Steps are told to the agent so often.
const SAY_EVERY: Duration = Duration::from_millis(500);
/// What is read at most when a rank has ended, and after the last one.
const CATCH_UP: u64 = 1 << 20;
const LAST_WORDS: u64 = 4 << 20;

pub struct Progress<'a> {
    plan: &'a Plan,
    listener: Option<UnixListener>,
    warnings: Option<File>,
    speakers: Vec<Speaker>,
    fold: Fold,
    budget: Budget,
    complaints: Complaints,
    /// Something is new since this was last told to the agent.
    news: News,
    /// When the agent was last told; before that, when all began.
    said_at: Instant,
}

struct Speaker {
    /// None: over, and forgotten at the next turn.
    stream: Option<UnixStream>,
    pid: i32,
    /// Found when it first says something without a rank.
    rank: Option<Rank>,
    line: Vec<u8>,
    /// In the middle of a line that is too long.
    skipping: bool,
}

/// Bytes that may be read now.
struct Budget {
    left: u64,
    at: Instant,
    pause_until: Option<Instant>,
}

impl Budget {
    fn new() -> Budget {
        Budget { left: RATE, at: Instant::now(), pause_until: None }
    }

    fn refill(&mut self, now: Instant) {
        let us = now.saturating_duration_since(self.at).as_micros();
        let earned = u64::try_from(us * u128::from(RATE) / 1_000_000).unwrap_or(RATE);
        if earned > 0 {
            (self.left, self.at) = (self.left.saturating_add(earned).min(RATE), now);
        }
        if self.pause_until.is_some_and(|until| until <= now) {
            self.pause_until = None;
        }
    }

    /// True if that was the last of it.
    fn spend(&mut self, bytes: u64) -> bool {
        self.left = self.left.saturating_sub(bytes);
        let spent = self.left == 0 && self.pause_until.is_none();
        if spent {
            self.pause_until = Some(Instant::now() + PAUSE);
        }
        spent
    }
}

/// What the job is told once of each kind of mistake.
#[derive(Default)]
struct Complaints {
    lines: u64,
    connections: u64,
    flooded: bool,
}

impl Complaints {
    fn line(&mut self, rank: Rank, why: &dyn std::fmt::Display, ranks: &mut Ranks<'_>) {
        self.lines += 1;
        if self.lines == 1 {
            ranks.note(rank, &format!("a line of progress was dropped: {why}"));
        }
    }

    fn connection(&mut self, ranks: &mut Ranks<'_>, first: Rank) {
        self.connections += 1;
        if self.connections == 1 {
            let text = format!(
                "a connection for progress was closed: {SPEAKERS_MAX} are open already; keep one \
                 per process"
            );
            ranks.note(first, &text);
        }
    }

    fn flood(&mut self, ranks: &mut Ranks<'_>, first: Rank) {
        if !std::mem::replace(&mut self.flooded, true) {
            ranks.note(first, "more than 1 MiB/s of progress is reported: the rest has to wait");
        }
    }

    fn sum_up(&self, ranks: &mut Ranks<'_>, first: Rank) {
        if self.lines > 1 {
            ranks.note(first, &format!("{} lines of progress were dropped", self.lines));
        }
        if self.connections > 1 {
            let text = format!("{} connections for progress were closed", self.connections);
            ranks.note(first, &text);
        }
    }
}

impl<'a> Progress<'a> {
    pub fn new(plan: &'a Plan) -> Progress<'a> {
        Progress {
            plan,
            listener: None,
            warnings: None,
            speakers: Vec::new(),
            fold: Fold::new(plan.ranks),
            budget: Budget::new(),
            complaints: Complaints::default(),
            news: News::Nothing,
            said_at: Instant::now(),
        }
    }

    /// Before the ranks start, so that they find it.
    pub fn open(&mut self) -> io::Result<()> {
        let identity = self.plan.identity.as_ref();
        self.listener = Some(place::listen(&self.plan.progress, identity)?);
        self.warnings = Some(place::open_warnings(&self.plan.progress, identity)?);
        Ok(())
    }

    /// A line of `$TUTTI_WARNINGS`, and one of the first rank's log.
    pub fn warn(&mut self, warning: &Warning, ranks: &mut Ranks<'_>) {
        let (rule, text) = (warning.rule.as_str(), &warning.text);
        ranks.note(self.plan.first_rank, &format!("warning ({rule}): {text}"));
        let Some(file) = &mut self.warnings else { return };
        let written = serde_json::to_vec(warning).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        if let Err(error) = written {
            ranks.note(self.plan.first_rank, &format!("the warning can't be written: {error}"));
        }
    }

    /// While the part is not running, nothing it said grows older.
    pub fn follow(&mut self, now: Instant, running: bool) {
        match running {
            true => self.fold.go_on(now),
            false => self.fold.pause(now),
        }
    }

    pub fn poll<'b>(&'b self, fds: &mut Vec<PollFd<'b>>, tokens: &mut Vec<Token>) {
        if self.budget.pause_until.is_some() {
            return;
        }
        if let Some(listener) = &self.listener {
            fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
            tokens.push(Token::Progress { speaker: None });
        }
        for (slot, speaker) in self.speakers.iter().enumerate() {
            if let Some(stream) = &speaker.stream {
                fds.push(PollFd::new(stream.as_fd(), PollFlags::POLLIN));
                tokens.push(Token::Progress { speaker: Some(slot) });
            }
        }
    }

    /// One read per turn, so that nobody is starved.
    pub fn ready(&mut self, speaker: Option<usize>, ranks: &mut Ranks<'_>) {
        match speaker {
            None => {
                self.accept(ranks);
            }
            Some(slot) => {
                self.read(slot, ranks);
            }
        }
    }

    /// One connection; false if none waits.
    fn accept(&mut self, ranks: &mut Ranks<'_>) -> bool {
        let Some(listener) = &self.listener else { return false };
        let Ok((stream, _)) = listener.accept() else { return false };
        self.spend(CONNECTION_COSTS, ranks);
        let Some(pid) = place::may_speak(&stream, self.plan.identity.as_ref()) else { return true };
        if stream.set_nonblocking(true).is_err() {
            return true;
        }
        if self.speakers.len() >= SPEAKERS_MAX {
            self.complaints.connection(ranks, self.plan.first_rank);
            return true;
        }
        self.speakers.push(Speaker {
            stream: Some(stream),
            pid,
            rank: None,
            line: Vec::new(),
            skipping: false,
        });
        true
    }

    /// One read, and how much it gave; 0 when there is nothing more now.
    fn read(&mut self, slot: usize, ranks: &mut Ranks<'_>) -> usize {
        let Some(stream) = &mut self.speakers[slot].stream else { return 0 };
        let mut buf = [0; READ_SIZE];
        match stream.read(&mut buf) {
            Ok(n @ 1..) => {
                self.spend(n as u64, ranks);
                self.hear(slot, &buf[..n], ranks);
                n
            }
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                0
            }
            Ok(_) | Err(_) => {
                // Some forget the last newline.
                self.hear(slot, b"\n", ranks);
                self.speakers[slot].stream = None;
                0
            }
        }
    }

    fn spend(&mut self, bytes: u64, ranks: &mut Ranks<'_>) {
        if self.budget.spend(bytes) {
            self.complaints.flood(ranks, self.plan.first_rank);
        }
    }

    fn hear(&mut self, slot: usize, mut bytes: &[u8], ranks: &mut Ranks<'_>) {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            self.collect(slot, &bytes[..end], ranks);
            let speaker = &mut self.speakers[slot];
            if !std::mem::take(&mut speaker.skipping) {
                let line = std::mem::take(&mut speaker.line);
                self.take(slot, &line, ranks);
                self.speakers[slot].line = line;
            }
            self.speakers[slot].line.clear();
            bytes = &bytes[end + 1..];
        }
        self.collect(slot, bytes, ranks);
    }

    /// More of a line.
    fn collect(&mut self, slot: usize, bytes: &[u8], ranks: &mut Ranks<'_>) {
        let speaker = &mut self.speakers[slot];
        if speaker.skipping {
            return;
        }
        if speaker.line.len() + bytes.len() > LINE_MAX {
            speaker.skipping = true;
            speaker.line.clear();
            let rank = self.rank_of(slot, ranks);
            self.complaints.line(rank, &format!("it is longer than {LINE_MAX} bytes"), ranks);
            return;
        }
        speaker.line.extend_from_slice(bytes);
    }

    fn take(&mut self, slot: usize, text: &[u8], ranks: &mut Ranks<'_>) {
        let line = match read_line(text) {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(error) => {
                let rank = self.rank_of(slot, ranks);
                let text = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
                self.complaints.line(rank, &format!("{error}: {text}"), ranks);
                return;
            }
        };
        let rank = line.rank.unwrap_or_else(|| self.rank_of(slot, ranks));
        match self.fold.take(rank, line, Instant::now()) {
            Ok(news) => self.news = self.news.max(news),
            Err(error) => self.complaints.line(rank, &error, ranks),
        }
    }

    /// Whose process tree the speaker is in; the first rank if it is nobody's any more.
    fn rank_of(&mut self, slot: usize, ranks: &Ranks<'_>) -> Rank {
        let speaker = &mut self.speakers[slot];
        *speaker.rank.get_or_insert_with(|| {
            let mut line = tree::ancestry(speaker.pid);
            line.find_map(|pid| ranks.rank_of(pid)).unwrap_or(self.plan.first_rank)
        })
    }

    /// Tells the agent what is new, not too often.
    pub fn tell(&mut self, now: Instant, link: &mut Link) {
        self.budget.refill(now);
        self.speakers.retain(|s| s.stream.is_some());
        if link.is_up() && self.due().is_some_and(|at| at <= now) {
            self.say(now, link);
        }
    }

    /// The agent is new and knows nothing.
    pub fn say(&mut self, now: Instant, link: &mut Link) {
        if let Some(progress) = self.level() {
            link.say(&FromShim::Progress { progress: Box::new(progress) });
        }
        (self.news, self.said_at) = (News::Nothing, now);
    }

    pub fn level(&self) -> Option<PartProgress> {
        self.fold.level(Instant::now())
    }

    fn due(&self) -> Option<Instant> {
        match self.news {
            News::Nothing => None,
            News::Level => Some(self.said_at + SAY_EVERY),
            News::Urgent => Some(self.said_at),
        }
    }

    pub fn next_timer(&self, link: &Link) -> Option<Instant> {
        let due = self.due().filter(|_| link.is_up());
        self.budget.pause_until.into_iter().chain(due).min()
    }

    /// A rank has ended: what it said before comes before that. One that accuses another and leaves
    /// must not be taken for the one that failed.
    pub fn catch_up(&mut self, now: Instant, ranks: &mut Ranks<'_>, link: &mut Link) {
        let mut left = CATCH_UP;
        while left > 0 && self.accept(ranks) {
            left = left.saturating_sub(CONNECTION_COSTS);
        }
        self.read_out(&mut left, ranks);
        if link.is_up() && self.news == News::Urgent {
            self.say(now, link);
        }
    }

    /// Nobody of the part is left: reads what they said last, and takes the socket away.
    pub fn close(&mut self, ranks: &mut Ranks<'_>) {
        // Processes of the same user outside the part could go on for ever.
        let mut left = LAST_WORDS;
        self.read_out(&mut left, ranks);
        self.speakers.clear();
        while left > 0 && self.accept(ranks) {
            left = left.saturating_sub(CONNECTION_COSTS);
            self.read_out(&mut left, ranks);
            self.speakers.clear();
        }
        if self.listener.take().is_some() {
            place::close(&self.plan.home, &self.plan.progress);
        }
        self.complaints.sum_up(ranks, self.plan.first_rank);
    }

    /// Everything that speakers have said by now.
    fn read_out(&mut self, left: &mut u64, ranks: &mut Ranks<'_>) {
        for slot in 0..self.speakers.len() {
            while *left > 0 {
                match self.read(slot, ranks) {
                    0 => break,
                    n => *left = left.saturating_sub(n as u64),
                }
            }
        }
    }
}
