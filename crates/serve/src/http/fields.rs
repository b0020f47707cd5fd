//! Header lines: read strictly, kept as they came.

use std::ops::Range;

/// More header lines than this are refused.
pub const FIELDS_MAX: usize = 128;
/// More names than this in `Connection` are refused: each is compared with every header.
pub const CONNECTION_MAX: usize = 32;

/// Every router adds this line to what it passes on. Where a replica is said to be may be a router, this one or
/// another on its machine: for that one the request must not be from its own machine, which needs no key. It
/// is not left out again, so what goes in a circle ends when it has too many lines.
pub const PASSED_ON: &str = "x-tutti-router";

/// What the router makes of a header; all others are none of its business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    Expect,
    Authorization,
    ApiKey,
    Endpoint,
    ContentType,
    /// Says that a proxy passed the request on, which a router is too.
    Forwarded,
    /// Concerns one connection only, and is never passed on.
    Hop,
}

impl Known {
    pub(super) fn of(name: &[u8]) -> Known {
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        match name.len() {
            2 if is("te") => Known::Hop,
            3 if is("via") => Known::Forwarded,
            4 if is("host") => Known::Host,
            6 if is("expect") => Known::Expect,
            7 if is("upgrade") => Known::Upgrade,
            9 if is("x-api-key") => Known::ApiKey,
            9 if is("forwarded") || is("x-real-ip") => Known::Forwarded,
            10 if is("connection") => Known::Connection,
            10 if is("keep-alive") => Known::Hop,
            12 if is("content-type") => Known::ContentType,
            13 if is("authorization") => Known::Authorization,
            14 if is("content-length") => Known::ContentLength,
            14 if is(PASSED_ON) => Known::Forwarded,
            15 if is("x-forwarded-for") => Known::Forwarded,
            16 if is("x-tutti-endpoint") => Known::Endpoint,
            16 if is("proxy-connection") => Known::Hop,
            17 if is("transfer-encoding") => Known::TransferEncoding,
            18 if is("proxy-authenticate") => Known::Hop,
            19 if is("proxy-authorization") => Known::Hop,
            _ => Known::Other,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Field {
    pub known: Known,
    pub name: Range<usize>,
    pub value: Range<usize>,
    /// Named in `Connection`: for this connection only.
    pub listed: bool,
}

/// Why a head is refused, with the status to say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    #[error("this is no HTTP request: {0}")]
    Syntax(&'static str),
    #[error("the request can be read in two ways: {0}")]
    Ambiguous(&'static str),
    #[error("more than {FIELDS_MAX} header lines")]
    TooMany,
    #[error("{0} is not known here")]
    Unknown(&'static str),
    #[error("only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here")]
    Version,
}

impl BadHead {
    pub fn status(self) -> u16 {
        match self {
            BadHead::Syntax(_) | BadHead::Ambiguous(_) => 400,
            BadHead::TooMany => 431,
            BadHead::Unknown(_) => 501,
            BadHead::Version => 505,
        }
    }
}

/// The fields that requests and answers have in common, with the bytes they are ranges of.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    pub(super) raw: Vec<u8>,
    pub(super) list: Vec<Field>,
    pub(super) length: Option<u64>,
    pub(super) chunked: bool,
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    /// `Connection` names `upgrade`, and `Upgrade` says to what.
    pub(super) upgrade: bool,
}

impl Fields {
    pub fn get(&self, known: Known) -> Option<&[u8]> {
        self.list.iter().find(|f| f.known == known).map(|f| &self.raw[f.value.clone()])
    }

    pub fn named(&self, name: &str) -> Option<&[u8]> {
        let is = |f: &&Field| self.raw[f.name.clone()].eq_ignore_ascii_case(name.as_bytes());
        self.list.iter().find(is).map(|f| &self.raw[f.value.clone()])
    }

    /// All values of headers of this name.
    pub fn all_named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let is = move |f: &&Field| self.raw[f.name.clone()].eq_ignore_ascii_case(name.as_bytes());
        self.list.iter().filter(is).map(|f| &self.raw[f.value.clone()])
    }

    /// Names and values of what is passed on, but for what says where the body ends.
    pub fn passed(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let passes = |f: &&Field| {
            !f.listed
                && !matches!(
                    f.known,
                    Known::Hop | Known::Connection | Known::TransferEncoding | Known::Upgrade
                )
        };
        let part = |range: &Range<usize>| &self.raw[range.clone()];
        self.list.iter().filter(passes).map(move |f| (part(&f.name), part(&f.value)))
    }

    /// Takes over the bytes of a head and where its lines lie in them.
    pub(super) fn set(
        &mut self,
        raw: &[u8],
        headers: &[httparse::Header<'_>],
    ) -> Result<(), BadHead> {
        self.raw.clear();
        self.raw.extend_from_slice(raw);
        self.list.clear();
        (self.length, self.chunked) = (None, false);
        (self.close, self.keep_alive, self.upgrade) = (false, false, false);
        let base = raw.as_ptr() as usize;
        let range = |part: &[u8]| {
            let start = part.as_ptr() as usize - base;
            start..start + part.len()
        };
        for header in headers {
            let known = Known::of(header.name.as_bytes());
            match known {
                Known::ContentLength => self.set_length(header.value)?,
                Known::TransferEncoding => self.set_coding(header.value)?,
                _ => {}
            }
            let name = range(header.name.as_bytes());
            // An empty value need not lie in the head.
            let value =
                if header.value.is_empty() { name.end..name.end } else { range(header.value) };
            self.list.push(Field { known, name, value, listed: false });
        }
        if self.chunked && self.length.is_some() {
            return Err(BadHead::Ambiguous("Content-Length and Transfer-Encoding together"));
        }
        self.read_connection()
    }

    fn set_length(&mut self, value: &[u8]) -> Result<(), BadHead> {
        if self.length.is_some() {
            return Err(BadHead::Ambiguous("two Content-Length headers"));
        }
        let digits = !value.is_empty() && value.len() < 19 && value.iter().all(u8::is_ascii_digit);
        if !digits {
            return Err(BadHead::Ambiguous("Content-Length is no number"));
        }
        self.length = Some(value.iter().fold(0, |n, b| n * 10 + u64::from(b - b'0')));
        Ok(())
    }

    fn set_coding(&mut self, value: &[u8]) -> Result<(), BadHead> {
        if self.chunked {
            return Err(BadHead::Ambiguous("two Transfer-Encoding headers"));
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(BadHead::Unknown("a Transfer-Encoding other than chunked"));
        }
        self.chunked = true;
        Ok(())
    }

    fn read_connection(&mut self) -> Result<(), BadHead> {
        if !self.list.iter().any(|f| f.known == Known::Connection) {
            return Ok(());
        }
        let mut upgrade = false;
        let mut names = 0;
        for at in 0..self.list.len() {
            if self.list[at].known != Known::Connection {
                continue;
            }
            let value = self.list[at].value.clone();
            for token in self.raw[value].split(|b| *b == b',') {
                names += 1;
                if names > CONNECTION_MAX {
                    return Err(BadHead::Syntax("Connection names too many headers"));
                }
                let token = token.trim_ascii();
                let is = |text: &str| token.eq_ignore_ascii_case(text.as_bytes());
                self.close |= is("close");
                self.keep_alive |= is("keep-alive");
                upgrade |= is("upgrade");
                for field in &mut self.list {
                    let named = self.raw[field.name.clone()].eq_ignore_ascii_case(token);
                    // These say where the message ends and whom it is for, whatever `Connection` says.
                    let vital = matches!(
                        field.known,
                        Known::Host | Known::ContentLength | Known::TransferEncoding
                    );
                    field.listed |= named && !vital;
                }
            }
        }
        self.upgrade = upgrade && self.list.iter().any(|f| f.known == Known::Upgrade);
        Ok(())
    }

    /// Appends the lines that are passed on, as they came. `keep` decides about those that are.
    pub(super) fn write_to(&self, out: &mut Vec<u8>, upgrade: bool, keep: impl Fn(&Field) -> bool) {
        for field in &self.list {
            let pass = match field.known {
                Known::Hop | Known::Connection | Known::TransferEncoding => false,
                Known::Upgrade => upgrade,
                _ => !field.listed && keep(field),
            };
            if !pass {
                continue;
            }
            // With what lies between name and value, so that nothing is changed in a line.
            out.extend_from_slice(&self.raw[field.name.start..field.value.end]);
            let end: &[u8] = if field.value.is_empty() { b":\r\n" } else { b"\r\n" };
            out.extend_from_slice(end);
        }
    }
}
