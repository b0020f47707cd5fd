//! Server-sent events: a bounded channel that a task fills at the reader's pace.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Events that may wait for a reader.
const BUFFER: usize = 64;
/// Texts that may wait for a reader: each has several events, and whoever sends them keeps others.
const TEXTS: usize = 2;

/// A quiet stream says something this often, so that a reader that left is noticed, and a reader notices
/// a controller that hangs.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub type Stream =
    Sse<axum::response::sse::KeepAliveStream<ReceiverStream<Result<Event, Infallible>>>>;

/// The reader has left.
#[derive(Clone, Copy, Debug)]
pub struct Left;

#[derive(Clone)]
pub struct Sender(mpsc::Sender<Result<Event, Infallible>>);

impl Sender {
    /// Waits for the reader.
    pub async fn send<T: Serialize>(&self, name: &str, data: &T) -> Result<(), Left> {
        self.put(Event::default().event(name), data).await
    }

    /// With an id, from which a browser goes on after a broken connection.
    pub async fn send_id<T: Serialize>(&self, name: &str, id: u64, data: &T) -> Result<(), Left> {
        self.put(Event::default().event(name).id(id.to_string()), data).await
    }

    async fn put<T: Serialize>(&self, event: Event, data: &T) -> Result<(), Left> {
        let event = event.json_data(data).expect("our own types become JSON");
        self.0.send(Ok(event)).await.map_err(|_| Left)
    }

    /// Resolves when the reader leaves.
    pub async fn left(&self) {
        self.0.closed().await;
    }
}

pub fn channel() -> (Sender, Stream) {
    let (tx, rx) = mpsc::channel(BUFFER);
    let stream =
        Sse::new(ReceiverStream::new(rx)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    (Sender(tx), stream)
}

/// Events as text, made once for all their readers: each gets the same bytes and none a copy.
pub struct Texts(mpsc::Sender<Result<Bytes, Infallible>>);

impl Texts {
    /// Waits for the reader.
    pub async fn send(&self, text: Bytes) -> Result<(), Left> {
        self.0.send(Ok(text)).await.map_err(|_| Left)
    }

    /// Says something after a while of quiet, without end; resolves when the reader leaves.
    pub async fn quiet(&self) -> Left {
        loop {
            tokio::select! {
                () = self.0.closed() => return Left,
                () = tokio::time::sleep(KEEP_ALIVE) => {}
            }
            // An event, since pages can't see comments.
            if self.send(Bytes::from_static(b"event: beat\ndata: 0\n\n")).await.is_err() {
                return Left;
            }
        }
    }
}

/// One event as text; `data` has no line break.
pub fn put(text: &mut String, name: &str, data: &str) {
    for part in ["event: ", name, "\ndata: ", data, "\n\n"] {
        text.push_str(part);
    }
}

pub fn texts() -> (Texts, Response) {
    let (tx, rx) = mpsc::channel(TEXTS);
    let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    let body = Body::from_stream(ReceiverStream::new(rx));
    (Texts(tx), (head, body).into_response())
}
