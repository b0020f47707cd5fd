//! A job's log as far as it is shown: its newest lines, where one looks, and what one looks for.

use std::collections::{BTreeMap, VecDeque};

use tutti_model::TaskId;

/// Lines that are kept; older ones are in `tutti logs`.
const LINES_MAX: usize = 20_000;
/// A line that never ends is cut.
const LINE_MAX: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub rank: u32,
    pub err: bool,
    pub text: String,
}

/// What the reader of a log has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogMsg {
    /// `partial`: the rest of the line comes later.
    Line { line: LogLine, partial: bool },
    /// Something that the controller adds.
    Note(String),
    /// The connection was lost, and all is told again.
    Again(String),
    /// The end, and why.
    Over(String),
}

#[derive(Clone, Debug, Default)]
pub struct Logs {
    pub id: Option<TaskId>,
    number: u64,
    pub ranks: Option<String>,
    lines: VecDeque<LogLine>,
    /// Unfinished lines, by rank and stream.
    open: BTreeMap<(u32, bool), String>,
    /// Older lines that are no longer kept.
    pub dropped: u64,
    /// More than one rank has written.
    pub several: bool,
    pub follow: bool,
    top: usize,
    /// Columns that are out of sight on the left.
    pub left: usize,
    pub search: Option<String>,
    found: Option<usize>,
    pub status: String,
}

impl Logs {
    /// Another log; its number tells its lines from those of the one before.
    pub fn start(&mut self, id: TaskId, ranks: Option<String>) -> u64 {
        let number = self.number + 1;
        let (id, status) = (Some(id), "asking for the log".to_owned());
        *self = Logs { id, number, ranks, follow: true, status, ..Logs::default() };
        number
    }

    pub fn take(&mut self, number: u64, msg: LogMsg) {
        if number != self.number {
            return;
        }
        match msg {
            LogMsg::Line { line, partial } => self.line(line, partial),
            LogMsg::Note(text) => {
                self.push(LogLine { rank: 0, err: true, text: format!("— {text}") })
            }
            LogMsg::Again(why) => {
                let ranks = self.ranks.take();
                let search = self.search.take();
                *self =
                    Logs { id: self.id, number, ranks, follow: true, search, ..Logs::default() };
                self.status = why;
            }
            LogMsg::Over(why) => {
                for ((rank, err), text) in std::mem::take(&mut self.open) {
                    self.push(LogLine { rank, err, text });
                }
                self.status = why;
            }
        }
    }

    fn line(&mut self, mut line: LogLine, partial: bool) {
        self.status = String::new();
        self.several |= line.rank != self.lines.front().map_or(line.rank, |first| first.rank);
        let key = (line.rank, line.err);
        if let Some(open) = self.open.remove(&key) {
            line.text = open + &line.text;
        }
        line.text = last_of_bar(&line.text);
        if partial && line.text.len() < LINE_MAX {
            self.open.insert(key, line.text);
        } else {
            self.push(line);
        }
    }

    fn push(&mut self, line: LogLine) {
        self.lines.push_back(line);
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
            self.dropped += 1;
            // One looks at the same lines as before.
            self.top = self.top.saturating_sub(1);
            self.found = self.found.and_then(|found| found.checked_sub(1));
        }
    }

    pub fn len(&self) -> usize {
        self.lines.len() + self.open.len()
    }

    /// Unfinished lines stand below the others.
    pub fn get(&self, i: usize) -> Option<LogLine> {
        let open = || {
            let ((rank, err), text) = self.open.iter().nth(i - self.lines.len())?;
            Some(LogLine { rank: *rank, err: *err, text: text.clone() })
        };
        self.lines.get(i).cloned().or_else(open)
    }

    /// The first line on the screen.
    pub fn first(&self, height: usize) -> usize {
        let last = self.len().saturating_sub(height);
        if self.follow { last } else { self.top.min(last) }
    }

    pub fn settle(&mut self, height: usize) {
        self.top = self.first(height);
    }

    /// Up leaves the end; the end is followed again.
    pub fn travel(&mut self, by: isize, height: usize) {
        let from = self.first(height);
        self.top = from.saturating_add_signed(by).min(self.len().saturating_sub(height));
        self.follow = by > 0 && self.top + height >= self.len();
    }

    pub fn matches(&self, text: &str) -> bool {
        self.search.as_ref().is_some_and(|s| text.to_lowercase().contains(&s.to_lowercase()))
    }

    pub fn is_found(&self, i: usize) -> bool {
        self.found == Some(i)
    }

    /// The next line (or, backwards, the one before) with what is looked for; around the end.
    pub fn find(&mut self, by: isize) {
        let all = self.len();
        if self.search.is_none() || all == 0 {
            return;
        }
        let start = match (self.found, by > 0) {
            (Some(found), true) => found + 1,
            (Some(found), false) => found + all - 1,
            (None, true) => self.top,
            (None, false) => all - 1,
        };
        let step = if by > 0 { 1 } else { all - 1 };
        let mut at = start % all;
        for _ in 0..all {
            if self.get(at).is_some_and(|line| self.matches(&line.text)) {
                self.found = Some(at);
                self.follow = false;
                self.top = at.saturating_sub(3);
                self.status = String::new();
                return;
            }
            at = (at + step) % all;
        }
        self.found = None;
        self.status = format!("'{}' is not in these lines", self.search.as_deref().unwrap_or(""));
    }
}

