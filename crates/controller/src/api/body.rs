//! Reading what clients send: bounded in size and time, and strict about names.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::App;
use super::auth::Whose;
use super::bodies::{SMALL, Share, Turn};
use super::problem::{Problem, exit};

pub const BODY_MAX: usize = 1 << 20;
pub const BATCH_MAX: usize = 32 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// In so long a time at least [`SMALL`] bytes more have to come of a body that is larger than that.
const STALL_MAX: Duration = Duration::from_secs(5);

/// A JSON body of at most [`BODY_MAX`] bytes.
pub struct Strict<T>(pub T);

/// A JSON body of at most [`BATCH_MAX`] bytes. What it means may take many times as much memory: the
/// turn is kept until that is gone.
pub struct StrictBatch<T>(pub T, pub Turn);

/// The same from another part of tutti, which may be newer and say more: unknown keys are ignored.
pub struct Lenient<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for Lenient<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        sent(app, request, BATCH_MAX, understand).await.map(|(value, _)| Lenient(value))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for Strict<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        sent(app, request, BODY_MAX, parse).await.map(|(value, _)| Strict(value))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for StrictBatch<T> {
    type Rejection = Problem;
    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (value, turn) = sent(app, request, BATCH_MAX, parse).await?;
        Ok(StrictBatch(value, turn))
    }
}

/// What the body of a request means, as `parse` understands it.
pub(super) async fn sent<T: Send + 'static>(
    app: &App,
    request: Request,
    max: usize,
    parse: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, Turn), Problem> {
    let whose = request.extensions().get::<Whose>();
    let mut share = app.bodies.share(whose.map_or("", |Whose(who)| who));
    let bytes = collect(request.into_body(), max, BODY_TIMEOUT, &mut share).await?;
    app.bodies.parsed((bytes, share), parse).await
}

/// A body that is small at most.
pub(crate) async fn read_small(
    app: &App,
    body: Body,
    max: usize,
    patience: Duration,
) -> Result<Bytes, Problem> {
    collect(body, max.min(SMALL), patience, &mut app.bodies.share("")).await
}

/// All of a body. Memory is taken as it comes and not as it is promised, from the share of its caller.
async fn collect(
    body: Body,
    max: usize,
    patience: Duration,
    share: &mut Share,
) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > max as u64 {
        return Err(too_large(max));
    }
    let until = Instant::now() + patience;
    let (mut stalls_at, mut mark) = (until, 0);
    let (mut all, mut pieces) = (Vec::new(), body.into_data_stream());
    loop {
        let next = timeout_at(stalls_at.min(until), pieces.next()).await;
        let Some(piece) = next.map_err(|_| too_slow(patience, stalls_at < until))? else {
            return Ok(all.into());
        };
        let piece = piece.map_err(|_| too_large(max))?;
        let size = all.len() + piece.len();
        if size > max {
            return Err(too_large(max));
        }
        if size > all.capacity() {
            let room = size.max(2 * all.capacity()).min(max);
            if let Err(problem) = share.grow(room) {
                drop(all);
                share.give_back();
                let stops_at = until.min(Instant::now() + STALL_MAX);
                return Err(hear_out(pieces, stops_at, problem).await);
            }
            all.reserve_exact(room - all.len());
        }
        all.extend_from_slice(&piece);
        // Who keeps others from room has to make use of it.
        if share.is_large() && (mark == 0 || size >= mark + SMALL) {
            (stalls_at, mark) = (Instant::now() + STALL_MAX, size);
        }
    }
}

/// Most clients read no answer before they have sent everything, and see only that they are hung up on.
async fn hear_out(mut pieces: BodyDataStream, until: Instant, problem: Problem) -> Problem {
    let rest = async { while let Some(Ok(_)) = pieces.next().await {} };
    // Who takes longer than that is hung up on.
    let _ = timeout_at(until, rest).await;
    problem
}

