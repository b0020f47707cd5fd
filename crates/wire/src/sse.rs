//! Server-sent events, the reading half. Follows the HTML standard: lines end with LF, CRLF or CR,
//! a line that starts with `:` is a comment, several `data:` lines are one text.

/// A longer event is an error, not an allocation.
const EVENT_MAX: usize = 32 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// `message` if the server gave none.
    pub name: String,
    pub data: String,
    /// The newest id that the server has given.
    pub id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {EVENT_MAX} bytes")]
pub struct TooLong;

/// Events out of bytes that come in pieces.
#[derive(Debug, Default)]
pub struct SseParser {
    buffer: Vec<u8>,
    /// Up to here the buffer is read.
    start: usize,
    /// Up to here it has no line end.
    scanned: usize,
    /// The last line ended with CR, so an LF that follows belongs to it.
    after_cr: bool,
    begun: bool,
    name: String,
    data: Option<String>,
    id: Option<String>,
}

impl SseParser {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event, or none until more bytes have come. What comes after the last blank
    /// line is never an event: the standard says so, since it may be cut.
    pub fn take(&mut self) -> Result<Option<SseEvent>, TooLong> {
        while let Some((from, to)) = self.line() {
            if from == to {
                if let Some(event) = self.dispatch() {
                    return Ok(Some(event));
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.buffer[from..to]).into_owned();
            self.field(&line);
            if self.data.as_ref().is_some_and(|d| d.len() > EVENT_MAX) {
                return Err(TooLong);
            }
        }
        if self.buffer.len() - self.start > EVENT_MAX { Err(TooLong) } else { Ok(None) }
    }

    /// Where the next line is in the buffer, without its end.
    fn line(&mut self) -> Option<(usize, usize)> {
        if self.after_cr && self.start < self.buffer.len() {
            self.after_cr = false;
            if self.buffer[self.start] == b'\n' {
                self.start += 1;
                self.scanned = self.scanned.max(self.start);
            }
        }
        self.skip_mark()?;
        let rest = &self.buffer[self.scanned..];
        let Some(at) = rest.iter().position(|b| matches!(b, b'\n' | b'\r')) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let (from, to) = (self.start, self.scanned + at);
        self.after_cr = self.buffer[to] == b'\r';
        self.start = to + 1;
        self.scanned = self.start;
        Some((from, to))
    }

    /// A byte order mark may stand before the first line. None while it can't be told yet.
    fn skip_mark(&mut self) -> Option<()> {
        const MARK: &[u8] = "\u{feff}".as_bytes();
        if self.begun {
            return Some(());
        }
        if self.buffer.len() < MARK.len() && MARK.starts_with(&self.buffer) {
            return None;
        }
        self.begun = true;
        if self.buffer.starts_with(MARK) {
            (self.start, self.scanned) = (MARK.len(), MARK.len());
        }
        Some(())
    }

    fn field(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // Comments (no field name), `retry` and what is not known.
            _ => {}
        }
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let mut name = std::mem::take(&mut self.name);
        let data = self.data.take()?;
        if name.is_empty() {
            "message".clone_into(&mut name);
        }
        Some(SseEvent { name, data, id: self.id.clone() })
    }
}

#[cfg(test)]
mod tests;
