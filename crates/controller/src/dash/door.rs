//! Who sees pages, and what browsers may do with them.

use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::assets::visible;
use super::session::Session;
use crate::api::auth::{Ends, Holder, audit, by_session, line, stands};
use crate::api::{App, Problem};
use crate::clock::now;

/// Nothing from elsewhere, nothing inline, nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Around all pages: the name that we were called by, and the rules for the browser.
pub async fn outer(
    State(app): State<Arc<App>>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let line = line(&request, ends);
    let response = match app.hosts.check(request.headers(), ends.local.ip()) {
        Err(problem) => {
            let response = page_of(problem);
            audit(&app, &method, line, &response);
            response
        }
        Ok(()) => next.run(request).await,
    };
    under_rules(response)
}

/// A person's browser looks for a page that there is none of. Nobody has to be known to be told so.
pub fn is_astray(request: &Request) -> bool {
    let accepts = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    looks
        && request.extensions().get::<MatchedPath>().is_none()
        && !request.uri().path().starts_with("/api/")
        && accepts.is_some_and(|accepts| accepts.contains("text/html"))
}

pub fn no_page(app: &App, ends: Ends, request: &Request) -> Response {
    let nothing = || {
        let path = request.uri().path();
        Problem::not_found(format!("there is no page at {path}"))
    };
    let host = app.hosts.check(request.headers(), ends.local.ip());
    let response = page_of(host.err().unwrap_or_else(nothing));
    audit(app, request.method(), line(request, ends), &response);
    under_rules(response)
}

fn under_rules(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let same = HeaderValue::from_static("same-origin");
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, same.clone());
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), same.clone());
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), same);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// For those who are logged in; everybody else is shown the way.
pub async fn session(
    State(app): State<Arc<App>>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    mut request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let mut line = line(&request, ends);
    let Some(session) = app.dash.sessions.find(request.headers(), now()) else {
        return to_login(&request);
    };
    let caller = match by_session(&app, &session, now()) {
        Ok(known) => {
            line.user = known.user();
            line.token = Some(known.token.clone());
            if let Err(problem) = stands(request.extensions(), &known) {
                return page_of(problem);
            }
            match known.holder {
                Holder::Caller(caller) => caller,
                Holder::Joiner(_) | Holder::Router | Holder::Asker { .. } => {
                    return to_login(&request);
                }
            }
        }
        Err(problem) if problem.status == StatusCode::UNAUTHORIZED => {
            app.dash.sessions.end(&session.id);
            return to_login(&request);
        }
        Err(problem) => return page_of(problem),
    };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert::<Session>(session);
    let response = next.run(request).await;
    if method != Method::GET {
        audit(&app, &method, line, &response);
    }
    response
}

fn to_login(request: &Request) -> Response {
    if request.uri().path() == "/live" {
        return (StatusCode::UNAUTHORIZED, "log in first\n").into_response();
    }
    let next = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if next == "/" || request.method() != Method::GET {
        return Redirect::to("/login").into_response();
    }
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", next).finish();
    Redirect::to(&format!("/login?{query}")).into_response()
}

/// A problem as a page, for somebody who is not known.
pub fn page_of(problem: Problem) -> Response {
    let code = crate::api::problem::ProblemCode(problem.error.code.clone());
    let title = problem.status.canonical_reason().unwrap_or("Problem");
    let error = &problem.error;
    let page = tutti_web::shell::problem(None, title, &error.message, error.hint.as_deref());
    let mut response = (problem.status, Html(visible(page.into_string()))).into_response();
    response.extensions_mut().insert(code);
    response
}
