//! Operations under way: a handle that owns the buffer until it is done.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use crate::error::{Error, Result, Verb};
use crate::health::{Health, Patience, Wait, lock};

struct Slot<T> {
    result: Mutex<Option<Result<T>>>,
    done: Condvar,
}

/// An operation that was started. It goes on whether or not it is waited for; `wait` gives its
/// buffer back.
#[must_use = "the buffer comes back from wait()"]
pub struct Pending<T> {
    slot: Arc<Slot<T>>,
    watch: Option<Watch>,
}

/// A receive has no thread of its own that would notice a failure.
pub(crate) struct Watch {
    pub health: Arc<Health>,
    pub wait: Wait,
    pub limit: Duration,
}

/// The other end: whoever carries the operation out.
pub(crate) struct Promise<T> {
    slot: Arc<Slot<T>>,
    op: Verb,
    kept: bool,
}

pub(crate) fn pair<T>(op: Verb, watch: Option<Watch>) -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Slot { result: Mutex::new(None), done: Condvar::new() });
    (Promise { slot: Arc::clone(&slot), op, kept: false }, Pending { slot, watch })
}

impl<T> Promise<T> {
    pub fn keep(mut self, result: Result<T>) {
        self.kept = true;
        *lock(&self.slot.result) = Some(result);
        self.slot.done.notify_all();
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.kept {
            let what = "the thread that carried it out is gone (it panicked, or the world closed)";
            *lock(&self.slot.result) = Some(Err(Error::usage(self.op, what)));
            self.slot.done.notify_all();
        }
    }
}

impl<T> Pending<T> {
    /// Whether `wait` would return at once.
    pub fn is_done(&self) -> bool {
        lock(&self.slot.result).is_some()
    }

    /// Waits for the end, and gives the buffer back.
    pub fn wait(self) -> Result<T> {
        let mut patience =
            self.watch.as_ref().map(|w| Patience::new(&w.health, w.wait, Verb::Recv, w.limit));
        let mut slot = lock(&self.slot.result);
        loop {
            if let Some(result) = slot.take() {
                return result;
            }
            let slept = self.slot.done.wait_timeout(slot, Patience::SLICE);
            slot = slept.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(patience) = &mut patience
                && slot.is_none()
            {
                drop(slot);
                patience.tick()?;
                slot = lock(&self.slot.result);
            }
        }
    }
}

/// A thread that carries out what was started, in order.
pub(crate) struct Worker(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Worker {
    pub fn start(name: &str) -> Result<Self> {
        let (sender, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let run = move || jobs.into_iter().for_each(|job| job());
        let thread = thread::Builder::new().name(name.into()).spawn(run);
        thread.map_err(|e| Error::io(format!("start thread {name}"), e))?;
        Ok(Self(sender))
    }

    /// If the thread is gone, the job's promise breaks, which says so.
    pub fn push(&self, job: impl FnOnce() + Send + 'static) {
        let _ = self.0.send(Box::new(job));
    }
}

/// Lets operations in one at a time, in the order in which they were announced.
#[derive(Default)]
pub(crate) struct Turnstile {
    state: Mutex<(u64, u64)>,
    moved: Condvar,
}

pub(crate) struct Ticket(u64);

impl Turnstile {
    pub fn ticket(&self) -> Ticket {
        let mut state = lock(&self.state);
        state.0 += 1;
        Ticket(state.0 - 1)
    }

    pub fn enter(&self, ticket: Ticket) -> Turn<'_> {
        let mut state = lock(&self.state);
        while state.1 != ticket.0 {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }
}

pub(crate) struct Turn<'a>(&'a Turnstile);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).1 += 1;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_that_is_dropped_is_an_error_and_not_a_hang() {
        let (promise, pending) = pair::<Vec<u8>>(Verb::AllReduce, None);
        assert!(!pending.is_done());
        drop(promise);
        assert!(pending.is_done());
        assert!(pending.wait().unwrap_err().to_string().contains("all_reduce"));
    }

    #[test]
    fn turns_are_taken_in_the_order_of_the_tickets() {
        let stile = Arc::new(Turnstile::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<Ticket> = (0..5).map(|_| stile.ticket()).collect();
        let threads: Vec<_> = tickets
            .into_iter()
            .rev()
            .map(|ticket| {
                let (stile, order) = (Arc::clone(&stile), Arc::clone(&order));
                thread::spawn(move || {
                    let number = ticket.0;
                    let _turn = stile.enter(ticket);
                    lock(&order).push(number);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock(&order), [0, 1, 2, 3, 4]);
    }
}
