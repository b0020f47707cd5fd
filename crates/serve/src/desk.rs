//! One endpoint's desk, shared by all threads: who has which replica, who waits, and the books.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tutti_model::{EndpointReport, EndpointRoute};

use crate::logic::{
    Ask, Books, Choice, Ended, Endpoint, FairQueue, Offered, Outcome, Pick, PromptBlocks,
    ReplicaKey, ServerMetrics, Ticket, Who,
};

/// What a request wants of a replica.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub prompt: Option<PromptBlocks>,
    pub sticky: Option<String>,
    /// Replicas that it was sent to before.
    pub tried: Vec<ReplicaKey>,
}

/// What became of a wish.
pub enum Got {
    Lease(Lease),
    /// All replicas that could be asked were.
    Exhausted,
    /// No place in the queue.
    Refused {
        retry_after: Duration,
    },
    /// There is no such endpoint any more.
    Closed,
    /// Its turn came, but nothing was free for it: it may ask once more.
    Again,
}

pub enum Asked {
    Now(Got),
    Waits(Waiting),
}

/// A place in the queue. Dropping it gives it up.
pub struct Waiting {
    desk: Arc<Desk>,
    ticket: Ticket,
    answer: oneshot::Receiver<Got>,
    until: Instant,
}

struct Waiter {
    wish: Wish,
    answer: oneshot::Sender<Got>,
}

struct Inner {
    replicas: Endpoint,
    queue: FairQueue<Waiter>,
    books: Books,
    /// How long one waits for a busy replica, and for the first one.
    queue_wait: Duration,
    hold: Duration,
    /// Some replica is listed and not on its way out.
    any_listed: bool,
    closed: bool,
    /// Of `Books::report`s that somebody else than the controller had.
    peak: u32,
}

pub struct Desk {
    inner: Mutex<Inner>,
}

