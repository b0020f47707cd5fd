//! How ranks find each other: all dial rank 0, which tells everybody about everybody.
//!
//! The connection to rank 0 stays: it becomes the control connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::auth::{self, Key};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::peer::Peer;
use crate::wire::{Reader, Writer};

/// How long a stranger may stay silent before it is forgotten.
const HANDSHAKE: Duration = Duration::from_secs(5);
const TABLE_MAX: usize = 64 << 20;

/// What comes out: everybody, the session's number, and the way to rank 0 (or from rank 0 to all).
pub(crate) struct Met {
    pub peers: Vec<Peer>,
    pub session: [u8; 16],
    /// Rank 0: one per other rank, in rank order. Others: the one to rank 0.
    pub control: Vec<TcpStream>,
}

pub(crate) fn meet(config: &Config, key: Key, here: Peer) -> Result<Met> {
    if config.world == 1 {
        return Ok(Met { peers: vec![here], session: auth::random()?, control: Vec::new() });
    }
    if config.rank == 0 { gather(config, key, here) } else { join(config, key, &here) }
}

fn master(config: &Config) -> Result<SocketAddr> {
    let (host, port) = &config.master;
    let mut found = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|e| Error::io(format!("MASTER_ADDR {host}"), e))?
        .collect::<Vec<_>>();
    found.sort_by_key(SocketAddr::is_ipv6);
    let bad =
        |expected| Err(Error::Environment { name: "MASTER_ADDR", value: host.clone(), expected });
    match found.first() {
        Some(a) if a.ip().is_unspecified() => bad("one address, never all of them"),
        Some(a) => Ok(*a),
        None => bad("a name or address"),
    }
}

/// Rank 0: waits until every rank has come, then sends the table.
fn gather(config: &Config, key: Key, here: Peer) -> Result<Met> {
    let listener = match &config.listener {
        Some(l) => Arc::clone(l),
        None => {
            let at = master(config)?;
            let l = TcpListener::bind(at).map_err(|e| Error::io(format!("listen on {at}"), e))?;
            Arc::new(l)
        }
    };
    let (sender, arrivals) = mpsc::channel();
    let deadline = Instant::now() + config.timeout;
    let mut came: Vec<Option<(Peer, TcpStream)>> = (0..config.world).map(|_| None).collect();
    let mut strangers = 0;
    while came.iter().flatten().count() < config.world - 1 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(missing(config, &came, strangers));
        }
        accept_one(&listener, key, &sender, left.min(Duration::from_millis(100)))?;
        for arrival in arrivals.try_iter() {
            match arrival {
                Ok((peer, stream)) => seat(&mut came, peer, stream)?,
                Err(_) => strangers += 1,
            }
        }
    }
    let session = auth::random()?;
    let (mut peers, mut control) = (vec![here], Vec::new());
    for (peer, stream) in came.into_iter().flatten() {
        peers.push(peer);
        control.push(stream);
    }
    let table = peers.iter().fold(Writer::default().bytes(&session), |w, p| p.write(w)).0;
    for (stream, peer) in control.iter_mut().zip(&peers[1..]) {
        let framed = Writer::default().bytes(&table).0;
        let what = |e| Error::io(format!("send the table of ranks to rank {}", peer.rank), e);
        stream.write_all(&framed).map_err(what)?;
    }
    Ok(Met { peers, session, control })
}

/// A rank that dials again (its first try may have been cut off) takes its old seat.
fn seat(came: &mut [Option<(Peer, TcpStream)>], peer: Peer, stream: TcpStream) -> Result<()> {
    let rank = peer.rank;
    if rank == 0 || rank >= came.len() {
        return Err(Error::Environment {
            name: "RANK",
            value: rank.to_string(),
            expected: "each rank once; this one came to rank 0",
        });
    }
    if let Some((before, old)) = &came[rank]
        && before.pid != peer.pid
        && is_open(old)
    {
        return Err(Error::Environment {
            name: "RANK",
            value: rank.to_string(),
            expected: "each rank once; two processes came with this one",
        });
    }
    came[rank] = Some((peer, stream));
    Ok(())
}

