//! Endpoints: listing, looking, serving, changing.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::{HeaderMap, StatusCode};
use tutti_engine::{Actor, Command, EndpointRefused, Rejected, Reply};
use tutti_model::Replicas;
use tutti_wire::api::{
    Changed, EndpointDetail, EndpointRow, RollBackRequest, ScaleRequest, Serve, Serving,
    StoppedEndpoints,
};

use super::App;
use super::auth::{Caller, Target};
use super::body::{Named, Strict};
use super::jobs::change;
use super::openapi::Problems;
use super::problem::Problem;
use super::submit::{given_key, sent_bytes};
use crate::clock::now;
use crate::core::{Stopped, World};
use crate::serving::tell_served;
use crate::views;

/// In a hint; `tutti endpoints` lists them all.
const NAMES_SHOWN: usize = 20;

/// All endpoints, by name.
#[utoipa::path(get, path = "/api/v1/endpoints", tag = "endpoints",
    responses((status = 200, body = Vec<EndpointRow>), Problems))]
pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Vec<EndpointRow>>, Problem> {
    Ok(Json(app.core.read(|world| views::endpoint_rows(world, &app.routers, now())).await?))
}

/// Those that were stopped, the newest first, and what each did and took. The last thousand are known.
#[utoipa::path(get, path = "/api/v1/endpoints:stopped", tag = "endpoints",
    responses((status = 200, body = StoppedEndpoints), Problems))]
pub async fn stopped(State(app): State<Arc<App>>) -> Result<Json<StoppedEndpoints>, Problem> {
    let look = |world: &World| views::stopped_endpoints(world.engine.state());
    Ok(Json(app.core.read(look).await?))
}

/// Everything of one endpoint. What its environment is set to is for its owner and for admins.
#[utoipa::path(get, path = "/api/v1/endpoints/{name}", tag = "endpoints",
    params(("name" = String, Path)),
    responses((status = 200, body = EndpointDetail), Problems))]
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<Json<EndpointDetail>, Problem> {
    let detail = app.core.read(|world| {
        let endpoint = world.engine.state().endpoints.get(&name)?;
        let inside = caller.may_look_inside(&endpoint.user);
        Some(views::endpoint_detail(world, &app.routers, endpoint, inside, now()))
    });
    detail.await?.map(Json).ok_or_else(|| unknown(&name))
}

fn unknown(name: &str) -> Problem {
    Rejected::from(EndpointRefused::Unknown(name.to_owned())).into()
}

/// Serves a job file with a `[service]` table: as a new endpoint or, if `update` is set and there is
/// one of its name, as a new revision of that. If `must_exist` is set, only so.
#[utoipa::path(post, path = "/api/v1/endpoints", tag = "endpoints", request_body = Serve,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same endpoint")),
    responses((status = 201, body = Serving), (status = 200, description = "A new revision", body = Serving), Problems))]
pub async fn serve(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Strict(body): Strict<Serve>,
) -> Result<Response, Problem> {
    let key = given_key(&headers)?;
    let _room = app.room.admit(sent_bytes(&headers))?;
    let (command, status) = match to_update(&app, &body)? {
        Some(name) => (update(caller.actor, name, body), StatusCode::OK),
        None => {
            let Serve { spec, user, .. } = body;
            let (actor, spec) = (caller.actor, Box::new(spec));
            (Command::Serve { actor, spec, user, key }, StatusCode::CREATED)
        }
    };
    let serving = serving(app.core.call(command).await?);
    Ok(named(&serving, status))
}

/// The endpoint that gets a new revision.
fn to_update(app: &App, body: &Serve) -> Result<Option<String>, Problem> {
    let name = body.spec.name.clone().filter(|_| body.update || body.must_exist);
    let Some(name) = name else { return Ok(None) };
    let names: Vec<String> =
        app.core.peek(|world| world.engine.state().endpoints.keys().cloned().collect())?;
    match names.contains(&name) {
        true => Ok(Some(name)),
        false if body.must_exist => Err(unknown(&name).hint(what_there_is(&names))),
        false => Ok(None),
    }
}

fn what_there_is(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "nothing is served yet; `tutti serve FILE` makes an endpoint".to_owned(),
        n @ 1..=NAMES_SHOWN => {
            format!("{} served: {shown}", if n == 1 { "this is" } else { "these are" })
        }
        n => format!("these are served: {shown} and {} more", n - NAMES_SHOWN),
    }
}

