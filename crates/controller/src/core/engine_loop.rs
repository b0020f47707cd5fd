//! The engine thread.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tutti_engine::{Command, Effect, Record, Rejected, Step, packed_records};
use tutti_journal::{Batch, Journal, codec};
use tutti_model::Time;

use super::snapshot::{SnapshotRule, Snapshots};
use super::{Answer, Core, CoreError, QUEUE_MAX, Request, World, ticker};
use crate::clock::now;
use crate::feed::Feed;
use crate::links::{Link, Links};

/// Requests taken into one batch, so that the first of them does not wait for ever.
const BATCH_MAX: usize = 512;

/// Commands stepped before readers get a turn.
const STEPS_PER_LOCK: usize = 64;

const ALARM_EVERY: Duration = Duration::from_millis(20);

/// A running engine thread.
pub struct Started {
    pub core: Core,
    /// Resolves when the thread has ended, and why.
    pub ended: oneshot::Receiver<Result<(), CoreError>>,
}

/// What is owed to callers once the batch is durable, in the order of the steps.
enum Owed {
    Effects(Vec<Effect>),
    Answer(oneshot::Sender<Answer>, Answer),
    Answers(oneshot::Sender<Vec<Answer>>, Vec<Answer>),
    Hello(Arc<Link>, oneshot::Sender<Answer>, Answer),
}

struct EngineLoop {
    world: Arc<RwLock<World>>,
    queue: mpsc::Receiver<Request>,
    journal: Box<dyn Journal>,
    feed: Arc<Feed>,
    links: Arc<Links>,
    wakeup: watch::Sender<Option<Time>>,
    snapshots: Snapshots,
    records: Vec<Record>,
    owed: Vec<Owed>,
    stopping: bool,
    alarm_set: Instant,
}

/// Starts the thread and the ticker. Must be called inside a tokio runtime.
pub fn start(
    world: World,
    journal: Box<dyn Journal>,
    links: Arc<Links>,
    rule: SnapshotRule,
) -> std::io::Result<Started> {
    let (queue_tx, queue) = mpsc::channel(QUEUE_MAX);
    let feed = Arc::new(Feed::new(world.engine.state().seq));
    let world = Arc::new(RwLock::new(world));
    let (wakeup, wakeup_rx) = watch::channel(None);
    let (ended_tx, ended) = oneshot::channel();
    // Without it the first snapshot comes a little later.
    let there = journal.stats().ok();
    let engine_loop = EngineLoop {
        world: Arc::clone(&world),
        queue,
        journal,
        feed: Arc::clone(&feed),
        links,
        wakeup,
        snapshots: Snapshots::new(rule, queue_tx.downgrade(), there),
        records: Vec::new(),
        owed: Vec::new(),
        stopping: false,
        alarm_set: Instant::now(),
    };
    let stop_feed = StopFeed(Arc::clone(&feed));
    std::thread::Builder::new().name("tutti-engine".into()).spawn(move || {
        let _stop_feed = stop_feed;
        // A dropped sender tells the other side that the thread panicked.
        let _ = ended_tx.send(engine_loop.run());
    })?;
    tokio::spawn(ticker::run(queue_tx.downgrade(), wakeup_rx));
    Ok(Started { core: Core { queue: queue_tx, world, feed }, ended })
}

/// Lets go of everyone who waits for durability, even when the thread panics.
struct StopFeed(Arc<Feed>);

impl Drop for StopFeed {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl EngineLoop {
    fn run(mut self) -> Result<(), CoreError> {
        let mut inbox = Vec::with_capacity(BATCH_MAX);
        let mut wants_schedule = true;
        loop {
            if wants_schedule {
                while inbox.len() < BATCH_MAX
                    && let Ok(request) = self.queue.try_recv()
                {
                    inbox.push(request);
                }
            } else if self.queue.blocking_recv_many(&mut inbox, BATCH_MAX) == 0 {
                return Ok(());
            }
            for request in inbox.drain(..) {
                self.take(request)?;
            }
            wants_schedule = self.schedule();
            self.commit()?;
            if self.stopping {
                return Ok(());
            }
        }
    }

