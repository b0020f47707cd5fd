//! The last look at what goes to a screen. Names and reasons are made harmless where they are put
//! into a line; this is where all lines pass, so that one that was forgotten does no harm either.

use std::borrow::Cow;

use tutti_model::text::{harmless, is_deceptive, push_escaped};

/// Lines for people. Of escape sequences only colours stay, and only where we paint.
pub fn lines(text: &str, painted: bool) -> Cow<'_, str> {
    let is_fine = |c: char| matches!(c, '\n' | '\t') || !is_deceptive(c);
    if text.chars().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = if painted { colour_at(rest) } else { 0 };
        let taken = if colour > 0 {
            out.push_str(&rest[..colour]);
            colour
        } else {
            match is_fine(c) {
                true => out.push(c),
                false => push_escaped(&mut out, c),
            }
            c.len_utf8()
        };
        rest = &rest[taken..];
    }
    Cow::Owned(out)
}

/// How long the colour sequence is that stands here (`ESC [ 1 ; 31 m`); 0: there is none.
fn colour_at(text: &str) -> usize {
    let Some(body) = text.strip_prefix("\x1b[") else { return 0 };
    let len = body.bytes().take_while(|b| b.is_ascii_digit() || *b == b';').count();
    if body[len..].starts_with('m') { len + 3 } else { 0 }
}

/// A line of a log without its colours, for where they can't be shown.
pub fn without_colours(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find('\x1b') else { return Cow::Borrowed(text) };
    let mut out = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(c) = rest.chars().next() {
        let colour = colour_at(rest);
        if colour == 0 {
            out.push(c);
        }
        rest = &rest[colour.max(c.len_utf8())..];
    }
    Cow::Owned(out)
}

/// JSON with what deceives as `\u` escapes, which mean the same.
pub fn json(text: String) -> String {
    let is_fine = |c: char| c == '\n' || !is_deceptive(c);
    if text.chars().all(is_fine) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_fine(c) {
            out.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|u| out.push_str(&format!("\\u{u:04x}")));
        }
    }
    out
}

/// Output of a job on a terminal: colours, carriage returns, backspaces and "erase the line" stay, since
/// progress bars live by them. Everything else that a terminal would obey is shown: titles, the
/// clipboard, questions that it would answer as if somebody typed, and moves over other lines.
#[derive(Debug, Default)]
pub struct LogFilter {
    /// The beginning of a sequence or of a character whose end has not come yet.
    open: Vec<u8>,
    /// Its colour would go on into what others write.
    painted: bool,
}

/// A longer one is none of those that stay.
const SEQUENCE_MAX: usize = 48;
const RESET: &[u8] = b"\x1b[0m";

enum Step {
    /// So many bytes stay as they are.
    Keep(usize),
    Show(usize),
    /// More must come before it can be told.
    Wait,
}

impl LogFilter {
    pub fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut input = std::mem::take(&mut self.open);
        input.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(input.len());
        let mut rest = &input[..];
        while !rest.is_empty() {
            match self.step(rest) {
                Step::Keep(n) => {
                    out.extend_from_slice(&rest[..n]);
                    rest = &rest[n..];
                }
                Step::Show(n) => {
                    show(&mut out, &rest[..n]);
                    rest = &rest[n..];
                }
                Step::Wait => {
                    self.open = rest.to_vec();
                    break;
                }
            }
        }
        out
    }

    /// At the end of a line: what is unfinished stays so, and colours end with it.
    pub fn end(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        show(&mut out, &std::mem::take(&mut self.open));
        if std::mem::take(&mut self.painted) {
            out.extend_from_slice(RESET);
        }
        out
    }

    fn step(&mut self, rest: &[u8]) -> Step {
        match rest[0] {
            0x1b => self.sequence(rest),
            b'\n' | b'\r' | b'\t' | 0x08 => Step::Keep(1),
            b if b < 0x80 => match is_deceptive(char::from(b)) {
                true => Step::Show(1),
                false => Step::Keep(1),
            },
            b => character(b, rest),
        }
    }

    fn sequence(&mut self, rest: &[u8]) -> Step {
        match rest.get(1) {
            None => return Step::Wait,
            Some(b'[') => {}
            Some(_) => return Step::Show(1),
        }
        let body = &rest[2..];
        let len =
            body.iter().take_while(|b| b.is_ascii_digit() || matches!(b, b';' | b':')).count();
        match body.get(len) {
            _ if len >= SEQUENCE_MAX => Step::Show(1),
            None => Step::Wait,
            Some(b'm') => {
                self.painted = !matches!(&body[..len], b"" | b"0");
                Step::Keep(len + 3)
            }
            Some(b'K') => Step::Keep(len + 3),
            _ => Step::Show(1),
        }
    }
}

