//! The running policy, and what it gives to whom.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use tutti_engine::{Command, Rejected, policy_notes};
use tutti_model::{Policy, ReservationRow, Role, TeamShare};
use tutti_wire::api::{ApiError, Changed, PolicyPreview, PolicyReplaced, ProblemRow};
use tutti_wire::policyfile::{self, BadPolicyFile};

use super::App;
use super::auth::Caller;
use super::bodies::aside;
use super::body::{BATCH_MAX, sent};
use super::jobs::change;
use super::openapi::Problems;
use super::problem::{Problem, bad_policy};
use crate::clock::now;
use crate::core::World;

/// The policy that runs now. Its `ETag` changes whenever the policy does. Of the address of the webhook
/// only admins see what follows the host.
#[utoipa::path(get, path = "/api/v1/policy", tag = "policy",
    responses((status = 200, body = Policy,
        headers(("ETag" = String, description = "Names this very policy, for `If-Match`"))),
    Problems))]
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<impl IntoResponse, Problem> {
    let policy = running(&app).await?;
    // Of the policy as it is: two that differ in what is hidden are not the same.
    let tag = tag(&policy)?;
    Ok(([(ETAG, tag)], Json(Policy::clone(&as_seen_by(&policy, &caller)))))
}

/// The policy without what is for admins alone.
pub(super) fn as_seen_by(policy: &Arc<Policy>, caller: &Caller) -> Arc<Policy> {
    if caller.actor.role >= Role::Admin {
        return Arc::clone(policy);
    }
    let mut seen = Policy::clone(policy);
    seen.watch.notify = policy.watch.notify.without_secrets();
    Arc::new(seen)
}

/// Replaces the running policy as a whole. Takes JSON, or a policy file as `application/toml`. What
/// is wrong is answered all at once, and the running policy stays as it is. With `If-Match` it is
/// replaced only if it still is the one that was read.
#[utoipa::path(put, path = "/api/v1/policy", tag = "policy", request_body = Policy,
    params(("If-Match" = Option<String>, Header,
        description = "The `ETag` of the policy that this one was made from; `*` is any")),
    responses((status = 200, body = PolicyReplaced),
        (status = 412, body = ApiError,
            description = "Somebody else has changed the policy since it was read"),
    Problems))]
pub async fn replace(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Sent(policy): Sent,
) -> Result<Json<PolicyReplaced>, Problem> {
    let (actor, policy) = (caller.actor, Box::new(policy));
    let new = policy.clone();
    let command = match wanted(&headers)? {
        Wanted::Any => Command::SetPolicy { actor, policy },
        Wanted::OneOf(tags) => {
            let old = running(&app).await?;
            if !tags.contains(&tag(&old)?) {
                return Err(Rejected::PolicyMoved.into());
            }
            // The engine compares once more, so that nobody comes between.
            Command::ReplacePolicy { actor, old, policy }
        }
    };
    // Most notes are about what differs from the policy that was there before.
    let notes = |world: &World| policy_notes(world.engine.state(), &new, now());
    let notes = app.core.read(notes).await?;
    let Json(Changed { changed }) = change(&app, command).await?;
    Ok(Json(PolicyReplaced { changed, notes }))
}

/// What a policy would change, and what it would do to jobs at once: who would start, who would be
/// stopped for whom, who could never start, which reservations meet running jobs. Nothing is changed. A
/// policy that would be refused is refused.
#[utoipa::path(post, path = "/api/v1/policy:preview", tag = "policy", request_body = Policy,
    responses((status = 200, body = PolicyPreview), Problems))]
pub async fn preview(
    State(app): State<Arc<App>>,
    Sent(policy): Sent,
) -> Result<Json<PolicyPreview>, Problem> {
    // The lock is held for a copy, not for the passes.
    let copy = |world: &World| (world.engine.state().clone(), world.engine.settings().clone());
    let (state, settings) = app.core.read(copy).await?;
    let look = move || -> Result<_, Problem> {
        let changes = policyfile::changes(&state.policy, &policy).map_err(|error| {
            Problem::internal(format!("the policy can't be written as a file: {error}"))
        })?;
        let effects = tutti_engine::preview(&state, &settings, &policy, now())?;
        Ok(Json(PolicyPreview { changes, effects }))
    };
    aside(look).await?
}

/// Reservations and maintenance: what goes on, what comes, what is over.
#[utoipa::path(get, path = "/api/v1/reservations", tag = "policy",
    responses((status = 200, body = Vec<ReservationRow>), Problems))]
