//! The engine and the one thread that may change it.
//!
//! ```text
//!  callers ── queue ──► engine thread:  step each ─► schedule once ─► append (one fsync)
//!                                          │                            │
//!  readers ◄── read lock ── World ◄────────┘     effects, replies, feed ◄┘
//! ```
//! Memory runs ahead of the disk by at most one batch. A reader therefore remembers the record it
//! has seen and waits until that one is durable before it answers.

mod engine_loop;
mod load;
mod snapshot;
mod staged;
#[cfg(test)]
mod tests;
mod ticker;

use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tutti_engine::{Command, Engine, Event, Record, Rejected, Reply, Step};
use tutti_journal::{JournalError, Stats, codec::EncodeError};
use tutti_model::{NodeId, Seq, Span, TaskId, Time};
use tutti_sched::{Lookout, Outlook};

use crate::chronicle::Chronicle;
use crate::feed::Feed;
use crate::links::Link;
use crate::progress::{self, Book};
use crate::reads::Reads;
use crate::watch::Board;

pub use engine_loop::{Started, start};
pub use load::{LoadError, load};
pub use snapshot::SnapshotRule;
pub use staged::{Scene, stage};

/// Requests that may wait for the engine; a caller beyond that waits for room.
const QUEUE_MAX: usize = 4096;

/// Everything that a reader may look at, at one record.
pub struct World {
    pub engine: Engine,
    pub reads: Reads,
    pub progress: Book,
    pub chronicle: Chronicle,
    pub passes: Passes,
    /// What is wrong, for everybody who looks; kept by [`crate::watch`].
    pub alerts: Arc<Board>,
    /// The cluster as readers looked at it last, to say what keeps tasks waiting.
    lookout: Mutex<Option<(Seq, Time, Lookout)>>,
}

/// For so long a look at an unchanged cluster is as good as a new one: only time has passed.
const LOOK_AGAIN: Span = Span::secs(1);

impl World {
    /// Nothing is known of the past but what the state still says.
    pub fn new(engine: Engine) -> World {
        World {
            reads: Reads::rebuild(engine.state()),
            progress: Book::default(),
            chronicle: Chronicle::of(engine.state()),
            passes: Passes::default(),
            alerts: Arc::default(),
            lookout: Mutex::default(),
            engine,
        }
    }

    /// What keeps a waiting task from starting, all of it. The cluster is looked at once for all that
    /// ask about the same record; nothing of this is done unless somebody asks.
    pub fn outlook(&self, task: TaskId, now: Time) -> Option<Outlook> {
        let (state, plan) = (self.engine.state(), self.engine.plan());
        let mut known = self.lookout.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |(seq, at, _): &(Seq, Time, Lookout)| {
            *seq == state.seq && *at <= now && now.since(*at) < LOOK_AGAIN
        };
        if !known.as_ref().is_some_and(fresh) {
            *known = Some((state.seq, now, Lookout::new(state, now)));
        }
        known.as_mut().and_then(|(_, _, look)| look.look(state, plan, task))
    }

    /// One command, and what ranks say in it.
    pub fn step(&mut self, command: Command, now: Time) -> Step {
        let said = progress::said(self.engine.state(), &command);
        let step = self.engine.step(command, now);
        if step.reply.is_ok() {
            for said in said {
                self.progress.note(self.engine.state(), said, now);
            }
        }
        self.note(&step.records);
        step
    }

    /// One scheduling pass.
    pub fn schedule(&mut self, now: Time) -> Step {
        let began = Instant::now();
        let step = self.engine.schedule(now);
        self.passes.note(began.elapsed());
        self.note(&step.records);
        step
    }

    /// Everything that is kept beside the state follows it.
    fn note(&mut self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        self.reads.note(self.engine.state(), records);
        for record in records {
            self.chronicle.note(self.engine.state(), record);
            if let Event::JobsForgotten { jobs } = &record.event {
                self.progress.forget(jobs);
            }
        }
    }
}

/// What scheduling took since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passes {
    pub count: u64,
    pub total: Duration,
    pub last: Duration,
}

impl Passes {
    fn note(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
        self.last = took;
    }
}

