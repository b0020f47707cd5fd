//! Runs the operator's own checks, one after the other, on a thread of their own: with a time limit,
//! at low priority, and only such as nobody but root or the agent's user can have written.

use std::fs::{self, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tutti_gpu::health::checks::{Ran, TEXT_CHARS_MAX};
use tutti_model::Span;

const NICE: i32 = 10;
/// Of its output, so much is read while it runs.
const OUTPUT_MAX: u64 = 64 << 10;

/// Where an operator's checks are, and how they are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChecksConfig {
    pub dir: PathBuf,
    pub every: Span,
    /// One run may take this long.
    pub limit: Span,
}

impl ChecksConfig {
    pub fn new(dir: PathBuf) -> ChecksConfig {
        ChecksConfig { dir, every: Span::secs(60), limit: Span::secs(30) }
    }
}

/// One run of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    pub name: String,
    pub ran: Ran,
}

/// Runs all of them again and again, until nobody listens.
pub fn run_for_ever(config: &ChecksConfig, out: &UnboundedSender<Vec<Checked>>) {
    while !out.is_closed() {
        if out.send(run_once(config)).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(config.every.0));
    }
}

/// All checks, in the order of their names. A directory that is not there has none.
pub fn run_once(config: &ChecksConfig) -> Vec<Checked> {
    let names = match names(&config.dir) {
        Ok(names) => names,
        Err(error) => {
            let why = format!("{}: {error}", config.dir.display());
            return vec![Checked { name: "all".to_owned(), ran: Ran::NotStarted { why } }];
        }
    };
    let of = |name: String| {
        let ran = run(&config.dir.join(&name), config.limit);
        Checked { name, ran }
    };
    names.into_iter().map(of).collect()
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    ours_alone(&fs::metadata(dir)?)?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        // What an editor leaves behind is no check.
        if let Some(name) = name.to_str().filter(|n| !n.starts_with('.') && !n.ends_with('~')) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Whoever may write it decides what the agent runs.
fn ours_alone(meta: &Metadata) -> io::Result<()> {
    let owner_is_trusted = meta.uid() == 0 || meta.uid() == nix::unistd::geteuid().as_raw();
    if owner_is_trusted && meta.permissions().mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = "others than root or the agent's user can change it: chown and chmod go-w";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn run(path: &Path, limit: Span) -> Ran {
    match start(path) {
        Ok(child) => watch(child, limit),
        Err(error) => Ran::NotStarted { why: error.to_string() },
    }
}

fn start(path: &Path) -> io::Result<Child> {
    ours_alone(&fs::metadata(path)?)?;
    let child = Command::new(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    // SAFETY: setpriority has no memory effects; a child that has ended is no harm.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, child.id(), NICE) };
    Ok(child)
}

/// Waits for its end on a thread, and ends it, with all that it started, when it takes too long.
fn watch(mut child: Child, limit: Span) -> Ran {
    let group = nix::unistd::Pid::from_raw(child.id() as i32);
    let stdout = child.stdout.take();
    let (done, ended) = channel();
    let waiter = std::thread::spawn(move || {
        let line = stdout.map(first_line).unwrap_or_default();
        // Nobody waits for one that took too long.
        let _ = done.send((line, child.wait()));
    });
    let ran = match ended.recv_timeout(Duration::from_millis(limit.0)) {
        Ok((line, Ok(status))) => match (status.code(), status.signal()) {
            (Some(code), _) => Ran::Exited { code, line },
            (None, signal) => Ran::Killed { signal: signal.unwrap_or_default() },
        },
        Ok((_, Err(error))) => Ran::NotStarted { why: error.to_string() },
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ran::TooLong(limit),
    };
    // What it left behind in the background goes as well.
    let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    drop(waiter);
    ran
}

/// Reads to the end, so that a check that talks much is not stuck.
fn first_line(stdout: impl Read) -> String {
    let mut reader = BufReader::new(stdout.take(OUTPUT_MAX));
    let mut line = Vec::new();
    // What can't be read is an empty line; the exit code says the rest.
    let _ = reader.read_until(b'\n', &mut line);
    let _ = io::copy(&mut reader, &mut io::sink());
    String::from_utf8_lossy(&line).trim().chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    fn check(dir: &Path, name: &str, mode: u32, script: &str) {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn checks_run_in_order_and_say_how_it_is() {
        let dir = dir();
        check(dir.path(), "20-disk", 0o755, "echo one disk is slow; echo more; exit 1");
        check(dir.path(), "10-fan", 0o755, "exit 0");
        check(dir.path(), "30-raid", 0o755, "echo degraded; exit 2");
        check(dir.path(), "40-open", 0o777, "exit 0");
        check(dir.path(), "50-plain", 0o644, "exit 0");
        check(dir.path(), "60-killed", 0o755, "kill -9 $$");
        check(dir.path(), "old~", 0o755, "exit 2");
        let ran = run_once(&ChecksConfig::new(dir.path().to_owned()));
        let names: Vec<&str> = ran.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["10-fan", "20-disk", "30-raid", "40-open", "50-plain", "60-killed"]);
        let exited = |code, line: &str| Ran::Exited { code, line: line.to_owned() };
        assert_eq!(ran[0].ran, exited(0, ""));
        assert_eq!(ran[1].ran, exited(1, "one disk is slow"));
        assert_eq!(ran[2].ran, exited(2, "degraded"));
        assert!(matches!(&ran[3].ran, Ran::NotStarted { why } if why.contains("chmod")), "{ran:?}");
        assert!(matches!(&ran[4].ran, Ran::NotStarted { .. }), "{ran:?}");
        assert_eq!(ran[5].ran, Ran::Killed { signal: 9 });
    }

    #[test]
    fn a_check_that_hangs_is_ended_with_all_it_started() {
        let dir = dir();
        check(dir.path(), "hangs", 0o755, "sleep 600 & sleep 600");
        let config = ChecksConfig { limit: Span(200), ..ChecksConfig::new(dir.path().to_owned()) };
        assert_eq!(run_once(&config)[0].ran, Ran::TooLong(Span(200)));
    }

    #[test]
    fn no_directory_has_no_checks_and_an_open_one_is_not_trusted() {
        let dir = dir();
        assert_eq!(run_once(&ChecksConfig::new(dir.path().join("none"))), []);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let ran = run_once(&ChecksConfig::new(dir.path().to_owned()));
        assert!(matches!(&ran[0].ran, Ran::NotStarted { .. }), "{ran:?}");
    }
}