fn is_open(stream: &TcpStream) -> bool {
    // Nothing is sent before the table, so a readable connection is a closed one.
    let nonblocking = stream.set_nonblocking(true).is_ok();
    let open =
        matches!(stream.peek(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    nonblocking && open && stream.set_nonblocking(false).is_ok()
}

type Arrival = Result<(Peer, TcpStream)>;

/// Accepts at most one connection; its handshake runs aside, so that a silent stranger delays
/// nobody.
fn accept_one(
    listener: &TcpListener,
    key: Key,
    sender: &mpsc::Sender<Arrival>,
    wait: Duration,
) -> Result<()> {
    if !crate::sys::wait_readable(listener, wait) {
        return Ok(());
    }
    let (stream, from) = listener.accept().map_err(|e| Error::io("accept a rank", e))?;
    let sender = sender.clone();
    thread::spawn(move || {
        // Nobody listens any more once all ranks are there; then the arrival is one too many.
        let _ = sender.send(greet(stream, key, &from.to_string()));
    });
    Ok(())
}

fn greet(mut stream: TcpStream, key: Key, who: &str) -> Arrival {
    prepare(&stream, Some(HANDSHAKE))?;
    let hello = auth::accept(&mut stream, key, who)?;
    let peer = Peer::read(&mut Reader(&hello));
    let peer = peer.ok_or_else(|| Error::Stranger { who: who.into() })?;
    Ok((peer, stream))
}

fn prepare(stream: &TcpStream, timeout: Option<Duration>) -> Result<()> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(timeout))
        .and_then(|()| stream.set_write_timeout(timeout))
        .map_err(|e| Error::io("set up a connection", e))
}

fn missing(config: &Config, came: &[Option<(Peer, TcpStream)>], strangers: usize) -> Error {
    let absent: Vec<String> =
        (1..config.world).filter(|r| came[*r].is_none()).map(|r| r.to_string()).collect();
    Error::Missing {
        came: config.world - absent.len(),
        world: config.world,
        waited: config.timeout,
        missing: absent.join(", "),
        strangers: match strangers {
            0 => String::new(),
            n => format!(" ({n} connections were refused: not of this gang)"),
        },
    }
}

/// The others: dial until rank 0 is there, then wait for the table.
fn join(config: &Config, key: Key, here: &Peer) -> Result<Met> {
    let deadline = Instant::now() + config.timeout;
    let hello = here.write(Writer::default()).0;
    let mut pause = Duration::from_millis(10);
    let mut stream = loop {
        let last = match try_join(config, key, &hello) {
            Ok(stream) => break stream,
            Err(e) => e,
        };
        if Instant::now() + pause >= deadline {
            return Err(Error::Unreachable {
                master: format!("{}:{}", config.master.0, config.master.1),
                waited: config.timeout,
                last: last.to_string(),
            });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(250));
    };
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
    prepare(&stream, Some(left))?;
    let table = read_table(&mut stream).map_err(|e| Error::Unreachable {
        master: format!("{}:{}", config.master.0, config.master.1),
        waited: config.timeout,
        last: format!("rank 0 was there, but did not see all ranks come: {e}"),
    })?;
    parse_table(&table, config.world, stream)
}

fn try_join(config: &Config, key: Key, hello: &[u8]) -> Result<TcpStream> {
    let at = master(config)?;
    let dialled = TcpStream::connect_timeout(&at, HANDSHAKE);
    let mut stream = dialled.map_err(|e| Error::io(format!("connect to {at}"), e))?;
    prepare(&stream, Some(HANDSHAKE))?;
    auth::dial(&mut stream, key, hello, &format!("the listener at {at}"))?;
    Ok(stream)
}

fn read_table(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > TABLE_MAX {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut table = vec![0; len];
    stream.read_exact(&mut table)?;
    Ok(table)
}

fn parse_table(table: &[u8], world: usize, stream: TcpStream) -> Result<Met> {
    let mut r = Reader(table);
    let session = r.bytes().and_then(|b| b.try_into().ok());
    let peers: Option<Vec<Peer>> = (0..world).map(|_| Peer::read(&mut r)).collect();
    match (session, peers) {
        (Some(session), Some(peers)) => Ok(Met { peers, session, control: vec![stream] }),
        _ => Err(Error::Stranger { who: "rank 0 (its table of ranks is not readable)".into() }),
    }
}