fn too_large(max: usize) -> Problem {
    let message = format!("the body is broken off or over {max} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", exit::INVALID, message)
        .hint("split a large batch into several")
}

fn too_slow(patience: Duration, stalled: bool) -> Problem {
    let message = match stalled {
        true => format!("less than {SMALL} bytes of the body came in {} s", STALL_MAX.as_secs()),
        false => format!("the body did not come within {} s", patience.as_secs()),
    };
    Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", exit::FAILED, message)
}

/// Unknown keys are refused: a mistyped one would otherwise be silently without effect.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut unknown = None;
    let value = read_json(bytes, |path| {
        // Its steps into what may be left out are of no interest to people.
        unknown.get_or_insert_with(|| path.to_string().replace(".?", ""));
    })?;
    match unknown {
        None => Ok(value),
        Some(key) => Err(Problem::invalid(format!("{key}: unknown key"))
            .hint("check its spelling; /api/v1/openapi.json has every key")),
    }
}

/// What is known of it; what is missing or of the wrong kind is refused all the same.
fn understand<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    read_json(bytes, |_| {})
}

fn read_json<T: DeserializeOwned>(
    bytes: &[u8],
    mut ignored: impl FnMut(serde_ignored::Path<'_>),
) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(
        serde_ignored::Deserializer::new(&mut json, &mut ignored),
        &mut track,
    ))
    .and_then(|value| json.end().map(|()| value))
    .map_err(|error| {
        let path = track.path().to_string();
        // Of text that breaks off nobody knows whose value is missing.
        let known = path.trim_end_matches('?').trim_end_matches('.');
        let at = if known.is_empty() { String::new() } else { format!("{known}: ") };
        Problem::invalid(format!("{at}{error}"))
    })
}

/// The query of a URL, with errors in our shape.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        parse_query(parts.uri.query().unwrap_or_default()).map(Params)
    }
}

fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    let mut unknown = None;
    let ignored = |path: serde_ignored::Path<'_>| {
        unknown.get_or_insert_with(|| path.to_string());
    };
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
    let value = serde_ignored::deserialize(pairs, ignored)
        .map_err(|error| Problem::invalid(format!("in the query: {error}")))?;
    match unknown {
        None => Ok(value),
        Some(key) => Err(Problem::invalid(format!("{key}: unknown in the query of this path"))
            .hint("/api/v1/openapi.json has every parameter")),
    }
}

/// The one variable part of a path, parsed.
pub struct Named<T>(pub T);

