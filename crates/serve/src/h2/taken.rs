//! Whether a client takes what it gets. hyper does not look at an answer while the client's window is
//! closed, so nothing there can find out that it stays so; and pings keep the connection alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

tokio::task_local! {
    /// Of the stream that a task serves.
    static TAKEN: Arc<Taken>;
}

/// One stream's answer on its way.
#[derive(Debug, Default)]
pub struct Taken {
    /// Since when a piece of it waits to be taken.
    since: Mutex<Option<Instant>>,
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

/// Runs streams, and ends those whose answers nobody takes: their replicas are free, and the client is told
/// by a reset.
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
            }
        });
        tokio::spawn(watched);
    }
}
