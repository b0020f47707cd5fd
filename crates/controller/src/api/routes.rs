//! Which role each route needs. The one table: the door looks here, and a route that is missing
//! here is closed to everybody.

use http::Method;
use tutti_model::Role;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An access token with at least this role.
    Role(Role),
    /// A join token.
    Join,
    /// A router's token, or an admin's.
    Router,
}

const VIEWER: Access = Access::Role(Role::Viewer);
const USER: Access = Access::Role(Role::User);
const ADMIN: Access = Access::Role(Role::Admin);

pub const ROUTES: &[(Method, &str, Access)] = &[
    (Method::GET, "/api/v1/openapi.json", VIEWER),
    (Method::GET, "/api/v1/cluster", VIEWER),
    (Method::GET, "/api/v1/jobs", VIEWER),
    (Method::POST, "/api/v1/jobs", USER),
    (Method::POST, "/api/v1/jobs:batch", USER),
    (Method::GET, "/api/v1/jobs/{id}", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/why", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/progress", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/telemetry", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/goodput", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/wait", VIEWER),
    (Method::GET, "/api/v1/jobs/{id}/logs", VIEWER),
    (Method::POST, "/api/v1/jobs/{id}/cancel", USER),
    (Method::POST, "/api/v1/jobs/{id}/kill", USER),
    (Method::POST, "/api/v1/jobs/{id}/signal", USER),
    (Method::POST, "/api/v1/jobs/{id}/update", USER),
    (Method::POST, "/api/v1/jobs/{id}/hold", USER),
    (Method::POST, "/api/v1/jobs/{id}/release", USER),
    (Method::POST, "/api/v1/jobs/{id}/suspend", USER),
    (Method::POST, "/api/v1/jobs/{id}/resume", USER),
    (Method::POST, "/api/v1/jobs/{id}/priority", USER),
    (Method::POST, "/api/v1/jobs/{id}/saved", USER),
    (Method::POST, "/api/v1/jobs/{id}/checkpoints", USER),
    (Method::PUT, "/api/v1/jobs/{id}/stdin", USER),
    (Method::POST, "/api/v1/jobs/{id}/exec", USER),
    (Method::PUT, "/api/v1/exec/{session}/stdin", USER),
    (Method::GET, "/api/v1/nodes", VIEWER),
    (Method::GET, "/api/v1/nodes/{name}", VIEWER),
    (Method::DELETE, "/api/v1/nodes/{name}", ADMIN),
    (Method::POST, "/api/v1/nodes/{name}/drain", ADMIN),
    (Method::PUT, "/api/v1/nodes/{name}/burn-in", ADMIN),
    (Method::PUT, "/api/v1/nodes/{name}/gpu-bench", ADMIN),
    (Method::POST, "/api/v1/nodes/{name}/resume", ADMIN),
    (Method::GET, "/api/v1/telemetry", VIEWER),
    (Method::GET, "/api/v1/gpus", VIEWER),
    (Method::GET, "/api/v1/load", VIEWER),
    (Method::GET, "/metrics", VIEWER),
    (Method::POST, "/api/v1/nodes/{name}/inject", ADMIN),
    (Method::POST, "/api/v1/nodes/{name}/resolve", ADMIN),
    (Method::POST, "/api/v1/nodes/{name}/check", ADMIN),
    (Method::GET, "/api/v1/nodes/{name}/health", VIEWER),
    (Method::GET, "/api/v1/alerts", VIEWER),
    (Method::GET, "/api/v1/policy", VIEWER),
    (Method::PUT, "/api/v1/policy", ADMIN),
    (Method::POST, "/api/v1/policy:preview", ADMIN),
    (Method::GET, "/api/v1/reservations", VIEWER),
    (Method::GET, "/api/v1/quota", VIEWER),
    (Method::GET, "/api/v1/report", VIEWER),
    (Method::GET, "/api/v1/events", VIEWER),
    (Method::GET, "/api/v1/tokens", ADMIN),
    (Method::POST, "/api/v1/tokens", ADMIN),
    (Method::DELETE, "/api/v1/tokens/{id}", ADMIN),
    (Method::POST, "/api/v1/join", Access::Join),
    (Method::GET, "/api/v1/endpoints", VIEWER),
    (Method::POST, "/api/v1/endpoints", USER),
    (Method::GET, "/api/v1/endpoints:stopped", VIEWER),
    (Method::GET, "/api/v1/endpoints/{name}", VIEWER),
    (Method::POST, "/api/v1/endpoints/{name}/scale", USER),
    (Method::POST, "/api/v1/endpoints/{name}/rollback", USER),
    (Method::POST, "/api/v1/endpoints/{name}/stop", USER),
    (Method::GET, "/api/v1/routes", Access::Router),
    (Method::POST, "/api/v1/routers", Access::Router),
    (Method::GET, "/api/v1/doctor", ADMIN),
    (Method::POST, "/api/v1/shutdown", ADMIN),
];

/// None if there is no such route: then the door answers 404 or 405, but only to those with a token.
pub fn access(method: &Method, path: &str) -> Option<Access> {
    // HEAD is answered like GET, without the body.
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    ROUTES.iter().find(|(m, p, _)| m == method && *p == path).map(|(_, _, a)| *a)
}
