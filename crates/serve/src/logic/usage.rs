//! How many tokens an answer took, read as it passes by.

use std::sync::LazyLock;

use memchr::{memchr, memmem::FinderRev};

use super::json::Cursor;

const USAGE: &[u8] = b"\"usage\"";
/// Made once: making it costs more than most searches.
static FIND_USAGE: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(USAGE));

/// `usage` stands near the end of an answer; this much of the end is looked at.
const TAIL: usize = 8 * 1024;
/// A line of a stream that is longer is judged by this much of it.
const LINE_MAX: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    Json,
    /// `text/event-stream`.
    Events,
    /// Not looked at.
    Other,
}

/// Tokens of a request and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// As the server says. If not, events with content were counted, and the prompt is not known.
    pub exact: bool,
}

/// Gets the chunks of an answer's body as they come, however they are cut.
#[derive(Debug)]
pub struct AnswerScan {
    kind: AnswerKind,
    /// The end of the answer, or the beginning of a line whose end has not come.
    kept: Vec<u8>,
    prompt_tokens: Option<u64>,
    output_tokens: Option<u64>,
    events: u64,
    done: bool,
    failed: bool,
}

impl AnswerScan {
    pub fn new(kind: AnswerKind) -> Self {
        AnswerScan {
            kind,
            kept: Vec::new(),
            prompt_tokens: None,
            output_tokens: None,
            events: 0,
            done: false,
            failed: false,
        }
    }

    /// How many events with content end in this chunk: about as many tokens.
    pub fn feed(&mut self, chunk: &[u8]) -> u64 {
        match self.kind {
            AnswerKind::Other => 0,
            AnswerKind::Json => {
                self.keep_tail(chunk);
                0
            }
            AnswerKind::Events => {
                let before = self.events;
                self.lines(chunk);
                self.events - before
            }
        }
    }

    /// The stream has said that it ends here.
    pub fn done(&self) -> bool {
        self.done
    }

    /// An event of the stream was an error, as servers send it that can't go on.
    pub fn tells_of_an_error(&self) -> bool {
        // The last line may have no end.
        let last = self.kept.strip_prefix(b"data:").filter(|_| self.kind == AnswerKind::Events);
        self.failed || last.is_some_and(|data| is_error(data.trim_ascii()))
    }

    /// To be asked after the last chunk.
    pub fn finish(mut self) -> Usage {
        let rest = std::mem::take(&mut self.kept);
        match self.kind {
            AnswerKind::Json => self.usage(&rest),
            AnswerKind::Events => self.line(&rest),
            AnswerKind::Other => {}
        }
        Usage {
            prompt_tokens: self.prompt_tokens.unwrap_or(0),
            output_tokens: self.output_tokens.unwrap_or(self.events),
            exact: self.output_tokens.is_some() || self.prompt_tokens.is_some(),
        }
    }

    fn keep_tail(&mut self, chunk: &[u8]) {
        let chunk = &chunk[chunk.len().saturating_sub(TAIL)..];
        if self.kept.len() + chunk.len() > 2 * TAIL {
            let over = (self.kept.len() + chunk.len()).saturating_sub(TAIL).min(self.kept.len());
            self.kept.drain(..over);
        }
        self.kept.extend_from_slice(chunk);
    }

    fn lines(&mut self, mut chunk: &[u8]) {
        while let Some(end) = memchr(b'\n', chunk) {
            let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
            if self.kept.is_empty() {
                self.line(line);
            } else {
                self.keep_line(line);
                let mut whole = std::mem::take(&mut self.kept);
                self.line(&whole);
                whole.clear();
                self.kept = whole;
            }
            chunk = rest;
        }
        self.keep_line(chunk);
    }

    fn keep_line(&mut self, part: &[u8]) {
        let room = LINE_MAX - self.kept.len();
        self.kept.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else { return };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        self.failed |= is_error(data);
        self.events += u64::from(has_content(data));
        self.usage(data);
    }

    /// Takes over the last `"usage": {…}` in this text. The same words inside a text have their quotes
    /// escaped, so they are not mistaken for it.
    fn usage(&mut self, text: &[u8]) {
        for at in FIND_USAGE.rfind_iter(text) {
            if at > 0 && text[at - 1] == b'\\' {
                continue;
            }
            let mut cursor = Cursor::new(&text[at + USAGE.len()..]);
            if cursor.eat(b':') && cursor.eat(b'{') {
                return self.usage_members(&mut cursor);
            }
        }
    }

    fn usage_members(&mut self, cursor: &mut Cursor<'_>) {
        while let Some(key) = cursor.string() {
            if !cursor.eat(b':') {
                return;
            }
            let counts = match key.bytes {
                b"prompt_tokens" | b"input_tokens" => &mut self.prompt_tokens,
                b"completion_tokens" | b"output_tokens" => &mut self.output_tokens,
                _ => {
                    if !cursor.skip() {
                        return;
                    }
                    cursor.eat(b',');
                    continue;
                }
            };
            let number = std::str::from_utf8(cursor.scalar()).ok();
            *counts = number.and_then(|text| text.parse().ok()).or(*counts);
            if !cursor.eat(b',') {
                return;
            }
        }
    }
}

