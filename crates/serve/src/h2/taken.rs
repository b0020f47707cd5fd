//! Whether a client takes what it gets. hyper does not look at an answer while the client's window is
//! closed, so nothing there can find out that it stays so; and pings keep the connection alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tutti_wire::guests::Notice;

tokio::task_local! {
    /// Of the stream that a task serves.
    static TAKEN: Arc<Taken>;
}

/// One stream's answer on its way.
#[derive(Default)]
pub struct Taken {
    /// Since when a piece of it waits to be taken.
    since: Mutex<Option<Instant>>,
    /// Tells when its room is given to somebody else, if it has one,
    notice: Mutex<Option<Notice>>,
    /// which is known only by now.
    noticed: Notify,
}

impl Taken {
    /// The one of the stream that runs here.
    pub fn here() -> Arc<Taken> {
        TAKEN.try_with(Arc::clone).unwrap_or_default()
    }

    /// More is asked for, so all that was handed over is taken.
    pub fn asked(&self) {
        self.set(None);
    }

    pub fn handed(&self) {
        self.set(Some(Instant::now()));
    }

    /// The answer ends when this notice is given.
    pub fn may_lose(&self, notice: Option<Notice>) {
        if notice.is_some() {
            *self.notice.lock().unwrap_or_else(PoisonError::into_inner) = notice;
            self.noticed.notify_one();
        }
    }

    async fn lost(&self) {
        self.noticed.notified().await;
        let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner).take();
        match notice {
            Some(notice) => notice.given().await,
            None => std::future::pending().await,
        }
    }

    fn set(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Ends when a piece was not taken for so long.
    async fn stalled(&self, limit: Duration, tick: Duration) {
        loop {
            tokio::time::sleep(tick).await;
            let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|at| at.elapsed() >= limit) {
                return;
            }
        }
    }
}

/// Runs streams, and ends those whose answers nobody takes, or whose room is given away: their replicas are
/// free, and the client is told by a reset.
#[derive(Clone)]
pub struct Watching {
    pub limit: Duration,
    pub tick: Duration,
}

impl<F> hyper::rt::Executor<F> for Watching
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (taken, Watching { limit, tick }) = (Arc::new(Taken::default()), self.clone());
        let watched = TAKEN.scope(taken.clone(), async move {
            tokio::select! {
                biased;
                _ = stream => {}
                () = taken.stalled(limit, tick) => {}
                () = taken.lost() => {}
            }
        });
        tokio::spawn(watched);
    }
}
