//! Server-sent events: a bounded channel that a task fills at the reader's pace.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Events that may wait for a reader.
const BUFFER: usize = 64;

/// A quiet stream says something this often, so that a reader that left is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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

    /// Data that is text already, without a line break.
    pub async fn send_text(&self, name: &str, data: &str) -> Result<(), Left> {
        let event = Event::default().event(name).data(data);
        self.0.send(Ok(event)).await.map_err(|_| Left)
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
