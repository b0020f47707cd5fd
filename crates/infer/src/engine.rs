//! The thread that computes: does what the schedule plans, and tells each client what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tutti_trainer::config::VOCAB;

use crate::metrics::{Metrics, micros};
use crate::model::Model;
use crate::request::{Emission, Reason, Request, SequenceId};
use crate::schedule::{Schedule, Work};

/// What came of one of the sequences of a submission.
#[derive(Debug)]
pub struct Event {
    /// Which of them, as they were given.
    pub index: usize,
    pub emission: Emission,
}

/// Sequences that belong together, for one client.
pub struct Submission {
    requests: Vec<Request>,
    events: UnboundedSender<Event>,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// So many wait already.
    Full { waiting: usize },
    /// The thread is gone.
    Gone,
}

/// How one speaks to the thread.
pub struct Engine {
    submissions: Sender<Submission>,
    waiting: Arc<AtomicUsize>,
    queue: usize,
    ids: AtomicU64,
}

impl Engine {
    /// What the thread runs with, too.
    pub fn new(queue: usize) -> (Engine, Inbox) {
        let (submissions, receiver) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let inbox = Inbox { submissions: receiver, waiting: waiting.clone() };
        (Engine { submissions, waiting, queue, ids: AtomicU64::new(0) }, inbox)
    }

    /// Sequences that one submission may have.
    pub fn most(&self) -> usize {
        self.queue
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Drop what this returns, and the sequences end.
    pub fn submit(
        &self,
        mut requests: Vec<Request>,
        at: Instant,
    ) -> Result<UnboundedReceiver<Event>, Refused> {
        let more = requests.len();
        let room = |waiting: usize| Some(waiting + more).filter(|all| *all <= self.queue);
        let taken = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map_err(|waiting| Refused::Full { waiting })?;
        for request in &mut requests {
            request.id = SequenceId(self.ids.fetch_add(1, Ordering::Relaxed));
        }
        let (events, receiver) = unbounded_channel();
        let submission = Submission { requests, events, at };
        self.submissions.send(submission).map_err(|_| Refused::Gone)?;
        Ok(receiver)
    }
}

pub struct Inbox {
    submissions: Receiver<Submission>,
    waiting: Arc<AtomicUsize>,
}

/// Who waits for a sequence.
struct Client {
    events: UnboundedSender<Event>,
    index: usize,
    at: Instant,
    /// When its last token came.
    last: Option<Instant>,
}

struct Run<M> {
    model: M,
    schedule: Schedule,
    clients: BTreeMap<SequenceId, Client>,
    inbox: Inbox,
    metrics: Arc<Metrics>,
    /// Tokens that all slots have room for.
    room: usize,
}

/// Computes until nobody can submit any more and all is done.
pub fn run<M: Model>(
    model: M,
    inbox: Inbox,
    schedule: Schedule,
    room: usize,
    metrics: Arc<Metrics>,
) {
    let mut run = Run { model, schedule, clients: BTreeMap::new(), inbox, metrics, room };
    while run.listen() {
        run.let_go();
        run.step();
    }
}

impl<M: Model> Run<M> {
    /// Takes what was submitted, and waits for it if there is nothing else to do. False when nothing
    /// will come any more.
    fn listen(&mut self) -> bool {
        if self.schedule.is_idle() {
            match self.inbox.submissions.recv() {
                Ok(submission) => self.take(submission),
                Err(mpsc::RecvError) => return false,
            }
        }
        while let Ok(submission) = self.inbox.submissions.try_recv() {
            self.take(submission);
        }
        true
    }

    fn take(&mut self, submission: Submission) {
        let Submission { requests, events, at } = submission;
        for (index, request) in requests.into_iter().enumerate() {
            let client = Client { events: events.clone(), index, at, last: None };
            self.clients.insert(request.id, client);
            self.schedule.add(request);
        }
    }

    /// Sequences whose clients have left.
    fn let_go(&mut self) {
        let left = self.clients.iter().filter(|(_, client)| client.events.is_closed());
        let left: Vec<SequenceId> = left.map(|(id, _)| *id).collect();
        if left.is_empty() {
            return;
        }
        let before = self.schedule.waiting();
        for id in &left {
            self.clients.remove(id);
            self.schedule.cancel(*id);
        }
        self.left_queue(before);
        self.levels(|counts| counts.cancelled += left.len() as u64);
    }

    fn step(&mut self) {
        let before = self.schedule.waiting();
        let planned = self.schedule.plan();
        self.left_queue(before);
        self.levels(|_| ());
        for work in planned {
            match work {
                Work::Copy { from, to, len } => self.model.copy(from, to, len),
                Work::Prefill { slot, start, tokens, last } => {
                    let logits = self.model.prefill(slot, start, &tokens, last);
                    self.metrics.change(|counts| counts.prompt_tokens += tokens.len() as u64);
                    if let Some(logits) = logits {
                        self.advance(slot, &logits);
                    }
                }
                Work::Decode(rows) => {
                    let begun = Instant::now();
                    let logits = self.model.decode(&rows);
                    self.metrics.change(|counts| {
                        counts.steps += 1;
                        counts.decode_step.add(micros(begun.elapsed()));
                    });
                    for (row, logits) in rows.iter().zip(logits.chunks_exact(VOCAB)) {
                        self.advance(row.slot, logits);
                    }
                }
            }
        }
        self.levels(|_| ());
    }

    fn left_queue(&self, before: usize) {
        self.inbox.waiting.fetch_sub(before - self.schedule.waiting(), Ordering::Relaxed);
    }

    fn levels(&self, f: impl FnOnce(&mut crate::metrics::Counts)) {
        self.metrics.change(|counts| {
            counts.running = self.schedule.running();
            counts.cache_used = self.schedule.tokens() as f64 / self.room.max(1) as f64;
            counts.reuse = self.schedule.reuse();
            f(counts);
        });
    }

    fn advance(&mut self, slot: usize, logits: &[f32]) {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return self.give_up(slot);
        }
        let Some(emission) = self.schedule.advance(slot, logits) else { return };
        let id = emission.id;
        let Some(client) = self.clients.get_mut(&id) else { return };
        let now = Instant::now();
        let reason = emission.finish.as_ref().map(|finish| finish.reason);
        let last = client.last.replace(now);
        let (at, index) = (client.at, client.index);
        self.metrics.change(|counts| {
            counts.output_tokens += 1;
            match last {
                None => counts.first_token.add(micros(now - at)),
                Some(last) => counts.per_token.add(micros(now - last)),
            }
            match reason {
                Some(Reason::Stop) => counts.finished_stop += 1,
                Some(Reason::Length) => counts.finished_length += 1,
                None => {}
            }
        });
        // The slot is free before anybody can know that it is over.
        if reason.is_some() {
            self.levels(|_| ());
        }
        // A client that left is found before the next step.
        let _ = client_of(&self.clients, id).events.send(Event { index, emission });
        if reason.is_some() {
            self.clients.remove(&id);
        }
    }

    /// What was computed is no number: its client is told, and nobody finds it in the slot.
    fn give_up(&mut self, slot: usize) {
        self.model.clear(slot);
        let Some(id) = self.schedule.forget(slot) else { return };
        // That nothing more comes is how a client learns of it.
        self.clients.remove(&id);
        self.levels(|counts| counts.broken += 1);
    }
}

fn client_of(clients: &BTreeMap<SequenceId, Client>, id: SequenceId) -> &Client {
    clients.get(&id).expect("it was there a moment ago")
}

#[cfg(test)]
mod tests;
