//! The pool behind a lock.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::{Entered, GuestId, Pool, PoolFull, PoolLimits};

/// A [`Pool`] that connections enter and leave from any task. Clones are the same lobby.
pub struct Lobby<K> {
    pool: Arc<Mutex<Pool<K, Arc<Notify>>>>,
}

impl<K> Clone for Lobby<K> {
    fn clone(&self) -> Self {
        Lobby { pool: Arc::clone(&self.pool) }
    }
}

/// Room for one connection, given back when dropped.
pub struct Room<K: Ord + Clone> {
    lobby: Lobby<K>,
    id: GuestId,
    must_go: Arc<Notify>,
}

/// Resolves for whoever has to give up its room.
pub struct Notice(Arc<Notify>);

impl Notice {
    pub async fn given(self) {
        self.0.notified().await;
        // For whoever asks again.
        self.0.notify_one();
    }
}

impl<K: Ord + Clone> Lobby<K> {
    pub fn new(limits: PoolLimits) -> Lobby<K> {
        Lobby { pool: Arc::new(Mutex::new(Pool::new(limits))) }
    }

    /// Room for one more; somebody else may have to go for it, and is told so.
    pub fn enter(&self, key: K) -> Result<Room<K>, PoolFull> {
        let must_go = Arc::new(Notify::new());
        let Entered { id, dropped } = self.lock().enter(key, Arc::clone(&must_go))?;
        if let Some(victim) = dropped {
            victim.notify_one();
        }
        Ok(Room { lobby: self.clone(), id, must_go })
    }

    /// Ends up to so many connections that wait for their clients; see [`Pool::shed`].
    pub fn shed(&self, most: usize) {
        for _ in 0..most {
            let Some(victim) = self.lock().shed() else { return };
            victim.notify_one();
        }
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    // A panic elsewhere leaves the pool whole: nothing in its steps panics.
    fn lock(&self) -> MutexGuard<'_, Pool<K, Arc<Notify>>> {
        self.pool.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Ord + Clone> Room<K> {
    /// Resolves when the room was given to somebody else: close the connection.
    pub async fn dropped(&self) {
        self.notice().given().await;
    }

    /// The same, to be waited for elsewhere.
    pub fn notice(&self) -> Notice {
        Notice(Arc::clone(&self.must_go))
    }

    /// See [`Pool::set_working`].
    pub fn working(&self, works: bool) {
        self.lobby.lock().set_working(self.id, works);
    }
}

impl<K: Ord + Clone> Drop for Room<K> {
    fn drop(&mut self) {
        self.lobby.lock().leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_dropped(room: &Room<u8>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(room.dropped()).poll(&mut cx) == Poll::Ready(())
    }

    #[test]
    fn whoever_must_go_hears_so_and_its_room_counts_once() {
        let lobby = Lobby::new(PoolLimits { total: 3, per_key: 2, drops_working: false });
        let [first, second] = [(); 2].map(|()| lobby.enter(1).unwrap());
        assert!(!is_dropped(&first));
        let third = lobby.enter(1).unwrap();
        assert!(is_dropped(&first) && is_dropped(&first) && !is_dropped(&second));
        assert_eq!(lobby.len(), 2);
        drop(first);
        assert_eq!(lobby.len(), 2, "it had left already");
        second.working(true);
        third.working(true);
        assert!(lobby.enter(1).is_err());
        let other = lobby.enter(2).unwrap();
        drop((second, third, other));
        assert!(lobby.is_empty());
    }
}