/// A progress bar writes over itself: what counts is what was written last. The return at its end stays,
/// for what may come behind it.
fn last_of_bar(text: &str) -> String {
    let body = text.trim_end_matches('\r');
    let last = body.rsplit('\r').next().unwrap_or(body);
    format!("{last}{}", if body.len() < text.len() { "\r" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(texts: &[&str]) -> (Logs, u64) {
        let mut logs = Logs::default();
        let number = logs.start("7".parse().unwrap(), None);
        for text in texts {
            say(&mut logs, number, text, false);
        }
        (logs, number)
    }

    fn say(logs: &mut Logs, number: u64, text: &str, partial: bool) {
        let line = LogLine { rank: 0, err: false, text: text.to_owned() };
        logs.take(number, LogMsg::Line { line, partial });
    }

    fn all(logs: &Logs) -> Vec<String> {
        (0..logs.len()).filter_map(|i| logs.get(i)).map(|line| line.text).collect()
    }

    #[test]
    fn unfinished_lines_are_shown_and_bars_write_over_themselves() {
        let (mut logs, number) = logs(&["one"]);
        say(&mut logs, number, "10%\r", true);
        say(&mut logs, number, "20%\r", true);
        assert_eq!(all(&logs), ["one", "20%\r"]);
        say(&mut logs, number, "done", false);
        assert_eq!(all(&logs), ["one", "done"]);
        say(&mut logs, number + 1, "of another log", false);
        say(&mut logs, number, "no newline", true);
        logs.take(number, LogMsg::Over("completed".into()));
        assert_eq!(all(&logs), ["one", "done", "no newline"]);
        assert_eq!(logs.status, "completed");
    }

    #[test]
    fn one_may_look_back_while_it_goes_on() {
        let (mut logs, number) = logs(&["a", "b", "c", "d"]);
        assert_eq!(logs.first(2), 2);
        logs.travel(-1, 2);
        assert!(!logs.follow);
        say(&mut logs, number, "e", false);
        assert_eq!(logs.first(2), 1);
        logs.travel(isize::MAX, 2);
        assert!(logs.follow && logs.first(2) == 3);
    }

    #[test]
    fn the_oldest_lines_go() {
        let (mut logs, number) = logs(&["a", "b"]);
        logs.travel(-1, 1);
        for _ in 0..LINES_MAX {
            say(&mut logs, number, "x", false);
        }
        assert_eq!((logs.len(), logs.dropped), (LINES_MAX, 2));
        assert_eq!(logs.first(1), 0);
    }

    #[test]
    fn what_is_looked_for_is_found_around_the_end() {
        let (mut logs, _) = logs(&["Error 1", "fine", "error 2", "fine"]);
        logs.search = Some("ERROR".into());
        logs.find(-1);
        assert!(logs.is_found(2) && !logs.follow);
        logs.find(-1);
        assert!(logs.is_found(0));
        logs.find(-1);
        assert!(logs.is_found(2));
        logs.find(1);
        assert!(logs.is_found(0));
        logs.search = Some("nowhere".into());
        logs.find(1);
        assert_eq!(logs.status, "'nowhere' is not in these lines");
    }
}