/// `{"error": {…}}`, as OpenAI's and its like.
fn is_error(data: &[u8]) -> bool {
    let mut cursor = Cursor::new(data);
    cursor.eat(b'{')
        && cursor.string().is_some_and(|key| key.bytes == b"error")
        && cursor.eat(b':')
        && cursor.peek().is_some_and(|next| next == b'{' || next == b'"')
}

/// Some text is in it: of an answer, a thought or a call of a tool.
fn has_content(data: &[u8]) -> bool {
    const KEYS: [&[u8]; 6] =
        [b"content", b"text", b"reasoning_content", b"reasoning", b"arguments", b"delta"];
    let mut cursor = Cursor::new(data);
    while let Some(next) = cursor.peek() {
        if next != b'"' {
            if cursor.scalar().is_empty() {
                cursor.eat(next);
            }
            continue;
        }
        let Some(string) = cursor.string() else { return false };
        if cursor.eat(b':')
            && KEYS.contains(&string.bytes)
            && cursor.string().is_some_and(|value| !value.bytes.is_empty())
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}],\"usage\":null}\n\n\
        : a comment\r\n\
        data:{\"choices\":[{\"delta\": {\"content\": \"lo \\\"usage\\\": {\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const LAST: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"prompt_tokens_details\":\
        {\"cached_tokens\":9},\"total_tokens\":14,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";

    fn fed(kind: AnswerKind, text: &str, piece: usize) -> (Usage, u64, bool) {
        let mut scan = AnswerScan::new(kind);
        let events = text.as_bytes().chunks(piece).map(|chunk| scan.feed(chunk)).sum();
        let done = scan.done();
        (scan.finish(), events, done)
    }

    #[test]
    fn a_stream_is_counted_however_it_is_cut() {
        let text = format!("{STREAM}{LAST}");
        for piece in [1, 2, 7, 50, 10_000] {
            let (usage, events, done) = fed(AnswerKind::Events, &text, piece);
            assert_eq!(
                usage,
                Usage { prompt_tokens: 11, output_tokens: 3, exact: true },
                "{piece}"
            );
            assert_eq!((events, done), (2, true), "{piece}");
        }
    }

    #[test]
    fn without_usage_events_are_tokens() {
        let (usage, _, done) = fed(AnswerKind::Events, STREAM, 13);
        assert_eq!(usage, Usage { prompt_tokens: 0, output_tokens: 2, exact: false });
        assert!(!done);
    }

    #[test]
    fn other_kinds_of_streams_are_understood() {
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":\
            {\"input_tokens\":25,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\
            \"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\ndata: {\"type\":\
            \"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n";
        let (usage, events, _) = fed(AnswerKind::Events, messages, 9);
        assert_eq!(usage, Usage { prompt_tokens: 25, output_tokens: 15, exact: true });
        assert_eq!(events, 1);
        let completion =
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}";
        assert_eq!(
            fed(AnswerKind::Events, completion, 5).0.output_tokens,
            2,
            "no newline at the end"
        );
    }

    #[test]
    fn usage_is_found_at_the_end_of_a_long_answer() {
        let text = "say \\\"usage\\\": {\\\"prompt_tokens\\\": 1} ".repeat(5000);
        let answer = format!(
            "{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}],\"usage\": {{\"prompt_tokens\" : 7,\
            \"completion_tokens\":9 }},\"prompt_logprobs\":null}}"
        );
        for piece in [1000, 64 * 1024, usize::MAX] {
            let (usage, _, _) = fed(AnswerKind::Json, &answer, piece.min(answer.len()));
            assert_eq!(usage, Usage { prompt_tokens: 7, output_tokens: 9, exact: true });
        }
        let (none, _, _) = fed(AnswerKind::Json, "{\"error\":\"x\"}", 3);
        assert_eq!(none, Usage::default());
    }

    #[test]
    fn memory_is_bounded() {
        let mut json = AnswerScan::new(AnswerKind::Json);
        let mut events = AnswerScan::new(AnswerKind::Events);
        for _ in 0..1000 {
            json.feed(&[b'x'; 3000]);
            events.feed(&[b'x'; 3000]);
        }
        assert!(json.kept.capacity() <= 4 * TAIL, "{}", json.kept.capacity());
        assert!(events.kept.capacity() <= 2 * LINE_MAX, "{}", events.kept.capacity());
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_survived(bytes in proptest::collection::vec(0u8.., 0..300), piece in 1usize..40) {
            for kind in [AnswerKind::Json, AnswerKind::Events, AnswerKind::Other] {
                let mut scan = AnswerScan::new(kind);
                bytes.chunks(piece).for_each(|chunk| { scan.feed(chunk); });
                scan.finish();
            }
        }
    }
}
