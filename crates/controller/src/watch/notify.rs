//! Tells those who do not look: a webhook, a program, mail by a program. Each has a queue and a task
//! of its own, so that one that hangs holds up neither the others nor the watch.

mod hook;
mod mail;
mod post;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tutti_model::{Alert, Notify, only_host};

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
    #[error("{path} ended with {status} and said: {said}")]
    Failed { path: PathBuf, status: std::process::ExitStatus, said: String },
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
            Errand::Run { program, input } => hook::feed(program, input).await,
        }
    }

    /// For the log, which more people read than may post there.
    fn to(&self) -> String {
        match self {
            Errand::Post { url, .. } => only_host(url),
            Errand::Run { program, .. } => program.display().to_string(),
        }
    }

    /// A program that took too long may have done its work, and would do it twice.
    fn may_be_repeated(&self, error: &NotTold) -> bool {
        !matches!((self, error), (Errand::Run { .. }, NotTold::Late))
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
    pub fn tell(&self, notify: &Notify, event: &Event) {
        if !notify.wants(&event.alert) {
            return;
        }
        let body = match serde_json::to_string(event) {
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
        if let Err(error) = insist(&errand, WITHIN).await {
            tracing::warn!(to = errand.to(), %error, "nobody was told of an alert");
        }
    }
}

async fn insist(errand: &Errand, within: Duration) -> Result<(), NotTold> {
    let mut pause = PAUSE;
    let mut last = NotTold::Late;
    for again in 0..TRIES {
        if again > 0 {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        match tokio::time::timeout(within, errand.run()).await.unwrap_or(Err(NotTold::Late)) {
            Ok(()) => return Ok(()),
            Err(error) if errand.may_be_repeated(&error) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests;
