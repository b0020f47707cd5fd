//! Connections of shims. Most parts are short: their shim connects, says hello and goodbye, and is
//! read to its end on the spot, without a task or the event queue.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::sync::mpsc;
use tutti_model::LeaseId;

use super::file_error;
use crate::SOCKET;
use crate::config::AgentError;
use crate::frames::{self, Inbox};
use crate::messages::{FromShim, ToShim};

/// One connection, for as long as it lasts.
pub type Conn = u64;

#[derive(Debug)]
pub enum FromConn {
    Message(FromShim),
    Closed,
}

/// Words of shims that wait for the node; beyond it shims wait.
const WAITING: usize = 1024;

/// Where shims dial.
pub struct Listener(AsyncFd<UnixListener>);

impl Listener {
    pub fn bind(data_dir: &Path) -> Result<Listener, AgentError> {
        let path = data_dir.join(SOCKET);
        let listener = bind(data_dir).map_err(file_error("listen on", &path))?;
        // SAFETY: the listener owns its descriptor for as long as it is registered.
        let registered = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
        let listener = registered.map_err(|e| file_error("listen on", &path)(e.into()))?;
        Ok(Listener(listener))
    }

    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|l| l.get_ref().accept()) {
                Ok(accepted) => {
                    let (stream, _) = accepted?;
                    stream.set_nonblocking(true)?;
                    return Ok(stream);
                }
                Err(_would_block) => {}
            }
        }
    }
}

pub struct Shims {
    events_in: mpsc::Sender<(Conn, FromConn)>,
    events: mpsc::Receiver<(Conn, FromConn)>,
    next_conn: Conn,
    writers: HashMap<Conn, mpsc::UnboundedSender<Vec<u8>>>,
    leases: HashMap<Conn, LeaseId>,
    conns: HashMap<LeaseId, Conn>,
    /// The process at the other end, as the kernel says.
    pids: HashMap<Conn, i32>,
}

impl Default for Shims {
    fn default() -> Self {
        let (events_in, events) = mpsc::channel(WAITING);
        Shims {
            events_in,
            events,
            next_conn: 0,
            writers: HashMap::new(),
            leases: HashMap::new(),
            conns: HashMap::new(),
            pids: HashMap::new(),
        }
    }
}

impl Shims {
    /// Takes a new connection in. What it has said already is returned at once.
    pub fn admit(&mut self, mut stream: UnixStream) -> Vec<(Conn, FromConn)> {
        self.next_conn += 1;
        let conn = self.next_conn;
        let mut inbox = Inbox::default();
        let mut said = Vec::new();
        let peer = our_peer(&stream);
        let mut open = peer.is_some();
        let mut buf = [0; 4096];
        while open {
            match stream.read(&mut buf) {
                Ok(0) => open = false,
                Ok(n) => {
                    inbox.push(&buf[..n]);
                    open =
                        take(&mut inbox, |message| said.push((conn, FromConn::Message(message))));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => open = false,
            }
        }
        if open {
            self.pids.extend(peer.map(|pid| (conn, pid)));
            self.keep(conn, stream, inbox);
        } else {
            said.push((conn, FromConn::Closed));
        }
        said
    }

    fn keep(&mut self, conn: Conn, stream: UnixStream, inbox: Inbox) {
        let (writer, outgoing) = mpsc::unbounded_channel();
        self.writers.insert(conn, writer);
        let events = self.events_in.clone();
        tokio::spawn(async move {
            if let Ok(stream) = tokio::net::UnixStream::from_std(stream) {
                serve(conn, stream, inbox, &events, outgoing).await;
            }
            // The node is gone only when the agent is.
            let _ = events.send((conn, FromConn::Closed)).await;
        });
    }

    pub async fn next(&mut self) -> Option<(Conn, FromConn)> {
        self.events.recv().await
    }

    pub fn try_next(&mut self) -> Option<(Conn, FromConn)> {
        self.events.try_recv().ok()
    }

    /// A later connection for the same part replaces an earlier one.
    pub fn is_for(&mut self, conn: Conn, lease: LeaseId) {
        self.leases.insert(conn, lease);
        self.conns.insert(lease, conn);
    }

    pub fn lease(&self, conn: Conn) -> Option<LeaseId> {
        self.leases.get(&conn).copied()
    }

    /// The part that has no connection any more, if that was its last.
    pub fn closed(&mut self, conn: Conn) -> Option<LeaseId> {
        self.writers.remove(&conn);
        self.pids.remove(&conn);
        let lease = self.leases.remove(&conn)?;
        if self.conns.get(&lease) != Some(&conn) {
            return None;
        }
        self.conns.remove(&lease);
        Some(lease)
    }

    /// The part's shim, while it is connected.
    pub fn pid(&self, lease: LeaseId) -> Option<i32> {
        self.pids.get(self.conns.get(&lease)?).copied()
    }

    /// All that are connected.
    pub fn pids(&self) -> BTreeMap<i32, LeaseId> {
        self.conns.keys().filter_map(|&lease| Some((self.pid(lease)?, lease))).collect()
    }

    pub fn is_connected(&self, lease: LeaseId) -> bool {
        self.conns.contains_key(&lease)
    }

    /// Dropped if the part has no connection.
    pub fn tell(&self, lease: LeaseId, message: &ToShim) {
        let writer = self.conns.get(&lease).and_then(|conn| self.writers.get(conn));
        if let Some(writer) = writer {
            let mut bytes = Vec::new();
            frames::put(&mut bytes, message);
            // A connection that has ended says so itself.
            let _ = writer.send(bytes);
        }
    }
}

/// Through the directory's descriptor, because a socket's path may only have 107 bytes.
fn bind(data_dir: &Path) -> io::Result<UnixListener> {
    use std::os::fd::AsRawFd;
    match std::fs::remove_file(data_dir.join(SOCKET)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let dir = std::fs::File::open(data_dir)?;
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The process that dials. The data dir is closed to others; this is for one whose mode somebody has
/// changed.
fn our_peer(stream: &UnixStream) -> Option<i32> {
    let peer = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::PeerCredentials);
    peer.ok().filter(|p| p.uid() == nix::unistd::geteuid().as_raw()).map(|p| p.pid())
}

/// Hands over every whole message; false if what came is none.
fn take(inbox: &mut Inbox, mut sink: impl FnMut(FromShim)) -> bool {
    loop {
        match inbox.next() {
            Ok(Some(message)) => sink(message),
            Ok(None) => return true,
            Err(error) => {
                tracing::error!(%error, "a shim speaks nonsense");
                return false;
            }
        }
    }
}

async fn serve(
    conn: Conn,
    stream: tokio::net::UnixStream,
    mut inbox: Inbox,
    events: &mpsc::Sender<(Conn, FromConn)>,
    mut outgoing: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    let (mut read, mut write) = stream.into_split();
    let writer = tokio::spawn(async move {
        while let Some(bytes) = outgoing.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buf = vec![0; 4096];
    while let Ok(n @ 1..) = read.read(&mut buf).await {
        inbox.push(&buf[..n]);
        let mut said = Vec::new();
        let sane = take(&mut inbox, |message| said.push(message));
        for message in said {
            if events.send((conn, FromConn::Message(message))).await.is_err() {
                return;
            }
        }
        if !sane {
            break;
        }
        if n == buf.len() && n < 64 << 10 {
            buf.resize(2 * n, 0);
        }
    }
    writer.abort();
}
