//! The command line, run as people run it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::network::Machine;
use crate::wait::{PATIENCE, wait_for};

/// One call of `tutti`, not yet made.
pub struct Cli {
    command: Command,
    line: String,
    stdin: Vec<u8>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    line: String,
    /// 128 + signal when killed.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Cli {
    /// Only the caller's `PATH` and `HOME` are passed on, so that no setting of theirs changes
    /// what a test sees.
    pub fn new(binary: &Path, args: &[&str]) -> Cli {
        let mut command = Command::new(binary);
        command.args(args).env_clear().env("NO_COLOR", "1");
        for name in ["PATH", "HOME"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        Cli { command, line: format!("tutti {}", args.join(" ")), stdin: Vec::new() }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Cli {
        self.command.env(name, value);
        self
    }

    pub fn dir(mut self, dir: &Path) -> Cli {
        self.command.current_dir(dir);
        self
    }

    /// On a machine of a [`crate::Network`].
    pub fn on(mut self, machine: &Machine) -> Cli {
        machine.put(&mut self.command);
        self
    }

    pub fn stdin(mut self, input: &[u8]) -> Cli {
        self.stdin = input.to_vec();
        self
    }

    /// Until it ends, whatever it returns.
    #[track_caller]
    pub fn call(self) -> Done {
        let line = self.line.clone();
        self.spawn().finish_within(&line, PATIENCE)
    }

    /// Until it ends well. What it printed, without the last newline.
    #[track_caller]
    pub fn ok(self) -> String {
        self.call().succeeded()
    }

    /// Starts it; its input ends after what was given.
    #[track_caller]
    pub fn spawn(mut self) -> LiveCli {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.line));
        let mut input = child.stdin.take().expect("stdin is a pipe");
        let text = std::mem::take(&mut self.stdin);
        // A program that does not read its input closes it; that is its business.
        std::thread::spawn(move || drop(input.write_all(&text)));
        let out = lines_of(child.stdout.take().expect("stdout is a pipe"));
        let err = lines_of(child.stderr.take().expect("stderr is a pipe"));
        LiveCli { child, line: self.line, out, err, seen: String::new(), noted: String::new() }
    }
}

/// A call that still runs. Killed when dropped.
pub struct LiveCli {
    child: Child,
    line: String,
    out: mpsc::Receiver<String>,
    err: mpsc::Receiver<String>,
    seen: String,
    noted: String,
}

impl LiveCli {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the process is there");
    }

    /// The next line of its output, as it comes.
    #[track_caller]
    pub fn next_line(&mut self) -> String {
        match self.out.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.seen.push_str(&line);
                line.trim_end_matches('\n').to_owned()
            }
            Err(e) => panic!("{}: no further line ({e}) after:\n{}", self.line, self.seen),
        }
    }

    /// The next line on its stderr, as it comes.
    #[track_caller]
    pub fn next_note(&mut self) -> String {
        match self.err.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.noted.push_str(&line);
                line.trim_end_matches('\n').to_owned()
            }
            Err(e) => panic!("{}: says no more ({e}) after:\n{}", self.line, self.noted),
        }
    }

    #[track_caller]
    pub fn finish(self) -> Done {
        let line = self.line.clone();
        self.finish_within(&line, PATIENCE)
    }

    #[track_caller]
    fn finish_within(mut self, what: &str, limit: Duration) -> Done {
        use std::os::unix::process::ExitStatusExt;
        let status = wait_for(&format!("`{what}` ends"), limit, || {
            self.child.try_wait().expect("a child can be waited for")
        });
        let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
        let mut out = std::mem::take(&mut self.seen);
        out.extend(self.out.iter());
        let mut err = std::mem::take(&mut self.noted);
        err.extend(self.err.iter());
        Done { line: self.line.clone(), code: code.expect("it has ended"), out, err }
    }
}

impl Drop for LiveCli {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Done {
    #[track_caller]
    pub fn succeeded(&self) -> String {
        self.exited(0);
        self.out.trim_end_matches('\n').to_owned()
    }

    #[track_caller]
    pub fn exited(&self, code: i32) -> &Done {
        assert_eq!(self.code, code, "exit code of {self}");
        self
    }

    /// Each of these is said on stderr.
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> &Done {
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not said by {self}");
        }
        self
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Done { line, code, out, err } = self;
        write!(f, "`{line}` = {code}\n--- stdout\n{out}\n--- stderr\n{err}")
    }
}

fn lines_of(pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}
