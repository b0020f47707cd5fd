//! A small HTTP server that answers as a test says and remembers what it was asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

pub enum Answer {
    Json(u16, Value),
    /// With the time of the cluster.
    At(u64, Value),
    Text(u16, &'static str),
    /// Chunks of an event stream; then a proper end, or the connection is cut.
    Stream(Vec<Vec<u8>>, bool),
    /// Closes without a word.
    Nothing,
}

type Handler = dyn Fn(&Seen, usize) -> Answer + Send + Sync;

#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub connections: Arc<AtomicUsize>,
    /// Pieces of bodies as they came.
    pub pieces: Arc<Mutex<Option<std::sync::mpsc::Sender<Vec<u8>>>>>,
    handler: Arc<Handler>,
}

impl Server {
    pub fn start(handler: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static) -> Self {
        Self::launch(None, Arc::new(handler))
    }

    pub fn start_tls(
        config: Arc<ServerConfig>,
        handler: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::launch(Some(config), Arc::new(handler))
    }

    pub fn start_unix(
        path: &std::path::Path,
        handler: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let server = Server {
            address: ([127, 0, 0, 1], 0).into(),
            seen: Arc::default(),
            connections: Arc::default(),
            pieces: Arc::default(),
            handler: Arc::new(handler),
        };
        let shared = server.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let shared = shared.clone();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || shared.serve(socket.unwrap()));
            }
        });
        server
    }

    fn launch(tls: Option<Arc<ServerConfig>>, handler: Arc<Handler>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            connections: Arc::default(),
            pieces: Arc::default(),
            handler,
        };
        let shared = server.clone();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (shared, tls) = (shared.clone(), tls.clone());
                shared.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || match tls {
                    None => shared.serve(socket.unwrap()),
                    Some(config) => shared.serve(StreamOwned::new(
                        ServerConnection::new(config).unwrap(),
                        socket.unwrap(),
                    )),
                });
            }
        });
        server
    }

    pub fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|s| s.line.clone()).collect()
    }

    fn serve<S: Duplex>(&self, socket: S) {
        let mut socket = BufReader::new(socket);
        while let Some(seen) = self.read_request(&mut socket) {
            let number = {
                let mut all = self.seen.lock().unwrap();
                all.push(seen.clone());
                all.len() - 1
            };
            if !answer(socket.get_mut(), (self.handler)(&seen, number)) {
                return;
            }
        }
    }

    /// None when the client has gone.
    fn read_request<S: Read>(&self, socket: &mut BufReader<S>) -> Option<Seen> {
        let mut seen = Seen { line: read_line(socket)?, ..Seen::default() };
        let end = seen.line.rfind(' ')?;
        seen.line.truncate(end);
        loop {
            let line = read_line(socket)?;
            let Some((name, value)) = line.split_once(": ") else { break };
            seen.headers.insert(name.to_lowercase(), value.to_owned());
        }
        if seen.headers.get("transfer-encoding").is_some_and(|v| v == "chunked") {
            loop {
                let size = usize::from_str_radix(&read_line(socket)?, 16).ok()?;
                let mut piece = vec![0; size];
                socket.read_exact(&mut piece).ok()?;
                read_line(socket)?;
                if size == 0 {
                    break;
                }
                seen.body.extend_from_slice(&piece);
                if let Some(pieces) = &*self.pieces.lock().unwrap() {
                    pieces.send(piece).unwrap();
                }
            }
        } else if let Some(size) = seen.headers.get("content-length") {
            seen.body = vec![0; size.parse().ok()?];
            socket.read_exact(&mut seen.body).ok()?;
        }
        Some(seen)
    }
}

pub trait Duplex: Read + Write {}
impl Duplex for TcpStream {}
impl Duplex for UnixStream {}
impl Duplex for StreamOwned<ServerConnection, TcpStream> {}

fn read_line<R: BufRead>(socket: &mut R) -> Option<String> {
    let mut line = String::new();
    socket.read_line(&mut line).ok().filter(|n| *n > 0)?;
    Some(line.trim_end().to_owned())
}

/// Whether the connection stays open.
fn answer(socket: &mut impl Write, answer: Answer) -> bool {
    let mut more = String::new();
    let (status, kind, body) = match answer {
        Answer::Nothing => return false,
        Answer::At(time, value) => {
            more = format!("tutti-now: {time}\r\n");
            (200, "application/json", value.to_string())
        }
        Answer::Json(status, value) => (status, "application/json", value.to_string()),
        Answer::Text(status, text) => (status, "text/html", text.to_owned()),
        Answer::Stream(chunks, whole) => {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                        transfer-encoding: chunked\r\n\r\n";
            socket.write_all(head.as_bytes()).unwrap();
            for chunk in chunks {
                write!(socket, "{:x}\r\n", chunk.len()).unwrap();
                socket.write_all(&chunk).unwrap();
                socket.write_all(b"\r\n").unwrap();
                socket.flush().unwrap();
            }
            return whole && socket.write_all(b"0\r\n\r\n").is_ok();
        }
    };
    write!(
        socket,
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .is_ok()
}
