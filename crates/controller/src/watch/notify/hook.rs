//! One run of a program in the `hooks` directory.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, Command};

use super::NotTold;

/// So much is kept of what a program says before it fails: its last words.
const SAID_MAX: usize = 1024;

/// Runs a program with this on its standard input. If nobody waits for it any more it is killed, with
/// all that it started.
pub async fn feed(program: &Path, input: &str) -> Result<(), NotTold> {
    let failed = |source| NotTold::Run { path: program.to_owned(), source };
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir("/")
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let mut group = Group::of(&child);
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read may still do its work.
        if let Err(error) = stdin.write_all(input.as_bytes()).await {
            tracing::debug!(%error, "a hook did not read its input");
        }
    }
    let (status, said) = end_of(&mut child).await.map_err(failed)?;
    group.let_go();
    match status.success() {
        true => Ok(()),
        false => Err(NotTold::Failed { path: program.to_owned(), status, said: in_words(&said) }),
    }
}

/// Waits for the program itself. What it leaves in the background may keep its standard error open.
async fn end_of(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut stderr = child.stderr.take();
    let mut said = Vec::new();
    loop {
        tokio::select! {
            // What it said before it ended is read before its end is seen.
            biased;
            more = read_some(&mut stderr, &mut said), if stderr.is_some() => {
                if !more {
                    stderr = None;
                }
            }
            status = child.wait() => return Ok((status?, said)),
        }
    }
}

/// False when there is no more to come.
async fn read_some(stderr: &mut Option<ChildStderr>, said: &mut Vec<u8>) -> bool {
    let Some(stderr) = stderr else { return false };
    let mut buffer = [0; SAID_MAX];
    let Ok(n @ 1..) = stderr.read(&mut buffer).await else { return false };
    said.extend_from_slice(&buffer[..n]);
    said.drain(..said.len().saturating_sub(SAID_MAX));
    true
}

/// On one line, and harmless in a log.
fn in_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match plain.trim() {
        "" => "nothing".to_owned(),
        words => words.to_owned(),
    }
}

/// The processes of a hook.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    /// It has ended by itself: its number may soon be another's, and what it left running it wants to
    /// run.
    fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may be gone by now.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}
