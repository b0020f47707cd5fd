//! Submission, one by one and in batches.

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::{HeaderMap, StatusCode};
use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use tutti_engine::{Actor, Command, Rejected, Reply};
use tutti_model::TaskId;
use tutti_wire::api::{ApiError, Submit, SubmitResult, Submitted};

use super::App;
use super::auth::{Caller, Target};
use super::bodies::aside;
use super::body::{Strict, StrictBatch};
use super::openapi::Problems;
use super::problem::Problem;

const KEY_HEADER: &str = "idempotency-key";

/// Jobs in one batch.
const BATCH_MAX: usize = 100_000;

/// Submits a job. The answer means that it is on disk.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = Submit,
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gives the same job")),
    responses((status = 201, body = Submitted), (status = 200, description = "The key was known", body = Submitted), Problems))]
pub async fn submit(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Strict(mut body): Strict<Submit>,
) -> Result<Response, Problem> {
    body.key = given_key(&headers)?.or(body.key);
    let _room = app.room.admit(sent_bytes(&headers))?;
    let warnings = tutti_engine::warnings(&body.spec);
    let reply = app.core.call(command(&caller.actor, body)).await?;
    let submitted = submitted(reply, warnings);
    let status = if submitted.repeated { StatusCode::OK } else { StatusCode::CREATED };
    let target = Target(format!("job {}", submitted.id));
    Ok(target.of((status, Json(submitted))))
}

/// What the request takes; in pieces, its length is not known, and most are small.
pub(super) fn sent_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(http::header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(64 << 10)
}

/// Names this request for ever, if it is named.
pub(super) fn given_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get(KEY_HEADER) else { return Ok(None) };
    let key = key.to_str().map_err(|_| Problem::invalid("Idempotency-Key: only ASCII"))?;
    Ok(Some(key.to_owned()))
}

/// The jobs of a batch. No more of them are read than are taken, however many are sent.
pub struct Batch(Vec<Submit>);

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch, D::Error> {
        deserializer.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = Batch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of jobs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Batch, A::Error> {
        let mut jobs = Vec::new();
        while let Some(job) = list.next_element()? {
            if jobs.len() == BATCH_MAX {
                return Err(A::Error::custom(format_args!(
                    "at most {BATCH_MAX} jobs are taken in one batch: split it into several, or use an array"
                )));
            }
            jobs.push(job);
        }
        Ok(Batch(jobs))
    }
}

/// Submits many jobs, at most 100,000, with one write to the disk. Each is taken or refused by itself,
/// in order.
#[utoipa::path(post, path = "/api/v1/jobs:batch", tag = "jobs", request_body = Vec<Submit>,
    responses((status = 200, body = Vec<SubmitResult>), Problems))]
pub async fn submit_batch(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    StrictBatch(Batch(batch), _turn): StrictBatch<Batch>,
) -> Result<Response, Problem> {
    let _room = app.room.admit(sent_bytes(&headers))?;
    let (warnings, commands) = aside(move || {
        let warnings: Vec<_> = batch.iter().map(|s| tutti_engine::warnings(&s.spec)).collect();
        let commands = batch.into_iter().map(|s| command(&caller.actor, s)).collect();
        (warnings, commands)
    })
    .await?;
    let answers = app.core.call_many(commands).await?;
    aside(move || {
        let results: Vec<SubmitResult> =
            answers.into_iter().zip(warnings).map(|(answer, w)| result(answer, w)).collect();
        let target = Target(batch_target(&results));
        target.of(Json(results))
    })
    .await
}

fn command(actor: &Actor, submit: Submit) -> Command {
    Command::Submit {
        actor: actor.clone(),
        spec: Box::new(submit.spec),
        user: submit.user,
        key: submit.key,
    }
}

fn submitted(reply: Reply, warnings: Vec<String>) -> Submitted {
    match reply {
        Reply::Submitted { job, repeated } => {
            Submitted { id: TaskId::single(job), repeated, warnings }
        }
        other => unreachable!("the engine answers a submission with a job, not {other:?}"),
    }
}

fn result(answer: Result<Reply, Rejected>, warnings: Vec<String>) -> SubmitResult {
    match answer {
        Ok(reply) => SubmitResult::Submitted(submitted(reply, warnings)),
        Err(rejected) => {
            let error: ApiError = Problem::from(rejected).error;
            SubmitResult::Refused { error }
        }
    }
}

fn batch_target(results: &[SubmitResult]) -> String {
    let ids: Vec<TaskId> = results
        .iter()
        .filter_map(|r| match r {
            SubmitResult::Submitted(s) => Some(s.id),
            SubmitResult::Refused { .. } => None,
        })
        .collect();
    match (ids.iter().min(), ids.iter().max()) {
        (Some(only), Some(last)) if only == last => format!("job {only}"),
        (Some(first), Some(last)) => format!("{} jobs between {first} and {last}", ids.len()),
        _ => "no job".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::parse;
    use super::*;

    fn batch(jobs: usize, rest: &str) -> Result<usize, String> {
        let list = vec![r#"{"spec":{"run":"x"}}"#; jobs].join(",");
        let read = parse::<Batch>(format!("[{list}{rest}").as_bytes());
        read.map(|Batch(jobs)| jobs.len()).map_err(|problem| problem.error.message)
    }

    #[test]
    fn a_batch_is_read_up_to_what_is_taken_and_no_further() {
        assert_eq!(batch(3, "]"), Ok(3));
        assert_eq!(batch(BATCH_MAX, "]"), Ok(BATCH_MAX));
        // Whoever went on would stumble over the rest.
        let said = batch(BATCH_MAX + 1, ", nonsense").unwrap_err();
        assert!(said.contains("at most 100000 jobs") && said.contains("split it"), "{said}");
        assert!(batch(2, r#",{"spec":{}}]"#).unwrap_err().contains("[2].spec: "));
        assert!(parse::<Batch>(b"{}").err().unwrap().error.message.contains("a list of jobs"));
    }
}
