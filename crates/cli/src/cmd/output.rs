//! A job's output on our own: stdout to stdout, stderr to stderr, ranks told apart.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::Duration;

use base64::Engine;
use tutti_model::{JobState, TaskId, Time};
use tutti_wire::api::{LogEvent, LogQuery};
use tutti_wire::client::{Client, ClientError};
use tutti_wire::stream::LogStream;

use crate::fail::Fail;
use crate::show::{harmless, time};
use crate::style::{Style, of_rank};
use crate::terminal::{self, safe::LogFilter};

/// As much as a pipe holds.
const STDIN_PIECE: usize = 64 << 10;

/// How the job ended, as far as the log's end says.
pub struct End {
    pub state: Option<JobState>,
    pub exit_code: Option<i32>,
}

/// Prints lines as they come. Generic over its outputs so that tests can look.
pub struct Printer<O, E> {
    out: O,
    err: E,
    /// Which task of an array this is, before each line.
    task: Option<u32>,
    /// `[3] ` before each line, of the rank.
    prefix: bool,
    timestamps: bool,
    live: bool,
    out_style: Style,
    err_style: Style,
    /// Whether each output is a screen that must not obey what a job writes.
    guard: Guard,
    /// Unfinished lines, held back when ranks could cut into each other's.
    open: BTreeMap<(u32, bool), Vec<u8>>,
    /// What is unfinished on a guarded screen.
    filters: BTreeMap<(u32, bool), LogFilter>,
}

/// Which of our outputs are terminals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guard {
    out: bool,
    err: bool,
}

impl Guard {
    pub const NONE: Guard = Guard { out: false, err: false };
    #[cfg(test)]
    pub const ALL: Guard = Guard { out: true, err: true };

    /// Terminals are guarded; what is piped on stays as it is.
    pub fn terminals() -> Guard {
        Guard { out: terminal::stdout_is_terminal(), err: terminal::stderr_is_terminal() }
    }

    pub fn of(self, stream: LogStream) -> bool {
        match stream {
            LogStream::Out => self.out,
            LogStream::Err => self.err,
        }
    }
}

impl<O: Write, E: Write> Printer<O, E> {
    fn line(&mut self, line: &Line) -> std::io::Result<()> {
        let is_err = line.stream == LogStream::Err;
        let key = (line.rank, is_err);
        if !self.prefix && !self.timestamps && self.task.is_none() {
            // One rank: pass it through, progress bars and all.
            let end: &[u8] = if line.partial { b"" } else { b"\n" };
            let shown = self.shown(key, &line.bytes, !line.partial);
            return self.write(is_err, &[&shown, end]);
        }
        let mut whole = self.open.remove(&key).unwrap_or_default();
        whole.extend_from_slice(&line.bytes);
        if line.partial {
            self.open.insert(key, whole);
            return Ok(());
        }
        self.whole_line(line.rank, is_err, line.at, &whole)
    }

    fn whole_line(
        &mut self,
        rank: u32,
        is_err: bool,
        at: Time,
        text: &[u8],
    ) -> std::io::Result<()> {
        let style = if is_err { self.err_style } else { self.out_style };
        let mut head = String::new();
        if self.timestamps {
            head.push_str(&time::stamp(at));
            head.push(' ');
        }
        let whose = match (self.task, self.prefix) {
            (None, false) => None,
            (None, true) => Some((rank, format!("[{rank}]"))),
            (Some(task), false) => Some((task, format!("[{task}]"))),
            (Some(task), true) => Some((task, format!("[{task} rank {rank}]"))),
        };
        if let Some((colour, words)) = whose {
            head.push_str(&style.paint(of_rank(colour), &words));
            head.push(' ');
        }
        let shown = self.shown((rank, is_err), text, true);
        self.write(is_err, &[head.as_bytes(), &shown, b"\n"])
    }