impl<T, S> FromRequestParts<S> for Named<T>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
    S: Send + Sync,
{
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        text.parse().map(Named).map_err(|error: T::Err| Problem::invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Bodies;
    use tutti_wire::api::Submit;

    fn message(json: &str) -> String {
        parse::<Submit>(json.as_bytes()).unwrap_err().error.message
    }

    #[test]
    fn errors_name_the_key() {
        assert_eq!(message(r#"{"spec":{"run":"x","nodse":2}}"#), "spec.nodse: unknown key");
        assert_eq!(message(r#"{"spec":{"run":"x"},"usr":1}"#), "usr: unknown key");
        let deep = r#"{"spec":{"run":"x","service":{"rollout":{"canray":1}}}}"#;
        assert_eq!(message(deep), "spec.service.rollout.canray: unknown key");
        assert!(message(r#"{"spec":{"run":"x","nodes":"a"}}"#).starts_with("spec.nodes: "));
        assert!(message(r#"{"spec":{}}"#).contains("run"));
        assert!(message("{").starts_with("EOF"));
        assert!(message(r#"{"spec":{"#).starts_with("spec: EOF"));
        assert!(message(r#"{"spec":{"run":"x"}} x"#).contains("trailing"));
        assert!(parse::<Submit>(br#"{"spec":{"run":["a","b"],"gpus_per_node":"h100:8"}}"#).is_ok());
    }

    #[test]
    fn what_a_newer_router_says_more_is_ignored() {
        use tutti_model::RouterReport;
        let said = |endpoints: &str| {
            let json = format!(
                r#"{{"router":"a","address":"x","version":3,"zone":"z","endpoints":{endpoints}}}"#
            );
            understand::<RouterReport>(json.as_bytes())
        };
        let newer = r#"{"chat":{"in_flight":2,"mood":1,"replicas":{"7":{"ready":true,"x":[]}}}}"#;
        let report = said(newer).unwrap();
        assert_eq!((report.version, report.endpoints["chat"].in_flight), (3, 2));
        for (bad, part) in [
            (r#"{"chat":{"in_flight":"two"}}"#, "endpoints.chat.in_flight: "),
            (r#"{"chat":{"replicas":{"x":{}}}}"#, "endpoints.chat.replicas"),
            ("[]", "endpoints: "),
        ] {
            let message = said(bad).unwrap_err().error.message;
            assert!(message.starts_with(part), "{bad}: {message}");
        }
        let nameless = understand::<RouterReport>(br#"{"address":"x"}"#).unwrap_err();
        assert!(nameless.error.message.contains("router"), "{}", nameless.error.message);
    }

    #[test]
    fn queries_are_strict_too() {
        use tutti_wire::api::JobQuery;
        let query: JobQuery = parse_query("state=active&tasks=true&limit=5").unwrap();
        assert_eq!((query.tasks, query.limit), (true, Some(5)));
        for bad in ["stat=active", "limit=x", "tasks=maybe", "limit=-1"] {
            assert!(parse_query::<JobQuery>(bad).is_err(), "{bad}");
        }
    }

    /// So many bytes come in pieces, and then nothing more.
    fn unfinished(bytes: usize) -> Body {
        const PIECE: usize = 16 << 10;
        let pieces = futures_util::stream::iter(0..bytes / PIECE)
            .map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; PIECE])));
        Body::from_stream(pieces.chain(futures_util::stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_bodies_take_room_and_do_not_stay() {
        const MAX: usize = 32 << 20;
        let bodies = Bodies::default();
        let body = async |who: &str, bytes| {
            let mut share = bodies.share(who);
            collect(unfinished(bytes), MAX, BODY_TIMEOUT, &mut share).await.unwrap_err()
        };
        let began = Instant::now();
        let large = MAX - (64 << 10);
        let ada = futures_util::future::join_all((0..60).map(|_| body("ada", large)));
        let (ada, bob, small) = tokio::join!(ada, body("bob", 1 << 20), body("ada", 32 << 10));
        let refused = ada.iter().filter(|problem| problem.status == 503).count();
        assert!((50..60).contains(&refused), "{refused}");
        let slow = ada.iter().chain([&bob]).filter(|problem| problem.status == 408);
        assert_eq!(slow.count(), 61 - refused);
        assert!(bob.error.message.contains("came in 5 s"), "{}", bob.error.message);
        assert!(small.error.message.contains("within 30 s"), "{}", small.error.message);
        assert_eq!(began.elapsed(), BODY_TIMEOUT);
        assert!(bodies.share("ada").grow(MAX).is_ok(), "all of it was given back");
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        let bodies = Bodies::default();
        let read = async |sent: Vec<u8>, max| {
            collect(Body::from(sent), max, BODY_TIMEOUT, &mut bodies.share("ada")).await
        };
        for size in [0, 1, SMALL, SMALL + 1, 300_000] {
            let sent: Vec<u8> = (0..size).map(|n| n as u8).collect();
            assert_eq!(read(sent.clone(), size).await.unwrap(), sent);
            if size > 0 {
                assert_eq!(read(sent, size - 1).await.unwrap_err().status, 413);
            }
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        for start in [r#"{"spec":"#, r#"{"spec":{"run":"x","after":"#, r#"{"spec":{"x":"#, ""] {
            for bracket in ["[", r#"{"a":"#] {
                let deep = format!("{start}{}", bracket.repeat(100_000));
                assert!(!message(&deep).is_empty());
            }
        }
    }
}