impl Desk {
    pub fn new(route: &EndpointRoute, now: Instant) -> Desk {
        let mut seed = [0; 8];
        // Two routers that choose alike at random are no harm; without randomness they do.
        let _ = getrandom::fill(&mut seed);
        Desk {
            inner: Mutex::new(Inner {
                replicas: Endpoint::new(route, u64::from_ne_bytes(seed), now),
                queue: FairQueue::new(route.queue as usize, now),
                books: Books::default(),
                queue_wait: Duration::ZERO,
                hold: Duration::ZERO,
                any_listed: false,
                closed: false,
                peak: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds a desk")
    }

    pub fn update(self: &Arc<Self>, route: &EndpointRoute, now: Instant) {
        let mut inner = self.lock();
        inner.replicas.update(route, now);
        inner.queue.set_capacity(route.queue as usize);
        inner.queue_wait = Duration::from_millis(route.queue_wait.0);
        inner.hold = Duration::from_millis(route.hold.0);
        inner.any_listed = route.replicas.iter().any(|replica| !replica.draining);
        inner.serve_queue(self, now);
    }

    /// The endpoint is gone: nobody gets anything more, and what runs is finished.
    pub fn close(self: &Arc<Self>, route: &EndpointRoute, now: Instant) {
        let none = EndpointRoute { replicas: Vec::new(), ..route.clone() };
        let mut inner = self.lock();
        inner.replicas.update(&none, now);
        inner.closed = true;
        let late = now + Duration::from_secs(1 << 30);
        for waiter in inner.queue.expire(late) {
            inner.books.unqueued();
            let _ = waiter.answer.send(Got::Closed);
        }
    }

    /// A replica at once, or a place in the queue. `waited` is how long it has waited before: it may come back, but its patience is one for all of that.
    pub fn ask(self: &Arc<Self>, wish: &Wish, who: Who, waited: Duration, now: Instant) -> Asked {
        let mut inner = self.lock();
        if inner.closed {
            return Asked::Now(Got::Closed);
        }
        // One that was tried already goes on; others wait their turn.
        let pick = if inner.queue.is_empty() || !wish.tried.is_empty() {
            inner.replicas.pick(&wish.ask(), &wish.tried, now)
        } else {
            Pick::Busy
        };
        let patience = match pick {
            Pick::Replica(choice) => {
                inner.books.started();
                return Asked::Now(Got::Lease(Lease::new(self, choice)));
            }
            Pick::Exhausted => return Asked::Now(Got::Exhausted),
            Pick::Busy => inner.queue_wait,
            Pick::Absent if inner.any_listed => inner.hold.max(inner.queue_wait),
            Pick::Absent => inner.hold,
        };
        inner.queue_up(self, wish, who, now + patience.saturating_sub(waited), now)
    }

    /// The replica has begun to answer, and well.
    fn answered(&self, key: ReplicaKey) {
        self.lock().replicas.answered(key);
    }

    fn finished(self: &Arc<Self>, key: ReplicaKey, outcome: Outcome, now: Instant) {
        let mut inner = self.lock();
        inner.replicas.finished(key, outcome, now);
        inner.books.stopped();
        inner.serve_queue(self, now);
    }

    pub fn probed(self: &Arc<Self>, key: ReplicaKey, result: Result<(), String>, now: Instant) {
        let mut inner = self.lock();
        inner.replicas.probed(key, result, now);
        inner.serve_queue(self, now);
    }

    pub fn own_load(self: &Arc<Self>, key: ReplicaKey, metrics: &ServerMetrics, now: Instant) {
        let mut inner = self.lock();
        inner.replicas.own_load(key, metrics, now);
        inner.serve_queue(self, now);
    }

    /// Breakers and own loads go by the clock.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        self.lock().serve_queue(self, now);
    }

    pub fn refused(&self) {
        self.lock().books.refused();
    }

    pub fn retried(&self, revision: u32) {
        self.lock().books.retried(revision);
    }

    pub fn ended(&self, ended: &Ended) {
        self.lock().books.ended(ended);
    }

    /// For the controller the peak begins anew.
    pub fn report(&self, for_controller: bool, now: Instant) -> EndpointReport {
        let inner = &mut *self.lock();
        let mut report = inner.books.report(inner.replicas.replicas(now));
        report.peak = report.peak.max(inner.peak);
        inner.peak = if for_controller { 0 } else { report.peak };
        report
    }

    /// For probes: whom to ask, where, and whether it is ready.
    pub fn to_probe(&self, now: Instant) -> Vec<(ReplicaKey, Arc<str>, bool)> {
        let inner = self.lock();
        let listed = inner.replicas.replicas(now).filter(|replica| !replica.draining());
        listed.map(|r| (r.key(), r.address().clone(), r.ready())).collect()
    }

    pub fn any_ready(&self, now: Instant) -> bool {
        self.lock().replicas.replicas(now).any(|r| r.ready() && !r.draining())
    }
}

impl Inner {
    fn queue_up(
        &mut self,
        desk: &Arc<Desk>,
        wish: &Wish,
        who: Who,
        until: Instant,
        now: Instant,
    ) -> Asked {
        let (answer, receiver) = oneshot::channel();
        let waiter = Waiter { wish: wish.clone(), answer };
        match self.queue.offer(who, waiter, until, now) {
            Offered::Refused { retry_after, .. } => Asked::Now(Got::Refused { retry_after }),
            Offered::Waits { ticket, pushed_out } => {
                if let Some(other) = pushed_out {
                    self.books.unqueued();
                    let refused = Got::Refused { retry_after: other.retry_after };
                    let _ = other.item.answer.send(refused);
                }
                self.books.queued();
                Asked::Waits(Waiting { desk: desk.clone(), ticket, answer: receiver, until })
            }
        }
    }

    fn serve_queue(&mut self, desk: &Arc<Desk>, now: Instant) {
        while !self.queue.is_empty() && self.replicas.has_room(now) {
            let Some(waiter) = self.queue.take(now) else { return };
            self.books.unqueued();
            let got = match self.replicas.pick(&waiter.wish.ask(), &waiter.wish.tried, now) {
                Pick::Replica(choice) => {
                    self.books.started();
                    Got::Lease(Lease::new(desk, choice))
                }
                Pick::Exhausted => Got::Exhausted,
                Pick::Busy | Pick::Absent => Got::Again,
            };
            if let Err(Got::Lease(lease)) = waiter.answer.send(got) {
                // It left in this moment. Dropping the lease would ask for the desk that we hold.
                let choice = lease.forget();
                self.replicas.finished(choice.key, Outcome::Cancelled, now);
                self.books.stopped();
            }
        }
    }
}

impl Wish {
    fn ask(&self) -> Ask<'_> {
        Ask { prompt: self.prompt.as_ref(), sticky: self.sticky.as_deref() }
    }
}

impl Waiting {
    /// None: waited too long.
    pub async fn turn(mut self) -> Option<Got> {
        let until = tokio::time::Instant::from_std(self.until);
        match tokio::time::timeout_at(until, &mut self.answer).await {
            Ok(got) => Some(got.unwrap_or(Got::Closed)),
            Err(_) => None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut inner = self.desk.lock();
        if inner.queue.cancel(self.ticket).is_some() {
            inner.books.unqueued();
        }
    }
}

/// A replica that a request has. Dropping it says that the request was cancelled.
pub struct Lease {
    desk: Arc<Desk>,
    pub choice: Choice,
    ended: bool,
}

impl Lease {
    fn new(desk: &Arc<Desk>, choice: Choice) -> Lease {
        Lease { desk: desk.clone(), choice, ended: false }
    }

    pub fn answered(&self) {
        self.desk.answered(self.choice.key);
    }

    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.ended = true;
        self.desk.finished(self.choice.key, outcome, now);
    }

    fn forget(mut self) -> Choice {
        self.ended = true;
        self.choice.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.ended {
            self.desk.finished(self.choice.key, Outcome::Cancelled, Instant::now());
        }
    }
}
