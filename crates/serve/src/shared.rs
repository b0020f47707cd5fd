//! What all threads of a router share, and what each has for itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use tokio::sync::Notify;
use tutti_model::ServerNames;
use tutti_wire::guests::{Lobby, Notice, PoolLimits, Room, Turns};

use crate::access::Arrival;
use crate::answer::Answer;
use crate::config::{RouterConfig, ServerLimits};
use crate::crowding::{Crowding, busy};
use crate::kept::Memory;
use crate::pool::Pool;
use crate::routes::Routes;

pub struct Shared {
    pub config: RouterConfig,
    /// Picked at the start.
    pub id: String,
    /// Where it listens, the port picked by the system included.
    pub bound: SocketAddr,
    /// By which it may be called without a key.
    names: ServerNames,
    pub stopping: AtomicBool,
    /// Requests under way, own answers included.
    pub active: AtomicUsize,
    /// Clients' connections that are open, also of those that have lost their room.
    pub connections: AtomicUsize,
    /// One of them was closed.
    pub closed: Notify,
    /// Who has a room, by address.
    pub lobby: Lobby<IpAddr>,
    /// Who has room for a request, when there are many.
    pub crowding: Crowding,
    /// For bodies that are kept for a second try.
    pub memory: Memory,
    routes: RwLock<Arc<Routes>>,
}

impl Shared {
    pub fn new(config: RouterConfig, id: String, bound: SocketAddr) -> Shared {
        let lobby = Lobby::new(rooms(config.limits));
        let crowding = Crowding::of_requests(config.limits.requests);
        let memory = Memory::new(config.limits.peek_total);
        let mut names = ServerNames::with_any_port(config.names.iter().cloned());
        config.origins.iter().for_each(|origin| names.allow_origin(origin));
        Shared {
            config,
            id,
            bound,
            names,
            stopping: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            closed: Notify::new(),
            lobby,
            crowding,
            memory,
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

    /// How a request of this peer comes here.
    pub fn arrival(&self, peer: IpAddr) -> Arrival<'_> {
        Arrival {
            peer,
            local_needs_key: self.config.local_needs_key,
            names: &self.names,
            tls: self.config.tls.is_some(),
            bound: self.bound.ip(),
        }
    }

    /// No more connections can be taken, though rooms can: those who lost theirs are not closed yet.
    pub fn is_full(&self) -> bool {
        self.connections.load(Ordering::Relaxed) >= self.config.limits.connections.max(2)
    }

    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// One thread's part.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub pool: Pool,
    /// At the costly step of a TLS handshake.
    pub turns: Turns<IpAddr>,
}

/// A client's room.
pub type ClientRoom = Room<IpAddr>;

/// Fewer than connections: one that has lost its room takes a moment to close.
fn rooms(limits: ServerLimits) -> PoolLimits {
    let closing = (limits.connections / CLOSING).max(1);
    let total = limits.connections.saturating_sub(closing).max(1);
    let per_key = ((total as f64 * limits.share) as usize).clamp(1, total);
    PoolLimits { total, per_key, drops_working: true }
}

/// One of so many connections may be about to close.
const CLOSING: usize = 16;

/// Does it, unless the client's room is given to somebody else before it is done.
pub async fn unless_dropped<F: Future>(room: &ClientRoom, work: F) -> Option<F::Output> {
    unless_given(Some(room.notice()), work).await
}

/// The same for any room, or for none.
pub async fn unless_given<F: Future>(notice: Option<Notice>, work: F) -> Option<F::Output> {
    let given = async {
        match notice {
            Some(notice) => notice.given().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = given => None,
        done = work => Some(done),
    }
}

/// A request under way, while it lives.
pub struct Count(Arc<Shared>);

impl Drop for Count {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's connection, until its descriptor is free again.
pub struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    pub fn new(shared: &Arc<Shared>) -> OpenConnection {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(shared.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.closed.notify_one();
    }
}

/// There is no room for a connection.
pub fn router_busy() -> Answer {
    busy("this router has as many connections as it takes: try again")
}

pub fn count_request(shared: &Arc<Shared>) -> Count {
    shared.active.fetch_add(1, Ordering::Relaxed);
    Count(shared.clone())
}