    /// As the terminal may have it, if it is one.
    fn shown<'t>(&mut self, key: (u32, bool), text: &'t [u8], ends: bool) -> Cow<'t, [u8]> {
        let guarded = if key.1 { self.guard.err } else { self.guard.out };
        if !guarded {
            return Cow::Borrowed(text);
        }
        let filter = self.filters.entry(key).or_default();
        let mut shown = filter.pass(text);
        if ends {
            shown.extend(filter.end());
        }
        Cow::Owned(shown)
    }

    fn write(&mut self, is_err: bool, pieces: &[&[u8]]) -> std::io::Result<()> {
        let joined = pieces.concat();
        if is_err {
            self.out.flush()?;
            self.err.write_all(&joined)?;
            return self.err.flush();
        }
        self.out.write_all(&joined)?;
        if self.live { self.out.flush() } else { Ok(()) }
    }

    /// Lines that never got their newline are still output.
    fn finish(&mut self) -> std::io::Result<()> {
        for ((rank, is_err), text) in std::mem::take(&mut self.open) {
            self.whole_line(rank, is_err, Time(0), &text)?;
        }
        for ((_, is_err), mut filter) in std::mem::take(&mut self.filters) {
            let rest = filter.end();
            if !rest.is_empty() {
                self.write(is_err, &[&rest])?;
            }
        }
        self.out.flush()
    }
}

/// A [`LogEvent::Line`], decoded.
struct Line {
    rank: u32,
    at: Time,
    stream: LogStream,
    bytes: Vec<u8>,
    partial: bool,
}

/// What was printed of each rank, so that after a lost connection nothing is printed twice: the
/// time of its last line, and how many lines had that time.
#[derive(Default)]
struct Printed(BTreeMap<u32, (Time, u32)>);

impl Printed {
    /// Starts over on a new connection, which repeats from the beginning.
    fn resume(&self) -> Resume {
        Resume { before: self.0.clone(), again: BTreeMap::new() }
    }
    fn add(&mut self, line: &Line) {
        let last = self.0.entry(line.rank).or_insert((line.at, 0));
        if line.at > last.0 {
            *last = (line.at, 0);
        }
        last.1 += 1;
    }
}

#[derive(Default)]
struct Resume {
    before: BTreeMap<u32, (Time, u32)>,
    again: BTreeMap<u32, u32>,
}

impl Resume {
    fn was_printed(&mut self, line: &Line) -> bool {
        let Some(&(at, n)) = self.before.get(&line.rank) else { return false };
        if line.at != at {
            return line.at < at;
        }
        let again = self.again.entry(line.rank).or_insert(0);
        *again += 1;
        *again <= n
    }
}

pub struct Follow<'c> {
    pub client: &'c Client,
    pub id: TaskId,
    pub query: LogQuery,
    pub timestamps: bool,
    pub guard: Guard,
    /// Go on asking while the controller is away.
    pub patient: bool,
}

