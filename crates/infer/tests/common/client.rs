//! A client that shows what is on the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

/// Sends a request and leaves the answer on the socket.
pub fn open(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    read(open(address, "POST", path, &body.to_string()))
}

pub fn get(address: SocketAddr, path: &str) -> Reply {
    read(open(address, "GET", path, ""))
}

/// The whole answer.
pub fn read(socket: TcpStream) -> Reply {
    let mut reader = BufReader::new(socket);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "no head: {head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let mut body = Vec::new();
    if chunked {
        while read_chunk(&mut reader, &mut body) {}
    } else {
        reader.read_to_end(&mut body).unwrap();
    }
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}

fn read_chunk(reader: &mut impl BufRead, body: &mut Vec<u8>) -> bool {
    let mut size = String::new();
    reader.read_line(&mut size).unwrap();
    let size = usize::from_str_radix(size.trim(), 16).unwrap();
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).unwrap();
    body.extend_from_slice(&chunk[..size]);
    size > 0
}

/// The value of a line in `/metrics`.
pub fn metric(address: SocketAddr, name: &str) -> f64 {
    let page = get(address, "/metrics").body;
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let line = line.unwrap_or_else(|| panic!("{name} in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
