//! Starts a router, and ends it.

use std::io::Write;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tutti_model::{RouteTable, RouterReport};
use tutti_wire::guests::{Turns, client_address};

use crate::config::RouterConfig;
use crate::connection;
use crate::descriptors;
use crate::health;
use crate::pool::Pool;
use crate::report::report;
use crate::routes::Routes;
use crate::shared::{ClientRoom, OpenConnection, Shared, Worker, router_busy};
use crate::table_file;

/// Bytes that the system keeps for a client that does not take them. Left to itself it keeps 4 MiB.
const UNSENT_MAX: u32 = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("can't listen on {address}: is another program there already?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("can't start a thread")]
    Thread(#[source] std::io::Error),
    #[error("the system gives no random bytes")]
    Random(#[source] getrandom::Error),
}

pub struct Router;

/// A router that runs. Dropping it ends it at once.
pub struct Handle {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
    stop_accepting: Option<oneshot::Sender<()>>,
    end: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

/// What a router says of itself, also while it ends and afterwards: ending takes the [`Handle`].
#[derive(Clone)]
pub struct Reporter {
    shared: Arc<Shared>,
}

impl Reporter {
    /// For the controller. Peaks begin anew.
    pub fn report(&self) -> RouterReport {
        report(&self.shared, &self.shared.routes(), None)
    }
}

/// A connection on its way to a thread.
struct Incoming {
    stream: StdStream,
    peer: SocketAddr,
    open: OpenConnection,
    room: ClientRoom,
}

impl Router {
    /// Starts a router that goes by the newest of `tables`.
    pub fn start(
        mut config: RouterConfig,
        tables: watch::Receiver<Arc<RouteTable>>,
    ) -> Result<Handle, StartError> {
        config.limits = descriptors::within(config.limits, descriptors::available());
        let listen = config.listen;
        let failed = |source| StartError::Listen { address: listen, source };
        let listener = listen_on(listen).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(StartError::Random)?;
        let id = format!("{:016x}", u64::from_ne_bytes(random));
        let count = config.threads.max(1);
        let shared = Arc::new(Shared::new(config, id, addr));
        let first = tables.borrow().clone();
        if first.version == 0 {
            adopt_kept(&shared);
        } else {
            adopt(&shared, &first);
            keep(&shared, &first);
        }
        let (end, ended) = watch::channel(false);
        let mut handle =
            Handle { addr, shared: shared.clone(), stop_accepting: None, end, threads: Vec::new() };
        let mut lines = Vec::new();
        for n in 0..count {
            let (line, arriving) = mpsc::unbounded_channel();
            lines.push(line);
            let work = work(shared.clone(), arriving, ended.clone());
            handle.spawn(&format!("router-{n}"), work)?;
        }
        let (stop, stopped) = oneshot::channel();
        handle.stop_accepting = Some(stop);
        handle.spawn("router-main", oversee(shared, listener, lines, tables, stopped, ended))?;
        Ok(handle)
    }
}

impl Handle {
    fn spawn(
        &mut self,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // Sockets are looked at often: each has little to do, and its turn should come soon.
            .event_interval(31)
            .build()
            .map_err(StartError::Thread)?;
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || runtime.block_on(work)).map_err(StartError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    pub fn reporter(&self) -> Reporter {
        Reporter { shared: self.shared.clone() }
    }

    /// As [`Reporter::report`].
    pub fn report(&self) -> RouterReport {
        self.reporter().report()
    }

    /// Requests under way.
    pub fn active(&self) -> usize {
        self.shared.active.load(Ordering::Relaxed)
    }

    /// Takes no more connections, lets requests end, and cuts off what is left after `patience`. Says how
    /// many were cut off.
    pub async fn shutdown(mut self, patience: Duration) -> usize {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.stop_accepting.take();
        let until = Instant::now() + patience;
        let mut pause = tokio::time::interval(Duration::from_millis(5));
        // For a moment after the last one: a request may have been on its way.
        let mut quiet = 0;
        while quiet < 5 && Instant::now() < until {
            pause.tick().await;
            quiet = if self.active() > 0 { 0 } else { quiet + 1 };
        }
        let left = self.active();
        let _ = self.end.send(true);
        let threads = std::mem::take(&mut self.threads);
        let joined = tokio::task::spawn_blocking(move || {
            for thread in threads {
                let _ = thread.join();
            }
        });
        let _ = joined.await;
        left
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.end.send(true);
    }
}

fn listen_on(address: SocketAddr) -> std::io::Result<StdListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// What the controller says holds, also if it counts from an older state on: after its journal was
/// restored, the newer table here is of a time that never was, with keys that may be revoked.
fn adopt(shared: &Shared, table: &RouteTable) {
    let old = shared.routes();
    if table.version < old.version {
        let (version, was) = (table.version, old.version);
        tracing::warn!(version, was, "the controller's table is older than the last one: it holds");
    }
    shared.set_routes(Routes::new(table, &old, Instant::now()));
}

/// On disk, which may be slow.
fn keep(shared: &Shared, table: &RouteTable) {
    if let Some(path) = &shared.config.table_file
        && let Err(error) = table_file::save(path, table)
    {
        tracing::warn!(%error, "the route table was not kept");
    }
}

/// Without a word from the controller the last table that there was holds.
fn adopt_kept(shared: &Shared) {
    let Some(path) = &shared.config.table_file else { return };
    match table_file::load(path) {
        Ok(Some(table)) => shared.set_routes(Routes::new(&table, &shared.routes(), Instant::now())),
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "starting without a route table"),
    }
}

/// Everything but requests: new connections, new tables, probes.
async fn oversee(
    shared: Arc<Shared>,
    listener: StdListener,
    lines: Vec<mpsc::UnboundedSender<Incoming>>,
    mut tables: watch::Receiver<Arc<RouteTable>>,
    stopped: oneshot::Receiver<()>,
    mut ended: watch::Receiver<bool>,
) {
    let probes = tokio::spawn(health::probe_all(shared.clone()));
    let accepting = tokio::spawn(accept(shared.clone(), listener, lines, stopped));
    let following = async {
        while tables.changed().await.is_ok() {
            let table = tables.borrow_and_update().clone();
            adopt(&shared, &table);
            let shared = shared.clone();
            let kept = tokio::task::spawn_blocking(move || keep(&shared, &table)).await;
            if let Err(error) = kept {
                tracing::warn!(%error, "the route table was not kept");
            }
        }
        // Nobody sends tables any more; the last one holds.
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = following => {}
        _ = ended.wait_for(|end| *end) => {}
    }
    probes.abort();
    accepting.abort();
}

/// Hands connections to threads.
async fn accept(
    shared: Arc<Shared>,
    listener: StdListener,
    lines: Vec<mpsc::UnboundedSender<Incoming>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut next = 0;
    loop {
        while shared.is_full() {
            // Those that have lost their places are about to close; the system's queue holds others back.
            tokio::select! {
                () = shared.closed.notified() => {}
                _ = &mut stopped => return,
            }
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there are no descriptors left; others will be closed.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let _ = socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX);
        let Ok(stream) = stream.into_std() else { continue };
        let Ok(room) = shared.lobby.enter(client_address(peer.ip())) else {
            refuse(&shared, stream);
            continue;
        };
        let incoming = Incoming { stream, peer, open: OpenConnection::new(&shared), room };
        // In turn: over many connections nothing does better, and nothing is asked of the threads.
        next = (next + 1) % lines.len();
        if lines[next].send(incoming).is_err() {
            return;
        }
    }
}

/// Everybody who is here is being served. Who speaks HTTP/1.1 in the clear can be told so.
fn refuse(shared: &Shared, mut stream: StdStream) {
    if shared.config.tls.is_none() {
        let mut said = Vec::new();
        router_busy().write_to(&mut said, "GET", false);
        // It fits into what the system takes at once; who is not there any more misses nothing.
        let _ = stream.write(&said);
    }
}

/// A thread that serves connections.
async fn work(
    shared: Arc<Shared>,
    mut arriving: mpsc::UnboundedReceiver<Incoming>,
    mut ended: watch::Receiver<bool>,
) {
    let pool = Pool::new(shared.config.limits.idle_per_replica);
    let worker = Arc::new(Worker { shared, pool, turns: Turns::new(1) });
    let sweeper = worker.clone();
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(2));
        loop {
            tick.tick().await;
            sweeper.pool.sweep(Instant::now());
        }
    });
    let taking = async {
        while let Some(Incoming { stream, peer, open, room }) = arriving.recv().await {
            let Ok(stream) = tokio::net::TcpStream::from_std(stream) else { continue };
            let serving = connection::serve(worker.clone(), stream, peer.ip(), room);
            tokio::spawn(async move {
                serving.await;
                drop(open);
            });
        }
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = taking => {}
        _ = ended.wait_for(|end| *end) => {}
    }
}
