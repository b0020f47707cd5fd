//! The cluster as a whole.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use tutti_wire::api::{Changed, ClusterInfo, DoctorReport};

use super::App;
use super::auth::Caller;
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::now;
use crate::doctor;
use crate::views;

/// What the cluster is and who you are to it.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "cluster",
    responses((status = 200, body = ClusterInfo), Problems))]
pub async fn cluster(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ClusterInfo>, Problem> {
    Ok(Json(app.core.read(|world| views::cluster(world, &caller.actor, now())).await?))
}

/// Looks for what is wrong or soon will be.
#[utoipa::path(get, path = "/api/v1/doctor", tag = "cluster",
    responses((status = 200, body = DoctorReport), Problems))]
pub async fn doctor(State(app): State<Arc<App>>) -> Result<Json<DoctorReport>, Problem> {
    Ok(Json(doctor::examine(&app).await?))
}

/// Stops the controller. Jobs run on.
#[utoipa::path(post, path = "/api/v1/shutdown", tag = "cluster",
    responses((status = 200, body = Changed), Problems))]
pub async fn shutdown(State(app): State<Arc<App>>) -> Json<Changed> {
    tracing::info!("asked to stop");
    app.shutdown.send_replace(true);
    Json(Changed { changed: 1 })
}
