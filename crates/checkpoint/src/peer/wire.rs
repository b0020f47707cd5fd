//! Frames between client and server, and how they get to know each other.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use blake3::{Hash, Hasher};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::tier::{Item, TierError};

/// Nobody may make us reserve more than this for one frame.
const LARGEST: usize = 64 << 20;
/// Data goes in frames of this size.
pub const PIECE: usize = 4 << 20;
const MAGIC: &[u8; 8] = b"tuttick1";

#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the other end is no keeper of checkpoints")]
    Magic,
    #[error("the other end has another key: it is not of this gang")]
    Key,
    #[error("a frame was changed on its way")]
    Code,
    #[error("a frame of {0} bytes is too large")]
    Large(usize),
    #[error("a frame can't be read")]
    Json(#[from] serde_json::Error),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// The bytes follow, in frames of their own.
    Put {
        path: String,
        len: u64,
    },
    /// The bytes are in the same frame.
    Publish {
        path: String,
        scratch: String,
    },
    Read {
        path: String,
        begin: u64,
        end: u64,
    },
    Size {
        path: String,
    },
    List {
        dir: String,
    },
    Remove {
        path: String,
    },
    Settle {
        dir: String,
    },
    Prune {
        dir: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Response {
    Done,
    Created(bool),
    /// The bytes are in the same frame.
    Bytes,
    Size(Option<u64>),
    Items(Vec<(String, bool)>),
    Failed(Failure),
}

/// A [`TierError`] on its way.
#[derive(Debug, Serialize, Deserialize)]
pub enum Failure {
    Missing,
    Full { bytes: u64 },
    Short { wanted: u64, found: u64 },
    Path,
    Io { why: String },
}

impl Failure {
    pub fn of(error: &TierError) -> Failure {
        match error {
            TierError::Missing { .. } => Failure::Missing,
            TierError::Full { bytes, .. } => Failure::Full { bytes: *bytes },
            TierError::Short { wanted, found, .. } => {
                Failure::Short { wanted: *wanted, found: *found }
            }
            e @ (TierError::Io { .. } | TierError::Silent { .. }) => {
                Failure::Io { why: crate::chain(e) }
            }
        }
    }

    pub fn into_error(self, place: &str, path: &str, doing: &'static str) -> TierError {
        let (place, path) = (place.to_owned(), path.to_owned());
        let io = |why: String| io::Error::other(why);
        match self {
            Failure::Missing => TierError::Missing { place, path },
            Failure::Full { bytes } => TierError::Full { place, path, bytes },
            Failure::Short { wanted, found } => TierError::Short { place, path, wanted, found },
            Failure::Path => {
                let source = io("the peer refuses this path".to_owned());
                TierError::Io { place, path, doing, source }
            }
            Failure::Io { why } => TierError::Io { place, path, doing, source: io(why) },
        }
    }
}

pub fn items(items: Vec<(String, bool)>) -> Vec<Item> {
    items.into_iter().map(|(name, is_dir)| Item { name, is_dir }).collect()
}

/// A connection on which both ends have proved that they have the key.
pub struct Conn {
    stream: TcpStream,
    key: [u8; 32],
    /// Frames sent and received so far, with the side they come from.
    sent: (u8, u64),
    received: (u8, u64),
}

const CLIENT: u8 = 0;
const SERVER: u8 = 1;

fn proof(key: &[u8; 32], what: &str, server: &[u8; 32], client: &[u8; 32]) -> Hash {
    let mut hasher = Hasher::new_keyed(key);
    hasher.update(what.as_bytes()).update(server).update(client);
    hasher.finalize()
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

fn read_exact<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Conn {
    /// The client proves itself first: a stranger learns nothing from the server.
    pub fn accept(mut stream: TcpStream, key: &[u8; 32]) -> Result<Conn, WireError> {
        let challenge = random();
        stream.write_all(&[&MAGIC[..], &challenge].concat())?;
        let client: [u8; 32] = read_exact(&mut stream)?;
        let shown = Hash::from_bytes(read_exact(&mut stream)?);
        // Compared in constant time, as `Hash` does it.
        if shown != proof(key, "client", &challenge, &client) {
            return Err(WireError::Key);
        }
        stream.write_all(proof(key, "server", &challenge, &client).as_bytes())?;
        Ok(Conn::new(stream, key, &challenge, &client, SERVER, CLIENT))
    }

    pub fn connect(mut stream: TcpStream, key: &[u8; 32]) -> Result<Conn, WireError> {
        if read_exact::<8>(&mut stream)? != *MAGIC {
            return Err(WireError::Magic);
        }
        let challenge: [u8; 32] = read_exact(&mut stream)?;
        let own = random();
        let shown = proof(key, "client", &challenge, &own);
        stream.write_all(&[&own[..], shown.as_bytes()].concat())?;
        let answer = match read_exact(&mut stream) {
            // A server that does not know us hangs up.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(WireError::Key),
            answer => Hash::from_bytes(answer?),
        };
        if answer != proof(key, "server", &challenge, &own) {
            return Err(WireError::Key);
        }
        Ok(Conn::new(stream, key, &challenge, &own, CLIENT, SERVER))
    }

    fn new(
        stream: TcpStream,
        key: &[u8; 32],
        server: &[u8; 32],
        client: &[u8; 32],
        own: u8,
        other: u8,
    ) -> Conn {
        let key = *proof(key, "session", server, client).as_bytes();
        Conn { stream, key, sent: (own, 0), received: (other, 0) }
    }

    fn code(&self, (side, number): (u8, u64), parts: &[&[u8]]) -> Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        hasher.update(&[side]).update(&number.to_le_bytes());
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }

    pub fn send_bytes(&mut self, parts: &[&[u8]]) -> Result<(), WireError> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if len > LARGEST {
            return Err(WireError::Large(len));
        }
        let code = self.code(self.sent, parts);
        self.sent.1 += 1;
        self.stream.write_all(&(len as u32).to_le_bytes())?;
        for part in parts {
            self.stream.write_all(part)?;
        }
        self.stream.write_all(code.as_bytes())?;
        Ok(())
    }

    pub fn receive_bytes(&mut self) -> Result<Bytes, WireError> {
        let len = u32::from_le_bytes(read_exact(&mut self.stream)?) as usize;
        if len > LARGEST {
            return Err(WireError::Large(len));
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body)?;
        let shown = Hash::from_bytes(read_exact(&mut self.stream)?);
        if shown != self.code(self.received, &[&body]) {
            return Err(WireError::Code);
        }
        self.received.1 += 1;
        Ok(body.into())
    }

    /// A message, and the bytes that go with it.
    pub fn send(&mut self, message: &impl Serialize, bytes: &[u8]) -> Result<(), WireError> {
        let json = serde_json::to_vec(message)?;
        self.send_bytes(&[&(json.len() as u32).to_le_bytes(), &json, bytes])
    }

    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Bytes), WireError> {
        let mut body = self.receive_bytes()?;
        let short = || WireError::Io(io::ErrorKind::UnexpectedEof.into());
        let (head, rest) = body.split_first_chunk::<4>().ok_or_else(short)?;
        let len = u32::from_le_bytes(*head) as usize;
        let json = rest.get(..len).ok_or_else(short)?;
        let message = serde_json::from_slice(json)?;
        Ok((message, body.split_off(4 + len)))
    }
}
