//! Turns at work that keeps a processor busy, such as the first step of a TLS handshake.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

/// So many at once; who waits is called address by address, so that one that asks for thousands
/// delays the others by one each. Within an address the newest is first: in a flood the oldest are
/// the ones whose client has left, and nobody starves once it is over.
pub struct Turns<K: Ord + Clone> {
    inner: Arc<Mutex<Waiting<K>>>,
}

impl<K: Ord + Clone> Clone for Turns<K> {
    fn clone(&self) -> Self {
        Turns { inner: Arc::clone(&self.inner) }
    }
}

struct Waiting<K: Ord + Clone> {
    free: usize,
    queue: FairQueue<K, oneshot::Sender<Turn<K>>>,
}

/// One turn, over when dropped.
pub struct Turn<K: Ord + Clone> {
    turns: Option<Turns<K>>,
}

impl<K: Ord + Clone> Turns<K> {
    pub fn new(at_once: usize) -> Turns<K> {
        let waiting = Waiting { free: at_once.max(1), queue: FairQueue::default() };
        Turns { inner: Arc::new(Mutex::new(waiting)) }
    }

    /// Waits for a turn. Dropping the future leaves the queue.
    pub async fn take(&self, key: K) -> Turn<K> {
        let (call, called) = oneshot::channel();
        let id = self.lock().queue.push(key.clone(), call);
        let _leaves = Leaves { turns: self, key, id };
        self.call_next();
        match called.await {
            Ok(turn) => turn,
            // The queue never drops a sender that it has not called, so this is not reached; a turn
            // that counts for nothing is the harmless way to say so.
            Err(_) => Turn { turns: None },
        }
    }

    fn call_next(&self) {
        loop {
            let mut waiting = self.lock();
            if waiting.free == 0 {
                return;
            }
            let Some(call) = waiting.queue.pop() else { return };
            waiting.free -= 1;
            drop(waiting);
            // Who has left meanwhile gives the turn back by dropping it, outside the lock.
            if let Err(mut unused) = call.send(Turn { turns: Some(self.clone()) }) {
                unused.turns = None;
                self.lock().free += 1;
            }
        }
    }

    // A panic elsewhere leaves it whole: every change is one step.
    fn lock(&self) -> MutexGuard<'_, Waiting<K>> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Ord + Clone> Drop for Turn<K> {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.lock().free += 1;
            turns.call_next();
        }
    }
}

/// Whoever stops waiting is not in the queue.
struct Leaves<'t, K: Ord + Clone> {
    turns: &'t Turns<K>,
    key: K,
    id: u64,
}

impl<K: Ord + Clone> Drop for Leaves<'_, K> {
    fn drop(&mut self) {
        self.turns.lock().queue.remove(&self.key, self.id);
    }
}

/// Round and round over the keys; within a key the newest first.
struct FairQueue<K, T> {
    next: u64,
    by_key: BTreeMap<K, BTreeMap<u64, T>>,
    /// Keys that have something, in the order of their turns.
    order: VecDeque<K>,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        FairQueue { next: 0, by_key: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    fn push(&mut self, key: K, item: T) -> u64 {
        let id = self.next;
        self.next += 1;
        let items = self.by_key.entry(key.clone()).or_default();
        if items.is_empty() {
            self.order.push_back(key);
        }
        items.insert(id, item);
        id
    }

    fn pop(&mut self) -> Option<T> {
        let key = self.order.pop_front()?;
        let items = self.by_key.get_mut(&key)?;
        let item = items.pop_last().map(|(_, item)| item);
        if items.is_empty() {
            self.by_key.remove(&key);
        } else {
            self.order.push_back(key);
        }
        item
    }

    /// It waits no longer; does nothing if it was called.
    fn remove(&mut self, key: &K, id: u64) {
        let Some(items) = self.by_key.get_mut(key) else { return };
        items.remove(&id);
        if items.is_empty() {
            self.by_key.remove(key);
            self.order.retain(|other| other != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_of_one_key_delay_others_by_one_each() {
        let mut queue = FairQueue::default();
        for n in 0..1000 {
            queue.push("mad", n);
        }
        queue.push("a", 5000);
        queue.push("b", 6000);
        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).take(5).collect();
        assert_eq!(order, [999, 5000, 6000, 998, 997]);
        while queue.pop().is_some() {}
        assert!(queue.by_key.is_empty() && queue.order.is_empty());
    }

    #[test]
    fn who_leaves_is_not_called() {
        let mut queue = FairQueue::default();
        let first = queue.push("a", 1);
        let second = queue.push("b", 2);
        queue.push("a", 3);
        queue.remove(&"b", second);
        queue.remove(&"b", second);
        queue.remove(&"a", first);
        assert_eq!((queue.pop(), queue.pop()), (Some(3), None));
        assert!(queue.by_key.is_empty() && queue.order.is_empty());
    }

    #[tokio::test]
    async fn turns_are_given_back_by_whoever_leaves() {
        let turns = Turns::new(1);
        let first = turns.take(1).await;
        let mut second = Box::pin(turns.take(2));
        let mut third = Box::pin(turns.take(3));
        assert!(!is_called(&mut second).await && !is_called(&mut third).await);
        drop(second);
        drop(first);
        let third = third.await;
        assert_eq!(turns.lock().free, 0);
        // Called, and gone before it looked.
        let mut fourth = Box::pin(turns.take(4));
        assert!(!is_called(&mut fourth).await);
        drop(third);
        assert_eq!(turns.lock().free, 0);
        drop(fourth);
        assert_eq!(turns.lock().free, 1);
    }

    async fn is_called(waiting: &mut (impl Future + Unpin)) -> bool {
        tokio::select! { biased; _ = waiting => true, () = std::future::ready(()) => false }
    }
}
