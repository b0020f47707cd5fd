//! Heads of requests and answers: read strictly, kept as they came, written anew without what concerns
//! one connection only.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::fields::{BadHead, FIELDS_MAX, Fields, Known, PASSED_ON};
use super::framing::Framing;

/// The head of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    pub fields: Fields,
    method: Range<usize>,
    target: Range<usize>,
    /// The minor version: 0 or 1.
    pub minor: u8,
}

impl RequestHead {
    /// Reads a head from the beginning of `bytes` and says how long it is; none while it is not whole.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadHead> {
        let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let len = match request.parse_with_uninit_headers(bytes, &mut lines) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(syntax(error)),
        };
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let raw = &bytes[..len];
        strict_lines(raw)?;
        let base = raw.as_ptr() as usize;
        let start = |part: &str| part.as_ptr() as usize - base;
        self.method = start(method)..start(method) + method.len();
        self.target = start(target)..start(target) + target.len();
        self.minor = request.version.unwrap_or(1);
        self.fields.set(raw, request.headers)?;
        self.check()?;
        Ok(Some(len))
    }

    fn check(&mut self) -> Result<(), BadHead> {
        let hosts = self.fields.list.iter().filter(|f| f.known == Known::Host).count();
        if hosts > 1 || hosts == 0 && self.minor == 1 {
            return Err(BadHead::Ambiguous("there must be exactly one Host header"));
        }
        for (known, twice) in [
            (Known::Authorization, "there is more than one Authorization header"),
            (Known::ApiKey, "there is more than one x-api-key header"),
            (Known::Endpoint, "there is more than one x-tutti-endpoint header"),
        ] {
            if self.fields.list.iter().filter(|f| f.known == known).count() > 1 {
                return Err(BadHead::Ambiguous(twice));
            }
        }
        if self.fields.chunked && self.minor == 0 {
            return Err(BadHead::Ambiguous("Transfer-Encoding in HTTP/1.0"));
        }
        if self.method() == "CONNECT" {
            return Err(BadHead::Unknown("CONNECT"));
        }
        if self.target().starts_with('/') || self.target() == "*" && self.method() == "OPTIONS" {
            return Ok(());
        }
        self.make_relative()
    }

    /// `http://host/path`, as for a forward proxy, means the path here.
    fn make_relative(&mut self) -> Result<(), BadHead> {
        let target = self.target();
        let rest = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
        let rest = rest.ok_or(BadHead::Syntax("the target is no path"))?;
        let path = rest.find('/').ok_or(BadHead::Syntax("the target has no path"))?;
        self.target.start += target.len() - rest.len() + path;
        Ok(())
    }

    pub fn method(&self) -> &str {
        std::str::from_utf8(&self.fields.raw[self.method.clone()]).unwrap_or("")
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        std::str::from_utf8(&self.fields.raw[self.target.clone()]).unwrap_or("")
    }

    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    pub fn framing(&self) -> Framing {
        if self.fields.chunked {
            Framing::chunked_request()
        } else {
            Framing::Length(self.fields.length.unwrap_or(0))
        }
    }

    pub fn length(&self) -> Option<u64> {
        self.fields.length
    }

    pub fn keep_alive(&self) -> bool {
        !self.fields.close && (self.minor == 1 || self.fields.keep_alive)
    }

    pub fn expects_continue(&self) -> bool {
        let expect = self.fields.get(Known::Expect);
        self.minor == 1 && expect.is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"))
    }

    /// To WebSocket and nothing else, said once. What is said in a tunnel is not looked at: through one of
    /// HTTP/2 more requests could be sent past every limit. Other wishes are left out, as HTTP allows.
    pub fn upgrade(&self) -> bool {
        let mut fields = self.fields.list.iter().filter(|f| f.known == Known::Upgrade);
        let (first, second) = (fields.next(), fields.next());
        let to = first.map(|f| &self.fields.raw[f.value.clone()]).unwrap_or_default();
        let websocket = second.is_none() && to.eq_ignore_ascii_case(b"websocket");
        self.fields.upgrade && self.minor == 1 && websocket
    }

    /// Appends this head as a replica gets it. `skip` first bytes of the target are left out, and the
    /// headers whose values are for us alone. [`PASSED_ON`] is added.
    pub fn write_upstream(&self, out: &mut Vec<u8>, skip: usize, hides: impl Fn(&[u8]) -> bool) {
        out.extend_from_slice(self.method().as_bytes());
        out.push(b' ');
        let target = &self.target()[skip..];
        if !target.starts_with('/') && target != "*" {
            out.push(b'/');
        }
        out.extend_from_slice(target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        self.fields.write_to(out, self.upgrade(), |field| {
            field.known != Known::Expect && !hides(&self.fields.raw[field.value.clone()])
        });
        if self.fields.get(Known::Host).is_none() {
            // Of HTTP/1.0; in HTTP/1.1 there must be one.
            out.extend_from_slice(b"Host: localhost\r\n");
        }
        if self.fields.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if self.upgrade() {
            out.extend_from_slice(b"Connection: Upgrade\r\n");
        }
        out.extend_from_slice(PASSED_ON.as_bytes());
        out.extend_from_slice(b": 1\r\n\r\n");
    }
}