fn update(actor: Actor, name: String, body: Serve) -> Command {
    let Serve { spec, canary, .. } = body;
    Command::UpdateEndpoint { actor, name, spec: Box::new(spec), canary }
}

fn serving(reply: Reply) -> Serving {
    match reply {
        Reply::Endpoint { name, revision, passed_over } => Serving { name, revision, passed_over },
        other => unreachable!("the engine answers with an endpoint, not {other:?}"),
    }
}

/// The audit line says which revision.
fn named(serving: &Serving, status: StatusCode) -> Response {
    let target = Target(format!("endpoint {} revision {}", serving.name, serving.revision));
    target.of((status, Json(serving)))
}

/// Bounds of replicas in place of the file's; without any, as the file says. One that is not given
/// stays as far as the other allows.
#[utoipa::path(post, path = "/api/v1/endpoints/{name}/scale", tag = "endpoints",
    request_body = ScaleRequest, params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn scale(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(body): Strict<ScaleRequest>,
) -> Result<Json<Changed>, Problem> {
    let now = app.core.peek(|w| w.engine.state().endpoints.get(&name).map(|e| e.bounds()))?;
    let bounds = bounds(&body, now.ok_or_else(|| unknown(&name))?);
    change(&app, Command::ScaleEndpoint { actor: caller.actor, name, bounds }).await
}

fn bounds(wanted: &ScaleRequest, now: Replicas) -> Option<Replicas> {
    match (wanted.min, wanted.max) {
        (None, None) => None,
        (Some(min), None) => Some(Replicas { min, max: now.max.max(min) }),
        (None, Some(max)) => Some(Replicas { min: now.min.min(max), max }),
        (Some(min), Some(max)) => Some(Replicas { min, max }),
    }
}

/// Goes back to an older revision, replica by replica: the last good one if none is named.
#[utoipa::path(post, path = "/api/v1/endpoints/{name}/rollback", tag = "endpoints",
    request_body = RollBackRequest, params(("name" = String, Path)),
    responses((status = 200, body = Serving), Problems))]
pub async fn rollback(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
    Strict(body): Strict<RollBackRequest>,
) -> Result<Response, Problem> {
    let command = Command::RollBack { actor: caller.actor, name, to: body.to };
    let serving = serving(app.core.call(command).await?);
    Ok(named(&serving, StatusCode::OK))
}

/// Its replicas finish what they have and go; then it is gone.
#[utoipa::path(post, path = "/api/v1/endpoints/{name}/stop", tag = "endpoints",
    params(("name" = String, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn stop(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(name): Named<String>,
) -> Result<Json<Changed>, Problem> {
    // One without replicas is gone at once, and is to be listed with all that it served. By itself,
    // because a client that leaves must not break it off.
    let told = Arc::clone(&app);
    let told = tokio::spawn(async move { tell_served(&told.core, &told.routers).await });
    told.await.unwrap_or(Err(Stopped))?;
    change(&app, Command::StopEndpoint { actor: caller.actor, name }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_has_is_answered_with_those_that_there_are() {
        let served = |n: usize| what_there_is(&(0..n).map(|n| format!("e{n}")).collect::<Vec<_>>());
        assert!(served(0).starts_with("nothing is served"));
        assert_eq!(served(1), "this is served: e0");
        assert_eq!(served(2), "these are served: e0, e1");
        let many = served(23);
        assert!(many.ends_with("e18, e19 and 3 more"), "{many}");
    }

    #[test]
    fn a_bound_that_is_not_given_gives_way() {
        let now = Replicas { min: 2, max: 4 };
        let scaled = |min, max| bounds(&ScaleRequest { min, max }, now);
        assert_eq!(scaled(None, None), None, "as the file says");
        assert_eq!(scaled(Some(6), None), Some(Replicas { min: 6, max: 6 }));
        assert_eq!(scaled(Some(1), None), Some(Replicas { min: 1, max: 4 }));
        assert_eq!(scaled(None, Some(1)), Some(Replicas { min: 1, max: 1 }));
        assert_eq!(scaled(Some(5), Some(3)), Some(Replicas { min: 5, max: 3 }), "told as wrong");
    }
}