/// A character of several bytes, or a byte that is none.
fn character(first: u8, rest: &[u8]) -> Step {
    let len = match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Step::Show(1),
    };
    let have = &rest[..len.min(rest.len())];
    match std::str::from_utf8(have) {
        Ok(text) if text.chars().any(is_deceptive) => Step::Show(len),
        Ok(_) => Step::Keep(len),
        Err(e) if e.error_len().is_none() => Step::Wait,
        Err(_) => Step::Show(1),
    }
}

fn show(out: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => out.extend_from_slice(harmless(text).as_bytes()),
        Err(_) => {
            bytes.iter().for_each(|b| out.extend_from_slice(format!("\\x{b:02x}").as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_colours_reach_the_screen() {
        let text = "\x1b[1mjob\x1b[0m a\x1b[2Jb\x1b]0;title\x07\u{202e}c\td\ne\r";
        let painted = "\x1b[1mjob\x1b[0m a\\x1b[2Jb\\x1b]0;title\\x07\\u{202e}c\td\ne\\r";
        assert_eq!(lines(text, true), painted);
        assert_eq!(lines(text, false), painted.replace("\x1b[", "\\x1b["));
        assert!(matches!(lines("größer\n\tfine", false), Cow::Borrowed(_)));
    }

    #[test]
    fn colours_go_where_they_can_t_be_shown() {
        assert_eq!(without_colours("\x1b[1;31mred\x1b[0m \x1b[2J"), "red \x1b[2J");
        assert!(matches!(without_colours("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_means_the_same_and_nothing_in_it_is_obeyed() {
        let value = serde_json::json!({ "name": "a\u{9b}2J\u{202e}\u{e0041}\x1b" });
        let text = json(serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|c| c == '\n' || !is_deceptive(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    fn filtered(pieces: &[&[u8]]) -> String {
        let mut filter = LogFilter::default();
        let mut out: Vec<u8> = pieces.iter().flat_map(|p| filter.pass(p)).collect();
        out.extend(filter.end());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_log_keeps_its_colours_and_bars_and_loses_its_teeth() {
        for stays in ["plain", "\x1b[31mred\x1b[0m", "10%\r\x1b[K20%\r", "a\x08b\t", "größer 训练"]
        {
            assert_eq!(filtered(&[stays.as_bytes()]), stays);
        }
        let clipboard = "\x1b]52;c;cm0gLXJmIC8=\x07";
        assert_eq!(filtered(&[clipboard.as_bytes()]), "\\x1b]52;c;cm0gLXJmIC8=\\x07");
        // Device control, a question for the cursor's place, a screen that is cleared, a line above.
        for teeth in ["\x1bP$qm\x1b\\", "\x1b[6n", "\x1b[2J", "\x1b[5A", "\u{9b}2J", "\x1bc"] {
            let seen = filtered(&[teeth.as_bytes()]);
            assert!(!seen.contains(['\x1b', '\u{9b}']), "{seen:?}");
        }
        assert_eq!(filtered(&[b"\x9b2J\xff"]), "\\x9b2J\\xff");
        assert_eq!(filtered(&["\u{202e}x".as_bytes()]), "\\u{202e}x");
        assert_eq!(filtered(&[b"\x1b[31mred"]), "\x1b[31mred\x1b[0m");
    }

    /// What is cut into pieces is what it was.
    #[test]
    fn pieces_make_no_difference() {
        let text = "\x1b[1;31mré\u{202e}d\x1b[0m\x1b]0;t\x07\x1b[6n训\r\x1b[K".as_bytes();
        let whole = filtered(&[text]);
        for at in 0..text.len() {
            assert_eq!(filtered(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(filtered(&bytes), whole);
        // One that never ends is not waited for.
        let long = [b"\x1b[".as_slice(), &[b'1'; 100], b"m"].concat();
        let pieces: Vec<&[u8]> = long.chunks(10).collect();
        assert!(filtered(&pieces).starts_with("\\x1b["));
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_only_colours_and_erasing_are_obeyed(
            bytes in proptest::collection::vec(
                proptest::prop_oneof![
                    proptest::prelude::any::<u8>(),
                    proptest::sample::select(b"\x1b\x1b[];m0K\x9b\xc2\x07".to_vec()),
                ],
                0..200,
            )
        ) {
            let seen = filtered(&[&bytes]);
            let mut rest = seen.as_str();
            while let Some(at) = rest.find('\x1b') {
                let body = rest[at..].strip_prefix("\x1b[").expect("a sequence");
                let body = body.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';' || c == ':');
                proptest::prop_assert!(body.starts_with(['m', 'K']), "{seen:?}");
                rest = body;
            }
            let allowed = |c: char| matches!(c, '\x1b' | '\n' | '\r' | '\t' | '\x08');
            proptest::prop_assert!(seen.chars().all(|c| allowed(c) || !is_deceptive(c)), "{seen:?}");
        }
    }
}
