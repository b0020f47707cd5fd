//! The side that keeps.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wire::{Conn, Failure, Request, Response, WireError};
use crate::layout;
use crate::tier::{Tier, TierError};

/// A stranger has this long to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// A client that says nothing for so long is asked to connect again.
const IDLE: Duration = Duration::from_secs(600);
/// Of whoever it may be, and so many more of each rank that was announced.
const CONNECTIONS: usize = 256;
const CONNECTIONS_EACH: usize = 4;

/// Serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    key: [u8; 32],
    tier: Arc<dyn Tier>,
    stop: AtomicBool,
    connections: usize,
    open: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Keeps what it is given in `tier`: memory with a budget, or a directory.
    pub fn bind(address: SocketAddr, key: [u8; 32], tier: Arc<dyn Tier>) -> io::Result<Server> {
        Server::bind_for(0, address, key, tier)
    }

    /// With room for a gang of so many ranks: after a loss all of them may read here at once.
    pub fn bind_for(
        ranks: usize,
        address: SocketAddr,
        key: [u8; 32],
        tier: Arc<dyn Tier>,
    ) -> io::Result<Server> {
        let connections = CONNECTIONS + ranks.saturating_mul(CONNECTIONS_EACH);
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (stop, open) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { key, tier, stop, connections, open });
        let accepting = std::thread::Builder::new().name("keep".into()).spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        })?;
        Ok(Server { address, shared, accepting: Some(accepting) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As a location of copies.
    pub fn url(&self) -> String {
        format!("tcp://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. If it can't be reached it is not accepting.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        for stream in self.shared.open().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (id, stream) in (0..).zip(listener.incoming()) {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if shared.open().len() >= shared.connections {
            tracing::warn!("too many connections: one more is turned away");
            continue;
        }
        let Ok(handle) = stream.try_clone() else { continue };
        shared.open().insert(id, handle);
        let serving = shared.clone();
        let started = std::thread::Builder::new().name("keep".into()).spawn(move || {
            if let Err(e) = serve(stream, &serving) {
                tracing::debug!("a connection ended: {}", crate::chain(&e));
            }
            serving.open().remove(&id);
        });
        if started.is_err() {
            shared.open().remove(&id);
        }
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> Result<(), WireError> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO))?;
    let patient = stream.try_clone()?;
    let mut conn = Conn::accept(stream, &shared.key)?;
    patient.set_read_timeout(Some(IDLE))?;
    loop {
        let (request, bytes) = conn.receive()?;
        let (response, data) = match answer(&mut conn, &*shared.tier, request, &bytes)? {
            Ok(found) => found,
            Err(failure) => (Response::Failed(failure), Default::default()),
        };
        conn.send(&response, &data)?;
    }
}

type Answer = Result<(Response, bytes::Bytes), Failure>;

fn answer(
    conn: &mut Conn,
    tier: &dyn Tier,
    request: Request,
    bytes: &[u8],
) -> Result<Answer, WireError> {
    if let Request::Put { path, len } = request {
        return put(conn, tier, &path, len);
    }
    if !is_allowed(&request) {
        return Ok(Err(Failure::Path));
    }
    let plain = |response| (response, bytes::Bytes::new());
    let result = match request {
        Request::Put { .. } => unreachable!("handled above"),
        Request::Publish { path, scratch } => {
            tier.publish(&path, &scratch, bytes).map(|c| plain(Response::Created(c)))
        }
        Request::Read { path, begin, end } => {
            tier.read(&path, begin..end).map(|bytes| (Response::Bytes, bytes))
        }
        Request::Size { path } => tier.size(&path).map(|s| plain(Response::Size(s))),
        Request::List { dir } => tier.list(&dir).map(|items| {
            plain(Response::Items(items.into_iter().map(|i| (i.name, i.is_dir)).collect()))
        }),
        Request::Remove { path } => tier.remove(&path).map(|()| plain(Response::Done)),
        Request::Settle { dir } => tier.settle(&dir).map(|()| plain(Response::Done)),
        Request::Prune { dir } => tier.prune(&dir).map(|()| plain(Response::Done)),
    };
    Ok(result.map_err(|e| Failure::of(&e)))
}

/// Nobody reaches outside of what is kept, and nobody asks for more than fits into a frame.
fn is_allowed(request: &Request) -> bool {
    match request {
        Request::Read { path, begin, end } => {
            layout::is_inside(path) && begin <= end && end - begin <= 32 << 20
        }
        Request::Publish { path, scratch } => layout::is_inside(path) && layout::is_inside(scratch),
        Request::Put { path, .. } | Request::Size { path } | Request::Remove { path } => {
            layout::is_inside(path)
        }
        Request::List { dir } => dir.is_empty() || layout::is_inside(dir),
        Request::Settle { dir } | Request::Prune { dir } => layout::is_inside(dir),
    }
}

/// Takes the data frames that follow, whether the place wants them or not: the client sends them all
/// before it listens.
fn put(conn: &mut Conn, tier: &dyn Tier, path: &str, len: u64) -> Result<Answer, WireError> {
    let mut left = len;
    let mut broken = None;
    let mut frames = std::iter::from_fn(|| {
        if left == 0 || broken.is_some() {
            return None;
        }
        match conn.receive_bytes() {
            Ok(bytes) if !bytes.is_empty() && bytes.len() as u64 <= left => {
                left -= bytes.len() as u64;
                Some(Ok::<_, TierError>(bytes))
            }
            Ok(bytes) => {
                broken = Some(WireError::Large(bytes.len()));
                None
            }
            Err(e) => {
                broken = Some(e);
                None
            }
        }
    });
    let written = if layout::is_inside(path) {
        tier.put(path, len, &mut frames).map_err(|e| Failure::of(&e))
    } else {
        Err(Failure::Path)
    };
    frames.for_each(drop);
    match broken {
        Some(e) => Err(e),
        None => Ok(written.map(|()| (Response::Done, bytes::Bytes::new()))),
    }
}
