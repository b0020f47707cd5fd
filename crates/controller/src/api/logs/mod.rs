//! Logs of a task, from whatever nodes have them.
//!
//! ```text
//!  supervise: which attempt now? ─► one pull per rank ─► lines ─► SSE
//!      ▲  waits for the job to change        │ ReadLog over the node's link, at the reader's pace
//!      └───────── restarted, or ended ◄──────┘
//! ```

mod plan;
mod pull;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::task::JoinSet;
use tutti_engine::Rejected;
use tutti_model::{ArraySpec, IndexRanges, Rank, TaskId, Tasks};
use tutti_wire::api::{JobDetail, JobRow, LogEvent, LogQuery};

use super::App;
use super::auth::Caller;
use super::body::{Named, Params};
use super::jobs::{find, find_row};
use super::openapi::Problems;
use super::problem::Problem;
use super::sse::{self, Left, Sender, Stream};
use crate::archive::SearchError;
use crate::clock::now;
use crate::core::{Stopped, World};
use crate::dash::Session;
use crate::error::chain;
use plan::Plan;
use pull::Pull;

/// Why a log ends before its time.
enum Broken {
    Left,
    Stopped,
    Refused(Rejected),
    Unreadable(SearchError),
}

impl From<Left> for Broken {
    fn from(_: Left) -> Broken {
        Broken::Left
    }
}
impl From<Stopped> for Broken {
    fn from(_: Stopped) -> Broken {
        Broken::Stopped
    }
}
impl From<Rejected> for Broken {
    fn from(rejected: Rejected) -> Broken {
        Broken::Refused(rejected)
    }
}

impl From<SearchError> for Broken {
    fn from(error: SearchError) -> Broken {
        match error {
            SearchError::Stopped(_) => Broken::Stopped,
            error => Broken::Unreadable(error),
        }
    }
}

struct Reading {
    app: Arc<App>,
    sender: Sender,
    task: TaskId,
    ranks: Option<IndexRanges>,
    query: LogQuery,
}

/// What the ranks wrote, as a stream. Everybody reads their own jobs' logs, admins read all.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/logs", tag = "jobs",
    params(("id" = TaskId, Path), LogQuery),
    responses((status = 200, content_type = "text/event-stream", body = LogEvent), Problems))]
pub async fn logs(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Named(task): Named<TaskId>,
    Params(query): Params<LogQuery>,
) -> Result<Stream, Problem> {
    let session = session(&app, &headers);
    let ranks = query.rank.as_deref().map(ranks).transpose()?;
    let here = app.core.read(|world| find(world, task).is_ok()).await?;
    let left = if here { None } else { app.archive.find(task).await? };
    let look = |world: &World| {
        let newest = match &left {
            None => {
                check(world, &caller, task)?;
                Plan::new(world, task, None)
            }
            Some(job) => {
                check_archived(&caller, job)?;
                Some(Plan::archived(world, job, None))
            }
        };
        wanted(newest, task, query.attempt, ranks.as_ref())
    };
    app.core.read(look).await??;
    let (sender, stream) = sse::channel();
    let reading = Reading { app, sender: sender.clone(), task, ranks, query };
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = reading.supervise() => ended,
            () = sender.left() => return,
            () = shut(&reading.app, session.as_ref()) => return,
        };
        let last_words = match ended {
            Ok(()) | Err(Broken::Left) => return,
            Err(Broken::Stopped) => "the controller is stopping: call again when it is back".into(),
            Err(Broken::Refused(rejected)) => rejected.to_string(),
            Err(Broken::Unreadable(error)) => chain(&error),
        };
        // The reader may leave meanwhile.
        let _ = note(&sender, last_words).await;
    });
    Ok(stream)
}

/// Of a page; whoever calls with a token has none.
fn session(app: &App, headers: &HeaderMap) -> Option<Session> {
    if headers.contains_key(AUTHORIZATION) {
        return None;
    }
    app.dash.sessions.find(headers, now())
}

/// Resolves when the reader has logged out, or may not look any more.
async fn shut(app: &App, session: Option<&Session>) {
    match session {
        Some(session) => session.ended(app).await,
        None => std::future::pending().await,
    }
}

fn ranks(text: &str) -> Result<IndexRanges, Problem> {
    match text.parse::<ArraySpec>() {
        Ok(spec) if spec.max_running.is_none() => Ok(spec.indices),
        _ => Err(Problem::invalid(format!("rank: '{text}' is no list of ranks: write 0 or 0-3,7"))),
    }
}

fn check_archived(caller: &Caller, job: &JobDetail) -> Result<(), Problem> {
    let (id, owner) = (job.row.id, job.row.user.clone());
    if !caller.may_look_inside(&owner) {
        let user = caller.actor.user.clone();
        return Err(Rejected::NotYours { job: id.job, owner, user }.into());
    }
    if job.row.array.is_some() { Err(is_array(id)) } else { Ok(()) }
}

fn is_array(id: TaskId) -> Problem {
    Problem::invalid(format!("{id} is an array"))
        .hint(format!("name one of its tasks, such as {id}_0"))
}

