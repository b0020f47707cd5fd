//! The running policy, and what it gives to whom.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::{Extension, Json};
use http::header::CONTENT_TYPE;
use tutti_engine::Command;
use tutti_model::{Policy, TeamShare};
use tutti_wire::api::{Changed, ProblemRow};
use tutti_wire::policyfile;

use super::App;
use super::auth::Caller;
use super::body::{BATCH_MAX, parse, read};
use super::jobs::change;
use super::openapi::Problems;
use super::problem::{Problem, bad_policy};
use crate::clock::now;

/// The policy that runs now.
#[utoipa::path(get, path = "/api/v1/policy", tag = "policy",
    responses((status = 200, body = Policy), Problems))]
pub async fn show(State(app): State<Arc<App>>) -> Result<Json<Policy>, Problem> {
    let policy = app.core.read(|world| Arc::clone(&world.engine.state().policy)).await?;
    Ok(Json(Policy::clone(&policy)))
}

/// Replaces the running policy as a whole. Takes JSON, or a policy file as `application/toml`. What
/// is wrong is answered all at once, and the running policy stays as it is.
#[utoipa::path(put, path = "/api/v1/policy", tag = "policy", request_body = Policy,
    responses((status = 200, body = Changed), Problems))]
pub async fn replace(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Sent(policy): Sent,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::SetPolicy { actor: caller.actor, policy: Box::new(policy) }).await
}

/// What each team is guaranteed, has, borrows and lends.
#[utoipa::path(get, path = "/api/v1/quota", tag = "policy",
    responses((status = 200, body = Vec<TeamShare>), Problems))]
pub async fn quota(State(app): State<Arc<App>>) -> Result<Json<Vec<TeamShare>>, Problem> {
    let shares = app.core.read(|world| tutti_sched::shares(world.engine.state(), now()));
    Ok(Json(shares.await?))
}

/// A policy as the content type says.
pub struct Sent(Policy);

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Problem;
    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let is_toml = kind.is_some_and(is_toml);
        let body = read(request.into_body(), BATCH_MAX).await?;
        let policy = if is_toml {
            policyfile::parse(None, &body).map_err(|bad| {
                let hint = bad.hint();
                let problem = bad_policy(bad.0.into_iter().map(ProblemRow::from).collect());
                hint.map_or(problem.clone(), |h| problem.hint(h))
            })?
        } else {
            parse::<Policy>(&body).map_err(misspelled)?
        };
        Ok(Sent(policy))
    }
}

fn is_toml(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    ["application/toml", "text/toml", "text/x-toml"].iter().any(|t| kind.eq_ignore_ascii_case(t))
}

/// A key that is not known is as wrong as a value that contradicts another.
fn misspelled(problem: Problem) -> Problem {
    let hint = problem.error.hint;
    let row = ProblemRow {
        path: String::new(),
        problem: problem.error.message,
        line: None,
        column: None,
    };
    let bad = bad_policy(vec![row]);
    hint.map_or(bad.clone(), |h| bad.hint(h))
}
