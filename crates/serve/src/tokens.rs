//! Tokens of an answer as it passes by.
//!
//! Nearly all of a stream is events with one token each, made alike. They are recognised by a few searches;
//! only the others are read as JSON. That is a fifth of what a stream costs the router.

use std::sync::LazyLock;

use memchr::{memchr, memmem::Finder};

use crate::logic::{AnswerKind, AnswerScan, Usage};

const CONTENT: &[u8] = b"\"content\":\"";
const USAGE: &[u8] = b"\"usage\"";

static FIND_CONTENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(CONTENT));
static FIND_USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(USAGE));

pub struct Tokens {
    scan: AnswerScan,
    events: bool,
    /// What comes next begins a line.
    at_line: bool,
    /// Recognised without reading.
    plain: u64,
}

impl Tokens {
    pub fn new(kind: AnswerKind) -> Tokens {
        let events = kind == AnswerKind::Events;
        Tokens { scan: AnswerScan::new(kind), events, at_line: true, plain: 0 }
    }

    /// How many tokens end in this piece of the body, about.
    pub fn feed(&mut self, piece: &[u8]) -> u64 {
        if self.events && self.at_line && is_plain(piece) {
            self.plain += 1;
            return 1;
        }
        self.at_line = piece.last().is_none_or(|b| *b == b'\n');
        self.scan.feed(piece)
    }

    pub fn tells_of_an_error(&self) -> bool {
        self.scan.tells_of_an_error()
    }

    pub fn finish(self) -> Usage {
        let mut usage = self.scan.finish();
        if !usage.exact {
            usage.output_tokens += self.plain;
        }
        usage
    }
}

/// One event in one line, with some content and no word on usage. The same words inside a text have their
/// quotes escaped, so they are not mistaken for it.
fn is_plain(piece: &[u8]) -> bool {
    let Some(end) = piece.len().checked_sub(2) else { return false };
    if !piece.starts_with(b"data: {")
        || memchr(b'\n', piece) != Some(end)
        || piece[end + 1] != b'\n'
    {
        return false;
    }
    let content = FIND_CONTENT.find(piece).map(|at| at + CONTENT.len());
    let usage = FIND_USAGE.find(piece).map(|at| at + USAGE.len());
    content.is_some_and(|at| piece[at] != b'"')
        && usage.is_none_or(|at| piece[at..].starts_with(b":null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pieces: &[&str]) -> (u64, Usage) {
        let mut tokens = Tokens::new(AnswerKind::Events);
        let seen = pieces.iter().map(|piece| tokens.feed(piece.as_bytes())).sum();
        (seen, tokens.finish())
    }

    const WORD: &str =
        "data: {\"choices\":[{\"delta\":{\"content\":\" word\"}}],\"usage\":null}\n\n";

    #[test]
    fn plain_events_count_as_those_that_are_read() {
        assert!(is_plain(WORD.as_bytes()));
        let spaced = "data: {\"choices\": [{\"delta\": {\"content\": \" word\"}}]}\n\n";
        assert!(!is_plain(spaced.as_bytes()));
        let none = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
        let (seen, usage) = count(&[WORD, spaced, none, WORD, "data: [DONE]\n\n"]);
        assert_eq!((seen, usage.output_tokens, usage.exact), (3, 3, false));
    }

    #[test]
    fn the_server_s_own_count_goes_before_ours() {
        let last =
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}\n\n";
        let (seen, usage) = count(&[WORD, WORD, last]);
        assert_eq!(seen, 2);
        assert_eq!((usage.prompt_tokens, usage.output_tokens, usage.exact), (7, 9, true));
        let with_word = WORD.replace("null", "{\"completion_tokens\":4}");
        assert_eq!(count(&[WORD, &with_word]).1.output_tokens, 4);
    }

    #[test]
    fn however_events_are_cut_the_count_is_the_same() {
        let all = WORD.repeat(3);
        for cut in 1..WORD.len() {
            let pieces: Vec<&str> =
                all.as_bytes().chunks(cut).map(|c| std::str::from_utf8(c).unwrap()).collect();
            assert_eq!(count(&pieces).1.output_tokens, 3, "pieces of {cut}");
        }
    }
}
