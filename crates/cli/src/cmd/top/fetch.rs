//! The thread that asks the controller: for what is on the screen, as often as that is cheap.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tutti_model::{Alert, JobState, TaskId};
use tutti_wire::api::{AlertQuery, JobPage, JobQuery, Load, LoadQuery, NodeRow, ProgressDetail};
use tutti_wire::client::{Client, ClientError};

use super::app::Msg;
use super::data::{Found, FoundJob, JobData, JobList, JobsWanted, News, Wanted};
use crate::cmd::ps::{ENDED, HAS_NODES};
use crate::fail::{Fail, chain};

/// Of ended jobs, unless all are asked for.
const ENDED_ROWS: u32 = 10;
/// The list of nodes is asked for when something has happened, and this often anyway: findings come
/// and go by themselves.
const NODES_AGE: Duration = Duration::from_secs(10);
/// Questions take at most one part in so many of the time, on this side and on the controller's.
const SHARE: u32 = 20;
const EVERY_MAX: Duration = Duration::from_secs(30);
/// What is newly on the screen is asked for at once, but not more often than this.
const GAP: Duration = Duration::from_millis(200);
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Characters of a list in a question. An address may have 64 KiB; there are two lists in it, and commas
/// take three characters each.
const LIST_MAX: usize = 12 << 10;

/// What the screen tells this thread.
pub enum Ask {
    Show(Box<Wanted>),
    Cancel(TaskId),
}

/// Rounds of questions, one after the other.
pub struct Fetcher<'c> {
    client: &'c Client,
    /// Up to which record the list of nodes is told, and when.
    nodes: Option<(u64, Instant)>,
}

impl<'c> Fetcher<'c> {
    pub fn new(client: &'c Client) -> Self {
        Fetcher { client, nodes: None }
    }

    pub fn round(&mut self, wanted: &Wanted) -> Result<News, ClientError> {
        let cluster = self.client.cluster_info()?;
        let nodes = if wanted.nodes { self.nodes(cluster.seq)? } else { None };
        let jobs = wanted.jobs.as_ref().map(|jobs| self.jobs(jobs)).transpose()?;
        let job = wanted.job.map(|id| self.job(id)).transpose()?;
        let load = self.load(wanted)?;
        let alerts = self.alerts()?;
        Ok(News { cluster, load, alerts, nodes, jobs, job })
    }

    /// In several questions where one would be too long.
    fn load(&self, wanted: &Wanted) -> Result<Load, ClientError> {
        let mut load = Load::default();
        for question in questions(wanted) {
            let more = self.client.load(&question)?;
            load.cluster = more.cluster;
            load.nodes.extend(more.nodes);
            load.jobs.extend(more.jobs);
        }
        Ok(load)
    }

