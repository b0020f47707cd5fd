//! What Prometheus reads.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tutti_wire::api::MetricsQuery;

use super::App;
use super::body::Params;
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::now;
use crate::core::World;
use crate::metrics::{self, Scene};

/// Pieces that may wait for a slow reader.
const WAITING: usize = 4;

/// Everything for Prometheus, as text: GPUs under DCGM's names, the rest under `tutti_`.
#[utoipa::path(get, path = "/metrics", tag = "telemetry", params(MetricsQuery),
    responses((status = 200, content_type = "text/plain", body = String), Problems))]
pub async fn metrics(
    State(app): State<Arc<App>>,
    Params(query): Params<MetricsQuery>,
) -> Result<Response, Problem> {
    let names: Option<Vec<&str>> =
        query.nodes.as_ref().map(|names| names.split(',').map(str::trim).collect());
    let look = |world: &World| Scene::new(world, &app.routers, names.as_deref(), now());
    let scene = app.core.read(look).await?;
    let journal = app.core.journal_stats().await?;
    let journal = journal.inspect_err(|error| {
        tracing::warn!(%error, "the journal's size is not known");
    });
    let (sender, pieces) = tokio::sync::mpsc::channel::<Bytes>(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut take = |piece: String| sender.blocking_send(piece.into()).is_ok();
        scene.render(&app.telemetry, journal.as_ref().ok(), now(), &mut take);
    });
    let body = Body::from_stream(ReceiverStream::new(pieces).map(Ok::<_, Infallible>));
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], body).into_response())
}
