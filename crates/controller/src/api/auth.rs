//! The door: host, token or session, role; and the audit line of every change and of everyone turned
//! away. A session of a browser stands for the token that it was opened with: it ends with that.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use http::{Extensions, HeaderMap, Method, StatusCode};
use tutti_engine::Actor;
use tutti_model::{Grant, Role, Time};
use tutti_wire::guests::PoolFull;
use tutti_wire::token::TokenText;

use super::App;
use super::problem::{Problem, ProblemCode, exit};
use super::routes::{Access, access};
use crate::audit::Line;
use crate::clock::now;
use crate::dash::{self, Session};
use crate::listener::Standing;

/// What routers call once a second.
const REPORTS: &str = "POST /api/v1/routers";

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub tls: bool,
    /// It came over the socket of the data dir, from this user of the machine. `peer` is made up then.
    pub uid: Option<u32>,
}

impl Ends {
    /// Where the other end is, as the audit log says it.
    fn origin(self) -> String {
        self.uid.map_or_else(|| self.peer.to_string(), |_| "local".to_owned())
    }
}

/// Who calls, known by an access token.
#[derive(Clone, Debug)]
pub struct Caller {
    pub actor: Actor,
}

impl Caller {
    /// What a job reads, writes and knows is for its owner and for admins.
    pub fn may_look_inside(&self, owner: &str) -> bool {
        self.actor.role >= Role::Admin || self.actor.user == owner
    }
}

/// Who is let in, as far as shares go: a user, or the token of what is none.
#[derive(Clone, Debug)]
pub struct Whose(pub String);

/// An agent that wants to join.
#[derive(Clone, Debug)]
pub struct Joiner {
    pub token: String,
}

/// Set by handlers: what the audit line should name, such as the new job's id.
#[derive(Clone)]
pub struct Target(pub String);

impl Target {
    pub fn of(self, answer: impl IntoResponse) -> Response {
        let mut response = answer.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub(crate) enum Holder {
    Caller(Caller),
    Joiner(Joiner),
    /// Sends requests to replicas.
    Router,
    /// Asks endpoints, and nothing here.
    Asker {
        user: String,
    },
}

/// A token that is good, and whose.
pub(crate) struct Known {
    pub token: String,
    pub hash: String,
    pub holder: Holder,
}

impl Known {
    pub(crate) fn user(&self) -> Option<String> {
        match &self.holder {
            Holder::Caller(c) => Some(c.actor.user.clone()),
            Holder::Asker { user } => Some(user.clone()),
            Holder::Joiner(_) | Holder::Router => None,
        }
    }
}

pub async fn door(
    State(app): State<Arc<App>>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    mut request: Request,
    next: Next,
) -> Response {
    if dash::is_astray(&request) {
        return dash::no_page(&app, ends, &request);
    }
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("", MatchedPath::as_str);
    let mut line = line(&request, ends);
    let entered = enter(&app, ends, &request, &method, route, &mut line);
    let response = match entered {
        Err(problem) => problem.into_response(),
        Ok(holder) => {
            let who = line.user.as_ref().or(line.token.as_ref()).cloned().unwrap_or_default();
            request.extensions_mut().insert(Whose(who));
            match holder {
                Holder::Caller(caller) => drop(request.extensions_mut().insert(caller)),
                Holder::Joiner(joiner) => drop(request.extensions_mut().insert(joiner)),
                // The table has opened nothing to them that needs to know more.
                Holder::Router | Holder::Asker { .. } => {}
            }
            next.run(request).await
        }
    };
    audit(&app, &method, line, &response);
    response
}

/// What the audit log says of a request, before it is known whose it is.
pub(crate) fn line(request: &Request, ends: Ends) -> Line {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    Line {
        time: now(),
        user: None,
        token: None,
        peer: Some(ends.origin()),
        uid: ends.uid,
        action: format!("{} {route}", request.method()),
        target: request.uri().path().to_owned(),
        result: "ok".to_owned(),
    }
}

fn enter(
    app: &App,
    ends: Ends,
    request: &Request,
    method: &Method,
    route: &str,
    line: &mut Line,
) -> Result<Holder, Problem> {
    app.hosts.check(request.headers(), ends.local.ip())?;
    let known = identify(app, method, request.headers(), now())?;
    line.user = known.user();
    line.token = Some(known.token.clone());
    stands(request.extensions(), &known)?;
    let Some(access) = access(method, route) else {
        return Err(closed(method, request.uri().path(), route));
    };
    admit(access, known.holder)
}

/// The connection is no stranger's any more.
pub(crate) fn stands(request: &Extensions, known: &Known) -> Result<(), Problem> {
    let too_many = |full: PoolFull| {
        Problem::unavailable(full.to_string()).hint("close some of your connections, or try again")
    };
    match request.get::<Arc<Standing>>() {
        Some(standing) => standing.show(&known.token).map_err(too_many),
        None => Ok(()),
    }
}

/// What the table does not have is closed, whether or not somebody would answer.
fn closed(method: &Method, path: &str, route: &str) -> Problem {
    if route.is_empty() {
        return Problem::not_found(format!("there is nothing at {path}"))
            .hint("/api/v1/openapi.json lists every path");
    }
    let message = format!("{path} can't be called with {method}");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "invalid", exit::INVALID, message)
        .hint("/api/v1/openapi.json lists every path and method")
}

fn admit(access: Access, holder: Holder) -> Result<Holder, Problem> {
    match (access, holder) {
        (_, Holder::Asker { .. }) => Err(asks_elsewhere()),
        (Access::Router, Holder::Caller(caller)) if caller.actor.role < Role::Admin => {
            Err(Problem::denied("this is for routers")
                .hint("make a token for one with `tutti token create --router`"))
        }
        (Access::Router, Holder::Joiner(_)) => {
            Err(Problem::denied("a join token lets agents join and nothing else"))
        }
        (Access::Role(_) | Access::Join, Holder::Router) => {
            Err(Problem::denied("a router's token is for the paths of routers and nothing else"))
        }
        (Access::Router, holder @ (Holder::Router | Holder::Caller(_))) => Ok(holder),
        (Access::Role(needs), Holder::Caller(caller)) if caller.actor.role < needs => {
            let Actor { user, role } = &caller.actor;
            Err(Problem::denied(format!("this needs the role {needs}; {user} has {role}"))
                .hint("ask an admin for a token with that role"))
        }
        (Access::Join, Holder::Caller(_)) => Err(Problem::denied("joining needs a join token")
            .hint("make one with `tutti token create --join`")),
        (Access::Role(_), Holder::Joiner(_)) => {
            Err(Problem::denied("a join token lets agents join and nothing else"))
        }
        (Access::Role(_), holder @ Holder::Caller(_))
        | (Access::Join, holder @ Holder::Joiner(_)) => Ok(holder),
    }
}

/// What is said to somebody with a key of endpoints.
pub(crate) fn asks_elsewhere() -> Problem {
    Problem::denied("this key asks endpoints, through a router; it opens nothing here").hint(
        "send requests to the router's address; for the API, ask an admin for an access token",
    )
}

/// Who calls: by the token in the header or, from a page of ours, by the session in the cookie.
fn identify(app: &App, method: &Method, headers: &HeaderMap, now: Time) -> Result<Known, Problem> {
    if headers.contains_key(AUTHORIZATION) {
        return by_header(app, headers, now);
    }
    match app.dash.sessions.find(headers, now) {
        Some(session) => {
            session.allows(method, headers)?;
            by_session(app, &session, now)
        }
        None => by_header(app, headers, now),
    }
}

fn by_header(app: &App, headers: &HeaderMap, now: Time) -> Result<Known, Problem> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        _ => {
            return Err(Problem::unauthorized("no token")
                .hint("send the header `Authorization: Bearer <token>`"));
        }
    };
    let text = value
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .and_then(|(_, token)| token.parse::<TokenText>().ok());
    let Some(text) = text else {
        return Err(Problem::unauthorized("this is not a token")
            .hint("the header is `Authorization: Bearer tutti_u_...`"));
    };
    by_token(app, &text, now)
}

