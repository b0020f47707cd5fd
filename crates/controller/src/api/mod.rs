//! REST under `/api/v1`. Every request goes through the [`auth`] door; handlers look at the world
//! or call the engine, and answer in the shapes of `wire::api`.

mod alerts;
pub mod auth;
mod bodies;
pub(crate) mod body;
mod cluster;
mod endpoints;
mod events;
mod exec;
mod health;
mod hosts;
mod jobs;
mod load;
mod logs;
mod metrics;
mod missing;
mod nodes;
mod openapi;
mod policy;
pub(crate) mod problem;
mod report;
mod routers;
mod routes;
mod signal;
pub(crate) mod sse;
mod submit;
mod team;
mod telemetry;
mod tokens;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::http::HeaderValue;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use tokio::sync::watch;
use tutti_wire::api::NOW_HEADER;
use tutti_wire::pki::Ca;

use crate::archive::Archive;
use crate::audit::Audit;
use crate::clock::now;
use crate::core::Core;
use crate::dash::{self, Dash};
use crate::links::Links;
use crate::room::JournalRoom;
use crate::serving::Routers;
use crate::telemetry::Store;
use crate::watch::Board;

pub use bodies::Bodies;
pub use exec::Execs;
pub use hosts::Hosts;
pub use openapi::document;
pub use problem::Problem;
pub(crate) use report::wanted;
pub use routes::{Access, ROUTES};

/// What handlers share.
pub struct App {
    pub core: Core,
    pub links: Arc<Links>,
    pub telemetry: Arc<Store>,
    pub archive: Arc<Archive>,
    pub audit: Audit,
    pub alerts: Arc<Board>,
    /// What routers say of endpoints.
    pub routers: Arc<Routers>,
    pub ca: Arc<Ca>,
    pub hosts: Hosts,
    pub execs: Execs,
    /// What clients send, while it comes and is parsed.
    pub bodies: Bodies,
    pub dash: Dash,
    pub data_dir: PathBuf,
    pub room: JournalRoom,
    pub server_until: SystemTime,
    /// Becomes true when the controller is to stop.
    pub shutdown: watch::Sender<bool>,
}

impl App {
    /// For streams: ends when the controller stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.shutdown.subscribe()
    }
}

pub fn router(app: Arc<App>) -> Router {
    let jobs = Router::new()
        .route("/jobs", get(jobs::list).post(submit::submit))
        .route("/jobs:batch", post(submit::submit_batch))
        .route("/jobs/{id}", get(jobs::show))
        .route("/jobs/{id}/why", get(jobs::why))
        .route("/jobs/{id}/progress", get(jobs::progress))
        .route("/jobs/{id}/telemetry", get(telemetry::job))
        .route("/jobs/{id}/goodput", get(report::job))
        .route("/jobs/{id}/wait", get(jobs::wait))
        .route("/jobs/{id}/cancel", post(jobs::cancel))
        .route("/jobs/{id}/kill", post(jobs::kill))
        .route("/jobs/{id}/signal", post(signal::signal))
        .route("/jobs/{id}/update", post(jobs::update))
        .route("/jobs/{id}/hold", post(jobs::hold))
        .route("/jobs/{id}/release", post(jobs::release))
        .route("/jobs/{id}/suspend", post(jobs::suspend))
        .route("/jobs/{id}/resume", post(jobs::resume))
        .route("/jobs/{id}/priority", post(jobs::priority))
        .route("/jobs/{id}/saved", post(jobs::saved))
        .route("/jobs/{id}/checkpoints", post(jobs::register))
        .route("/jobs/{id}/logs", get(logs::logs))
        .route("/jobs/{id}/stdin", put(exec::stdin))
        .route("/jobs/{id}/exec", post(exec::exec))
        .route_layer(from_fn_with_state(Arc::clone(&app), missing::explain))
        .route("/exec/{session}/stdin", put(exec::exec_stdin));
    let rest = Router::new()
        .route("/openapi.json", get(openapi::openapi))
        .route("/cluster", get(cluster::cluster))
        .route("/doctor", get(cluster::doctor))
        .route("/shutdown", post(cluster::shutdown))
        .route("/nodes", get(nodes::list))
        .route("/nodes/{name}", get(nodes::show).delete(nodes::remove))
        .route("/nodes/{name}/drain", post(nodes::drain))
        .route("/nodes/{name}/burn-in", put(nodes::measured))
        .route("/nodes/{name}/gpu-bench", put(nodes::gpus_measured))
        .route("/nodes/{name}/resume", post(nodes::resume))
        .route("/telemetry", get(telemetry::curves))
        .route("/gpus", get(telemetry::gpus))
        .route("/load", get(load::load))
        .route("/nodes/{name}/inject", post(health::inject))
        .route("/nodes/{name}/resolve", post(health::resolve))
        .route("/nodes/{name}/check", post(health::check))
        .route("/nodes/{name}/health", get(health::examine))
        .route("/alerts", get(alerts::alerts))
        .route("/policy", get(policy::show).put(policy::replace))
        .route("/policy:preview", post(policy::preview))
        .route("/reservations", get(policy::reservations))
        .route("/quota", get(policy::quota))
        .route("/report", get(report::report))
        .route("/events", get(events::events))
        .route("/tokens", get(tokens::list).post(tokens::create))
        .route("/tokens/{id}", delete(tokens::revoke))
        .route("/join", post(tokens::join));
    let serving = Router::new()
        .route("/endpoints", get(endpoints::list).post(endpoints::serve))
        .route("/endpoints:stopped", get(endpoints::stopped))
        .route("/endpoints/{name}", get(endpoints::show))
        .route("/endpoints/{name}/scale", post(endpoints::scale))
        .route("/endpoints/{name}/rollback", post(endpoints::rollback))
        .route("/endpoints/{name}/stop", post(endpoints::stop))
        .route("/routes", get(routers::routes))
        .route("/routers", post(routers::report));
    let api = Router::new()
        .nest("/api/v1", jobs.merge(rest).merge(serving))
        // Where Prometheus looks unless it is told otherwise.
        .route("/metrics", get(metrics::metrics))
        // Around what matches no route too: the door answers those.
        .layer(from_fn_with_state(Arc::clone(&app), auth::door))
        .layer(map_response(told_at));
    // The other way round the pages' door would answer what matches no route.
    dash::router(&app).merge(api).with_state(app)
}

/// How old something is can be told by nobody else's clock.
async fn told_at(mut response: Response) -> Response {
    response.headers_mut().insert(NOW_HEADER, HeaderValue::from(now().0));
    response
}
