//! Writing to people: stdout for data, stderr for the rest. The only file that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub mod safe;
mod watch;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SigHandler, Signal, signal};

use crate::style::Style;

pub use watch::watch;

/// `tutti ps | head` must end like any other program. Not for servers, which would die with a
/// client; sockets are written without the signal anyway.
pub fn die_quietly_on_closed_pipe() {
    // SAFETY: SIG_DFL runs no code of ours.
    if let Err(errno) = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) } {
        complain(&format!("error: can't reset SIGPIPE: {errno}"));
    }
}

/// For a command with something to clean up: a reader that left must not end it.
pub fn ignore_closed_pipe() {
    // SAFETY: SIG_IGN runs no code of ours.
    if let Err(errno) = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) } {
        complain(&format!("error: can't ignore SIGPIPE: {errno}"));
    }
}

/// Data for people, with its newline.
pub fn say(text: &str) {
    println!("{}", safe::lines(text, Style::of_stdout().is_coloured()));
}

/// Data for programs: a script, a table of values, a page. In a pipe it stays as it is.
pub fn document(text: &str) {
    match stdout_is_terminal() {
        true => say(text),
        false => println!("{text}"),
    }
}

/// Progress, notes and errors, without colours. Nobody is left to tell if this fails.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", safe::lines(text, false));
}

/// The same, painted by [`Style::of_stderr`].
pub fn complain_in_colour(text: &str) {
    let text = safe::lines(text, Style::of_stderr().is_coloured());
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Once, however many find it out: the reader of a file, the controller, and a check of the plan may
/// all say the same of one job.
pub fn warn(text: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if is_news(&SAID, text) {
        complain(&format!("warning: {text}"));
    }
}

fn is_news(said: &Mutex<BTreeSet<String>>, text: &str) -> bool {
    said.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
}

pub fn json<T: serde::Serialize>(value: &T) -> Result<(), crate::fail::Fail> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| crate::fail::Fail::new(format!("can't write JSON: {e}")))?;
    println!("{}", safe::json(text));
    Ok(())
}

pub fn stdout_is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// A terminal on which lines can be painted again.
pub fn stderr_is_live() -> bool {
    stderr_is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

pub fn stdin_is_terminal() -> bool {
    std::io::stdin().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_warning_is_said_once() {
        let said = Mutex::default();
        let news: Vec<bool> = ["a", "b", "a", "a"].map(|text| is_news(&said, text)).into();
        assert_eq!(news, [true, true, false, false]);
    }
}
