//! The door of routers: where replicas listen, and how they do. The only way out for hashes of keys.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tutti_engine::route_table;
use tutti_model::{RouteTable, RouterReport};
use tutti_wire::api::{Changed, RoutesQuery};

use super::App;
use super::body::{Lenient, Params};
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::now;
use crate::core::{Stopped, World};
use crate::serving::{self, BadReport, News};

const WAIT_MAX: Duration = Duration::from_secs(30);

/// What routers go by. Answers at once if it is not the version that the caller has; else as soon as
/// it is another, or with the same one when the time is over.
#[utoipa::path(get, path = "/api/v1/routes", tag = "routers", params(RoutesQuery),
    responses((status = 200, body = RouteTable), Problems))]
pub async fn routes(
    State(app): State<Arc<App>>,
    Params(query): Params<RoutesQuery>,
) -> Result<Json<RouteTable>, Problem> {
    let patience = query.seconds.map_or(WAIT_MAX, Duration::from_secs).min(WAIT_MAX);
    let deadline = tokio::time::Instant::now() + patience;
    // Before the first look, so that nothing is missed between look and wait.
    let mut records = app.core.feed().durable();
    let mut stopping = app.stopping();
    let mut over = query.after.is_none();
    loop {
        records.mark_unchanged();
        let look = |world: &World| {
            let state = world.engine.state();
            let another = query.after != Some(state.routes.0);
            (over || another).then(|| route_table(state))
        };
        if let Some(table) = app.core.read(look).await? {
            return Ok(Json(table));
        }
        tokio::select! {
            changed = records.changed() => changed.map_err(|_| Stopped)?,
            () = tokio::time::sleep_until(deadline) => over = true,
            _ = stopping.wait_for(|s| *s) => over = true,
        }
    }
}

impl From<BadReport> for Problem {
    fn from(bad: BadReport) -> Problem {
        Problem::invalid(bad.to_string())
    }
}

/// A router's word, once a second. It may be newer than the controller: what is unknown of it is
/// ignored.
#[utoipa::path(post, path = "/api/v1/routers", tag = "routers", request_body = RouterReport,
    responses((status = 200, body = Changed), Problems))]
pub async fn report(
    State(app): State<Arc<App>>,
    Lenient(report): Lenient<RouterReport>,
) -> Result<Json<Changed>, Problem> {
    let news = app.routers.note(report, now())?;
    let urgent = news.readiness || app.core.peek(|world| wakes_one(world, &news))?;
    if urgent {
        // Whoever waits for the first replica does not wait for the next second as well.
        serving::tell_load(&app).await?;
    }
    Ok(Json(Changed { changed: 1 }))
}

/// Requests wait for an endpoint that has no replica.
fn wakes_one(world: &World, news: &News) -> bool {
    let endpoints = &world.engine.state().endpoints;
    let asleep = |name: &String| endpoints.get(name).is_some_and(|e| e.replicas.is_empty());
    news.waiting.iter().any(asleep)
}
