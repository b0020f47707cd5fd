//! In and out.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{ORIGIN, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};
use tutti_wire::token::TokenText;

use super::assets::visible;
use super::door::page_of;
use super::session::Session;
use crate::api::auth::{Ends, Holder, Known, asks_elsewhere, audit, by_token, line, stands};
use crate::api::body::read_small;
use crate::api::{App, Problem};
use crate::clock::now;

const FORM_MAX: usize = 4096;
/// A browser sends a form at once.
const FORM_TIMEOUT: Duration = Duration::from_secs(5);

/// Fields of a form, or of a query.
struct Fields(Vec<(String, String)>);

impl Fields {
    fn parse(text: &[u8]) -> Fields {
        Fields(form_urlencoded::parse(text).into_owned().collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Where to go afterwards: a path of ours, never another site.
    fn next(&self) -> &str {
        let next = self.get("next");
        // Browsers drop tabs and line breaks from addresses and take `\` for `/`.
        let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let ours = plain && next.starts_with('/') && !next.starts_with("//");
        if ours { next } else { "/" }
    }
}

pub async fn page(request: Request) -> Html<String> {
    let query = Fields::parse(request.uri().query().unwrap_or_default().as_bytes());
    Html(tutti_web::login::page(query.next(), None).into_string())
}

pub async fn login(
    State(app): State<Arc<App>>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    request: Request,
) -> Response {
    let mut line = line(&request, ends);
    let (parts, body) = request.into_parts();
    let fields = match form(&app, body).await {
        Ok(fields) => fields,
        Err(problem) => return unread(&app, line, problem),
    };
    let known = match from_here(&parts.headers) {
        Ok(()) => check(&app, fields.get("token")),
        Err(problem) => Err(problem),
    };
    let known = known.and_then(|known| stands(&parts.extensions, &known).map(|()| known));
    let response = match known {
        Err(problem) => refused(&fields, problem),
        Ok(known) => {
            line.user = known.user();
            line.token = Some(known.token.clone());
            begin(&app, known, &fields, ends.tls)
        }
    };
    audit(&app, &Method::POST, line, &response);
    response
}

/// A form that did not come.
fn unread(app: &App, line: crate::audit::Line, problem: Problem) -> Response {
    let response = refused(&Fields(Vec::new()), problem);
    audit(app, &Method::POST, line, &response);
    response
}

fn begin(app: &App, known: Known, fields: &Fields, tls: bool) -> Response {
    let sessions = &app.dash.sessions;
    match sessions.begin(known.token, known.hash, now()) {
        Ok(secret) => {
            let cookie = sessions.set_cookie(Some(&secret), tls);
            ([(SET_COOKIE, cookie)], Redirect::to(fields.next())).into_response()
        }
        Err(error) => page_of(Problem::unavailable(crate::error::chain(&error))),
    }
}

/// A login form of another site would log its own user in here.
fn from_here(headers: &HeaderMap) -> Result<(), Problem> {
    // Whose origin it is the outer door has looked at.
    match headers.contains_key(ORIGIN) {
        true => Ok(()),
        false => Err(Problem::denied("a form needs an Origin header: use a browser")),
    }
}

fn check(app: &App, token: &str) -> Result<Known, Problem> {
    let text: TokenText = token
        .parse()
        .map_err(|bad: tutti_wire::token::BadToken| Problem::unauthorized(bad.to_string()))?;
    let known = by_token(app, &text, now())?;
    match known.holder {
        Holder::Caller(_) => Ok(known),
        Holder::Joiner(_) => {
            Err(Problem::unauthorized("a join token lets agents join and nothing else"))
        }
        Holder::Router => {
            Err(Problem::unauthorized("a router's token is for the router and nothing else"))
        }
        Holder::Asker { .. } => Err(asks_elsewhere()),
    }
}

fn refused(fields: &Fields, problem: Problem) -> Response {
    let page = tutti_web::login::page(fields.next(), Some(&problem.error.message));
    let code = crate::api::problem::ProblemCode(problem.error.code);
    let mut response = (problem.status, Html(visible(page.into_string()))).into_response();
    response.extensions_mut().insert(code);
    response
}

async fn form(app: &App, body: Body) -> Result<Fields, Problem> {
    read_small(app, body, FORM_MAX, FORM_TIMEOUT).await.map(|bytes| Fields::parse(&bytes))
}

/// Ends the session; its token stays good.
pub async fn logout(
    State(app): State<Arc<App>>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    Extension(session): Extension<Session>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let fields = match form(&app, body).await {
        Ok(fields) => fields,
        Err(problem) => return page_of(problem),
    };
    if let Err(problem) = from_here(&parts.headers).and_then(|()| session.check(fields.get("csrf")))
    {
        return page_of(problem);
    }
    app.dash.sessions.end(&session.id);
    let cookie = app.dash.sessions.set_cookie(None, ends.tls);
    (StatusCode::SEE_OTHER, [(SET_COOKIE, cookie), (http::header::LOCATION, "/login".to_owned())])
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        let next = |text: &str| Fields::parse(text.as_bytes()).next().to_owned();
        assert_eq!(next("next=%2Fjobs%2F7%3Fa%3D1"), "/jobs/7?a=1");
        for bad in ["next=//evil.example", "next=https://evil.example", "", "next="] {
            assert_eq!(next(bad), "/", "{bad}");
        }
        for dropped in ["%09", "%0A", "%0D", "%00", "%5C", "%20", "%C2%85"] {
            assert_eq!(next(&format!("next=/{dropped}/evil.example")), "/", "{dropped}");
        }
    }
}
