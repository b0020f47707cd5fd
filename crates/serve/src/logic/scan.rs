//! What a router must know of a request's body, read in one pass.

use std::borrow::Cow;

use twox_hash::XxHash3_64;

use super::json::{Cursor, Raw};
use super::prompt::PromptBlocks;

/// What was found in a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned<'a> {
    /// Of several, the last one counts, as with the servers.
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// The object was read to its end. If not, the rest is either not JSON or was cut off, and what is
    /// missing here may be there.
    pub whole: bool,
    /// Of the prompt, as far as it was there.
    pub blocks: PromptBlocks,
}

/// Separates values, so that "ab", "c" is not "a", "bc".
const SEPARATOR: &[u8] = b"\x1f";
const ROLE: &[u8] = b"\x1e";
/// An object in the list of messages.
const MESSAGE_DEPTH: u32 = 2;

/// Reads a request to `/v1/…`, of which `body` may be only the beginning. Blocks are made only where they
/// are of use.
pub fn scan_request(body: &[u8], with_blocks: bool) -> Scanned<'_> {
    let mut scanned = Scanned::default();
    let mut cursor = Cursor::new(body);
    if !cursor.eat(b'{') {
        return scanned;
    }
    let mut salt = 0;
    scanned.whole = members(&mut cursor, with_blocks, &mut scanned, &mut salt);
    if with_blocks {
        let model = scanned.model.as_deref().unwrap_or_default();
        scanned.blocks.salt(salt ^ XxHash3_64::oneshot(model.as_bytes()));
    }
    scanned
}

fn members<'a>(
    cursor: &mut Cursor<'a>,
    with_blocks: bool,
    scanned: &mut Scanned<'a>,
    salt: &mut u64,
) -> bool {
    if cursor.eat(b'}') {
        return true;
    }
    loop {
        let Some(key) = cursor.string().filter(|key| key.whole) else { return false };
        if !cursor.eat(b':') {
            return false;
        }
        let whole = match key.bytes {
            b"model" => match cursor.string() {
                Some(model) => {
                    scanned.model = model.text().or(scanned.model.take());
                    model.whole
                }
                None => cursor.skip(),
            },
            b"stream" => {
                let start = cursor.position();
                let whole = cursor.skip();
                scanned.stream = cursor.since(start).trim_ascii() == b"true";
                whole
            }
            b"prompt" | b"messages" | b"input" | b"system" | b"instructions" if with_blocks => {
                material(cursor, &mut scanned.blocks)
            }
            // Servers put these before the prompt, or keep caches apart by them.
            b"tools" | b"functions" | b"cache_salt" if with_blocks => {
                cursor.peek();
                let start = cursor.position();
                let whole = cursor.skip();
                *salt ^= XxHash3_64::oneshot_with_seed(key.bytes.len() as u64, cursor.since(start));
                whole
            }
            _ => cursor.skip(),
        };
        if !whole {
            return false;
        }
        if !cursor.eat(b',') {
            return cursor.eat(b'}');
        }
    }
}

/// All that is said in a value, in order: texts and roles, but not how they are wrapped. What was said
/// before is the beginning of what is said next, so a conversation keeps its first blocks as it grows.
fn material(cursor: &mut Cursor<'_>, blocks: &mut PromptBlocks) -> bool {
    let mut depth = 0u32;
    loop {
        match cursor.peek() {
            Some(b'"') => {
                let Some(string) = cursor.string() else { return false };
                if depth > 0 && cursor.eat(b':') {
                    let said = depth == MESSAGE_DEPTH && string.is("role");
                    if (said || is_wrapping(&string)) && !cursor.skip() {
                        return false;
                    }
                    continue;
                }
                blocks.push(SEPARATOR);
                string.pieces(|piece| blocks.push(piece));
                if !string.whole {
                    return false;
                }
            }
            Some(open @ (b'{' | b'[')) => {
                cursor.eat(open);
                depth += 1;
                if depth == MESSAGE_DEPTH && open == b'{' {
                    role(cursor.clone(), blocks);
                }
            }
            Some(close @ (b'}' | b']')) if depth > 0 => {
                cursor.eat(close);
                depth -= 1;
            }
            Some(b',') if depth > 0 => {
                cursor.eat(b',');
                continue;
            }
            _ => {
                let scalar = cursor.scalar();
                if scalar.is_empty() {
                    return false;
                }
                blocks.push(SEPARATOR);
                blocks.push(scalar);
            }
        }
        if depth == 0 {
            return true;
        }
    }
}

