//! The thread that reads a log as it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use tutti_model::TaskId;
use tutti_wire::api::{LogEvent, LogQuery};
use tutti_wire::client::{Client, ClientError, ClusterRef};
use tutti_wire::stream::LogStream;

use super::app::Msg;
use super::logs::{LogLine, LogMsg};
use crate::cmd::output::bytes;
use crate::fail::chain;

const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Ends its thread when it is dropped, at the controller's next sign of life.
pub struct Follower {
    stop: Arc<AtomicBool>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Follower {
    pub fn start(
        cluster: &ClusterRef,
        number: u64,
        id: TaskId,
        query: LogQuery,
        out: Sender<Msg>,
    ) -> Follower {
        let stop = Arc::new(AtomicBool::new(false));
        // A connection of its own: this one is busy for as long as the log is.
        let client = Client::connect(cluster);
        let reader = Reader { client, number, id, query, out, stop: Arc::clone(&stop) };
        std::thread::spawn(move || reader.run());
        Follower { stop }
    }
}

struct Reader {
    client: Client,
    number: u64,
    id: TaskId,
    query: LogQuery,
    out: Sender<Msg>,
    stop: Arc<AtomicBool>,
}

/// Nobody listens any more.
struct Left;

impl Reader {
    fn run(self) {
        loop {
            let over = match self.read() {
                Err(Left) => return,
                Ok(Ok(words)) => LogMsg::Over(words),
                Ok(Err(error)) if error.is_unreachable() => {
                    LogMsg::Again(format!("{}; asking again", chain(&error)))
                }
                Ok(Err(error)) => {
                    let hint = error.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
                    // In full among the lines: the head of the screen is short.
                    if self.say(LogMsg::Note(format!("{}{hint}", chain(&error)))).is_err() {
                        return;
                    }
                    LogMsg::Over("it can't be read".to_owned())
                }
            };
            let again = matches!(over, LogMsg::Again(_));
            if self.say(over).is_err() || !again {
                return;
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    /// One connection: how the log ended, or why it broke.
    fn read(&self) -> Result<Result<String, ClientError>, Left> {
        let events = match self.client.logs(self.id, &self.query) {
            Ok(events) => events.until(Arc::clone(&self.stop)),
            Err(error) => return Ok(Err(error)),
        };
        for event in events {
            match event {
                Ok(LogEvent::Line { rank, stream, text, raw, partial, .. }) => {
                    let text = match bytes(text, raw) {
                        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                        Err(fail) => fail.message,
                    };
                    let line = LogLine { rank, err: stream == LogStream::Err, text };
                    self.say(LogMsg::Line { line, partial })?;
                }
                Ok(LogEvent::Note { text }) => self.say(LogMsg::Note(text))?,
                Ok(LogEvent::End { state, exit_code }) => {
                    let state = state.map_or("over", |state| state.as_str());
                    let code = exit_code.map_or_else(String::new, |c| format!(", exit code {c}"));
                    return Ok(Ok(format!("the log is complete: the job is {state}{code}")));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Err(ClientError::Interrupted(None)))
    }

    fn say(&self, msg: LogMsg) -> Result<(), Left> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Left);
        }
        self.out.send(Msg::Log(self.number, msg)).map_err(|_| Left)
    }
}
