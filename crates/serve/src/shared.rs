//! What all threads of a router share, and what each has for itself.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::answer::Answer;
use crate::config::RouterConfig;
use crate::pool::Pool;
use crate::routes::Routes;

pub struct Shared {
    pub config: RouterConfig,
    /// Picked at the start.
    pub id: String,
    /// Where it listens, the port picked by the system included.
    pub bound: SocketAddr,
    pub stopping: AtomicBool,
    /// Requests under way, own answers included.
    pub active: AtomicUsize,
    pub connections: AtomicUsize,
    /// Bytes of bodies that are kept for a second try.
    peeked: AtomicUsize,
    routes: RwLock<Arc<Routes>>,
}

impl Shared {
    pub fn new(config: RouterConfig, id: String, bound: SocketAddr) -> Shared {
        Shared {
            config,
            id,
            bound,
            stopping: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            peeked: AtomicUsize::new(0),
            routes: RwLock::default(),
        }
    }

    pub fn routes(&self) -> Arc<Routes> {
        self.routes.read().expect("nothing panics while it holds the routes").clone()
    }

    pub fn set_routes(&self, routes: Routes) {
        *self.routes.write().expect("nothing panics while it holds the routes") = Arc::new(routes);
    }

    /// Where people reach it.
    pub fn address(&self) -> String {
        self.config.address.clone().unwrap_or_else(|| self.bound.to_string())
    }

    /// Refuses what is too much for this router altogether.
    pub fn has_room(&self) -> Result<(), Answer> {
        if self.active.load(Ordering::Relaxed) <= self.config.limits.requests {
            return Ok(());
        }
        let answer = Answer::error(503, "router_busy", "this router has too much to do: try again");
        Err(answer.retry_after(Duration::from_secs(1)))
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// One thread's part.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub pool: Pool,
}

/// Counts one while it lives.
pub struct Counted<F: Fn(&Shared) -> &AtomicUsize> {
    shared: Arc<Shared>,
    which: F,
    n: usize,
}

impl<F: Fn(&Shared) -> &AtomicUsize> Drop for Counted<F> {
    fn drop(&mut self) {
        (self.which)(&self.shared).fetch_sub(self.n, Ordering::Relaxed);
    }
}

pub type Count = Counted<fn(&Shared) -> &AtomicUsize>;

fn count(shared: &Arc<Shared>, which: fn(&Shared) -> &AtomicUsize, n: usize) -> Count {
    which(shared).fetch_add(n, Ordering::Relaxed);
    Counted { shared: shared.clone(), which, n }
}

pub fn count_connection(shared: &Arc<Shared>) -> Count {
    count(shared, |shared| &shared.connections, 1)
}

pub fn count_request(shared: &Arc<Shared>) -> Count {
    count(shared, |shared| &shared.active, 1)
}

/// Bodies up to this size are read whole before they are sent on, so that they can be sent twice.
pub const SMALL_BODY: usize = 64 << 10;

/// Memory for a body that is read before a replica is chosen. What goes beyond a small one is set aside as
/// it comes: whoever only says that much will come must not keep others out.
#[derive(Default)]
pub struct Kept {
    /// How much may be read.
    pub most: usize,
    counted: Option<Count>,
}

impl Kept {
    /// Lets twice as much be read, up to `wanted`; refuses if too much is kept already.
    pub fn grow(&mut self, shared: &Arc<Shared>, wanted: usize) -> Result<(), Answer> {
        let more = (2 * self.most).max(SMALL_BODY).min(wanted);
        self.most = more;
        self.counted = None;
        if more <= SMALL_BODY {
            return Ok(());
        }
        self.counted = Some(count(shared, |shared| &shared.peeked, more));
        if shared.peeked.load(Ordering::Relaxed) <= shared.config.limits.peek_total {
            return Ok(());
        }
        let message = "too many large requests at once: try again";
        Err(Answer::error(503, "router_busy", message).retry_after(Duration::from_secs(1)))
    }
}
