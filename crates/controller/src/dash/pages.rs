//! Pages as they are first sent.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::ExtensionRejection;
use axum::extract::{FromRequestParts, Path, RawQuery};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tutti_model::TaskId;
use tutti_web::{Markup, Reader};

use super::assets::html;
use super::gather;
use super::session::Session;
use crate::api::auth::Caller;
use crate::api::{App, Problem};
use crate::clock::{self, now};
use crate::core::World;

/// Somebody who is logged in asks for a page.
pub struct Visit {
    app: Arc<App>,
    caller: Caller,
    session: Session,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<App>> for Visit {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &Arc<App>,
    ) -> Result<Self, Self::Rejection> {
        let Extension(caller) = Extension::from_request_parts(parts, app).await?;
        let Extension(session) = Extension::from_request_parts(parts, app).await?;
        Ok(Visit { app: Arc::clone(app), caller, session, headers: parts.headers.clone() })
    }
}

impl Visit {
    fn reader(&self) -> Result<Reader, Problem> {
        let simulated =
            |world: &World| world.engine.state().nodes.values().any(|node| node.facts.simulated);
        Ok(Reader {
            user: self.caller.actor.user.clone(),
            role: self.caller.actor.role,
            csrf: self.session.csrf.clone(),
            simulated: self.app.core.peek(simulated)?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now: now(),
            pace: clock::pace(),
        })
    }

    /// A page, or the problem as one.
    fn page<V>(
        &self,
        view: Result<V, Problem>,
        draw: impl FnOnce(&Reader, &V) -> Markup,
    ) -> Response {
        let reader = match self.reader() {
            Ok(reader) => reader,
            Err(problem) => return super::door::page_of(problem),
        };
        match view {
            Ok(view) => html(&self.headers, draw(&reader, &view)),
            Err(problem) => self.problem(&reader, &problem),
        }
    }

    fn problem(&self, reader: &Reader, problem: &Problem) -> Response {
        let title = match problem.status {
            StatusCode::NOT_FOUND => "There is no such thing",
            _ => "That did not work",
        };
        let (error, reader) = (&problem.error, Some(reader));
        let page = tutti_web::shell::problem(reader, title, &error.message, error.hint.as_deref());
        let mut response = html(&self.headers, page);
        *response.status_mut() = problem.status;
        response
    }
}

/// `q` of the query.
fn asked(query: Option<&str>) -> String {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.into_iter().find(|(key, _)| key == "q").map_or_else(String::new, |(_, q)| q.into_owned())
}

/// The live stream of a list: the same filter.
fn live(page: &str, q: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("page", page);
    if !q.is_empty() {
        query.append_pair("q", q);
    }
    query.finish()
}

pub async fn overview(visit: Visit) -> Response {
    let view = gather::overview::view(&visit.app).await;
    visit.page(view, tutti_web::overview::page)
}

pub async fn queue(visit: Visit, RawQuery(query): RawQuery) -> Response {
    let q = asked(query.as_deref());
    let view = gather::jobs::queue(&visit.app, &q).await;
    visit.page(view, |reader, view| tutti_web::jobs::queue_page(reader, view, live("queue", &q)))
}

pub async fn jobs(visit: Visit, RawQuery(query): RawQuery) -> Response {
    let q = asked(query.as_deref());
    let view = gather::jobs::jobs(&visit.app, &q).await;
    visit.page(view, |reader, view| tutti_web::jobs::jobs_page(reader, view, live("jobs", &q)))
}

pub async fn job(visit: Visit, Path(id): Path<String>) -> Response {
    let parsed: Result<TaskId, Problem> =
        id.parse().map_err(|bad: tutti_model::BadId| Problem::not_found(bad.to_string()));
    let view = match parsed {
        Ok(id) => gather::job::view(&visit.app, id, Some(&visit.caller)).await,
        Err(problem) => Err(problem),
    };
    visit.page(view, tutti_web::job::page)
}

pub async fn endpoints(visit: Visit, RawQuery(query): RawQuery) -> Response {
    let q = asked(query.as_deref());
    let view = gather::endpoints::list(&visit.app, &q).await;
    visit.page(view, |reader, view| {
        tutti_web::endpoints::list_page(reader, view, live("endpoints", &q))
    })
}

pub async fn endpoint(visit: Visit, Path(name): Path<String>) -> Response {
    let view = gather::endpoints::one(&visit.app, &name, Some(&visit.caller)).await;
    visit.page(view, tutti_web::endpoint::page)
}

pub async fn nodes(visit: Visit) -> Response {
    let view = gather::nodes::list(&visit.app).await;
    visit.page(view, tutti_web::nodes::list_page)
}

pub async fn node(visit: Visit, Path(name): Path<String>) -> Response {
    let view = gather::nodes::one(&visit.app, &name).await;
    visit.page(view, tutti_web::nodes::page)
}

pub async fn teams(visit: Visit) -> Response {
    let view = gather::teams(&visit.app).await;
    visit.page(view, tutti_web::teams::page)
}

pub async fn cost(visit: Visit, RawQuery(query): RawQuery) -> Response {
    let by = gather::cost::by(&asked(query.as_deref()));
    let view = gather::cost::view(&visit.app, by).await;
    visit.page(view, tutti_web::cost::page)
}

pub async fn alerts(visit: Visit) -> Response {
    let view = gather::alerts::view(&visit.app).await;
    visit.page(view, tutti_web::alerts::page)
}

pub async fn timeline(visit: Visit) -> Response {
    let view = gather::timeline::view(&visit.app).await;
    visit.page(view, tutti_web::timeline::page)
}
