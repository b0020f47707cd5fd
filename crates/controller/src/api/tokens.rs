//! Tokens, and the one thing that a join token is for.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use tutti_engine::Command;
use tutti_model::{Grant, Token, check_name};
use tutti_wire::api::{Changed, CreatedToken, JoinRequest, JoinResponse, NewToken, TokenRow};
use tutti_wire::pki::{PkiError, certificates, key_of};
use tutti_wire::token::{Kind, TokenText};

use super::App;
use super::auth::{Caller, Joiner, Target};
use super::body::{Named, Strict};
use super::jobs::change;
use super::openapi::Problems;
use super::problem::{Problem, exit};
use crate::clock::now;

fn row(token: Token) -> TokenRow {
    let Token { id, grant, created_at, created_by, expires_at, hash: _ } = token;
    TokenRow { id, grant, created_at, created_by, expires_at }
}

/// All tokens, without their secrets.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens",
    responses((status = 200, body = Vec<TokenRow>), Problems))]
pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Vec<TokenRow>>, Problem> {
    let tokens =
        |w: &crate::core::World| w.engine.state().tokens.values().cloned().map(row).collect();
    Ok(Json(app.core.read(tokens).await?))
}

/// Makes a token. Its secret is in this answer and nowhere else.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = NewToken,
    responses((status = 201, body = CreatedToken), Problems))]
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Strict(new): Strict<NewToken>,
) -> Result<Response, Problem> {
    check(&new.grant)?;
    let kind = match new.grant {
        Grant::Access { .. } => Kind::Access,
        Grant::Join { .. } => Kind::Join,
        Grant::Serve { .. } => Kind::Serve,
        Grant::Router => Kind::Access,
    };
    let text = TokenText::mint(kind, app.ca.pin()).map_err(|e| {
        let message = crate::error::chain(&e);
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", exit::FAILED, message)
    })?;
    let created_at = now();
    let token = Token {
        id: text.id.clone(),
        hash: text.hash(),
        grant: new.grant,
        created_at,
        created_by: caller.actor.user.clone(),
        expires_at: new.expires_in.map(|span| created_at.plus(span)),
    };
    let command = Command::AddToken { actor: caller.actor, token: token.clone() };
    app.core.call(command).await?;
    let target = Target(format!("token {}", token.id));
    let created = CreatedToken { row: row(token), secret: text.to_string() };
    Ok(target.of((StatusCode::CREATED, Json(created))))
}

fn check(grant: &Grant) -> Result<(), Problem> {
    let (key, name) = match grant {
        Grant::Access { user, .. } => ("user", user),
        Grant::Join { node: Some(node), .. } => ("node", node),
        Grant::Serve { user, .. } => ("user", user),
        Grant::Join { node: None, .. } | Grant::Router => return Ok(()),
    };
    check_name(name).map_err(|bad| Problem::invalid(format!("grant.{key}: {bad}")))
}

/// From now on the token opens nothing. What it has opened, such as a stream of a log, goes on.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn revoke(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named<String>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::RevokeToken { actor: caller.actor, id }).await
}

/// An agent joins: its certificate request is signed for the name that it gives.
#[utoipa::path(post, path = "/api/v1/join", tag = "tokens", request_body = JoinRequest,
    responses((status = 200, body = JoinResponse), Problems))]
pub async fn join(
    State(app): State<Arc<App>>,
    Extension(joiner): Extension<Joiner>,
    Strict(request): Strict<JoinRequest>,
) -> Result<Response, Problem> {
    check_name(&request.node).map_err(|bad| Problem::invalid(format!("node: {bad}")))?;
    // Signed before the use is counted: a request that can't be signed costs none.
    let bad = |e: PkiError| Problem::invalid(format!("csr: {}", crate::error::chain(&e)));
    let certificate = app.ca.sign_node_csr(&request.csr, &request.node).map_err(bad)?;
    let signed = certificates(&certificate, "the certificate").map_err(bad)?.remove(0);
    let (node, key) = (request.node, key_of(&signed).map_err(bad)?);
    app.core.call(Command::UseJoinToken { id: joiner.token, node: node.clone(), key }).await?;
    let answer = JoinResponse { certificate, ca: app.ca.pem().to_owned() };
    Ok(Target(format!("node {node}")).of(Json(answer)))
}