impl Follow<'_> {
    /// Prints until the end of the log, or of the job.
    pub fn run(self) -> Result<End, Fail> {
        self.run_as(None)
    }

    /// The same, with the index of the task before each line.
    pub fn run_as(mut self, task: Option<u32>) -> Result<End, Fail> {
        let mut printer = Printer {
            out: std::io::BufWriter::new(std::io::stdout()),
            err: std::io::stderr(),
            task,
            prefix: false,
            timestamps: self.timestamps,
            live: self.query.follow,
            out_style: Style::of_stdout(),
            err_style: Style::of_stderr(),
            guard: self.guard,
            open: BTreeMap::new(),
            filters: BTreeMap::new(),
        };
        let mut printed = Printed::default();
        let mut told = false;
        loop {
            let lost = match self.read(&mut printer, &mut printed)? {
                Ok(end) => return Ok(end),
                Err(lost) => lost,
            };
            if !told {
                terminal::complain(&format!(
                    "tutti: {lost}; job {} runs on, asking again",
                    self.id
                ));
                told = true;
            }
            if !printed.0.is_empty() {
                // Counted from the end, other lines would come now; those printed are skipped.
                self.query.tail = None;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// One connection, from its beginning to the log's end or, for the patient, to its own.
    fn read<O: Write, E: Write>(
        &self,
        printer: &mut Printer<O, E>,
        printed: &mut Printed,
    ) -> Result<Result<End, ClientError>, Fail> {
        let mut resume = printed.resume();
        let events = match self.client.logs(self.id, &self.query) {
            Err(e) if e.is_unreachable() && self.patient => return Ok(Err(e)),
            events => events?,
        };
        for event in events {
            match event {
                Ok(LogEvent::Line { rank, at, stream, text, raw, partial }) => {
                    if printed.0.is_empty() {
                        printer.prefix = self.several_ranks()?;
                    }
                    let line = Line { rank, at, stream, bytes: bytes(text, raw)?, partial };
                    if !resume.was_printed(&line) {
                        printed.add(&line);
                        printer.line(&line).map_err(unwritable)?;
                    }
                }
                Ok(LogEvent::Note { text }) => {
                    printer.out.flush().map_err(unwritable)?;
                    let of = printer.task.map_or_else(String::new, |_| format!("{}: ", self.id));
                    terminal::complain(&format!("tutti: {of}{}", harmless(&text)));
                }
                Ok(LogEvent::End { state, exit_code }) => {
                    printer.finish().map_err(unwritable)?;
                    return Ok(Ok(End { state, exit_code }));
                }
                Err(e) if e.is_unreachable() && self.patient => return Ok(Err(e)),
                Err(e) => {
                    printer.finish().map_err(unwritable)?;
                    return Err(e.into());
                }
            }
        }
        Ok(Err(ClientError::Interrupted(None)))
    }

    /// Asked when the first line is there: by then the job has its ranks.
    fn several_ranks(&self) -> Result<bool, Fail> {
        if self.query.rank.as_ref().is_some_and(|r| r.parse::<u32>().is_ok()) {
            return Ok(false);
        }
        let job = self.client.job(self.id)?;
        let running: u32 = job.parts.iter().map(|p| p.ranks).sum();
        Ok(running.max(job.row.nodes) > 1)
    }
}

fn unwritable(e: std::io::Error) -> Fail {
    Fail::new(format!("can't write the output: {e}"))
}

pub(super) fn bytes(text: String, raw: Option<String>) -> Result<Vec<u8>, Fail> {
    match raw {
        None => Ok(text.into_bytes()),
        Some(raw) => base64::engine::general_purpose::STANDARD
            .decode(raw)
            .map_err(|e| Fail::new(format!("the controller sent a line that can't be read: {e}"))),
    }
}

/// Sends our stdin to rank 0 of the job, in a thread of its own that ends with the process.
pub fn forward_stdin(client: &Client, id: TaskId) {
    let client = client.another();
    std::thread::spawn(move || {
        let send = |piece: &[u8], more| client.put_stdin(id, tutti_model::Rank(0), more, piece);
        let pause = || std::thread::sleep(Duration::from_millis(500));
        if let Err(e) = feed(std::io::stdin().lock(), send, pause) {
            // A job that ends without reading its input is no error.
            let over = client.job(id).is_ok_and(|j| j.row.state.is_final());
            if !over {
                terminal::warn(&format!("standard input is not passed on: {e}"));
            }
        }
    });
}

/// Piece by piece, each kept until the controller has taken it, so that one that is away for a while
/// costs nothing. A piece whose answer was lost goes twice.
fn feed(
    mut input: impl Read,
    mut send: impl FnMut(&[u8], bool) -> Result<(), ClientError>,
    pause: impl Fn(),
) -> Result<(), ClientError> {
    let mut buffer = vec![0; STDIN_PIECE];
    loop {
        let piece = match input.read(&mut buffer) {
            Ok(n) => &buffer[..n],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(ClientError::Input(e)),
        };
        let more = !piece.is_empty();
        loop {
            match send(piece, more) {
                Err(e) if e.is_unreachable() => pause(),
                sent => break sent?,
            }
        }
        if !more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(prefix: bool, timestamps: bool) -> Printer<Vec<u8>, Vec<u8>> {
        Printer {
            out: Vec::new(),
            err: Vec::new(),
            task: None,
            prefix,
            timestamps,
            live: true,
            out_style: Style::PLAIN,
            err_style: Style::PLAIN,
            guard: Guard::NONE,
            open: BTreeMap::new(),
            filters: BTreeMap::new(),
        }
    }

    fn line(rank: u32, at: u64, text: &str, partial: bool) -> Line {
        let bytes = text.as_bytes().to_vec();
        Line { rank, at: Time(at), stream: LogStream::Out, bytes, partial }
    }

    fn text(p: &Printer<Vec<u8>, Vec<u8>>) -> String {
        String::from_utf8(p.out.clone()).unwrap()
    }

    #[test]
    fn one_rank_is_passed_through() {
        let mut p = printer(false, false);
        p.line(&line(0, 1, "10%\r", true)).unwrap();
        assert_eq!(text(&p), "10%\r");
        p.line(&line(0, 1, "100%", false)).unwrap();
        p.line(&Line { stream: LogStream::Err, ..line(0, 1, "oops", false) }).unwrap();
        assert_eq!(text(&p), "10%\r100%\n");
        assert_eq!(p.err, b"oops\n");
    }

    #[test]
    fn a_terminal_obeys_colours_only_and_a_pipe_gets_every_byte() {
        let nasty = "\x1b[31mred\x1b]52;c;AAAA\x07";
        let mut pipe = printer(false, false);
        pipe.line(&line(0, 1, nasty, false)).unwrap();
        assert_eq!(text(&pipe), format!("{nasty}\n"));
        let guarded = |prefix| Printer { guard: Guard::ALL, ..printer(prefix, false) };
        let mut screen = guarded(false);
        screen.line(&line(0, 1, "\x1b[31mred\x1b]52;", true)).unwrap();
        screen.line(&line(0, 1, "c;AAAA\x07", false)).unwrap();
        assert_eq!(text(&screen), "\x1b[31mred\\x1b]52;c;AAAA\\x07\x1b[0m\n");
        let mut ranks = guarded(true);
        ranks.line(&line(3, 1, nasty, false)).unwrap();
        assert_eq!(text(&ranks), "[3] \x1b[31mred\\x1b]52;c;AAAA\\x07\x1b[0m\n");
    }

    #[test]
    fn several_ranks_never_cut_into_each_other() {
        let mut p = printer(true, false);
        p.line(&line(0, 1, "a", true)).unwrap();
        p.line(&line(1, 1, "hello", false)).unwrap();
        p.line(&line(0, 1, "b", false)).unwrap();
        p.line(&line(1, 1, "no newline", true)).unwrap();
        p.finish().unwrap();
        assert_eq!(text(&p), "[1] hello\n[0] ab\n[1] no newline\n");
    }

    #[test]
    fn tasks_of_an_array_are_told_apart() {
        let mut one = Printer { task: Some(7), ..printer(false, false) };
        one.line(&line(0, 1, "a", true)).unwrap();
        one.line(&line(0, 1, "b", false)).unwrap();
        assert_eq!(text(&one), "[7] ab\n");
        let mut gang = Printer { task: Some(7), ..printer(true, false) };
        gang.line(&line(3, 1, "x", false)).unwrap();
        assert_eq!(text(&gang), "[7 rank 3] x\n");
    }

    #[test]
    fn timestamps() {
        let mut p = printer(false, true);
        p.line(&line(0, 0, "x", false)).unwrap();
        assert_eq!(text(&p), "1970-01-01T00:00:00.000Z x\n");
    }

    #[test]
    fn a_new_connection_repeats_nothing() {
        let first = [line(0, 1, "a", false), line(0, 2, "b", false), line(0, 2, "b", false)];
        let mut printed = Printed::default();
        first.iter().for_each(|l| printed.add(l));
        let mut resume = printed.resume();
        let again = [
            line(0, 1, "a", false),
            line(0, 2, "b", false),
            line(0, 2, "b", false),
            line(0, 2, "c", false),
            line(0, 3, "d", false),
            line(1, 1, "other rank", false),
        ];
        let fresh: Vec<bool> = again.iter().map(|l| !resume.was_printed(l)).collect();
        assert_eq!(fresh, [false, false, false, true, true, true]);
    }

    #[test]
    fn raw_bytes_are_restored() {
        assert_eq!(bytes(String::new(), Some("/wA=".into())).unwrap(), [0xff, 0]);
        assert!(bytes(String::new(), Some("!".into())).is_err());
    }

    #[test]
    fn input_outlives_a_controller_that_goes_away() {
        let mut taken = Vec::new();
        let mut away = 0;
        let pauses = std::cell::Cell::new(0);
        let input = b"first ".chain(&b"second"[..]);
        let send = |piece: &[u8], more: bool| {
            away += 1;
            if away % 3 != 0 {
                return Err(ClientError::Interrupted(None));
            }
            taken.push((String::from_utf8(piece.to_vec()).unwrap(), more));
            Ok(())
        };
        feed(input, send, || pauses.set(pauses.get() + 1)).unwrap();
        let taken: Vec<_> = taken.iter().map(|(t, more)| (t.as_str(), *more)).collect();
        assert_eq!(taken, [("first ", true), ("second", true), ("", false)]);
        assert_eq!(pauses.get(), 6);
        let refused = feed(&b"x"[..], |_, _| Err(ClientError::Status(409)), || panic!("no pause"));
        assert!(matches!(refused, Err(ClientError::Status(409))));
    }
}
