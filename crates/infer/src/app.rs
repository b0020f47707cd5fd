//! What all requests share: the engine once it is there, and whether new ones are taken.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::engine::Engine;
use crate::metrics::Metrics;

pub struct App {
    /// Names by which it may be asked for; at least one.
    pub names: Vec<String>,
    /// Seconds since 1970 when it was started.
    pub created: u64,
    pub metrics: Arc<Metrics>,
    ready: OnceLock<Serving>,
    draining: AtomicBool,
    under_way: AtomicUsize,
    all_done: Notify,
}

/// What is there once the model is.
pub struct Serving {
    pub engine: Engine,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
}

/// Why there is no answer to expect now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Loading,
    Draining,
}

impl App {
    pub fn new(names: Vec<String>, created: u64, metrics: Arc<Metrics>) -> Self {
        App {
            names,
            created,
            metrics,
            ready: OnceLock::new(),
            draining: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            all_done: Notify::new(),
        }
    }

    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    pub fn open(&self, serving: Serving) {
        // Only the thread that loads calls this, and once.
        let _ = self.ready.set(serving);
    }

    pub fn serving(&self) -> Result<&Serving, Closed> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(Closed::Draining);
        }
        self.ready.get().ok_or(Closed::Loading)
    }

    /// Held for as long as a request is answered. Counted before it is looked whether new ones are
    /// taken, so that none slips in behind the last.
    pub fn enter(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.clone())
    }

    pub fn waiting(&self) -> usize {
        self.ready.get().map_or(0, |serving| serving.engine.waiting())
    }

    /// Takes nothing new, and waits until all that was taken is answered.
    pub async fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        loop {
            let done = self.all_done.notified();
            if self.under_way.load(Ordering::SeqCst) == 0 {
                return;
            }
            done.await;
        }
    }
}

pub struct UnderWay(Arc<App>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.all_done.notify_one();
        }
    }
}
