//! How helpers of one gang speak to each other: each listens on the port that its node found free,
//! and both ends prove that they know the gang's key before anything is asked.
//!
//! ```text
//!  client                               server
//!  nonce ──────────────────────────────►
//!        ◄────────────── nonce, MAC(both nonces)
//!  MAC(both nonces, request), request ─►
//!        ◄──────── output, output, ..., exit
//! ```
//! Requests can't be forged or repeated. They are not secret: nor is what MPI sends afterwards.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tutti_model::GangKey;

use super::place::Node;
use super::{HelperError, io_error, run};

/// Ranks of a gang start within moments of each other; a busy node may take longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// A stranger that connects and says nothing does not keep others out for longer.
const GREETING_WITHIN: Duration = Duration::from_secs(10);
/// A command line has no more.
const REQUEST_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Run this shell line and send what it says.
    Run(String),
    /// Answer when this node is ready.
    Ready,
    /// The command has ended.
    Leave,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Request::Run(line) => (b'R', line.as_str()),
            Request::Ready => (b'W', ""),
            Request::Leave => (b'L', ""),
        };
        [&[kind], text.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Request> {
        match bytes.split_first()? {
            (b'R', line) => Some(Request::Run(String::from_utf8(line.to_vec()).ok()?)),
            (b'W', []) => Some(Request::Ready),
            (b'L', []) => Some(Request::Leave),
            _ => None,
        }
    }
}

/// What the answer to a request is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Out(Vec<u8>),
    Err(Vec<u8>),
    Exit(i32),
}

impl Piece {
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, data) = match self {
            Piece::Out(data) => (1, data.clone()),
            Piece::Err(data) => (2, data.clone()),
            Piece::Exit(code) => (3, code.to_le_bytes().to_vec()),
        };
        let mut bytes = vec![kind];
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        to.write_all(&bytes)
    }

    pub fn read(from: &mut impl Read) -> io::Result<Piece> {
        let [kind] = read_array(from)?;
        let data = read_block(from)?;
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "an answer that makes no sense");
        match kind {
            1 => Ok(Piece::Out(data)),
            2 => Ok(Piece::Err(data)),
            3 => Ok(Piece::Exit(i32::from_le_bytes(data.try_into().map_err(|_| odd())?))),
            _ => Err(odd()),
        }
    }
}

/// Asks another helper, and reads the answer from what this returns.
pub fn ask(node: &Node, key: &GangKey, request: &Request) -> Result<TcpStream, HelperError> {
    let mut stream = connect(node)?;
    match prove(&mut stream, key, request) {
        Ok(true) => Ok(stream),
        Ok(false) => Err(HelperError::Stranger(node.authority())),
        Err(source) => Err(no_answer(node, source)),
    }
}

pub fn no_answer(node: &Node, source: io::Error) -> HelperError {
    HelperError::NoAnswer { node: node.name.clone(), address: node.authority(), source }
}

pub fn connect(node: &Node) -> Result<TcpStream, HelperError> {
    let began = Instant::now();
    loop {
        match TcpStream::connect((node.address.as_str(), node.port)) {
            Ok(stream) => return Ok(stream),
            Err(e) if run::is_stopped() || began.elapsed() > ANSWER_WITHIN => {
                return Err(no_answer(node, e));
            }
            Err(_) => std::thread::sleep(ASK_AGAIN),
        }
    }
}

/// False: the other end does not know the key.
fn prove(stream: &mut TcpStream, key: &GangKey, request: &Request) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let own = nonce()?;
    stream.write_all(&own)?;
    let (theirs, mac) = (read_array::<32>(stream)?, read_array::<32>(stream)?);
    if digest(key, b"server", &own, &theirs, &[]) != mac {
        return Ok(false);
    }
    let body = request.encode();
    let mut bytes = digest(key, b"client", &own, &theirs, &body).as_bytes().to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    stream.write_all(&bytes)?;
    Ok(true)
}

pub struct Server {
    listener: TcpListener,
    key: GangKey,
}

impl Server {
    /// The port was free a moment ago; whoever else has it by accident may let go of it.
    pub fn bind(node: &Node, key: GangKey) -> Result<Server, HelperError> {
        let began = Instant::now();
        loop {
            match TcpListener::bind((node.address.as_str(), node.port)) {
                Ok(listener) => return Ok(Server { listener, key }),
                Err(_) if began.elapsed() < GREETING_WITHIN => std::thread::sleep(ASK_AGAIN),
                Err(e) => return Err(io_error(format!("listen on {}", node.authority()))(e)),
            }
        }
    }

    /// Answers on threads, because a stranger may take its time. What this returns says when the
    /// node is to leave, or why nobody can be served any more.
    pub fn serve(
        self,
        answer: impl Fn(Request, TcpStream) + Send + Sync + 'static,
    ) -> mpsc::Receiver<Result<(), HelperError>> {
        let (leave, left) = mpsc::channel();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            loop {
                let mut stream = match self.listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(e) => return drop(leave.send(Err(io_error("accept a connection")(e)))),
                };
                let (key, leave, answer) = (self.key, leave.clone(), Arc::clone(&answer));
                std::thread::spawn(move || match greet(&mut stream, &key) {
                    Some(Request::Leave) => drop(leave.send(Ok(()))),
                    Some(request) => answer(request, stream),
                    None => {}
                });
            }
        });
        left
    }
}

/// What this connection asks. None: it is a stranger, or said nothing.
fn greet(stream: &mut TcpStream, key: &GangKey) -> Option<Request> {
    stream.set_read_timeout(Some(GREETING_WITHIN)).ok()?;
    stream.set_nodelay(true).ok()?;
    let theirs = read_array::<32>(stream).ok()?;
    let own = nonce().ok()?;
    let mac = digest(key, b"server", &theirs, &own, &[]);
    stream.write_all(&[own, *mac.as_bytes()].concat()).ok()?;
    let mac = read_array::<32>(stream).ok()?;
    let body = read_block(stream).ok()?;
    (digest(key, b"client", &theirs, &own, &body) == mac).then(|| Request::decode(&body))?
}

/// Compared in constant time, as [`blake3::Hash`] is.
fn digest(key: &GangKey, who: &[u8], client: &[u8], server: &[u8], body: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    for part in [who, client, server, body] {
        hasher.update(part);
    }
    hasher.finalize()
}

fn nonce() -> io::Result<[u8; 32]> {
    read_array(&mut std::fs::File::open("/dev/urandom")?)
}

fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut array = [0; N];
    from.read_exact(&mut array)?;
    Ok(array)
}

fn read_block(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let len = u32::from_le_bytes(read_array(from)?) as usize;
    if len > REQUEST_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    let mut block = vec![0; len];
    from.read_exact(&mut block)?;
    Ok(block)
}

#[cfg(test)]
mod tests;