/// Why the engine thread had to stop. Memory is then ahead of the disk, so nothing goes on.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("the journal took no more records")]
    Append(#[source] JournalError),
    #[error("records can't be written down")]
    Encode(#[source] EncodeError),
    #[error("the engine broke off; the log has the reason")]
    Panicked,
}

/// The controller is going down; nothing more is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the controller is stopping")]
pub struct Stopped;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error(transparent)]
    Rejected(#[from] Rejected),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

type Answer = Result<Reply, Rejected>;

pub(crate) enum Request {
    /// Nobody waits for the answer.
    Tell(Vec<Command>),
    /// The same from an agent's stream, which ends if the engine no longer counts it.
    Reports {
        node: NodeId,
        session: u64,
        commands: Vec<Command>,
    },
    Call(Box<Command>, oneshot::Sender<Answer>),
    Many(Vec<Command>, oneshot::Sender<Vec<Answer>>),
    /// Attaches the link before anything is sent to its node.
    Hello(Box<Command>, Arc<Link>, oneshot::Sender<Answer>),
    /// An encoded snapshot comes back from its thread; none if encoding failed.
    Snapshot(Seq, Option<Vec<u8>>),
    Stats(oneshot::Sender<Result<Stats, JournalError>>),
    Stop,
}

/// A handle to the engine: cheap to clone.
#[derive(Clone)]
pub struct Core {
    queue: mpsc::Sender<Request>,
    world: Arc<RwLock<World>>,
    feed: Arc<Feed>,
}

impl Core {
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The answer comes when its records are durable.
    pub async fn call(&self, command: Command) -> Result<Reply, CallError> {
        let (tx, rx) = oneshot::channel();
        self.send(Request::Call(Box::new(command), tx)).await?;
        Ok(rx.await.map_err(|_| Stopped)??)
    }

    /// Many commands in one go; each is accepted or refused by itself.
    pub async fn call_many(&self, commands: Vec<Command>) -> Result<Vec<Answer>, Stopped> {
        let (tx, rx) = oneshot::channel();
        self.send(Request::Many(commands, tx)).await?;
        rx.await.map_err(|_| Stopped)
    }

    /// Waits only for room in the queue.
    pub async fn tell(&self, commands: Vec<Command>) -> Result<(), Stopped> {
        self.send(Request::Tell(commands)).await
    }

    pub(crate) async fn report(
        &self,
        node: NodeId,
        session: u64,
        commands: Vec<Command>,
    ) -> Result<(), Stopped> {
        self.send(Request::Reports { node, session, commands }).await
    }

    pub(crate) async fn hello(
        &self,
        command: Command,
        link: Arc<Link>,
    ) -> Result<Reply, CallError> {
        let (tx, rx) = oneshot::channel();
        self.send(Request::Hello(Box::new(command), link, tx)).await?;
        Ok(rx.await.map_err(|_| Stopped)??)
    }

    pub async fn journal_stats(&self) -> Result<Result<Stats, JournalError>, Stopped> {
        let (tx, rx) = oneshot::channel();
        self.send(Request::Stats(tx)).await?;
        rx.await.map_err(|_| Stopped)
    }

    /// The engine thread ends after what is queued before this.
    pub async fn stop(&self) {
        // Refused only if it has ended already, which is what is wanted.
        let _ = self.send(Request::Stop).await;
    }

    async fn send(&self, request: Request) -> Result<(), Stopped> {
        self.queue.send(request).await.map_err(|_| Stopped)
    }

    /// Looks at the world now. Not for answers: those go through [`Core::read`].
    pub fn peek<T>(&self, look: impl FnOnce(&World) -> T) -> Result<T, Stopped> {
        match self.world.try_read() {
            Ok(world) => Ok(look(&world)),
            Err(TryLockError::Poisoned(_)) => Err(Stopped),
            // A scheduling pass may take a while; connections go on meanwhile.
            Err(TryLockError::WouldBlock) => tokio::task::block_in_place(|| {
                let world = self.world.read().map_err(|_| Stopped)?;
                Ok(look(&world))
            }),
        }
    }

    /// Looks at the world, and answers once what it saw is durable.
    pub async fn read<T>(&self, look: impl FnOnce(&World) -> T) -> Result<T, Stopped> {
        let (seen, seq) = self.peek(|world| (look(world), world.engine.state().seq))?;
        self.feed.until_durable(seq).await?;
        Ok(seen)
    }
}