    fn take(&mut self, request: Request) -> Result<(), CoreError> {
        match request {
            Request::Tell(commands) => {
                for answer in self.step_all(commands) {
                    if let Err(refused) = answer {
                        tracing::debug!(%refused, "nobody waits for this refusal");
                    }
                }
            }
            Request::Reports { node, session, commands } => {
                let answers = self.step_all(commands);
                if answers.contains(&Err(Rejected::StaleSession(node))) {
                    self.links.close(
                        node,
                        session,
                        "the node was held for lost, or said hello again",
                    );
                }
            }
            Request::Call(command, reply) => {
                let answer = self.step_one(*command);
                self.owed.push(Owed::Answer(reply, answer));
            }
            Request::Many(commands, reply) => {
                let answers = self.step_all(commands);
                self.owed.push(Owed::Answers(reply, answers));
            }
            Request::Hello(command, link, reply) => self.hello(*command, link, reply),
            Request::Snapshot(seq, bytes) => {
                // The snapshot may be of records that this batch has not written yet.
                self.commit()?;
                self.snapshots.write(self.journal.as_mut(), seq, bytes)?;
            }
            Request::Stats(reply) => {
                // The asker may have left.
                let _ = reply.send(self.journal.stats());
            }
            Request::Stop => self.stopping = true,
        }
        Ok(())
    }

    fn step_all(&mut self, commands: Vec<Command>) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut commands = commands.into_iter().peekable();
        while commands.peek().is_some() {
            let world = Arc::clone(&self.world);
            let mut world = world.write().expect("only this thread writes");
            for command in commands.by_ref().take(STEPS_PER_LOCK) {
                let step = world.step(command, now());
                answers.push(self.keep(step));
            }
        }
        answers
    }

    fn step_one(&mut self, command: Command) -> Answer {
        let world = Arc::clone(&self.world);
        let mut world = world.write().expect("only this thread writes");
        let step = world.step(command, now());
        self.keep(step)
    }

    /// The link is attached before the effects of its own hello are sent, so these are owed after.
    fn hello(&mut self, command: Command, link: Arc<Link>, reply: oneshot::Sender<Answer>) {
        let world = Arc::clone(&self.world);
        let mut world = world.write().expect("only this thread writes");
        let mut step = world.step(command, now());
        let effects = std::mem::take(&mut step.effects);
        let answer = self.keep(step);
        self.owed.push(Owed::Hello(link, reply, answer));
        self.owed.push(Owed::Effects(effects));
    }

    fn schedule(&mut self) -> bool {
        let world = Arc::clone(&self.world);
        let mut world = world.write().expect("only this thread writes");
        if !world.engine.wants_schedule() {
            return false;
        }
        let step = world.schedule(now());
        if let Err(refused) = self.keep(step) {
            tracing::error!(%refused, "the scheduler's plan was refused");
        }
        world.engine.wants_schedule()
    }

    fn keep(&mut self, step: Step) -> Answer {
        self.records.extend(step.records);
        if !step.effects.is_empty() {
            self.owed.push(Owed::Effects(step.effects));
        }
        step.reply
    }

    /// Makes the batch durable, then does what is owed.
    fn commit(&mut self) -> Result<(), CoreError> {
        let records = std::mem::take(&mut self.records);
        if let (Some(first), Some(last)) = (records.first(), records.last()) {
            let bytes = codec::encode(&*packed_records(&records)).map_err(CoreError::Encode)?;
            self.snapshots.count(records.len(), bytes.len());
            let batch = Batch { first: first.seq, last: last.seq, bytes };
            self.journal.append(&batch).map_err(CoreError::Append)?;
        } else {
            // Readers too must not be told what the next start will not know.
            self.journal.check_in_place().map_err(CoreError::Append)?;
        }
        for owed in std::mem::take(&mut self.owed) {
            self.pay(owed);
        }
        // Last, so that whoever is woken by a record finds its orders on their way.
        if !records.is_empty() {
            self.feed.publish(records);
        }
        self.snapshots.start_if_due(&self.world);
        self.set_alarm();
        Ok(())
    }

    /// Looks at every active task, so not after each small batch; the tick of every second makes
    /// up for what is missed.
    fn set_alarm(&mut self) {
        if self.alarm_set.elapsed() < ALARM_EVERY {
            return;
        }
        self.alarm_set = Instant::now();
        let next = self.world.read().expect("only this thread writes").engine.next_wakeup();
        self.wakeup.send_if_modified(|old| std::mem::replace(old, next) != next);
    }

    /// A caller may have left meanwhile; its command still stands.
    fn pay(&self, owed: Owed) {
        match owed {
            Owed::Effects(effects) => self.links.deliver(effects),
            Owed::Answer(reply, answer) => {
                let _ = reply.send(answer);
            }
            Owed::Answers(reply, answers) => {
                let _ = reply.send(answers);
            }
            Owed::Hello(link, reply, answer) => {
                if let Ok(tutti_engine::Reply::Welcome { node }) = &answer {
                    self.links.attach(*node, link);
                }
                let _ = reply.send(answer);
            }
        }
    }
}
