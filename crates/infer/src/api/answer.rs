//! From what the engine says to a response: at once, or as it comes.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::error::ApiError;
use super::shape::{Said, Shape, Usage};
use super::wanted::Ask;
use crate::app::UnderWay;
use crate::engine::Event;

/// All of it, when all of it is there.
pub async fn whole(
    ask: Ask,
    shape: Shape,
    mut events: UnboundedReceiver<Event>,
) -> Result<Response, ApiError> {
    let mut said = vec![Said::default(); ask.choices];
    for (said, echo) in said.iter_mut().zip(ask.echo.into_iter().flatten()) {
        said.text = echo;
    }
    while let Some(event) = events.recv().await {
        said[event.index].add(event.emission);
    }
    let mut usage = Usage { prompt: ask.prompt_tokens, ..Usage::default() };
    for (index, said) in said.iter().enumerate() {
        let finish = said.finish.as_ref().ok_or_else(ApiError::broken)?;
        usage.add(finish, index, ask.copies);
    }
    Ok(Json(shape.whole(&said, usage)).into_response())
}

/// Piece by piece. `under_way` goes with the last of them, or when the client leaves.
pub fn stream(
    ask: Ask,
    shape: Shape,
    events: UnboundedReceiver<Event>,
    under_way: UnderWay,
) -> Response {
    let mut ready: VecDeque<Bytes> = (0..ask.choices)
        .filter_map(|index| shape.opening(index))
        .map(|json| frame(&json))
        .collect();
    for (index, text) in ask.echo.iter().flatten().enumerate() {
        let echo = Said { text: text.clone(), ..Said::default() };
        ready.push_back(frame(&shape.piece(index, &echo, 0)));
    }
    let pieces = Pieces {
        usage: Usage { prompt: ask.prompt_tokens, ..Usage::default() },
        include_usage: ask.include_usage,
        made: vec![0; ask.choices],
        copies: ask.copies,
        open: ask.choices,
        shape,
        events,
        ready,
        _under_way: under_way,
    };
    let frames = stream::unfold(pieces, |mut pieces| async move {
        let frame = pieces.next().await?;
        Some((Ok::<Bytes, Infallible>(frame), pieces))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (kind, Body::from_stream(frames)).into_response()
}

struct Pieces {
    shape: Shape,
    events: UnboundedReceiver<Event>,
    ready: VecDeque<Bytes>,
    /// Tokens of each choice so far.
    made: Vec<usize>,
    /// Choices of one prompt.
    copies: usize,
    /// Choices that are not done.
    open: usize,
    usage: Usage,
    include_usage: bool,
    _under_way: UnderWay,
}

impl Pieces {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            match self.events.recv().await {
                Some(event) => self.take(event),
                // The engine lets go of a sequence when it is done, or when it is gone itself.
                None if self.open > 0 => {
                    self.open = 0;
                    return Some(frame(&ApiError::broken().json()));
                }
                None => return None,
            }
        }
    }

    fn take(&mut self, Event { index, emission }: Event) {
        let mut said = Said::default();
        said.add(emission);
        let offset = self.made[index];
        self.made[index] += 1;
        if said.text.is_empty() && said.tokens.is_empty() && said.finish.is_none() {
            return;
        }
        self.ready.push_back(frame(&self.shape.piece(index, &said, offset)));
        let Some(finish) = &said.finish else { return };
        self.usage.add(finish, index, self.copies);
        self.open -= 1;
        if self.open > 0 {
            return;
        }
        if self.include_usage {
            self.ready.push_back(frame(&self.shape.usage(self.usage)));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

fn frame(json: &Value) -> Bytes {
    format!("data: {json}\n\n").into()
}