/// Servers write the role before the text, wherever clients put it.
fn role(mut message: Cursor<'_>, blocks: &mut PromptBlocks) {
    while let Some(key) = message.string() {
        if !message.eat(b':') {
            return;
        }
        if key.is("role") {
            if let Some(role) = message.string() {
                blocks.push(ROLE);
                blocks.push(role.bytes);
            }
            return;
        }
        if !message.skip() || !message.eat(b',') {
            return;
        }
    }
}

/// Says how a text is given, not what it says; some clients change it from turn to turn.
fn is_wrapping(key: &Raw<'_>) -> bool {
    key.is("type") || key.is("cache_control")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::BLOCK_BYTES;

    fn scan(body: &str) -> Scanned<'_> {
        scan_request(body.as_bytes(), true)
    }

    fn chat(turns: &[(&str, &str)]) -> String {
        let messages: Vec<_> = turns
            .iter()
            .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
            .collect();
        serde_json::json!({"model": "m", "messages": messages, "stream": true}).to_string()
    }

    fn long(word: &str) -> String {
        word.repeat(300)
    }

    #[test]
    fn model_and_stream_are_found_at_the_top_alone() {
        let body = r#" { "metadata": {"model": "inner", "stream": true}, "x": [{"model":"y"}],
            "model" : "big\/one", "stream":true , "n": 2 } "#;
        let scanned = scan(body);
        assert_eq!(scanned.model.as_deref(), Some("big/one"));
        assert!(scanned.stream && scanned.whole);
        let plain = scan(r#"{"model":"m","stream":false}"#);
        assert!(!plain.stream && plain.model == Some(Cow::Borrowed("m")));
        assert_eq!(scan(r#"{"model":"a","model":"b"}"#).model.as_deref(), Some("b"));
    }

    #[test]
    fn a_growing_conversation_keeps_its_first_blocks() {
        let (system, question, answer) = (long("rule "), long("why "), long("because "));
        let first = chat(&[("system", &system), ("user", &question)]);
        let second = chat(&[
            ("system", &system),
            ("user", &question),
            ("assistant", &answer),
            ("user", "and then?"),
        ]);
        let (first, second) = (scan(&first).blocks, scan(&second).blocks);
        assert!(first.len() >= 300 * 9 / BLOCK_BYTES);
        assert!(second.len() > first.len());
        assert_eq!(second.hashes()[..first.len()], *first.hashes());
    }

    #[test]
    fn roles_and_borders_make_a_difference() {
        let text = long("word ");
        let user = scan(&chat(&[("user", &text)])).blocks;
        let system = scan(&chat(&[("system", &text)])).blocks;
        assert_ne!(user.hashes()[0], system.hashes()[0]);
        let plain = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
        assert_ne!(user.hashes()[0], scan(&plain).blocks.hashes()[0]);
    }

    #[test]
    fn the_order_of_keys_makes_none() {
        let text = long("word ");
        let first = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let last = format!(r#"{{"messages":[{{"content":"{text}","role":"user"}}]}}"#);
        assert_eq!(scan(&first).blocks.hashes(), scan(&last).blocks.hashes());
        assert!(!scan(&first).blocks.is_empty());
    }

    #[test]
    fn parts_are_the_text_they_hold() {
        let text = long("word ");
        let plain = chat(&[("user", &text)]);
        let parts = serde_json::json!({"model": "m", "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}]})
        .to_string();
        assert_eq!(scan(&plain).blocks.hashes(), scan(&parts).blocks.hashes());
    }

    #[test]
    fn escapes_and_spaces_do_not_matter() {
        let plain = format!(r#"{{"model":"m","prompt":"{}"}}"#, "é\u{1f600} ".repeat(100));
        let escaped =
            format!(r#"{{ "model": "m", "prompt" : "{}" }}"#, r"\u00e9\ud83d\ude00 ".repeat(100));
        assert!(!scan(&plain).blocks.is_empty());
        assert_eq!(scan(&plain).blocks.hashes(), scan(&escaped).blocks.hashes());
    }

    #[test]
    fn tools_models_and_salts_share_nothing_with_others() {
        let with = |more: &str| {
            scan(&format!(r#"{{"prompt":"{}"{more}}}"#, long("word "))).blocks.hashes()[0]
        };
        let all = [
            with(""),
            with(r#","model":"a""#),
            with(r#","model":"b""#),
            with(r#","tools":[1]"#),
            with(r#","tools":[2]"#),
            with(r#","cache_salt":"x""#),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "{n}");
        }
    }

    #[test]
    fn token_ids_are_a_prompt_too() {
        let ids = (0..500).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        let (one, other) =
            (format!(r#"{{"prompt":[{ids}]}}"#), format!(r#"{{"input":[[{ids}]]}}"#));
        assert!(scan(&one).blocks.len() > 10);
        assert_eq!(scan(&one).blocks.hashes(), scan(&other).blocks.hashes());
    }

    #[test]
    fn a_body_cut_off_anywhere_does_no_harm_and_keeps_its_beginning() {
        let body = chat(&[("system", &long("a\"b\\ü ")), ("user", "why?")]);
        let whole = scan(&body);
        assert!(whole.whole);
        for end in 0..body.len() {
            let cut = scan_request(&body.as_bytes()[..end], true);
            assert!(!cut.whole, "{end}");
        }
        let plain = format!(r#"{{"model":"m","prompt":"{}"}}"#, long("word "));
        let cut = scan_request(&plain.as_bytes()[..1000], true);
        assert_eq!(cut.blocks.hashes(), &scan(&plain).blocks.hashes()[..cut.blocks.len()]);
        assert!(cut.blocks.len() >= 1000 / BLOCK_BYTES - 1);
    }

    #[test]
    fn nonsense_is_nothing() {
        let deep = format!(r#"{{"messages":{}"#, "[{\"a\":".repeat(100_000));
        let bodies =
            ["", "[]", "null", "{", "{]", r#"{"model":}"#, r#"{"model" "x"}"#, r#"{"a":1 "b":2}"#];
        for body in bodies.into_iter().chain([deep.as_str()]) {
            let scanned = scan(body);
            assert!(!scanned.whole && scanned.model.is_none(), "{:.40}", body);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(0u8.., 0..300)) {
            scan_request(&bytes, true);
        }

        #[test]
        fn anything_like_json_is_survived(body in "[{}\\[\\]\":,\\\\u0-9a-c \n]{0,80}") {
            scan_request(format!("{{\"messages\":{body}").as_bytes(), true);
        }

        /// Whatever serde_json reads, this reads the same.
        #[test]
        fn model_is_as_serde_json_reads_it(model in ".{0,20}", other in ".{0,20}", stream: bool) {
            let value = serde_json::json!({"a": other, "model": model, "stream": stream, "z": [other]});
            let body = value.to_string();
            let scanned = scan(&body);
            proptest::prop_assert_eq!(scanned.model.as_deref(), Some(model.as_str()));
            proptest::prop_assert_eq!(scanned.stream, stream);
            proptest::prop_assert!(scanned.whole);
        }
    }
}
