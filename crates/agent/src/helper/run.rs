//! The command of the first node, and the way out of the others when it has ended.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::peer::{self, Request};
use super::place::Place;
use super::{HelperError, io_error};

/// What our own ranks are told of themselves is not true of the processes that a framework makes.
const OF_RANKS: [&str; 4] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];

/// A program for the framework's own processes.
pub fn program(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for name in OF_RANKS {
        command.env_remove(name);
    }
    command
}

/// How often a node that waits looks whether it was stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// As a shell would say of a command that SIGTERM ended.
const STOPPED_CODE: u8 = 143;

/// Somebody stops the gang.
static STOPPED: AtomicBool = AtomicBool::new(false);

pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Whoever stops the gang stops its commands, too; this process only waits for them. A handler, not
/// `SIG_IGN`: what is ignored stays ignored in the commands.
pub fn outlive_commands() -> Result<(), HelperError> {
    extern "C" fn note(_: i32) {
        STOPPED.store(true, Ordering::Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { sigaction(signal, &action) }.map_err(|e| io_error("handle signals")(e.into()))?;
    }
    Ok(())
}

/// Runs the command to its end.
pub fn to_the_end(mut command: Command) -> Result<ExitStatus, HelperError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.status().map_err(io_error(format!("run '{name}'")))
}

/// The command's end: the other nodes may go. After a failure, or when the gang is being stopped,
/// they are stopped anyway and may be gone already.
pub fn leave(place: &Place, status: ExitStatus) -> Result<ExitCode, HelperError> {
    if status.success() && !is_stopped() {
        let leave = |node| peer::ask(node, &place.key, &Request::Leave).map(drop);
        std::thread::scope(|scope| {
            let asked: Vec<_> = place.others().map(|n| scope.spawn(move || leave(n))).collect();
            let told = asked.into_iter().map(|t| t.join().expect("asking does not panic"));
            told.collect::<Result<(), _>>()
        })?;
    }
    Ok(ExitCode::from(u8::try_from(shell_code(status)).unwrap_or(1)))
}

/// Commands that run here for others.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// While it lives, a stopped node waits: its ranks have a grace to save their work in.
pub struct AtWork(());

impl AtWork {
    pub fn begin() -> AtWork {
        AT_WORK.fetch_add(1, Ordering::Relaxed);
        AtWork(())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// On a node that has nothing to do but to be there: until it is told to leave, or stopped.
pub fn wait_to_leave(
    left: &mpsc::Receiver<Result<(), HelperError>>,
) -> Result<ExitCode, HelperError> {
    loop {
        match left.recv_timeout(LOOK_AGAIN) {
            Ok(told) => return told.map(|()| ExitCode::SUCCESS),
            Err(_) if is_stopped() && AT_WORK.load(Ordering::Relaxed) == 0 => {
                return Ok(ExitCode::from(STOPPED_CODE));
            }
            Err(_) => {}
        }
    }
}

/// As a shell would say it.
pub fn shell_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1)
}