/// Who holds this token.
pub(crate) fn by_token(app: &App, text: &TokenText, now: Time) -> Result<Known, Problem> {
    known(app, &text.id, |hash| text.matches(hash), now)
}

/// Whose session this is, as long as its token is good.
pub(crate) fn by_session(app: &App, session: &Session, now: Time) -> Result<Known, Problem> {
    known(app, &session.token, |hash| session.hash == hash, now)
}

fn known(
    app: &App,
    id: &str,
    matches: impl FnOnce(&str) -> bool,
    now: Time,
) -> Result<Known, Problem> {
    // One answer for a token that never was, was revoked or has a wrong secret.
    let wrong = || {
        Problem::unauthorized("the token is unknown, revoked or of another cluster")
            .hint("ask an admin for a new one (`tutti token create`)")
    };
    let stored = app.core.peek(|w| w.engine.state().tokens.get(id).cloned())?;
    let stored = stored.filter(|s| matches(&s.hash)).ok_or_else(wrong)?;
    if stored.is_expired(now) {
        return Err(Problem::unauthorized("the token has expired")
            .hint("ask an admin for a new one (`tutti token create`)"));
    }
    let holder = match stored.grant {
        Grant::Access { user, role } => Holder::Caller(Caller { actor: Actor { user, role } }),
        Grant::Join { .. } => Holder::Joiner(Joiner { token: stored.id.clone() }),
        Grant::Serve { user, .. } => Holder::Asker { user },
        Grant::Router => Holder::Router,
    };
    Ok(Known { token: stored.id, hash: stored.hash, holder })
}

/// Reads that succeed are not worth a line; everything else is.
pub(crate) fn audit(app: &App, method: &Method, mut line: Line, response: &Response) {
    let denied = matches!(response.status().as_u16(), 401 | 403);
    if (*method == Method::GET || *method == Method::HEAD) && !denied {
        return;
    }
    // Routers speak every second, and change nothing.
    if line.action == REPORTS && response.status().is_success() {
        return;
    }
    let extensions = response.extensions();
    if let Some(Target(target)) = extensions.get() {
        line.target.clone_from(target);
    }
    if let Some(ProblemCode(code)) = extensions.get() {
        line.result.clone_from(code);
    } else if !response.status().is_success() {
        line.result = response.status().as_str().to_owned();
    }
    // What strangers send is turned away in other words too, such as a form that is too large.
    let turned_away = denied || line.token.is_none();
    if turned_away { app.audit.refused(line) } else { app.audit.note(line) }
}
