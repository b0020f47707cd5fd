//! Lists of jobs.

use std::sync::Arc;

use tutti_model::JobState;
use tutti_web::jobs::{JobsView, QueueView, Waiting};
use tutti_wire::api::{JobQuery, JobRow};

use crate::api::{App, Problem};
use crate::clock::now;
use crate::views::{Filter, Page};

/// More rows than a person reads; a filter leads to the others.
const QUEUE_ROWS: u32 = 500;
const JOB_ROWS: u32 = 200;

/// `user:ada team:vision state:running words of a name`.
fn query(q: &str, states: Option<&str>) -> JobQuery {
    let mut query = JobQuery { state: states.map(str::to_owned), ..JobQuery::default() };
    let mut name = Vec::new();
    for word in q.split_whitespace() {
        match word.split_once(':') {
            Some(("user", user)) => query.user = Some(user.to_owned()),
            Some(("team", team)) => query.team = Some(team.to_owned()),
            Some(("state", state)) if states.is_none() => query.state = Some(state.to_owned()),
            Some(("id", id)) => query.id = Some(id.to_owned()),
            _ => name.push(word),
        }
    }
    query.name = (!name.is_empty()).then(|| name.join(" "));
    query
}

/// Rows of a page, slice by slice, and whether there are more.
async fn rows(app: &App, query: JobQuery) -> Result<(Vec<JobRow>, bool), Problem> {
    let mut page = Page::new(Filter::parse(query)?);
    while !app.core.read(|world| page.fill(world, now())).await? {
        tokio::task::yield_now().await;
    }
    Ok((page.rows, page.next.is_some()))
}

pub async fn queue(app: &Arc<App>, q: &str) -> Result<QueueView, Problem> {
    let query = JobQuery { limit: Some(QUEUE_ROWS), tasks: true, ..query(q, Some("pending")) };
    let (rows, more) = rows(app, query).await?;
    let known = app.dash.forecasts.known(app);
    let read = app.core.read(|world| {
        let state = world.engine.state();
        let waiting = |row: JobRow| Waiting {
            held: state.job(row.id.job).is_some_and(|job| job.held),
            forecast: known.get(&row.id).copied(),
            row,
        };
        let jobs: Vec<Waiting> = rows.into_iter().map(waiting).collect();
        (jobs, world.reads.totals().get(JobState::Pending))
    });
    let (mut jobs, pending) = read.await?;
    jobs.sort_by_key(|job| (job.forecast.is_none(), job.forecast.map(|f| f.early), job.row.id));
    Ok(QueueView { jobs, pending, more, query: q.to_owned() })
}

pub async fn jobs(app: &App, q: &str) -> Result<JobsView, Problem> {
    let query = JobQuery { limit: Some(JOB_ROWS), newest: true, ..query(q, None) };
    let (jobs, more) = rows(app, query).await?;
    let totals = app.core.read(|world| world.reads.totals()).await?;
    let totals =
        JobState::ALL.iter().map(|state| (state.as_str().to_owned(), totals.get(*state))).collect();
    Ok(JobsView { jobs, totals, more, query: q.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_a_query() {
        let asked = query("user:ada big state:running run", None);
        assert_eq!((asked.user.as_deref(), asked.state.as_deref()), (Some("ada"), Some("running")));
        assert_eq!(asked.name.as_deref(), Some("big run"));
        assert_eq!(query("state:running", Some("pending")).state.as_deref(), Some("pending"));
        assert_eq!(query("", None), JobQuery::default());
    }
}
