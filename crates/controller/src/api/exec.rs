//! Programs inside running tasks, and input for both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::Body;
use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::StreamExt;
use serde::Deserialize;
use tutti_engine::Rejected;
use tutti_model::{AttemptPhase, JobState, NodeId, Rank, TaskId};
use tutti_wire::api::{Changed, ExecEvent, ExecRequest};
use tutti_wire::stream::{Exec, ExecOutput, RequestId, ToAgent};
use utoipa::IntoParams;

use super::App;
use super::auth::Caller;
use super::body::{Named, Params, Strict};
use super::jobs::find;
use super::openapi::Problems;
use super::problem::Problem;
use super::sse::{self, Left, Sender, Stream};
use crate::core::World;
use crate::links::{Answer, Answers, Link};

/// Bytes of input per message.
const CHUNK: usize = 64 << 10;

/// Programs that run now, for their input.
#[derive(Default)]
pub struct Execs {
    sessions: Mutex<HashMap<String, Running>>,
}

#[derive(Clone)]
struct Running {
    user: String,
    link: Arc<Link>,
    request: RequestId,
}

impl Execs {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        crate::lock::lock(&self.sessions)
    }
}

/// Takes the session out of the list however the program ends.
struct Registered<'a> {
    execs: &'a Execs,
    session: &'a str,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.execs.lock().remove(self.session);
    }
}

/// The owner of a job and admins may look inside.
fn own(world: &World, caller: &Caller, id: TaskId) -> Result<(), Rejected> {
    let job = find(world, id)?;
    if !caller.may_look_inside(&job.user) {
        let (owner, user) = (job.user.clone(), caller.actor.user.clone());
        return Err(Rejected::NotYours { job: job.id, owner, user });
    }
    if job.has_task(id.index) { Ok(()) } else { Err(Rejected::NoSuchTask(id)) }
}

/// Where a rank runs.
enum Place {
    Node(NodeId, String),
    NotYet,
    /// Its processes stand still; until somebody resumes it, or until its GPUs are free.
    Suspended {
        stays: bool,
    },
    /// It has ended, or there is no such rank.
    Never(Problem),
}

fn place(world: &World, id: TaskId, rank: Rank) -> Result<Place, Rejected> {
    let state = world.engine.state();
    let job = find(world, id)?;
    let now = job.task_state(id.index).ok_or(Rejected::NoSuchTask(id))?;
    if now.is_final() || now == JobState::Stopping {
        let message = format!("{id} does not run any more: it is {}", now.as_str());
        return Ok(Place::Never(Problem::conflict(message)));
    }
    let attempt = job.task(id.index).and_then(|t| t.attempt());
    let waking = attempt.is_some_and(|a| matches!(a.phase, AttemptPhase::Waking { .. }));
    if waking {
        return Ok(Place::NotYet);
    }
    if let Some(pause) = attempt.and_then(|a| a.pause()) {
        return Ok(Place::Suspended { stays: pause.stays });
    }
    let Some(attempt) = attempt.filter(|_| now == JobState::Running) else {
        return Ok(Place::NotYet);
    };
    let part = attempt
        .parts
        .iter()
        .find(|p| (p.first_rank.0..p.first_rank.0.saturating_add(p.ranks)).contains(&rank.0));
    Ok(match part {
        Some(part) => Place::Node(part.node, state.node_name(part.node)),
        None => Place::Never(Problem::not_found(format!(
            "{id} has ranks 0 to {}, not {rank}",
            attempt.world_size().saturating_sub(1)
        ))),
    })
}

/// A program beside frozen ranks would be frozen with them.
fn asleep(task: TaskId, stays: bool) -> Problem {
    let message = format!("{task} is suspended: its processes stand still");
    Problem::conflict(message).hint(match stays {
        true => format!("`tutti resume {task}` lets it go on"),
        false => format!("it goes on by itself: `tutti why {task}` says when"),
    })
}

pub(super) fn link_of(app: &App, node: NodeId, name: &str) -> Result<Arc<Link>, Problem> {
    app.links.get(node).ok_or_else(|| {
        Problem::unavailable(format!("node {name} is not connected")).hint("try again in a moment")
    })
}

/// Runs a program beside a rank: same user, environment, directory and limits.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/exec", tag = "jobs", request_body = ExecRequest,
    params(("id" = TaskId, Path)),
    responses((status = 200, content_type = "text/event-stream", body = ExecEvent), Problems))]
pub async fn exec(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(task): Named<TaskId>,
    Strict(request): Strict<ExecRequest>,
) -> Result<Stream, Problem> {
    if request.argv.first().is_none_or(|w| w.is_empty()) {
        return Err(Problem::invalid("argv: is empty: give the program to run"));
    }
    let rank = Rank(request.rank);
    let found = app.core.read(|world| {
        own(world, &caller, task)?;
        place(world, task, rank)
    });
    let (node, name) = match found.await?? {
        Place::Node(node, name) => (node, name),
        Place::Never(problem) => return Err(problem),
        Place::Suspended { stays } => return Err(asleep(task, stays)),
        Place::NotYet => {
            return Err(Problem::conflict(format!("{task} does not run now"))
                .hint(format!("`tutti why {task}` says what it waits for")));
        }
    };
    let link = link_of(&app, node, &name)?;
    let exec = Exec { task, rank, argv: request.argv };
    let answers = link.request(|request| ToAgent::Exec { request, exec });
    let session = format!("{}-{}", link.session, answers.id());
    let running = Running { user: caller.actor.user, link, request: answers.id() };
    app.execs.lock().insert(session.clone(), running);
    let (sender, stream) = sse::channel();
    tokio::spawn(async move {
        let _registered = Registered { execs: &app.execs, session: &session };
        // A reader that left takes its program along: dropping the answers tells the agent.
        let _ = forward(&sender, session.clone(), answers, &name).await;
    });
    Ok(stream)
}