/// The head of an answer.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    pub fields: Fields,
    pub status: u16,
    minor: u8,
    reason: Range<usize>,
}

impl ResponseHead {
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadHead> {
        let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let len = match config.parse_response_with_uninit_headers(&mut response, bytes, &mut lines)
        {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(syntax(error)),
        };
        let raw = &bytes[..len];
        strict_lines(raw)?;
        self.status = response.code.unwrap_or(0);
        self.minor = response.version.unwrap_or(0);
        let reason = response.reason.unwrap_or("");
        self.reason = if reason.is_empty() {
            0..0
        } else {
            let start = reason.as_ptr() as usize - raw.as_ptr() as usize;
            start..start + reason.len()
        };
        self.fields.set(raw, response.headers)?;
        Ok(Some(len))
    }

    /// How the body of an answer to this method ends.
    pub fn framing(&self, method: &str) -> Framing {
        if method == "HEAD" || self.status / 100 == 1 || matches!(self.status, 204 | 304) {
            return Framing::EMPTY;
        }
        match self.fields.length {
            _ if self.fields.chunked => Framing::chunked(),
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    }

    /// The replica keeps the connection open after this answer.
    pub fn keep_alive(&self) -> bool {
        !self.fields.close && (self.minor == 1 || self.fields.keep_alive)
    }

    pub fn upgrade(&self) -> bool {
        self.status == 101 && self.fields.upgrade
    }

    pub fn is_chunked(&self) -> bool {
        self.fields.chunked
    }

    pub fn is_json(&self) -> bool {
        let kind = self.fields.get(Known::ContentType);
        kind.is_some_and(|v| starts_with(v, b"application/json"))
    }

    pub fn is_event_stream(&self) -> bool {
        let kind = self.fields.get(Known::ContentType);
        kind.is_some_and(|v| starts_with(v, b"text/event-stream"))
    }

    /// Appends this head as the client gets it, up to `extra` lines and the empty one.
    pub fn write_client(&self, out: &mut Vec<u8>, extra: &[&str]) {
        let digits = [
            b'0' + (self.status / 100) as u8,
            b'0' + (self.status / 10 % 10) as u8,
            b'0' + (self.status % 10) as u8,
        ];
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&digits);
        out.push(b' ');
        out.extend_from_slice(&self.fields.raw[self.reason.clone()]);
        out.extend_from_slice(b"\r\n");
        self.fields.write_to(out, self.status == 101, |_| true);
        for line in extra {
            out.extend_from_slice(line.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn starts_with(value: &[u8], text: &[u8]) -> bool {
    value.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text))
}

fn syntax(error: httparse::Error) -> BadHead {
    match error {
        httparse::Error::TooManyHeaders => BadHead::TooMany,
        httparse::Error::Version => BadHead::Version,
        httparse::Error::HeaderName => BadHead::Syntax("a header's name"),
        httparse::Error::HeaderValue => BadHead::Syntax("a header's value"),
        httparse::Error::NewLine => BadHead::Syntax("a line's end"),
        httparse::Error::Token => BadHead::Syntax("its first line"),
        httparse::Error::Status => BadHead::Syntax("its status"),
    }
}

/// Does an empty line, which ends a head, end behind the first `seen` bytes? One after a bare LF too: that is
/// refused, but by those who read the head.
pub fn ends_head(bytes: &[u8], seen: usize) -> bool {
    let from = seen.saturating_sub(2);
    memchr::memchr_iter(b'\n', &bytes[from..]).any(|at| {
        let rest = &bytes[from + at + 1..];
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
    })
}

/// A bare LF ends a line for some and not for others.
fn strict_lines(raw: &[u8]) -> Result<(), BadHead> {
    let mut before = 0;
    for &byte in raw {
        if byte == b'\n' && before != b'\r' {
            return Err(BadHead::Syntax("a line does not end in CR LF"));
        }
        before = byte;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
