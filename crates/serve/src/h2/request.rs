//! A request over HTTP/2, as one of HTTP/1.1.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Instant;

use crate::config::PACE;
use crate::fault::Fault;
use crate::http::{BadHead, RequestHead, check_trailer_name, check_trailer_value};

/// Head and body of a request; the body as far as it was read.
pub struct Asked {
    pub head: RequestHead,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    /// Nothing more comes.
    pub ended: bool,
    /// Its length is not known, so a replica gets it in chunks.
    pub chunked: bool,
    incoming: Option<Incoming>,
    taken: u64,
}

impl Asked {
    pub fn new(request: Request<Incoming>) -> Result<Asked, BadHead> {
        let (parts, incoming) = request.into_parts();
        let ended = incoming.is_end_stream();
        let chunked = !ended && !parts.headers.contains_key(header::CONTENT_LENGTH);
        // A name in both places must be the same one: else one of us would go by each.
        if let (Some(authority), Some(host)) =
            (parts.uri.authority(), parts.headers.get(header::HOST))
            && !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes())
        {
            return Err(BadHead::Ambiguous(":authority and Host differ"));
        }
        let mut head = RequestHead::default();
        head.read(&head_text(&parts, chunked))?
            .ok_or(BadHead::Syntax("the head of the request is not whole"))?;
        Ok(Asked {
            head,
            body: Vec::new(),
            trailers: None,
            ended,
            chunked,
            incoming: Some(incoming),
            taken: 0,
        })
    }

    /// Reads the body, or somewhat more than `most` bytes of it.
    pub async fn gather(
        &mut self,
        most: usize,
        body_max: Option<u64>,
        patience: Duration,
    ) -> Result<(), Fault> {
        let (mut until, mut came) = (Instant::now() + patience, 0);
        while !self.ended && self.body.len() < most {
            let Some(incoming) = self.incoming.as_mut() else { return Ok(()) };
            match next_frame(incoming, until).await? {
                None => self.ended = true,
                Some(frame) => match frame.into_data() {
                    Ok(data) => {
                        came += data.len();
                        if came >= PACE {
                            (until, came) = (Instant::now() + patience, 0);
                        }
                        self.taken += data.len() as u64;
                        if body_max.is_some_and(|most| self.taken > most) {
                            return Err(Fault::TooLarge);
                        }
                        self.body.extend_from_slice(&data);
                    }
                    Err(frame) => self.trailers = trailers(frame)?,
                },
            }
        }
        Ok(())
    }

    /// All that is known of the request, as bytes for a replica after its head.
    pub fn write_body(&self, out: &mut Vec<u8>) {
        if !self.chunked {
            return out.extend_from_slice(&self.body);
        }
        write_chunk(out, &self.body);
        if self.ended {
            write_last_chunk(out, self.trailers.as_ref());
        }
    }

    /// What is still to come, for [`upload`].
    pub fn take_rest(&mut self) -> Option<Incoming> {
        self.incoming.take()
    }
}

fn head_text(parts: &http::request::Parts, chunked: bool) -> Vec<u8> {
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut out = format!("{} {target} HTTP/1.1\r\n", parts.method).into_bytes();
    let mut line = |name: &[u8], value: &[u8]| {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    };
    if !parts.headers.contains_key(header::HOST) {
        let host = parts.uri.authority().map_or("", |authority| authority.as_str());
        line(b"host", host.as_bytes());
    }
    for (name, value) in &parts.headers {
        if name != header::COOKIE {
            line(name.as_str().as_bytes(), value.as_bytes());
        }
    }
    // HTTP/2 cuts cookies in pieces; HTTP/1.1 wants them in one line.
    let cookies: Vec<&[u8]> =
        parts.headers.get_all(header::COOKIE).iter().map(|c| c.as_bytes()).collect();
    if !cookies.is_empty() {
        line(b"cookie", &cookies.join(&b"; "[..]));
    }
    if chunked {
        line(b"transfer-encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
    out
}

async fn next_frame(
    incoming: &mut Incoming,
    until: Instant,
) -> Result<Option<Frame<Bytes>>, Fault> {
    let next = poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx));
    match tokio::time::timeout_at(until, next).await {
        Err(_) => Err(Fault::Slow),
        Ok(None) => Ok(None),
        Ok(Some(Ok(frame))) => Ok(Some(frame)),
        Ok(Some(Err(_))) => Err(Fault::Gone),
    }
}

/// As strict as over HTTP/1.1.
fn trailers(frame: Frame<Bytes>) -> Result<Option<HeaderMap>, Fault> {
    let Ok(trailers) = frame.into_trailers() else { return Ok(None) };
    for (name, value) in &trailers {
        check_trailer_name(name.as_str().as_bytes()).map_err(Fault::BadBody)?;
        check_trailer_value(value.as_bytes()).map_err(Fault::BadBody)?;
    }
    Ok(Some(trailers))
}

fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_last_chunk(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Sends the rest of a body as it comes. Ends early, and with that the replica's request, if the client
/// leaves, stalls or sends too much.
pub async fn upload(
    mut incoming: Incoming,
    to: &mut OwnedWriteHalf,
    chunked: bool,
    mut left: Option<u64>,
    patience: Duration,
) -> Result<(), Fault> {
    let broken = |_| Fault::Broken { before_answer: true };
    let mut out = Vec::new();
    let mut last = None;
    while let Some(frame) = next_frame(&mut incoming, Instant::now() + patience).await? {
        match frame.into_data() {
            Ok(data) => {
                if let Some(left) = &mut left {
                    *left = left.checked_sub(data.len() as u64).ok_or(Fault::TooLarge)?;
                }
                if chunked {
                    out.clear();
                    write_chunk(&mut out, &data);
                    to.write_all(&out).await.map_err(broken)?;
                } else {
                    to.write_all(&data).await.map_err(broken)?;
                }
            }
            Err(frame) => last = trailers(frame)?,
        }
    }
    if chunked {
        out.clear();
        write_last_chunk(&mut out, last.as_ref());
        to.write_all(&out).await.map_err(broken)?;
    }
    Ok(())
}