pub async fn reservations(
    State(app): State<Arc<App>>,
) -> Result<Json<Vec<ReservationRow>>, Problem> {
    let rows = app.core.read(|world| tutti_sched::reservations(world.engine.state(), now()));
    Ok(Json(rows.await?))
}

async fn running(app: &App) -> Result<Arc<Policy>, Problem> {
    Ok(app.core.read(|world| Arc::clone(&world.engine.state().policy)).await?)
}

/// As `ETag` and `If-Match` have it: in quotes.
fn tag(policy: &Policy) -> Result<String, Problem> {
    let tag = policyfile::tag(policy)
        .map_err(|error| Problem::internal(format!("the policy has no tag: {error}")))?;
    Ok(format!("\"{tag}\""))
}

/// Which policies may be replaced.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Any,
    OneOf(Vec<String>),
}

/// Several headers, or several tags in one, are a choice.
fn wanted(headers: &HeaderMap) -> Result<Wanted, Problem> {
    let mut tags = Vec::new();
    for value in headers.get_all(IF_MATCH) {
        let text = value.to_str().map_err(|_| Problem::invalid("If-Match: not plain text"))?;
        tags.extend(text.split(',').map(|tag| tag.trim().to_owned()));
    }
    let is_no_tag = |tag: &&String| !(tag.len() > 1 && tag.starts_with('"') && tag.ends_with('"'));
    match tags.as_slice() {
        [] => Ok(Wanted::Any),
        [any] if any == "*" => Ok(Wanted::Any),
        _ => match tags.iter().find(is_no_tag) {
            None => Ok(Wanted::OneOf(tags)),
            Some(tag) => Err(Problem::invalid(format!("If-Match: {tag} is no ETag"))
                .hint("send what the header ETag of GET /api/v1/policy says, quotes included")),
        },
    }
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

impl FromRequest<Arc<App>> for Sent {
    type Rejection = Problem;
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        let is_toml = kind.is_some_and(is_toml);
        let parse = move |body: &[u8]| {
            let policy = match is_toml {
                true => policyfile::parse(None, body),
                false => policyfile::parse_json(body),
            };
            policy.map_err(refused)
        };
        sent(app, request, BATCH_MAX, parse).await.map(|(policy, _)| Sent(policy))
    }
}

fn is_toml(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    ["application/toml", "text/toml", "text/x-toml"].iter().any(|t| kind.eq_ignore_ascii_case(t))
}

fn refused(bad: BadPolicyFile) -> Problem {
    let hint = bad.hint();
    let problem = bad_policy(bad.0.into_iter().map(ProblemRow::from).collect());
    hint.map_or(problem.clone(), |h| problem.hint(h))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use tutti_engine::Actor;

    #[test]
    fn only_admins_see_the_whole_address_of_the_webhook() {
        let mut policy = Policy::default();
        policy.watch.notify.webhook = Some("https://hooks.example.org/T00/secret".to_owned());
        let policy = Arc::new(policy);
        let seen_by = |role| {
            let caller = Caller { actor: Actor { user: "ada".to_owned(), role } };
            as_seen_by(&policy, &caller)
        };
        assert_eq!(seen_by(Role::Admin), policy);
        for role in [Role::Viewer, Role::User] {
            let seen = seen_by(role);
            let webhook = seen.watch.notify.webhook.as_deref();
            assert_eq!(webhook, Some("https://hooks.example.org/…"));
            assert_ne!(tag(&seen), tag(&policy));
        }
    }

    fn read(values: &[&'static str]) -> Result<Wanted, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, HeaderValue::from_static(value));
        }
        wanted(&headers)
    }

    #[test]
    fn tags_are_a_choice() {
        assert_eq!(read(&[]), Ok(Wanted::Any));
        assert_eq!(read(&["*"]), Ok(Wanted::Any));
        let both = Wanted::OneOf(vec!["\"a\"".to_owned(), "\"b\"".to_owned()]);
        assert_eq!(read(&["\"a\", \"b\""]).as_ref(), Ok(&both));
        assert_eq!(read(&["\"a\"", "\"b\""]), Ok(both));
        // A weak tag does not name one policy.
        for bad in ["a", "\"", "W/\"a\"", "\"a\", *", ""] {
            assert_eq!(read(&[bad]).unwrap_err().error.code, "invalid", "{bad}");
        }
    }
}