    /// A controller of before there were any has none.
    fn alerts(&self) -> Result<Vec<Alert>, ClientError> {
        match self.client.alerts(&AlertQuery::default()) {
            Ok(list) => Ok(list.alerts),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn nodes(&mut self, seq: u64) -> Result<Option<Vec<NodeRow>>, ClientError> {
        let known = |(told, at): (u64, Instant)| told == seq && at.elapsed() < NODES_AGE;
        if self.nodes.is_some_and(known) {
            return Ok(None);
        }
        let nodes = self.client.nodes()?;
        self.nodes = Some((seq, Instant::now()));
        Ok(Some(nodes))
    }

    /// A team that does not exist has no list.
    fn jobs(&self, wanted: &JobsWanted) -> Result<JobList, ClientError> {
        match self.listed(wanted) {
            Err(error) if error.is_not_found() => {
                Ok(JobList { refused: Some(chain(&error)), ..JobList::default() })
            }
            listed => listed,
        }
    }

    /// What has nodes, the newest first; what waits, the oldest first; what ended a moment ago.
    fn listed(&self, wanted: &JobsWanted) -> Result<JobList, ClientError> {
        let base = JobQuery { tasks: wanted.tasks, ..wanted.filter.query() };
        let ask = |state: &str, newest: bool, rows: u32| {
            let (state, limit) = (Some(state.to_owned()), Some(rows));
            self.client.jobs(&JobQuery { state, newest, limit, ..base.clone() })
        };
        if let Some(state) = &wanted.filter.state {
            let newest = state != JobState::Pending.as_str();
            return Ok(list(vec![ask(state, newest, wanted.rows)?]));
        }
        let named = wanted.filter.id.is_some();
        let ended = if wanted.ended || named { wanted.rows } else { ENDED_ROWS };
        // In the order in which a job goes through them: one that goes on between two questions is
        // met twice, but never missed.
        let waiting = ask(JobState::Pending.as_str(), false, wanted.rows)?;
        let placed = ask(HAS_NODES, true, wanted.rows)?;
        let mut over = ask(ENDED, true, ended)?;
        if !wanted.ended {
            // Nobody asked for those.
            over.next = None;
        }
        Ok(list(vec![over, placed, waiting]))
    }

    fn job(&self, id: TaskId) -> Result<JobData, ClientError> {
        let found = match self.open(id) {
            Ok(found) => Found::Job(Box::new(found)),
            // It is not there, or not to be looked at: that is what there is to show.
            Err(error) if error.is_not_found() || matches!(error, ClientError::Denied(_)) => {
                Found::Not { error: chain(&error) }
            }
            Err(error) => return Err(error),
        };
        Ok(JobData { id, found })
    }

    fn open(&self, id: TaskId) -> Result<FoundJob, ClientError> {
        let detail = self.client.job(id)?;
        let progress = match self.client.progress(id) {
            // It has left memory for the archive, which does not know how far its ranks were.
            Err(error) if error.is_not_found() && detail.row.state.is_final() => {
                ProgressDetail { id, progress: None, ranks: Vec::new(), history: Vec::new() }
            }
            progress => progress?,
        };
        let waits = matches!(detail.row.state, JobState::Pending | JobState::Suspended);
        let why = match waits.then(|| self.client.why(id)) {
            Some(Ok(why)) => Some(why),
            // It went on in between.
            Some(Err(ClientError::Api(error))) if error.code == "conflict" => None,
            Some(Err(error)) if error.is_not_found() => None,
            None => None,
            Some(Err(error)) => return Err(error),
        };
        Ok(FoundJob { detail, progress, why })
    }
}

/// One at least: the cluster as a whole is always wanted.
fn questions(wanted: &Wanted) -> Vec<LoadQuery> {
    let mut nodes = lists(wanted.cells.iter().cloned()).into_iter();
    let mut jobs = lists(wanted.shown.iter().map(ToString::to_string)).into_iter();
    let mut questions = Vec::new();
    loop {
        let question = LoadQuery { nodes: nodes.next(), jobs: jobs.next() };
        if !questions.is_empty() && question == LoadQuery::default() {
            return questions;
        }
        questions.push(question);
    }
}

/// Words with commas between, in lists that are short enough.
fn lists(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    for word in words {
        match lists.last_mut() {
            Some(list) if list.len() + word.len() < LIST_MAX => {
                list.push(',');
                list.push_str(&word);
            }
            _ => lists.push(word),
        }
    }
    lists
}

/// One list of several, later ones first in it; of a job that is in two, what was seen last.
fn list(pages: Vec<JobPage>) -> JobList {
    let more = pages.iter().any(|page| page.next.is_some());
    let mut seen = std::collections::BTreeSet::new();
    let mut groups: Vec<Vec<_>> = Vec::new();
    for page in pages {
        groups.push(page.jobs.into_iter().filter(|job| seen.insert(job.id)).collect());
    }
    if groups.len() > 1 {
        // Ended ones were seen last, and stand last.
        groups.rotate_left(1);
    }
    JobList { rows: groups.into_iter().flatten().collect(), more, refused: None }
}

/// Until nobody listens.
pub fn run(client: &Client, asks: &Receiver<Ask>, out: &Sender<Msg>, every: Duration) {
    let mut fetcher = Fetcher::new(client);
    let mut wanted = Wanted::default();
    let mut welcome = false;
    let mut last = Instant::now();
    let mut next = last;
    loop {
        match asks.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Ask::Show(other)) => {
                wanted = *other;
                next = next.min(last + GAP);
            }
            Ok(Ask::Cancel(id)) => {
                if out.send(cancel(client, id)).is_err() {
                    return;
                }
                next = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {
                let began = Instant::now();
                let (msg, pause) = match fetcher.round(&wanted) {
                    Ok(news) => {
                        welcome = true;
                        (Msg::News(Box::new(news)), (began.elapsed() * SHARE).min(EVERY_MAX))
                    }
                    Err(error @ ClientError::Denied(_)) if !welcome => {
                        (Msg::Refused(Fail::from(error)), ASK_AGAIN)
                    }
                    Err(error) => {
                        // What is there afterwards may be another controller's.
                        fetcher = Fetcher::new(client);
                        (Msg::Lost(chain(&error)), ASK_AGAIN)
                    }
                };
                if out.send(msg).is_err() {
                    return;
                }
                last = Instant::now();
                next = last + pause.max(every);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn cancel(client: &Client, id: TaskId) -> Msg {
    match client.cancel(id) {
        Ok(_) => Msg::Said { text: format!("job {id} is cancelled"), bad: false },
        Err(error) => {
            let hint = error.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
            Msg::Said { text: format!("{}{hint}", chain(&error)), bad: true }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::jobs::tests::row;
    use tutti_model::JobId;

    #[test]
    fn ten_thousand_jobs_are_asked_for_in_questions_that_fit() {
        let shown: Vec<TaskId> =
            (0..10_000).map(|n| TaskId::of_array(JobId(100_000 + n), 7)).collect();
        let cells: Vec<String> = (0..2_000).map(|n| format!("node-{n}")).collect();
        let asked = questions(&Wanted { shown: shown.clone(), cells, ..Wanted::default() });
        assert!(asked.len() > 2, "{}", asked.len());
        let size = |list: &Option<String>| list.as_ref().map_or(0, String::len);
        assert!(asked.iter().all(|q| size(&q.nodes) <= LIST_MAX && size(&q.jobs) <= LIST_MAX));
        let jobs = asked.iter().filter_map(|question| question.jobs.as_deref());
        let ids: Vec<TaskId> =
            jobs.flat_map(|list| list.split(',')).map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids, shown);
        let nodes = asked.iter().filter_map(|question| question.nodes.as_deref());
        assert_eq!(nodes.flat_map(|list| list.split(',')).count(), 2_000);
        assert_eq!(questions(&Wanted::default()), [LoadQuery::default()]);
    }

    #[test]
    fn a_job_that_goes_on_between_two_questions_is_shown_as_it_was_seen_last() {
        let page = |rows: &[(&str, JobState)], next: Option<&str>| JobPage {
            jobs: rows.iter().map(|(id, state)| row(id, *state)).collect(),
            next: next.map(str::to_owned),
            totals: Default::default(),
        };
        let waiting = page(&[("4", JobState::Pending), ("5", JobState::Pending)], Some("5"));
        let placed = page(&[("4", JobState::Running), ("2", JobState::Running)], None);
        let over = page(&[("2", JobState::Completed)], None);
        let list = list(vec![over, placed, waiting]);
        let shown: Vec<_> = list.rows.iter().map(|j| (j.id.to_string(), j.state)).collect();
        let want = [("4", JobState::Running), ("5", JobState::Pending), ("2", JobState::Completed)];
        assert_eq!(shown, want.map(|(id, state)| (id.to_owned(), state)));
        assert!(list.more);
    }
}
