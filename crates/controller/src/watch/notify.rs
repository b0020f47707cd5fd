//! Tells those who do not look: a webhook, a program, mail by a program. Each has a queue and a task
//! of its own, so that one that hangs holds up neither the others nor the watch.

mod mail;
mod post;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::mpsc;
use tutti_model::{Alert, Notify};

/// Messages of one kind that may wait; beyond it they are only shown.
const QUEUE: usize = 1000;
const TRIES: u32 = 3;
const WITHIN: Duration = Duration::from_secs(10);
/// Before the next try; doubles.
const PAUSE: Duration = Duration::from_secs(1);
const HOOKS: &str = "hooks";
const MAIL: &str = "email";

/// What is sent.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    event: &'static str,
    alert: Alert,
}

impl Event {
    pub fn began(alert: &Alert) -> Event {
        Event { event: "began", alert: alert.clone() }
    }
    pub fn ended(alert: &Alert) -> Event {
        Event { event: "ended", alert: alert.clone() }
    }
}

/// Why it did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum NotTold {
    #[error("'{0}' is no address")]
    Address(String),
    #[error("{0} does not answer: {1}")]
    Connect(String, #[source] std::io::Error),
    #[error("no certificates of authorities are on this machine, so https can't be checked")]
    NoRoots,
    #[error("the conversation broke off: {0}")]
    Http(#[from] hyper::Error),
    #[error("it was answered with {0}")]
    Status(hyper::StatusCode),
    #[error("{path} can't be run: {source}")]
    Run { path: PathBuf, source: std::io::Error },
    #[error("{path} ended with {status}")]
    Failed { path: PathBuf, status: std::process::ExitStatus },
    #[error("it took longer than {} s", WITHIN.as_secs())]
    Late,
}

enum Errand {
    Post { url: String, body: String },
    Run { program: PathBuf, input: String },
}

impl Errand {
    async fn run(&self) -> Result<(), NotTold> {
        match self {
            Errand::Post { url, body } => post::post(url, body).await,
            Errand::Run { program, input } => feed(program, input).await,
        }
    }

    fn to(&self) -> String {
        match self {
            Errand::Post { url, .. } => url.clone(),
            Errand::Run { program, .. } => program.display().to_string(),
        }
    }
}

pub struct Notifier {
    hooks: PathBuf,
    webhook: mpsc::Sender<Errand>,
    command: mpsc::Sender<Errand>,
    email: mpsc::Sender<Errand>,
}

impl Notifier {
    pub fn start(data_dir: &Path) -> Notifier {
        let queue = || {
            let (errands, inbox) = mpsc::channel(QUEUE);
            tokio::spawn(run(inbox));
            errands
        };
        let hooks = data_dir.join(HOOKS);
        Notifier { hooks, webhook: queue(), command: queue(), email: queue() }
    }

    /// Never waits.
    pub fn tell(&self, notify: &Notify, event: Event) {
        let body = match serde_json::to_string(&event) {
            Ok(body) => body,
            Err(error) => return tracing::error!(%error, "an alert can't be written down"),
        };
        if let Some(url) = &notify.webhook {
            put(&self.webhook, Errand::Post { url: url.clone(), body: body.clone() });
        }
        if let Some(name) = &notify.command {
            put(&self.command, Errand::Run { program: self.hooks.join(name), input: body });
        }
        if !notify.email.is_empty() {
            let input = mail::message(&notify.email, event.event, &event.alert);
            put(&self.email, Errand::Run { program: self.hooks.join(MAIL), input });
        }
    }
}

fn put(queue: &mpsc::Sender<Errand>, errand: Errand) {
    if queue.try_send(errand).is_err() {
        tracing::warn!("too many alerts wait to be sent; one is only shown");
    }
}

async fn run(mut inbox: mpsc::Receiver<Errand>) {
    while let Some(errand) = inbox.recv().await {
        if let Err(error) = insist(&errand).await {
            tracing::warn!(to = errand.to(), %error, "nobody was told of an alert");
        }
    }
}

async fn insist(errand: &Errand) -> Result<(), NotTold> {
    let mut pause = PAUSE;
    let mut last = NotTold::Late;
    for again in 0..TRIES {
        if again > 0 {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        match tokio::time::timeout(WITHIN, errand.run()).await.unwrap_or(Err(NotTold::Late)) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs a program with this on its standard input. One that takes too long is killed.
async fn feed(program: &Path, input: &str) -> Result<(), NotTold> {
    let failed = |source| NotTold::Run { path: program.to_owned(), source };
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read may still do its work.
        if let Err(error) = stdin.write_all(input.as_bytes()).await {
            tracing::debug!(%error, "a hook did not read its input");
        }
    }
    let status = child.wait().await.map_err(failed)?;
    match status.success() {
        true => Ok(()),
        false => Err(NotTold::Failed { path: program.to_owned(), status }),
    }
}

#[cfg(test)]
mod tests;
