//! What is wrong.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tutti_wire::api::{AlertList, AlertQuery};

use super::App;
use super::body::Params;
use super::openapi::Problems;
use super::problem::Problem;

/// What is wrong now and, if asked for, what was; with the rules and their terms.
#[utoipa::path(get, path = "/api/v1/alerts", tag = "cluster", params(AlertQuery),
    responses((status = 200, body = AlertList), Problems))]
pub async fn alerts(
    State(app): State<Arc<App>>,
    Params(query): Params<AlertQuery>,
) -> Result<Json<AlertList>, Problem> {
    let policy = app.core.peek(|world| Arc::clone(&world.engine.state().policy))?;
    Ok(Json(app.alerts.list(query.all, &policy.watch)))
}
