//! The helper that makes the driver's calls for a shim: `tutti __cuda`. It reads questions from
//! standard input, one per line, works on all of them at once, and leaves when the input ends. It
//! may hang or be killed at any time; who asked has time limits.

mod survey;

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use tutti_gpu::cuda::{Checkpointer, CudaError, Driver, GpuUuid, Move, ProcessState};

use super::calls::{Answered, Call, Failed, Question, Reply};
use super::huge_pages::HugePages;

pub use survey::{Holders, Nvml};

/// The hidden verb of this binary.
pub const VERB: &str = "__cuda";

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("can't {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// What the driver of this machine can do, as the helper says it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Probe {
    /// 13000 is CUDA 13.0; restoring onto another GPU needs that.
    pub cuda: i32,
}

/// Loads the driver and says what it can do; starts nothing.
pub fn probe() -> Result<Probe, ServeError> {
    let driver = Driver::load()?;
    Ok(Probe { cuda: driver.version()? })
}

/// The helper's life. `huge_pages`: where their setting is remembered, if they are to be used.
pub fn run(huge_pages: Option<&Path>) -> Result<(), ServeError> {
    let driver = Driver::load()?;
    driver.start()?;
    // The move works without, only slower.
    let held = huge_pages.and_then(|dir| HugePages::new(dir).switch_on().ok());
    let server = Server { driver: &driver, holders: &Nvml, root: Path::new("/") };
    let served = server.serve(io::stdin().lock(), io::stdout());
    drop(held);
    served.map_err(|source| ServeError::Io { what: "speak with the shim", source })
}

pub struct Server<'a> {
    pub driver: &'a dyn Checkpointer,
    pub holders: &'a (dyn Holders + Sync),
    /// Of the file system; tests bring their own.
    pub root: &'a Path,
}

impl Server<'_> {
    pub fn serve(&self, input: impl BufRead, output: impl Write + Send) -> io::Result<()> {
        let output = Mutex::new(output);
        std::thread::scope(|scope| {
            for line in input.lines() {
                let question: Question = serde_json::from_str(&line?).map_err(io::Error::other)?;
                let output = &output;
                scope.spawn(move || {
                    let result = self.answer(question.call);
                    let answered = Answered { id: question.id, result };
                    let mut text = serde_json::to_string(&answered).expect("plain data");
                    text.push('\n');
                    let mut output = output.lock().expect("no thread panics while it writes");
                    // A shim that is gone needs no answer.
                    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
                });
            }
            Ok(())
        })
    }

    fn answer(&self, call: Call) -> Result<Reply, Failed> {
        let done = |result: Result<(), CudaError>, pid| match result {
            Ok(()) => Ok(Reply::Done),
            Err(error) => Err(failed(&error, pid)),
        };
        match call {
            Call::Survey { pids, gpus } => self.survey(&pids, &gpus),
            Call::Lock { pid, timeout_ms } => {
                done(self.driver.lock(pid, Duration::from_millis(timeout_ms.into())), pid)
            }
            Call::Checkpoint { pid } => done(self.driver.checkpoint(pid), pid),
            Call::Restore { pid, moves } => self.restore(pid, &moves),
            Call::Unlock { pid } => done(self.driver.unlock(pid), pid),
            Call::Settle { pid } => self.settle(pid),
        }
    }

    /// Where a try before this one has restored some of the part, those are done.
    fn restore(&self, pid: i32, moves: &[(String, String)]) -> Result<Reply, Failed> {
        if matches!(self.driver.state(pid), Ok(ProcessState::Locked | ProcessState::Running)) {
            return Ok(Reply::Done);
        }
        let moves = moves.iter().map(|(from, to)| {
            let uuid = |text: &String| {
                let why = format!("'{text}' is not the UUID of a whole NVIDIA GPU");
                GpuUuid::parse(text).ok_or(Failed { why, timeout: false })
            };
            Ok(Move { from: uuid(from)?, to: uuid(to)? })
        });
        let moves = moves.collect::<Result<Vec<_>, Failed>>()?;
        self.driver.restore(pid, &moves).map_err(|e| failed(&e, pid))?;
        Ok(Reply::Done)
    }

    fn settle(&self, pid: i32) -> Result<Reply, Failed> {
        if !self.root.join(format!("proc/{pid}")).exists() {
            return Ok(Reply::Done);
        }
        let state = self.driver.state(pid).map_err(|e| failed(&e, pid))?;
        let settled = match state {
            ProcessState::Running => Ok(()),
            ProcessState::Locked => self.driver.unlock(pid),
            ProcessState::Checkpointed => {
                self.driver.restore(pid, &[]).and_then(|()| self.driver.unlock(pid))
            }
            ProcessState::Failed | ProcessState::Other(_) => {
                let why = format!("process {pid} is in state {state:?}, which has no way back");
                return Err(Failed { why, timeout: false });
            }
        };
        settled.map(|()| Reply::Done).map_err(|e| failed(&e, pid))
    }
}

fn failed(error: &CudaError, pid: i32) -> Failed {
    Failed { why: format!("process {pid}: {error}"), timeout: error.is_timeout() }
}

#[cfg(test)]
mod tests;
