//! Nodes.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use tutti_engine::{Command, Rejected};
use tutti_model::{BurnInFigures, GpuBenchFigures, NodeKeyRecord};
use tutti_wire::api::{Changed, DrainRequest, NodeDetail, NodeRow, RemoveNodeQuery};

use super::App;
use super::auth::Caller;
use super::body::{Named, Params, Strict};
use super::jobs::change;
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::now;
use crate::views::{counted, kept, node_row};

/// All nodes, by name as people count: n2 before n10.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes",
    responses((status = 200, body = Vec<NodeRow>), Problems))]
pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Vec<NodeRow>>, Problem> {
    let rows = app.core.read(|world| {
        let state = world.engine.state();
        let kept = kept(state, world.engine.plan());
        let mut rows: Vec<NodeRow> =
            state.nodes.values().map(|n| node_row(world, n, &kept, now())).collect();
        rows.sort_by_cached_key(|row| counted(&row.name));
        rows
    });
    Ok(Json(rows.await?))
}

/// One node, with what it is made of, and what its GPUs and the machine did last.
#[utoipa::path(get, path = "/api/v1/nodes/{name}", tag = "nodes",
    params(("name" = String, Path)),
    responses((status = 200, body = NodeDetail), Problems))]
pub async fn show(
    State(app): State<Arc<App>>,
    Named(name): Named<String>,
) -> Result<Json<NodeDetail>, Problem> {
    let node = app.core.read(|world| {
        let state = world.engine.state();
        let node = state.node_named(&name).ok_or_else(|| absent(state, &name))?;
        let facts = &node.facts;
        let row = node_row(world, node, &kept(state, world.engine.plan()), now());
        Ok::<_, Problem>((row, facts.gpus.clone(), facts.hardware.clone()))
    });
    let (row, devices, hardware) = node.await??;
    let newest = app.telemetry.newest(&name);
    let sample_age = newest.as_ref().map(|newest| newest.age(now()));
    let sample = newest.map(|newest| (*newest.sample).clone());
    Ok(Json(NodeDetail { row, sample, sample_age, devices, hardware }))
}

/// Why there is no such node.
fn absent(state: &tutti_model::State, name: &str) -> Problem {
    match state.node_keys.get(name) {
        Some(NodeKeyRecord::Removed { by, .. }) => Problem::removed(name, by),
        _ => Rejected::NoSuchNode(name.to_owned()).into(),
    }
}

/// Nothing new starts on the node; what runs there goes on, unless it is evicted.
#[utoipa::path(post, path = "/api/v1/nodes/{name}/drain", tag = "nodes", request_body = DrainRequest,
    params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn drain(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(node): Named<String>,
    Strict(body): Strict<DrainRequest>,
) -> Result<Json<Changed>, Problem> {
    let DrainRequest { reason, evict } = body;
    change(&app, Command::Drain { actor: caller.actor, node, reason, evict }).await
}

/// The node takes work again.
#[utoipa::path(post, path = "/api/v1/nodes/{name}/resume", tag = "nodes",
    params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn resume(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(node): Named<String>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Resume { actor: caller.actor, node }).await
}

/// The node is no longer part of the cluster: its stream is closed, its certificate opens nothing, and
/// is not renewed. Refused while something runs there, unless `force`: what runs is lost then. With a
/// new join token a machine may have the name again.
#[utoipa::path(delete, path = "/api/v1/nodes/{name}", tag = "nodes",
    params(("name" = String, Path), RemoveNodeQuery),
    responses((status = 200, body = Changed), Problems))]
pub async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(node): Named<String>,
    Params(RemoveNodeQuery { force }): Params<RemoveNodeQuery>,
) -> Result<Json<Changed>, Problem> {
    let by = caller.actor.user.clone();
    let command = Command::RemoveNode { actor: caller.actor, node: node.clone(), force };
    let changed = change(&app, command).await?;
    app.links.dismiss(&node, &Rejected::NodeRemoved { node: node.clone(), by }.to_string());
    Ok(changed)
}

/// Keeps what was measured with the node, in place of what was measured before.
#[utoipa::path(put, path = "/api/v1/nodes/{name}/burn-in", tag = "nodes",
    request_body = BurnInFigures, params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn measured(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(node): Named<String>,
    Strict(figures): Strict<BurnInFigures>,
) -> Result<Json<Changed>, Problem> {
    let figures = Box::new(figures);
    change(&app, Command::Measured { actor: caller.actor, node, figures }).await
}

/// Keeps what its GPUs were measured to do with the node, in place of what was measured before.
#[utoipa::path(put, path = "/api/v1/nodes/{name}/gpu-bench", tag = "nodes",
    request_body = GpuBenchFigures, params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn gpus_measured(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(node): Named<String>,
    Strict(figures): Strict<GpuBenchFigures>,
) -> Result<Json<Changed>, Problem> {
    let figures = Box::new(figures);
    change(&app, Command::GpusMeasured { actor: caller.actor, node, figures }).await
}
