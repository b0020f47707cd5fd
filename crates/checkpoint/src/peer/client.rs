//! The side whose shards are kept: a place like any other.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::wire::{Conn, PIECE, Request, Response, WireError, items};
use crate::tier::{Item, Source, Tier, TierError};

const CONNECT: Duration = Duration::from_secs(5);
/// A peer that is silent for so long is as good as gone.
const SILENT: Duration = Duration::from_secs(30);

pub struct Client {
    label: String,
    address: String,
    key: [u8; 32],
    idle: Mutex<Vec<Conn>>,
}

impl Client {
    /// Connects when it is first needed: a peer that is away is no reason not to start.
    pub fn new(address: impl Into<String>, key: [u8; 32]) -> Client {
        let address = address.into();
        Client { label: format!("tcp://{address}"), address, key, idle: Mutex::default() }
    }

    fn connect(&self) -> Result<Conn, WireError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(SILENT))?;
                    stream.set_write_timeout(Some(SILENT))?;
                    return Conn::connect(stream, &self.key);
                }
                Err(e) => last = e,
            }
        }
        Err(last.into())
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(
        &self,
        doing: &'static str,
        path: &str,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(Response, Bytes), TierError> {
        let exchange = |mut conn: Conn| -> Result<(Response, Bytes), WireError> {
            conn.send(request, bytes)?;
            let answer = conn.receive()?;
            self.idle().push(conn);
            Ok(answer)
        };
        let kept = self.idle().pop();
        let answer = match kept.map(exchange) {
            Some(Ok(answer)) => Ok(answer),
            // One that lay idle may have been closed meanwhile. All requests can be repeated.
            Some(Err(_)) | None => self.connect().and_then(exchange),
        };
        self.judge(doing, path, answer)
    }

    fn judge(
        &self,
        doing: &'static str,
        path: &str,
        answer: Result<(Response, Bytes), WireError>,
    ) -> Result<(Response, Bytes), TierError> {
        match answer {
            Ok((Response::Failed(failure), _)) => Err(failure.into_error(&self.label, path, doing)),
            Ok(answer) => Ok(answer),
            Err(e) => {
                let (place, path) = (self.label.clone(), path.to_owned());
                let source = match e {
                    WireError::Io(e) => e,
                    e => io::Error::other(e),
                };
                Err(TierError::Silent { place, path, doing, source })
            }
        }
    }

    fn send_all(
        &self,
        path: &str,
        len: u64,
        data: &mut Source<'_>,
    ) -> Result<Result<(Response, Bytes), WireError>, TierError> {
        let mut conn = match self.connect() {
            Ok(conn) => conn,
            Err(e) => return Ok(Err(e)),
        };
        if let Err(e) = conn.send(&Request::Put { path: path.to_owned(), len }, &[]) {
            return Ok(Err(e));
        }
        let mut found = 0;
        for bytes in data {
            let bytes = bytes?;
            found += bytes.len() as u64;
            for piece in bytes.chunks(PIECE) {
                if let Err(e) = conn.send_bytes(&[piece]) {
                    return Ok(Err(e));
                }
            }
        }
        if found != len {
            let (place, path) = (self.label.clone(), path.to_owned());
            return Err(TierError::Short { place, path, wanted: len, found });
        }
        let answer = conn.receive();
        if answer.is_ok() {
            self.idle().push(conn);
        }
        Ok(answer)
    }

    /// An answer to another question.
    fn confused(&self, doing: &'static str, path: &str) -> TierError {
        let (place, path) = (self.label.clone(), path.to_owned());
        let source = io::Error::other("the peer answered something else");
        TierError::Io { place, path, doing, source }
    }
}

impl Tier for Client {
    fn label(&self) -> &str {
        &self.label
    }

    fn is_near(&self) -> bool {
        false
    }

    fn put(&self, path: &str, len: u64, data: &mut Source<'_>) -> Result<(), TierError> {
        let answer = self.send_all(path, len, data)?;
        self.judge("write", path, answer).map(|_| ())
    }

    fn publish(&self, path: &str, scratch: &str, bytes: &[u8]) -> Result<bool, TierError> {
        let request = Request::Publish { path: path.to_owned(), scratch: scratch.to_owned() };
        match self.ask("publish", path, &request, bytes)? {
            (Response::Created(created), _) => Ok(created),
            _ => Err(self.confused("publish", path)),
        }
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, TierError> {
        let request = Request::Read { path: path.to_owned(), begin: range.start, end: range.end };
        match self.ask("read", path, &request, &[])? {
            (Response::Bytes, bytes) if bytes.len() as u64 == range.end - range.start => Ok(bytes),
            _ => Err(self.confused("read", path)),
        }
    }

    fn size(&self, path: &str) -> Result<Option<u64>, TierError> {
        match self.ask("look at", path, &Request::Size { path: path.to_owned() }, &[])? {
            (Response::Size(size), _) => Ok(size),
            _ => Err(self.confused("look at", path)),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<Item>, TierError> {
        match self.ask("list", dir, &Request::List { dir: dir.to_owned() }, &[])? {
            (Response::Items(found), _) => Ok(items(found)),
            _ => Err(self.confused("list", dir)),
        }
    }

    fn remove(&self, path: &str) -> Result<(), TierError> {
        self.ask("remove", path, &Request::Remove { path: path.to_owned() }, &[]).map(|_| ())
    }

    fn settle(&self, dir: &str) -> Result<(), TierError> {
        self.ask("sync", dir, &Request::Settle { dir: dir.to_owned() }, &[]).map(|_| ())
    }

    fn prune(&self, dir: &str) -> Result<(), TierError> {
        self.ask("remove", dir, &Request::Prune { dir: dir.to_owned() }, &[]).map(|_| ())
    }
}
