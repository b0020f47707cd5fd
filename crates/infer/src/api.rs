//! OpenAI's forms: what clients write, and what they get.

mod answer;
mod error;
mod shape;
mod wanted;

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::engine::Refused;
pub use error::ApiError;
use wanted::{Ask, Room, Wanted};

type Body = Result<Bytes, BytesRejection>;

pub async fn completions(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    respond(app, body, Wanted::completion).await
}

pub async fn chat(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    respond(app, body, Wanted::chat).await
}

async fn respond(
    app: Arc<App>,
    body: Body,
    read: fn(Wanted, Room, u64) -> Result<Ask, ApiError>,
) -> Result<Response, ApiError> {
    let at = Instant::now();
    let under_way = app.enter();
    let serving = app.serving()?;
    let body = body.map_err(|e| ApiError::new(e.status(), e.body_text()))?;
    let wanted = wanted::parse(&body)?;
    if let Some(name) = &wanted.model
        && !app.names.contains(name)
    {
        return Err(ApiError::no_model(name, app.name()));
    }
    let room = Room { context: serving.context, sequences: serving.engine.most() };
    let mut ask = read(wanted, room, random())?;
    let requests = std::mem::take(&mut ask.requests);
    let events = serving.engine.submit(requests, at).map_err(|refused| {
        if matches!(refused, Refused::Full { .. }) {
            app.metrics.change(|counts| counts.refused += 1);
        }
        ApiError::from(refused)
    })?;
    let shape = shape::Shape::new(ask.kind, app.name(), random(), now());
    match ask.stream {
        true => Ok(answer::stream(ask, shape, events, under_way)),
        false => answer::whole(ask, shape, events).await,
    }
}

pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let context = app.serving().ok().map(|serving| serving.context);
    let entry = |name: &String| {
        json!({
            "id": name,
            "object": "model",
            "created": app.created,
            "owned_by": "tutti",
            "max_model_len": context,
        })
    };
    let data: Vec<Value> = app.names.iter().map(entry).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// For ids, and for seeds that nobody chose.
fn random() -> u64 {
    // Without a source of randomness all answers would be alike; the time is better than that.
    getrandom::u64().unwrap_or_else(|_| now())
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
