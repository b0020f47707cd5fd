//! Jobs: listing, looking, waiting, changing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use serde::Deserialize;
use tutti_engine::{Command, Rejected, Reply};
use tutti_model::{Explanation, JobId, JobUpdate, TaskId, Time};
use tutti_wire::api::{
    Changed, JobDetail, JobPage, JobQuery, JobRow, ProgressDetail, Register, SetPriority,
};
use utoipa::IntoParams;

use super::App;
use super::auth::Caller;
use super::body::{Named, Params, Strict};
use super::openapi::Problems;
use super::problem::Problem;
use super::team::must_be_known;
use crate::archive::SearchError;
use crate::clock::now;
use crate::core::World;
use crate::error::chain;
use crate::views::{self, BadFilter, Filter, Page};

const WAIT_MAX: Duration = Duration::from_secs(60);

impl From<SearchError> for Problem {
    fn from(error: SearchError) -> Problem {
        match error {
            SearchError::Stopped(stopped) => stopped.into(),
            SearchError::Archive(error) => Problem::broken(chain(&error)),
        }
    }
}

impl From<BadFilter> for Problem {
    fn from(bad: BadFilter) -> Problem {
        Problem::invalid(bad.to_string())
    }
}

/// Lists jobs, page by page.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobQuery),
    responses((status = 200, body = JobPage), Problems))]
pub async fn list(
    State(app): State<Arc<App>>,
    Params(query): Params<JobQuery>,
) -> Result<Json<JobPage>, Problem> {
    let mut page = Page::new(Filter::parse(query)?);
    loop {
        let (done, totals) = app
            .core
            .read(|world| (page.fill(world, now()), world.reads.totals().by_name()))
            .await?;
        if done {
            let next = page.next.map(|id| id.to_string());
            let found = JobPage { jobs: std::mem::take(&mut page.rows), next, totals };
            let found = with_archive(&app, page.filter(), found).await?;
            of_known_team(&app, page.filter(), &found)?;
            return Ok(Json(found));
        }
        tokio::task::yield_now().await;
    }
}

/// A team that has no job may still be one.
fn of_known_team(app: &App, filter: &Filter, found: &JobPage) -> Result<(), Problem> {
    match filter.team().filter(|_| found.jobs.is_empty() && found.next.is_none()) {
        None => Ok(()),
        Some(team) => app.core.peek(|world| must_be_known(world.engine.state(), team))?,
    }
}

/// What is in memory is followed by the archive, where that is asked for.
async fn with_archive(app: &App, filter: &Filter, mut page: JobPage) -> Result<JobPage, Problem> {
    let Some((search, from)) = filter.of_archive().filter(|_| page.next.is_none()) else {
        return Ok(page);
    };
    let room = filter.limit().saturating_sub(page.jobs.len());
    if room == 0 {
        return Ok(JobPage { next: Some(views::ARCHIVE.to_owned()), ..page });
    }
    let found = app.archive.list(search, from, room).await?;
    // One that was written down and is still here, or was a moment ago, came with what is in memory.
    let seen: BTreeSet<(TaskId, Time)> =
        page.jobs.iter().map(|row| (row.id, row.submitted_at)).collect();
    let here = |world: &World, row: &JobRow| {
        let job = world.engine.state().job(row.id.job);
        job.is_some_and(|job| job.submitted_at == row.submitted_at)
            || seen.contains(&(row.id, row.submitted_at))
    };
    let mut rows = found.rows;
    app.core.peek(|world| rows.retain(|row| filter.wants_id(row.id.job) && !here(world, row)))?;
    page.jobs.extend(rows);
    page.next = found.next.map(|next| next.to_string());
    Ok(page)
}

/// All about one job, or one task of an array. What its environment is set to is for its owner and
/// for admins.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = TaskId, Path, description = "12, or 12_3 for task 3 of array 12")),
    responses((status = 200, body = JobDetail), Problems))]
pub async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named<TaskId>,
) -> Result<Json<JobDetail>, Problem> {
    let detail = app.core.read(|world| {
        let job = find(world, id)?;
        let inside = caller.may_look_inside(&job.user);
        views::detail(world, job, id.index, inside, now()).ok_or(Rejected::NoSuchTask(id))
    });
    match detail.await? {
        Err(Rejected::NoSuchJob(_)) => archived(&app, id).await.map(Json),
        detail => Ok(Json(detail?)),
    }
}

/// What has left memory is still known.
async fn archived(app: &App, id: TaskId) -> Result<JobDetail, Problem> {
    app.archive.find(id).await?.ok_or_else(|| Rejected::NoSuchJob(id.job).into())
}

/// Why a pending job is pending, or a suspended one suspended, who is ahead, and what would start it now.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/why", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Explanation), Problems))]
pub async fn why(
    State(app): State<Arc<App>>,
    Named(id): Named<TaskId>,
) -> Result<Json<Explanation>, Problem> {
    let explained = app.core.read(|world| {
        let row = find_row(world, id)?;
        let engine = &world.engine;
        let policy = &engine.state().policy;
        let found = tutti_sched::explain(engine.state(), engine.plan(), policy, id, now());
        let gives_up_at = tutti_engine::gives_up_at(engine.state(), id);
        found.map(|e| Explanation { gives_up_at, ..e }).ok_or_else(|| {
            let state = row.state.as_str();
            Problem::conflict(format!("{id} is neither pending nor suspended: it is {state}"))
                .hint(format!("`tutti show {id}` tells the rest"))
        })
    });
    Ok(Json(explained.await??))
}

