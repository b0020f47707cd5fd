//! Removes what a container runtime that was killed has left. It runs what its user's settings say, so
//! it is held like the part itself: in its groups and its namespace, as its user, and not for long.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::freeze::Freezer;
use super::ranks::{nonblocking, pipe, read_some, setting};
use super::{Place, wait};
use crate::cgroup::{OlderGroup, PartCgroup};
use crate::plan::{Plan, Podman, Workdir};
use crate::spawn::{Program, Setting, Stdio, spawn};

/// For each of its two commands. The part's GPUs are kept meanwhile.
const WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether it has ended, should the signal be missed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// More of what it says is not read.
const WORDS_MAX: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum LeftoverError {
    #[error("podman can't be started in the part's group: {0}")]
    Group(String),
    #[error("podman can't be started: {0}")]
    Start(#[source] io::Error),
    #[error("podman {verb} did not end within {} s", WITHIN.as_secs())]
    TooLong { verb: String },
    #[error("podman {verb} ended with {status}: {words}")]
    Failed { verb: String, status: String, words: String },
}

/// Nothing of the part may run any more but this.
pub fn remove(plan: &Plan, place: &Place, podman: &Podman) -> Result<(), LeftoverError> {
    // A part that was killed while it was suspended is frozen, and so would be what is born in it.
    let freezer = Freezer::new(plan.cgroup.as_ref());
    freezer.thaw(None).map_err(LeftoverError::Group)?;
    let group = plan.cgroup.as_ref().map(|group| below(group).make()).transpose();
    let group = group.map_err(|error| LeftoverError::Group(crate::node::chain(&error)))?;
    let workdir = Workdir::Asked("/".to_owned());
    let setting = Setting { workdir: &workdir, cgroup: group.as_ref(), ..setting(plan, place) };
    let left = run(&setting, &podman.env, &podman.list)?;
    let is_id = |word: &&str| word.chars().all(|c| c.is_ascii_hexdigit());
    let ids: Vec<String> = left.split_whitespace().filter(is_id).map(str::to_owned).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = podman.remove.iter().cloned().chain(ids).collect();
    run(&setting, &podman.env, &words).map(drop)
}

/// In a group that was killed newer kernels (seen with 6.18) also kill what is born there from outside
/// later; in one below it, which is held by the same limits, they do not.
fn below(group: &PartCgroup) -> PartCgroup {
    let older = |group: &OlderGroup| OlderGroup { path: group.path.clone(), limits: Vec::new() };
    PartCgroup {
        path: group.path.join("leftovers"),
        older: group.older.iter().map(older).collect(),
        ..PartCgroup::default()
    }
}

/// What it says, on either stream.
fn run(setting: &Setting<'_>, env: &[String], words: &[String]) -> Result<String, LeftoverError> {
    let verb = words.get(1).cloned().unwrap_or_default();
    let (pid, mut output) = start(setting, env, words).map_err(LeftoverError::Start)?;
    let deadline = Instant::now() + WITHIN;
    let mut said = Vec::with_capacity(WORDS_MAX);
    loop {
        let mut fds: Vec<PollFd<'_>> =
            output.iter().map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
        wait(&mut fds, Some(deadline.min(Instant::now() + LOOK_EVERY)));
        drop(fds);
        let ended = waitpid(pid, Some(WaitPidFlag::WNOHANG)).map_err(io::Error::from);
        // After the look, so that nothing it has said before its end is missed.
        read_waiting(&mut output, &mut said);
        let words = || String::from_utf8_lossy(&said).trim().to_owned();
        match ended.map_err(LeftoverError::Start)? {
            WaitStatus::Exited(_, 0) => return Ok(words()),
            WaitStatus::StillAlive if Instant::now() < deadline => {}
            WaitStatus::StillAlive => {
                // SAFETY: a plain system call; the group's leader is our child and not reaped yet.
                unsafe { libc::kill(-pid.as_raw(), libc::SIGKILL) };
                return Err(LeftoverError::TooLong { verb });
            }
            WaitStatus::Signaled(_, signal, _) => {
                let status = signal.to_string();
                return Err(LeftoverError::Failed { verb, status, words: words() });
            }
            WaitStatus::Exited(_, code) => {
                let status = format!("code {code}");
                return Err(LeftoverError::Failed { verb, status, words: words() });
            }
            // Stopped: somebody else's doing, and no end.
            _ => {}
        }
    }
}

fn start(
    setting: &Setting<'_>,
    env: &[String],
    words: &[String],
) -> io::Result<(Pid, Option<File>)> {
    let program = Program::new(words, env.iter().cloned()).map_err(io::Error::other)?;
    let (output, child) = pipe()?;
    // The zygote's own standard input is /dev/null.
    let null = io::stdin();
    let stdio = Stdio { stdin: null.as_fd(), stdout: child.as_fd(), stderr: child.as_fd() };
    let pid = spawn(&program, setting, &stdio)?;
    Ok((Pid::from_raw(pid), Some(nonblocking(output)?.into())))
}

/// As far as there is room; one that says more is not listened to.
fn read_waiting(output: &mut Option<File>, said: &mut Vec<u8>) {
    while let Some(file) = output {
        if said.len() == said.capacity() {
            *output = None;
            return;
        }
        match read_some(file, said) {
            Ok(1..) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Ok(_) | Err(_) => *output = None,
        }
    }
}
