//! A signal for what runs, and nothing else: no attempt ends by it unless its processes do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use tutti_engine::Rejected;
use tutti_model::{AttemptPhase, Job, NodeId, TaskId};
use tutti_wire::api::{Changed, SendSignal};
use tutti_wire::stream::{ExecOutput, ToAgent};

use super::App;
use super::auth::Caller;
use super::body::{Named, Strict};
use super::exec::link_of;
use super::jobs::find;
use super::openapi::Problems;
use super::problem::Problem;
use crate::core::World;
use crate::links::Answer;

const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Parts that are told in one request; the rest of a larger array is asked for task by task.
const PARTS_MAX: usize = 10_000;

/// One part of a task that runs.
struct Target {
    task: TaskId,
    node: NodeId,
    name: String,
}

/// Sends a signal to the processes of a job, of all running tasks of an array without an index. One that
/// kills whoever has no handler for it (USR1 and the like) goes to those that have one.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/signal", tag = "jobs", request_body = SendSignal,
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn signal(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named<TaskId>,
    Strict(body): Strict<SendSignal>,
) -> Result<Json<Changed>, Problem> {
    let signal = known(&body.signal)?;
    let found = app.core.read(|world| {
        owned(world, &caller, id)?;
        Ok::<_, Rejected>(targets(world, find(world, id)?, id))
    });
    let targets = found.await??;
    if targets.is_empty() {
        return Err(Problem::conflict(format!("{id} does not run now"))
            .hint(format!("`tutti show {id}` says where it stands")));
    }
    let mut told = 0;
    let mut refused = None;
    for target in targets {
        match tell(&app, &target, &signal).await {
            Ok(()) => told += 1,
            Err(problem) => refused = refused.or(Some(problem)),
        }
    }
    match refused {
        Some(problem) if told == 0 => Err(problem),
        _ => Ok(Json(Changed { changed: told })),
    }
}

/// The owner of a job and admins, for one task or the whole of an array.
fn owned(world: &World, caller: &Caller, id: TaskId) -> Result<(), Rejected> {
    let job = find(world, id)?;
    if !caller.may_look_inside(&job.user) {
        let (owner, user) = (job.user.clone(), caller.actor.user.clone());
        return Err(Rejected::NotYours { job: job.id, owner, user });
    }
    let known = id.index.is_none() || job.has_task(id.index);
    if known { Ok(()) } else { Err(Rejected::NoSuchTask(id)) }
}

/// Its name in full.
fn known(text: &str) -> Result<String, Problem> {
    let upper = text.trim().to_ascii_uppercase();
    let name = format!("SIG{}", upper.strip_prefix("SIG").unwrap_or(&upper));
    match name.parse::<nix::sys::signal::Signal>() {
        Ok(_) => Ok(name),
        Err(_) => Err(Problem::invalid(format!("signal: '{text}' is no signal"))
            .hint("write USR1, TERM, INT or the like")),
    }
}

fn targets(world: &World, job: &Job, id: TaskId) -> Vec<Target> {
    let state = world.engine.state();
    let wanted = |task: &TaskId| id.index.is_none() || task.index == id.index;
    let tasks = job.live_tasks().filter(|(task, _)| wanted(task));
    let running = tasks.filter_map(|(task, t)| {
        let attempt = t.attempt()?;
        matches!(attempt.phase, AttemptPhase::Running { .. }).then_some((task, attempt))
    });
    let parts = running.flat_map(|(task, attempt)| {
        let live = attempt.parts.iter().filter(|p| !p.phase.is_over());
        live.map(move |p| Target { task, node: p.node, name: state.node_name(p.node) })
    });
    parts.take(PARTS_MAX).collect()
}

async fn tell(app: &App, target: &Target, signal: &str) -> Result<(), Problem> {
    let Target { task, node, name } = target;
    let link = link_of(app, *node, name)?;
    let (task, signal) = (*task, signal.to_owned());
    let mut answers = link.request(|request| ToAgent::Signal { request, task, signal });
    match tokio::time::timeout(ANSWER_WITHIN, answers.next()).await {
        Ok(Ok(Answer::Output(ExecOutput::Exited { .. }))) => Ok(()),
        Ok(Ok(Answer::Output(ExecOutput::Failed { reason }))) => {
            Err(Problem::conflict(format!("{task} on {name}: {reason}")))
        }
        Ok(Ok(_)) => Err(Problem::unavailable(format!("{name} answered something else"))
            .hint("update its agent")),
        Ok(Err(gone)) => {
            Err(Problem::unavailable(format!("{name}: {gone}")).hint("try again in a moment"))
        }
        Err(_) => Err(Problem::unavailable(format!("the agent of {name} did not answer"))
            .hint("an agent of an older version does not know the question: update it")),
    }
}
