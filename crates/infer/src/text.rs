//! From bytes to text, as they come: whole characters only, and nothing of a stop string.
//!
//! The pieces put together are what the bytes would have given at once.

/// What has been made of a sequence's bytes, and what is held back.
#[derive(Clone, Debug, Default)]
pub struct Text {
    stops: Vec<Vec<u8>>,
    held: Vec<u8>,
}

/// What a byte has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub text: String,
    /// A stop string is complete: nothing comes after it, nor does it come itself.
    pub stopped: bool,
}

impl Text {
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty());
        Text { stops: stops.map(|stop| stop.clone().into_bytes()).collect(), held: Vec::new() }
    }

    pub fn push(&mut self, byte: u8) -> Pushed {
        self.held.push(byte);
        let complete = self.stops.iter().filter(|stop| self.held.ends_with(stop));
        if let Some(longest) = complete.map(Vec::len).max() {
            self.held.truncate(self.held.len() - longest);
            return Pushed { text: self.finish(), stopped: true };
        }
        let free = self.held.len() - self.begun();
        let (text, used) = decode(&self.held[..free]);
        self.held.drain(..used);
        Pushed { text, stopped: false }
    }

    /// Nothing comes any more: what was held back.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }

    /// How many bytes at the end may be the beginning of a stop string.
    fn begun(&self) -> usize {
        let begins = |len: usize| {
            let tail = &self.held[self.held.len() - len..];
            self.stops.iter().any(|stop| stop.starts_with(tail))
        };
        let longest = self.stops.iter().map(|stop| stop.len() - 1).max().unwrap_or(0);
        (1..=longest.min(self.held.len())).rev().find(|&len| begins(len)).unwrap_or(0)
    }
}

/// Whole characters, those that can't be any replaced, and how many bytes that took: an unfinished
/// character at the end is left.
fn decode(bytes: &[u8]) -> (String, usize) {
    let (mut text, mut at) = (String::new(), 0);
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(valid) => {
                text.push_str(valid);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = &bytes[at..at + error.valid_up_to()];
                text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                at += error.valid_up_to();
                let Some(bad) = error.error_len() else { return (text, at) };
                text.push(char::REPLACEMENT_CHARACTER);
                at += bad;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], bytes: &[u8]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut text = Text::new(&stops);
        let mut pieces = Vec::new();
        for &byte in bytes {
            let pushed = text.push(byte);
            pieces.push(pushed.text);
            if pushed.stopped {
                return (pieces, true);
            }
        }
        pieces.push(text.finish());
        (pieces, false)
    }

    #[test]
    fn characters_come_whole() {
        let (pieces, _) = run(&[], "aé€𝄞".as_bytes());
        assert_eq!(pieces, ["a", "", "é", "", "", "€", "", "", "", "𝄞", ""]);
    }

    #[test]
    fn pieces_add_up_to_what_all_bytes_would_give_at_once() {
        let mut state = 7_u64;
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Many bytes that begin or continue characters.
                    [0x41, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9d, 0xff]
                        [(state >> 33) as usize % 9]
                })
                .collect();
            let (pieces, _) = run(&["zzz"], &bytes);
            assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes), "{bytes:?}");
        }
    }

    #[test]
    fn nothing_of_a_stop_string_is_shown() {
        let (pieces, stopped) = run(&["\n\n", "END"], b"ab\ncEd END more");
        assert!(stopped);
        assert_eq!(pieces.concat(), "ab\ncEd ");
        assert_eq!(pieces[2], "", "a line feed may be the first of two");
        assert_eq!(pieces[3], "\nc");
        let (pieces, stopped) = run(&["abc"], b"ababab");
        assert_eq!((pieces.concat().as_str(), stopped), ("ababab", false));
        let (pieces, stopped) = run(&["bc", "abc"], b"xabc");
        assert_eq!((pieces.concat().as_str(), stopped), ("x", true), "the longer one begins first");
    }

    #[test]
    fn a_stop_string_inside_a_character_leaves_no_half_of_it() {
        let (pieces, stopped) = run(&["é"], "aé".as_bytes());
        assert_eq!((pieces.concat().as_str(), stopped), ("a", true));
    }
}
