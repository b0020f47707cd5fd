//! Writing to people: stdout for data, stderr for the rest. The only file that prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{IsTerminal, Write};

use nix::sys::signal::{SigHandler, Signal, signal};

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

/// Data, with its newline.
pub fn say(text: &str) {
    println!("{text}");
}

/// Progress, notes and errors. Nobody is left to tell if this fails.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub fn warn(text: &str) {
    complain(&format!("warning: {text}"));
}

pub fn json<T: serde::Serialize>(value: &T) -> Result<(), crate::fail::Fail> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| crate::fail::Fail::new(format!("can't write JSON: {e}")))?;
    say(&text);
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

/// Shows `frame` again and again, on a terminal in place.
pub fn watch(
    mut frame: impl FnMut() -> Result<String, crate::fail::Fail>,
) -> Result<std::process::ExitCode, crate::fail::Fail> {
    loop {
        let text = frame()?;
        if stdout_is_terminal() {
            // Home, the frame with each line cleared to its end, then clear what is below.
            print!("\x1b[H{}\x1b[K\n\x1b[J", text.replace('\n', "\x1b[K\n"));
        } else {
            println!("{text}\n");
        }
        std::io::stdout()
            .flush()
            .map_err(|e| crate::fail::Fail::new(format!("can't write: {e}")))?;
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}