async fn forward(
    sender: &Sender,
    session: String,
    mut answers: Answers,
    node: &str,
) -> Result<(), Left> {
    sender.send("started", &ExecEvent::Started { session }).await?;
    loop {
        let answer = tokio::select! {
            answer = answers.next() => answer,
            () = sender.left() => return Err(Left),
        };
        let (name, event) = match answer {
            Ok(Answer::Output(ExecOutput::Data { stream, data })) => {
                ("data", ExecEvent::Data { stream, data: BASE64.encode(data) })
            }
            Ok(Answer::Output(ExecOutput::Exited { status })) => {
                ("exited", ExecEvent::Exited { code: status.code() })
            }
            Ok(Answer::Output(ExecOutput::Failed { reason })) => failed(reason),
            Ok(Answer::Overflow) => failed(
                "output came faster than it was read: write it to a file, or filter it".to_owned(),
            ),
            Ok(Answer::Log(_) | Answer::Health(_)) => {
                failed(format!("{node} answered something else: update its agent"))
            }
            Err(gone) => failed(format!("{node}: {gone}")),
        };
        sender.send(name, &event).await?;
        if name != "data" {
            return Ok(());
        }
    }
}

fn failed(message: String) -> (&'static str, ExecEvent) {
    ("failed", ExecEvent::Failed { message })
}

#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    rank: u32,
    /// Leave standard input open after the end of the body.
    keep: bool,
}

/// Feeds a rank's standard input. Waits until the job runs.
#[utoipa::path(put, path = "/api/v1/jobs/{id}/stdin", tag = "jobs",
    params(("id" = TaskId, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Changed), Problems))]
pub async fn stdin(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(task): Named<TaskId>,
    Params(query): Params<StdinQuery>,
    body: Body,
) -> Result<Json<Changed>, Problem> {
    let rank = Rank(query.rank);
    let spec_stdin = app.core.read(|world| {
        own(world, &caller, task)?;
        find(world, task).map(|job| job.spec.stdin)
    });
    if !spec_stdin.await?? {
        return Err(Problem::conflict(format!("{task} was submitted without standard input"))
            .hint("submit it with stdin = true, or use `tutti run`"));
    }
    let link = until_running(&app, task, rank).await?;
    let make = |data: Vec<u8>, eof: bool| ToAgent::Stdin { task, rank, data, eof };
    pour(&link, body, make, !query.keep).await
}

async fn until_running(app: &App, task: TaskId, rank: Rank) -> Result<Arc<Link>, Problem> {
    let mut changes = app.core.feed().watch_job(task.job);
    let mut stopping = app.stopping();
    loop {
        changes.mark_unchanged();
        match app.core.read(|world| place(world, task, rank)).await?? {
            Place::Node(node, name) => return link_of(app, node, &name),
            Place::Never(problem) => return Err(problem),
            Place::NotYet | Place::Suspended { .. } => {}
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return Err(crate::core::Stopped.into());
            },
            _ = stopping.wait_for(|s| *s) => return Err(crate::core::Stopped.into()),
        }
    }
}

/// Feeds the standard input of a program that was started with `exec`.
#[utoipa::path(put, path = "/api/v1/exec/{session}/stdin", tag = "jobs",
    params(("session" = String, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Changed), Problems))]
pub async fn exec_stdin(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(session): Named<String>,
    Params(query): Params<StdinQuery>,
    body: Body,
) -> Result<Json<Changed>, Problem> {
    let running = app.execs.lock().get(&session).cloned();
    // Somebody else's session looks like none.
    let running = running
        .filter(|r| r.user == caller.actor.user)
        .ok_or_else(|| Problem::not_found(format!("there is no session '{session}'")))?;
    let request = running.request;
    let make = |data: Vec<u8>, eof: bool| ToAgent::ExecInput { request, data, eof };
    pour(&running.link, body, make, !query.keep).await
}

/// Sends a body on as it comes, no faster than the agent takes it.
async fn pour(
    link: &Link,
    body: Body,
    make: impl Fn(Vec<u8>, bool) -> ToAgent,
    close: bool,
) -> Result<Json<Changed>, Problem> {
    let mut pieces = body.into_data_stream();
    let mut sent = 0;
    let gone = |e: crate::links::LinkGone| Problem::unavailable(e.to_string());
    while let Some(piece) = pieces.next().await {
        let piece: Bytes =
            piece.map_err(|e| Problem::invalid(format!("the body broke off: {e}")))?;
        for chunk in piece.chunks(CHUNK) {
            link.send_input(chunk.len(), make(chunk.to_vec(), false)).await.map_err(gone)?;
            sent += chunk.len() as u64;
        }
    }
    if close {
        link.send_input(0, make(Vec::new(), true)).await.map_err(gone)?;
    }
    Ok(Json(Changed { changed: sent }))
}