/// How far a task is, by rank and over time. What is over is known for a while.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/progress", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = ProgressDetail), Problems))]
pub async fn progress(
    State(app): State<Arc<App>>,
    Named(id): Named<TaskId>,
) -> Result<Json<ProgressDetail>, Problem> {
    let detail = app.core.read(|world| {
        let job = find(world, id)?;
        let known = job.has_task(id.index) || id.index.is_none();
        known.then(|| views::progress(world, id, now())).ok_or(Rejected::NoSuchTask(id))
    });
    Ok(Json(detail.await??))
}

#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// At most 60.
    seconds: Option<u64>,
}

/// Answers when the job has ended, or with how it stands when the time is over.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/wait", tag = "jobs",
    params(("id" = TaskId, Path), WaitQuery),
    responses((status = 200, body = JobRow), Problems))]
pub async fn wait(
    State(app): State<Arc<App>>,
    Named(id): Named<TaskId>,
    Params(query): Params<WaitQuery>,
) -> Result<Json<JobRow>, Problem> {
    let patience = query.seconds.map_or(WAIT_MAX, Duration::from_secs).min(WAIT_MAX);
    let deadline = tokio::time::Instant::now() + patience;
    // Before the first look, so that nothing is missed between look and wait.
    let mut changes = app.core.feed().watch_job(id.job);
    let mut stopping = app.stopping();
    loop {
        changes.mark_unchanged();
        let row = match app.core.read(|world| find_row(world, id)).await? {
            Err(Rejected::NoSuchJob(_)) => archived(&app, id).await?.row,
            row => row?,
        };
        if row.state.is_final() {
            return Ok(Json(row));
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return Err(crate::core::Stopped.into());
            },
            () = tokio::time::sleep_until(deadline) => return Ok(Json(row)),
            _ = stopping.wait_for(|s| *s) => return Ok(Json(row)),
        }
    }
}

pub(super) fn find(world: &World, id: TaskId) -> Result<&tutti_model::Job, Rejected> {
    world.engine.state().job(id.job).ok_or(Rejected::NoSuchJob(id.job))
}

pub(super) fn find_row(world: &World, id: TaskId) -> Result<JobRow, Rejected> {
    let job = find(world, id)?;
    views::row(world, job, id.index, now()).ok_or(Rejected::NoSuchTask(id))
}

/// Stops a job: SIGTERM to every rank, SIGKILL after its grace. An array as a whole without an
/// index.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(target): Named<TaskId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Cancel { actor: caller.actor, target }).await
}

/// Stops a job at once: SIGKILL to every process, without time to save. An array as a whole without
/// an index.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/kill", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn kill(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(target): Named<TaskId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Kill { actor: caller.actor, target }).await
}

/// Changes a job that was submitted before: all that is said here, or nothing. What others go by stays
/// once it has started: how much it has, and who pays; its time limit is made longer by admins only.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/update", tag = "jobs", request_body = JobUpdate,
    params(("id" = JobId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn update(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(job): Named<JobId>,
    Strict(update): Strict<JobUpdate>,
) -> Result<Json<Changed>, Problem> {
    let update = Box::new(update);
    change(&app, Command::Update { actor: caller.actor, job, update }).await
}

/// Keeps a pending job from starting.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/hold", tag = "jobs",
    params(("id" = JobId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn hold(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(job): Named<JobId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Hold { actor: caller.actor, job }).await
}

/// Lets a held job start.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/release", tag = "jobs",
    params(("id" = JobId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(job): Named<JobId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Release { actor: caller.actor, job }).await
}

/// Gives up the GPUs of a running job: its processes stand still, what they had there is in the hosts'
/// memory. It goes on when it is resumed. An array as a whole without an index.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/suspend", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn suspend(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(target): Named<TaskId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Suspend { actor: caller.actor, target }).await
}

/// Lets a suspended job go on, as soon as GPUs of its nodes are free for it.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/resume", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn resume(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(target): Named<TaskId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Wake { actor: caller.actor, target }).await
}

/// Moves a job in the queue. Its owner may move it back, admins either way.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/priority", tag = "jobs", request_body = SetPriority,
    params(("id" = JobId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn priority(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(job): Named<JobId>,
    Strict(body): Strict<SetPriority>,
) -> Result<Json<Changed>, Problem> {
    let priority = body.priority;
    change(&app, Command::SetPriority { actor: caller.actor, job, priority }).await
}

/// What this task did up to now is safe (a checkpoint is written): nothing from before counts as
/// lost if it is stopped, so it is a cheaper victim than one that never says so.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/saved", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn saved(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(task): Named<TaskId>,
) -> Result<Json<Changed>, Problem> {
    change(&app, Command::Saved { actor: caller.actor, task }).await
}

/// Where a checkpoint of this task is: its next attempt goes on from there, unless something newer is
/// known. Nobody looks at it here.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/checkpoints", tag = "jobs", request_body = Register,
    params(("id" = TaskId, Path)),
    responses((status = 200, body = Changed), Problems))]
pub async fn register(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(task): Named<TaskId>,
    Strict(body): Strict<Register>,
) -> Result<Json<Changed>, Problem> {
    let Register { step, path } = body;
    change(&app, Command::Register { actor: caller.actor, task, step, path }).await
}

pub(super) async fn change(app: &App, command: Command) -> Result<Json<Changed>, Problem> {
    let changed = match app.core.call(command).await? {
        Reply::Tasks(n) => n,
        _ => 1,
    };
    Ok(Json(Changed { changed }))
}
