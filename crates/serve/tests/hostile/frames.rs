//! HTTP/2 by hand: no library sends what an attacker does.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// The block of a `GET`, with nothing remembered from one to the next.
pub fn get(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'r', 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block
}

/// The same of a `POST` that says how long its body will be.
pub fn post(path: &str, length: usize) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x01, 1, b'r', 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    let length = length.to_string();
    block.extend_from_slice(&[0x0f, 0x0d, length.len() as u8]);
    block.extend_from_slice(length.as_bytes());
    block
}

/// A header with a value of so many bytes.
pub fn header(name: &str, value: usize) -> Vec<u8> {
    assert!((127..16_000).contains(&value), "written with two bytes of length");
    let mut block = vec![0x00, name.len() as u8];
    block.extend_from_slice(name.as_bytes());
    let rest = value - 127;
    block.extend_from_slice(&[0x7f, (rest % 128) as u8 | 0x80, (rest / 128) as u8]);
    block.extend(std::iter::repeat_n(b'v', value));
    block
}

/// Connects, with these settings.
pub async fn begin(stream: &mut TcpStream, settings: &[(u16, u32)]) {
    let mut payload = Vec::new();
    for (id, value) in settings {
        payload.extend_from_slice(&id.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend_from_slice(&frame(SETTINGS, 0, 0, &payload));
    stream.write_all(&out).await.unwrap();
}

/// None: the connection has ended.
pub async fn next<R: tokio::io::AsyncRead + Unpin>(from: &mut R) -> Option<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await.ok()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let mut payload = vec![0; len];
    from.read_exact(&mut payload).await.ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame { kind: head[3], flags: head[4], stream, payload })
}
