//! Answers that come piece by piece.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use tutti_model::Span;
use ureq::BodyReader;

use super::ClientError;
use super::limits::io_is_timeout;
use crate::api::{ExecEvent, LogEvent};
use crate::sse::SseParser;

pub type Logs = Events<LogEvent>;
pub type ExecEvents = Events<ExecEvent>;

/// An iterator over what the controller sends. After an error or the last event it ends.
pub struct Events<T> {
    body: BodyReader<'static>,
    parser: SseParser,
    chunk: Vec<u8>,
    is_last: fn(&T) -> bool,
    over: bool,
    stop: Option<Arc<AtomicBool>>,
    /// Whom nothing may be heard of for this long.
    endpoint: String,
    silence: Span,
}

impl<T> std::fmt::Debug for Events<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("over", &self.over).finish_non_exhaustive()
    }
}

impl<T: DeserializeOwned> Events<T> {
    /// `is_last` tells a stream that ended from one that broke.
    pub(super) fn new(
        body: BodyReader<'static>,
        is_last: fn(&T) -> bool,
        endpoint: String,
        silence: Span,
    ) -> Self {
        let (parser, chunk) = (SseParser::new(), vec![0; 32 << 10]);
        Events { body, parser, chunk, is_last, over: false, stop: None, endpoint, silence }
    }

    /// Once this is set it ends as if it were interrupted, at the controller's next sign of life:
    /// seconds later at most. For readers that block in a thread of their own.
    pub fn until(self, stop: Arc<AtomicBool>) -> Self {
        Events { stop: Some(stop), ..self }
    }

    fn read(&mut self) -> Result<T, ClientError> {
        loop {
            if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(ClientError::Interrupted(None));
            }
            if let Some(event) = self.parser.take()? {
                if event.name == "error" {
                    return Err(ClientError::from_answer(500, event.data.as_bytes()));
                }
                return serde_json::from_str(&event.data).map_err(ClientError::Answer);
            }
            match self.body.read(&mut self.chunk) {
                Ok(0) => return Err(ClientError::Interrupted(None)),
                Ok(n) => self.parser.push(&self.chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if io_is_timeout(&e) => {
                    let (endpoint, silent_for) = (self.endpoint.clone(), self.silence);
                    return Err(ClientError::Silent { endpoint, silent_for });
                }
                Err(e) => return Err(ClientError::Interrupted(Some(e))),
            }
        }
    }
}

impl<T: DeserializeOwned> Iterator for Events<T> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let item = self.read();
        self.over = match &item {
            Ok(event) => (self.is_last)(event),
            Err(_) => true,
        };
        Some(item)
    }
}
