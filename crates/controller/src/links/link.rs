//! One agent's stream, as the rest of the controller sees it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tutti_model::{Epoch, NodeId, Span};
use tutti_wire::stream::{ExecOutput, HealthReply, LogReply, RequestId, ToAgent};

/// Messages that may wait for an agent. An agent that lets so many wait does not read.
const OUT_MAX: usize = 16_384;

/// Bytes of input (`run`, `exec`) that may wait for one agent.
const INPUT_MAX: usize = 1 << 20;

/// Bytes of output that may wait for one reader; the agent can't be slowed down for it.
const OUTPUT_MAX: usize = 16 << 20;

/// What a message counts for at least: one of a few bytes takes a place in a queue as well.
const MESSAGE_MIN: usize = 256;

pub(super) struct Outgoing {
    pub message: ToAgent,
    /// Given back when the message goes out.
    pub _room: Option<OwnedSemaphorePermit>,
}

/// What an agent sent for one request.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Log(LogReply),
    Output(ExecOutput),
    Health(HealthReply),
    /// The reader was too slow, and the rest was dropped.
    Overflow,
}

impl Answer {
    fn size(&self) -> usize {
        let bytes = match self {
            Answer::Output(ExecOutput::Data { data, .. }) => data.len(),
            Answer::Log(LogReply::Piece { lines, .. }) => lines.iter().map(|l| l.text.len()).sum(),
            _ => 0,
        };
        bytes.max(MESSAGE_MIN)
    }
}

/// The stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node's stream has ended")]
pub struct LinkGone;

struct Waiting {
    answers: mpsc::UnboundedSender<Answer>,
    /// Bytes sent and not yet received.
    queued: Arc<AtomicUsize>,
}

pub struct Link {
    pub session: u64,
    peer: LinkPeer,
    made: Instant,
    /// When something came last, in milliseconds since then.
    heard: AtomicU64,
    greeting: Greeting,
    out: mpsc::Sender<Outgoing>,
    input_room: Arc<Semaphore>,
    closed: watch::Sender<Option<&'static str>>,
    waiting: Mutex<HashMap<RequestId, Waiting>>,
    next_request: AtomicU64,
}

/// Who is at the other end.
pub(super) struct LinkPeer {
    pub name: String,
    /// From where it calls.
    pub from: String,
    /// Of the agent's process, if it says.
    pub instance: Option<String>,
}

impl From<&str> for LinkPeer {
    fn from(name: &str) -> LinkPeer {
        LinkPeer { name: name.to_owned(), from: String::new(), instance: None }
    }
}

/// What the welcome says besides the node's id.
pub(super) struct Greeting {
    pub epoch: Epoch,
    pub heartbeat: Span,
    pub certificate: Option<String>,
}

impl Link {
    pub(super) fn new(
        session: u64,
        peer: LinkPeer,
        greeting: Greeting,
    ) -> (Arc<Link>, mpsc::Receiver<Outgoing>) {
        let (out, outgoing) = mpsc::channel(OUT_MAX);
        let link = Link {
            session,
            peer,
            made: Instant::now(),
            heard: AtomicU64::new(0),
            greeting,
            out,
            input_room: Arc::new(Semaphore::new(INPUT_MAX)),
            closed: watch::Sender::new(None),
            waiting: Mutex::default(),
            next_request: AtomicU64::new(1),
        };
        (Arc::new(link), outgoing)
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.peer.name
    }

    pub(super) fn from(&self) -> &str {
        &self.peer.from
    }

    pub(super) fn instance(&self) -> Option<&str> {
        self.peer.instance.as_deref()
    }

    /// Something came from the agent.
    pub(super) fn note_heard(&self) {
        let since = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Relaxed);
    }

    pub(super) fn heard_since(&self, at: Instant) -> bool {
        self.made + Duration::from_millis(self.heard.load(Ordering::Relaxed)) >= at
    }

    pub(super) fn welcome(&self, node: NodeId) {
        let Greeting { epoch, heartbeat, ref certificate } = self.greeting;
        let certificate = certificate.clone();
        self.send(ToAgent::Welcome { node, epoch, heartbeat, certificate });
    }

    /// Never waits.
    pub fn send(&self, message: ToAgent) {
        self.put(Outgoing { message, _room: None });
    }

    fn put(&self, outgoing: Outgoing) {
        match self.out.try_send(outgoing) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.close("the agent does not read what it is sent");
            }
        }
    }

    /// For input of any length: waits until the agent has taken what came before.
    pub async fn send_input(&self, bytes: usize, message: ToAgent) -> Result<(), LinkGone> {
        let wanted = bytes.clamp(MESSAGE_MIN, INPUT_MAX) as u32;
        let mut closed = self.closed.subscribe();
        let room = tokio::select! {
            room = Arc::clone(&self.input_room).acquire_many_owned(wanted) => room,
            _ = closed.wait_for(Option::is_some) => return Err(LinkGone),
        };
        self.put(Outgoing { message, _room: room.ok() });
        if self.closed.borrow().is_some() { Err(LinkGone) } else { Ok(()) }
    }

    /// Starts a request; dropping the answers tells the agent to forget it.
    pub fn request(self: &Arc<Self>, make: impl FnOnce(RequestId) -> ToAgent) -> Answers {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (tx, answers) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let waiting = Waiting { answers: tx, queued: Arc::clone(&queued) };
        {
            // Under the lock, so that a link that closes now either sees this one or is seen.
            let mut all = self.waiting();
            if self.closed.borrow().is_none() {
                all.insert(id, waiting);
            }
        }
        self.send(make(id));
        Answers { link: Arc::clone(self), id, answers, queued, done: false }
    }

    pub(super) fn answer(&self, id: RequestId, answer: Answer) {
        let mut all = self.waiting();
        // Nobody waits any more; the agent has been or is being told.
        let Some(waiting) = all.get(&id) else { return };
        let size = answer.size();
        if waiting.queued.fetch_add(size, Ordering::Relaxed) + size > OUTPUT_MAX {
            let _ = waiting.answers.send(Answer::Overflow);
            all.remove(&id);
            drop(all);
            self.send(ToAgent::Abandon { request: id });
        } else {
            let _ = waiting.answers.send(answer);
        }
    }

    pub fn close(&self, why: &'static str) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(why);
            first
        });
        self.waiting().clear();
    }

    pub(super) fn closed(&self) -> watch::Receiver<Option<&'static str>> {
        self.closed.subscribe()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<RequestId, Waiting>> {
        crate::lock::lock(&self.waiting)
    }
}

/// The answers to one request.
pub struct Answers {
    link: Arc<Link>,
    id: RequestId,
    answers: mpsc::UnboundedReceiver<Answer>,
    queued: Arc<AtomicUsize>,
    done: bool,
}

impl Answers {
    pub fn id(&self) -> RequestId {
        self.id
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub async fn next(&mut self) -> Result<Answer, LinkGone> {
        let answer = self.answers.recv().await.ok_or(LinkGone)?;
        self.queued.fetch_sub(answer.size(), Ordering::Relaxed);
        self.done = match &answer {
            Answer::Output(output) => !matches!(output, ExecOutput::Data { .. }),
            Answer::Log(_) | Answer::Health(_) | Answer::Overflow => true,
        };
        Ok(answer)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let known = self.link.waiting().remove(&self.id).is_some();
        if known && !self.done {
            self.link.send(ToAgent::Abandon { request: self.id });
        }
    }
}
