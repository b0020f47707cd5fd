//! Where a body ends. Strict: what two parsers could read in two ways is refused, for that is how
//! requests are smuggled past a proxy.

use super::trailers::{TOKEN_START, check_name, check_value};

/// Extensions of a chunk's size line, and all trailers together. Nobody needs more.
const LINE_MAX: usize = 256;
const TRAILERS_MAX: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    Chunked(Chunked),
    /// Answers only.
    UntilClose,
}

/// The bytes are no chunked body, or one with trailers that no replica must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a chunk of the body is malformed: {0}")]
    Chunk(&'static str),
    #[error("a trailer behind the body is refused: {0}")]
    Trailer(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunked {
    at: At,
    /// As they came, each line with its end.
    trailers: Vec<u8>,
    /// Of a request: its trailers are passed on as they come, so they are judged as they come.
    of_request: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Size {
        digits: u8,
        size: u64,
    },
    /// In a chunk's extensions, which nobody uses.
    Extension {
        size: u64,
        seen: usize,
    },
    SizeLf {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a line of trailers, or of the empty line that ends all.
    TrailerStart {
        seen: usize,
    },
    TrailerName {
        seen: usize,
    },
    /// Behind a trailer's colon.
    Trailer {
        seen: usize,
    },
    TrailerLf {
        seen: usize,
    },
    EndLf,
    End,
    /// Stays so: where the body ends will never be known.
    Bad(Malformed),
}

impl Framing {
    pub const EMPTY: Framing = Framing::Length(0);

    /// Of an answer.
    pub fn chunked() -> Framing {
        Framing::Chunked(Chunked::new(false))
    }

    pub fn chunked_request() -> Framing {
        Framing::Chunked(Chunked::new(true))
    }

    pub fn is_done(&self) -> bool {
        match self {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(chunked) => chunked.at == At::End,
            Framing::UntilClose => false,
        }
    }

    /// Lines after the last chunk.
    pub fn trailers(&self) -> &[u8] {
        match self {
            Framing::Chunked(chunked) => &chunked.trailers,
            _ => &[],
        }
    }

    /// Goes over `bytes` and says how many of them belong to the body; fewer than there are only at its
    /// end. `data` gets the body itself, without the marks between chunks.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        mut data: impl FnMut(&[u8]),
    ) -> Result<usize, Malformed> {
        match self {
            Framing::Length(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= n as u64;
                data(&bytes[..n]);
                Ok(n)
            }
            Framing::Chunked(chunked) => chunked.advance(bytes, data),
            Framing::UntilClose => {
                data(bytes);
                Ok(bytes.len())
            }
        }
    }
}

impl Chunked {
    fn new(of_request: bool) -> Chunked {
        Chunked { at: At::Size { digits: 0, size: 0 }, trailers: Vec::new(), of_request }
    }

    fn advance(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut used = 0;
        while used < bytes.len() && self.at != At::End {
            if let At::Data { left } = &mut self.at {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - used);
                data(&bytes[used..used + n]);
                used += n;
                *left -= n as u64;
                if *left == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            if let Some(skipped) = self.shortcut(&bytes[used..]) {
                used += skipped;
                continue;
            }
            let byte = bytes[used];
            let next = self.step(byte).and_then(|next| self.note_trailer(byte, next));
            self.at = next.inspect_err(|bad| self.at = At::Bad(*bad))?;
            used += 1;
        }
        Ok(used)
    }

    /// Keeps what belongs to trailers, and judges those of a request: `byte` leads from where we are to `next`.
    fn note_trailer(&mut self, byte: u8, next: At) -> Result<At, Malformed> {
        let inside = |at: &At| {
            matches!(at, At::TrailerName { .. } | At::Trailer { .. } | At::TrailerLf { .. })
        };
        if !inside(&self.at) && !inside(&next) {
            return Ok(next);
        }
        if self.of_request {
            match (&self.at, &next) {
                (At::Trailer { .. }, At::Trailer { .. }) if byte == b'_' => {
                    let before = self.trailers.len().saturating_sub(TOKEN_START);
                    check_value(&[&self.trailers[before..], b"_"].concat())?;
                }
                (At::TrailerStart { .. } | At::TrailerName { .. }, At::Trailer { .. }) => {
                    let line = memchr::memrchr(b'\n', &self.trailers).map_or(0, |end| end + 1);
                    check_name(&self.trailers[line..])?;
                }
                (At::TrailerName { .. }, At::TrailerLf { .. }) => {
                    return Err(Malformed::Trailer("it has no colon"));
                }
                _ => {}
            }
        }
        self.trailers.push(byte);
        Ok(next)
    }

    /// What lies between two chunks nearly always: an end of line, or a plain size with its own.
    fn shortcut(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.at {
            At::DataCr if bytes.starts_with(b"\r\n") => {
                self.at = At::Size { digits: 0, size: 0 };
                Some(2)
            }
            At::Size { digits: 0, .. } => {
                let digits = bytes.iter().take(8).take_while(|b| b.is_ascii_hexdigit()).count();
                if digits == 0 || !bytes[digits..].starts_with(b"\r\n") {
                    return None;
                }
                let value = |b: &u8| u64::from((*b as char).to_digit(16).unwrap_or(0));
                let size = bytes[..digits].iter().fold(0, |size, b| size * 16 + value(b));
                self.at =
                    if size == 0 { At::TrailerStart { seen: 0 } } else { At::Data { left: size } };
                Some(digits + 2)
            }
            _ => None,
        }
    }

    /// One byte that is not data.
    fn step(&self, byte: u8) -> Result<At, Malformed> {
        Ok(match (self.at.clone(), byte) {
            (At::Size { digits, .. }, b) if b.is_ascii_hexdigit() && digits >= 15 => {
                return Err(Malformed::Chunk("its size has too many digits"));
            }
            (At::Size { digits, size }, b) if b.is_ascii_hexdigit() => {
                let digit = (b as char).to_digit(16).unwrap_or(0);
                At::Size { digits: digits + 1, size: size * 16 + u64::from(digit) }
            }
            (At::Size { digits: 1.., size }, b'\r') => At::SizeLf { size },
            (At::Size { digits: 1.., size }, b';') => At::Extension { size, seen: 0 },
            (At::Size { .. }, _) => {
                return Err(Malformed::Chunk("its size is no hexadecimal number"));
            }
            (At::Extension { size, .. }, b'\r') => At::SizeLf { size },
            (At::Extension { size, seen }, b) if seen < LINE_MAX && is_text(b) => {
                At::Extension { size, seen: seen + 1 }
            }
            (At::Extension { .. }, _) => return Err(Malformed::Chunk("its extension")),
            (At::SizeLf { size: 0 }, b'\n') => At::TrailerStart { seen: 0 },
            (At::SizeLf { size }, b'\n') => At::Data { left: size },
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::Size { digits: 0, size: 0 },
            (At::TrailerStart { .. }, b'\r') => At::EndLf,
            (At::TrailerStart { .. }, b' ' | b'\t') => {
                return Err(Malformed::Chunk("a trailer goes on in the next line"));
            }
            (At::TrailerStart { seen } | At::TrailerName { seen } | At::Trailer { seen }, b)
                if seen < TRAILERS_MAX && is_text(b) =>
            {
                let seen = seen + 1;
                let in_value = b == b':' || matches!(self.at, At::Trailer { .. });
                if in_value { At::Trailer { seen } } else { At::TrailerName { seen } }
            }
            (At::TrailerName { seen } | At::Trailer { seen }, b'\r') => At::TrailerLf { seen },
            (At::TrailerLf { seen }, b'\n') => At::TrailerStart { seen },
            (At::TrailerStart { .. } | At::TrailerName { .. } | At::Trailer { .. }, _) => {
                return Err(Malformed::Chunk("its trailers"));
            }
            (At::EndLf, b'\n') => At::End,
            (At::Bad(bad), _) => return Err(bad),
            _ => return Err(Malformed::Chunk("a line does not end in CR LF")),
        })
    }
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed in pieces of every size; the body, how much was used, and whether it is done.
    fn read(raw: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let mut framing = Framing::chunked();
        let (mut body, mut used) = (Vec::new(), 0);
        for bytes in raw.chunks(piece) {
            used += framing.advance(bytes, |data| body.extend_from_slice(data))?;
        }
        Ok((body, used, framing.is_done()))
    }

    #[test]
    fn chunks_are_read_in_pieces_of_every_size() {
        let raw = b"5\r\nhello\r\nA;name=\"v\"\r\n, world!!!\r\n0\r\nx-sum: 1\r\ny: 2\r\n\r\nGET /";
        for piece in 1..raw.len() {
            let (body, used, done) = read(raw, piece).unwrap();
            assert_eq!(body, b"hello, world!!!");
            assert_eq!((used, done), (raw.len() - 5, true), "pieces of {piece}");
        }
    }

    #[test]
    fn trailers_are_kept() {
        let mut framing = Framing::chunked();
        assert!(framing.trailers().is_empty());
        framing.advance(b"1\r\nx\r\n0\r\na: b\r\nc: d\r\n\r\n", |_| {}).unwrap();
        assert_eq!(framing.trailers(), b"a: b\r\nc: d\r\n");
    }

    /// As `(line, what is passed on before it is refused)`: nothing of a secret, however it is cut.
    #[test]
    fn a_key_in_a_trailer_of_a_request_is_noticed_before_its_secret() {
        for (line, passed) in [
            ("authorization: Bearer sk-theirs", "authorization"),
            ("X-API-Key: tutti_s_ca_k3_9c41", "X-API-Key"),
            ("x-mine: Bearer tutti_s_ca_k3_9c41", "x-mine: Bearer tutti_s"),
            ("x-sum: 1\r\nx-mine: a_tutti_u_ca_k3_9c41", "x-sum: 1\r\nx-mine: a_tutti_u"),
            ("content-length: 5", "content-length"),
            ("authorization : Bearer 1", "authorization "),
            (": x", ""),
            ("authorization", "authorization"),
        ] {
            let raw = format!("1\r\nx\r\n0\r\n{line}\r\n\r\n");
            for piece in [1, 3, 7, raw.len()] {
                let mut framing = Framing::chunked_request();
                let mut used = 0;
                let refused = raw
                    .as_bytes()
                    .chunks(piece)
                    .find_map(|bytes| framing.advance(bytes, |_| {}).map(|n| used += n).err());
                assert!(matches!(refused, Some(Malformed::Trailer(_))), "{line}: {refused:?}");
                assert!(used <= "1\r\nx\r\n0\r\n".len() + passed.len(), "{line} by {piece}");
            }
        }
        let mut framing = Framing::chunked_request();
        let good = b"0\r\nx-sum: 1:2\r\nx-note: tutti_ a_b_\r\nx-empty:\r\n\r\n";
        assert_eq!(framing.advance(good, |_| {}), Ok(good.len()));
        let mut answer = Framing::chunked();
        answer.advance(b"0\r\nwww-authenticate: x\r\nwithout colon\r\n\r\n", |_| {}).unwrap();
        assert!(answer.is_done(), "what a replica says is its own");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for raw in [
            &b"5\nhello\r\n"[..],
            b"5\r\nhelloX\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"+5\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b" 5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"\r\n",
            b"-1\r\n",
            b"1;\n\r\n",
            b"1;a\x00\r\n",
            b"1000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\na: b\n\r\n",
            b"0\r\na: b\r\n c\r\n\r\n",
        ] {
            assert!(read(raw, 1).is_err(), "{}", raw.escape_ascii());
            assert!(read(raw, 100).is_err(), "{}", raw.escape_ascii());
        }
        let long = format!("0\r\na: {}\r\n\r\n", "x".repeat(TRAILERS_MAX));
        assert!(read(long.as_bytes(), 512).is_err());
    }

    #[test]
    fn what_was_malformed_once_stays_so() {
        let mut framing = Framing::chunked();
        let bad = framing.advance(b"1\r\nx\r\nZZ", |_| {}).unwrap_err();
        assert_eq!(framing.advance(b"0\r\n\r\n", |_| {}), Err(bad));
        assert!(!framing.is_done());
    }

    #[test]
    fn a_length_ends_where_it_says() {
        let mut framing = Framing::Length(5);
        assert_eq!(framing.advance(b"abc", |_| {}), Ok(3));
        assert!(!framing.is_done());
        assert_eq!(framing.advance(b"defg", |_| {}), Ok(2));
        assert!(framing.is_done());
    }
}
