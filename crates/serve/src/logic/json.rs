//! A place in JSON text that may be cut off or nonsense. Nothing recurses, nothing is built.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// A string as it is written, without its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    pub bytes: &'a [u8],
    pub escaped: bool,
    /// Its end was there.
    pub whole: bool,
}

impl<'a> Raw<'a> {
    pub fn is(&self, text: &str) -> bool {
        self.whole && self.bytes == text.as_bytes()
    }

    /// What it means, in pieces. An escape that makes no sense is taken as it is written.
    pub fn pieces(&self, mut each: impl FnMut(&[u8])) {
        if !self.escaped {
            return each(self.bytes);
        }
        let mut rest = self.bytes;
        while let Some(at) = memchr(b'\\', rest) {
            each(&rest[..at]);
            let mut buffer = [0; 4];
            let (meaning, used) = unescape(&rest[at..], &mut buffer);
            each(meaning);
            rest = &rest[at + used..];
        }
        each(rest);
    }

    pub fn text(&self) -> Option<Cow<'a, str>> {
        if !self.whole {
            return None;
        }
        if !self.escaped {
            return std::str::from_utf8(self.bytes).ok().map(Cow::Borrowed);
        }
        let mut meaning = Vec::with_capacity(self.bytes.len());
        self.pieces(|piece| meaning.extend_from_slice(piece));
        String::from_utf8(meaning).ok().map(Cow::Owned)
    }
}

/// The meaning of the escape at the beginning, and how many bytes it takes.
fn unescape<'b>(bytes: &'b [u8], buffer: &'b mut [u8; 4]) -> (&'b [u8], usize) {
    let simple: &[u8] = match bytes.get(1) {
        Some(b'n') => b"\n",
        Some(b't') => b"\t",
        Some(b'r') => b"\r",
        Some(b'b') => b"\x08",
        Some(b'f') => b"\x0c",
        Some(b'u') => {
            return match unicode(bytes) {
                Some((char, used)) => (char.encode_utf8(buffer).as_bytes(), used),
                None => (&bytes[..2], 2),
            };
        }
        Some(_) => &bytes[1..2],
        None => return (bytes, bytes.len()),
    };
    (simple, 2)
}

fn unicode(bytes: &[u8]) -> Option<(char, usize)> {
    let hex = |at: usize| {
        let digits = bytes.get(at..at + 4)?;
        let text = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(text, 16).ok()
    };
    let first = hex(2)?;
    if !(0xd800..0xdc00).contains(&first) {
        return char::from_u32(first).map(|char| (char, 6));
    }
    let follows = bytes.get(6..8)? == b"\\u";
    let second = hex(8).filter(|second| follows && (0xdc00..0xe000).contains(second))?;
    char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).map(|char| (char, 12))
}

#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// The next byte that is no white space.
    pub fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Takes this byte if it is the next one.
    pub fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    pub fn position(&self) -> usize {
        self.at
    }

    /// What was passed since an earlier position.
    pub fn since(&self, position: usize) -> &'a [u8] {
        &self.bytes[position..self.at]
    }

    /// A string, if one is next.
    pub fn string(&mut self) -> Option<Raw<'a>> {
        if !self.eat(b'"') {
            return None;
        }
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            match memchr2(b'"', b'\\', rest) {
                Some(found) if rest[found] == b'"' => {
                    let bytes = &self.bytes[start..self.at + found];
                    self.at += found + 1;
                    return Some(Raw { bytes, escaped, whole: true });
                }
                Some(found) if found + 2 <= rest.len() => {
                    escaped = true;
                    self.at += found + 2;
                }
                // Cut off, perhaps inside an escape, which is left out.
                found => {
                    let end = found.map_or(self.bytes.len(), |found| self.at + found);
                    self.at = self.bytes.len();
                    let bytes = cut_unicode(&self.bytes[start..end]);
                    return Some(Raw { bytes, escaped, whole: false });
                }
            }
        }
    }

    /// A number, `true`, `false` or `null`; empty if none of these is next.
    pub fn scalar(&mut self) -> &'a [u8] {
        self.peek();
        let rest = &self.bytes[self.at..];
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let end = rest.iter().position(|byte| !plain(byte)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Passes over one value of any kind. False if there is none, or its end is missing.
    pub fn skip(&mut self) -> bool {
        let mut depth = 0u32;
        loop {
            match self.peek() {
                Some(b'"') => {
                    if !self.string().is_some_and(|string| string.whole) {
                        return false;
                    }
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']') => {
                    if depth == 0 {
                        return false;
                    }
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') if depth > 0 => self.at += 1,
                Some(_) => {
                    if self.scalar().is_empty() {
                        return false;
                    }
                }
                None => return false,
            }
            if depth == 0 {
                return true;
            }
        }
    }
}

/// A string that was cut inside `\uXXXX` ends before it.
fn cut_unicode(bytes: &[u8]) -> &[u8] {
    let from = bytes.len().saturating_sub(5);
    match memchr::memrchr(b'\\', &bytes[from..]) {
        Some(at) if bytes.get(from + at + 1) == Some(&b'u') => {
            let slashes =
                bytes[..from + at].iter().rev().take_while(|byte| **byte == b'\\').count();
            if slashes % 2 == 0 { &bytes[..from + at] } else { bytes }
        }
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        Cursor::new(text.as_bytes()).string()?.text().map(Cow::into_owned)
    }

    #[test]
    fn strings_mean_what_serde_json_says() {
        let texts = [
            r#""""#,
            r#""plain""#,
            r#""a\"b\\c\/d\n\t\r\b\f""#,
            r#""\u00e9\u20ac\ud83d\ude00""#,
            "\"grüße 😀\"",
            r#""\\\"""#,
        ];
        for text in texts {
            assert_eq!(read(text), Some(serde_json::from_str::<String>(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn strings_that_are_cut_off_are_not_whole() {
        for text in [r#""abc"#, r#""ab\"#, r#""ab\"c"#, r#"""#] {
            assert!(!Cursor::new(text.as_bytes()).string().unwrap().whole, "{text}");
            assert_eq!(read(text), None, "{text}");
        }
        let cut = |text: &'static str| Cursor::new(text.as_bytes()).string().unwrap().bytes;
        assert_eq!(cut(r#""ab\"#), b"ab");
        assert_eq!(cut(r#""ab\u00"#), b"ab");
        assert_eq!(cut(r#""ab\\u00"#), br"ab\\u00");
    }

    #[test]
    fn lone_surrogates_and_bad_escapes_do_no_harm() {
        for text in [r#""\ud83dx""#, r#""\u12""#, r#""\uzzzz""#, r#""\q""#, r#""\ud83d\u0041""#] {
            let mut seen = 0;
            Cursor::new(text.as_bytes()).string().unwrap().pieces(|piece| seen += piece.len());
            assert!(seen > 0, "{text}");
        }
    }

    #[test]
    fn values_are_passed_over() {
        for text in ["1", "-1.5e3", "true", "null", r#""x]}""#, "[]", r#"{"a":[1,{"b":"]"}]}"#] {
            let text = format!("{text} ,");
            let mut cursor = Cursor::new(text.as_bytes());
            assert!(cursor.skip() && cursor.eat(b','), "{text}");
        }
        let deep = "[".repeat(1_000_000);
        assert!(!Cursor::new(deep.as_bytes()).skip(), "it has no end, and takes no stack");
        for text in ["", "}", ",", "[1", r#"{"a":"#, r#"["x"#] {
            assert!(!Cursor::new(text.as_bytes()).skip(), "{text}");
        }
    }
}