fn check(world: &World, caller: &Caller, task: TaskId) -> Result<(), Problem> {
    let job = find(world, task)?;
    if !caller.may_look_inside(&job.user) {
        let (owner, user) = (job.user.clone(), caller.actor.user.clone());
        return Err(Rejected::NotYours { job: job.id, owner, user }.into());
    }
    if task.index.is_none() && matches!(job.tasks, Tasks::Array(_)) {
        return Err(is_array(task));
    }
    if job.has_task(task.index) { Ok(()) } else { Err(Rejected::NoSuchTask(task).into()) }
}

/// What never was can't be shown; something else instead would mislead.
fn wanted(
    newest: Option<Plan>,
    task: TaskId,
    attempt: Option<u32>,
    ranks: Option<&IndexRanges>,
) -> Result<(), Problem> {
    let Some(newest) = newest else { return Ok(()) };
    if let Some(n) = attempt.filter(|n| *n == 0 || *n > newest.attempt) {
        let had = match newest.attempt {
            0 => "it has not started yet".to_owned(),
            1 => "it had one attempt".to_owned(),
            many => format!("it had {many} attempts"),
        };
        return Err(Problem::invalid(format!("job {task} has no attempt {n}: {had}")));
    }
    // Of older attempts it is not remembered how many ranks they had.
    let is_newest = attempt.is_none_or(|n| n == newest.attempt);
    match ranks.and_then(IndexRanges::first).filter(|first| is_newest && !newest.has(*first)) {
        Some(first) => Err(Problem::invalid(format!(
            "job {task} has no rank {first}: the last is {}",
            newest.world_size - 1
        ))),
        None => Ok(()),
    }
}

async fn note(sender: &Sender, text: String) -> Result<(), Left> {
    sender.send("note", &LogEvent::Note { text }).await
}

impl Reading {
    async fn supervise(&self) -> Result<(), Broken> {
        let mut changes = self.app.core.feed().watch_job(self.task.job);
        let mut shown = 0;
        loop {
            changes.mark_unchanged();
            let plan = self.plan().await?;
            if plan.attempt > shown {
                if shown > 0 {
                    note(&self.sender, format!("restarted: attempt {}", plan.attempt)).await?;
                }
                shown = plan.attempt;
                self.show(&plan).await?;
                continue;
            }
            if plan.state.is_final() || !self.follows() {
                if shown == 0 {
                    note(&self.sender, self.unstarted().await?).await?;
                }
                return self.end().await;
            }
            self.until_changed(&mut changes).await?;
        }
    }

    /// A certain attempt is read to its end, others are followed over restarts.
    fn follows(&self) -> bool {
        self.query.follow && self.query.attempt.is_none()
    }

    async fn plan(&self) -> Result<Plan, Broken> {
        let (task, attempt) = (self.task, self.query.attempt);
        let plan = self.app.core.read(|world| Plan::new(world, task, attempt)).await?;
        if let Some(plan) = plan {
            return Ok(plan);
        }
        let job = self.archived().await?;
        Ok(self.app.core.read(|world| Plan::archived(world, &job, attempt)).await?)
    }

    /// It may leave memory while it is read.
    async fn archived(&self) -> Result<JobDetail, Broken> {
        let job = self.app.archive.find(self.task).await?;
        job.ok_or(Broken::Refused(Rejected::NoSuchTask(self.task)))
    }

    async fn row(&self) -> Result<JobRow, Broken> {
        match self.app.core.read(|world| find_row(world, self.task)).await? {
            Err(Rejected::NoSuchJob(_)) => Ok(self.archived().await?.row),
            row => Ok(row?),
        }
    }

    async fn until_changed(
        &self,
        changes: &mut tokio::sync::watch::Receiver<tutti_model::Seq>,
    ) -> Result<(), Broken> {
        let mut stopping = self.app.stopping();
        tokio::select! {
            changed = changes.changed() => changed.map_err(|_| Broken::Stopped),
            _ = stopping.wait_for(|s| *s) => Err(Broken::Stopped),
        }
    }

    async fn unstarted(&self) -> Result<String, Broken> {
        let row = self.row().await?;
        Ok(match row.note.as_str() {
            "" => format!("{} has not run: it is {}", self.task, row.state.as_str()),
            why => format!("{} has not run: {why}", self.task),
        })
    }

    /// All ranks of one attempt: side by side when followed, else one after the other.
    async fn show(&self, plan: &Plan) -> Result<(), Broken> {
        let wanted = |r: &u32| self.ranks.as_ref().is_none_or(|ranks| ranks.contains(*r));
        let pulls = (0..plan.world_size).filter(wanted).map(|rank| Pull {
            app: Arc::clone(&self.app),
            sender: self.sender.clone(),
            task: self.task,
            attempt: plan.attempt,
            rank: Rank(rank),
            nodes: plan.nodes_of(rank),
            follow: self.query.follow,
            tail: self.query.tail,
        });
        if !self.query.follow {
            for pull in pulls {
                pull.run().await?;
            }
            return Ok(());
        }
        // Dropped, and so stopped, when the reader leaves.
        let mut all: JoinSet<_> = pulls.map(Pull::run).collect();
        while let Some(done) = all.join_next().await {
            done.unwrap_or(Err(Broken::Stopped))?;
        }
        Ok(())
    }

    async fn end(&self) -> Result<(), Broken> {
        let row = self.row().await?;
        let end = LogEvent::End { state: Some(row.state), exit_code: row.exit_code };
        Ok(self.sender.send("end", &end).await?)
    }
}
