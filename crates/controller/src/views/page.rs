//! Pages of jobs. A page costs its rows: the sets of [`crate::reads`] lead straight to the jobs in
//! the wanted states, and what has to be searched is searched in slices, so that the engine never
//! waits long for the lock.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use tutti_archive::{BadPosition, Position, Search};
use tutti_model::{Job, JobId, JobState, TaskId, Tasks, Time};
use tutti_wire::api::{JobQuery, JobRow};

use super::job::row;
use crate::core::World;
use crate::reads::Reads;

const ROWS_DEFAULT: u32 = 100;
pub const ROWS_MAX: u32 = 10_000;

/// Jobs looked at before the lock is given up.
const SLICE_JOBS: usize = 5_000;
const SLICE_ROWS: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFilter {
    #[error(
        "state: '{0}' is no state: use pending, starting, running, suspended, stopping, completed, failed, cancelled or active"
    )]
    State(String),
    #[error("{0}: {1}")]
    Id(&'static str, tutti_model::BadId),
    #[error("after: {0}")]
    Position(#[from] BadPosition),
}

/// A query, understood.
#[derive(Clone, Debug)]
pub struct Filter {
    states: BTreeSet<JobState>,
    user: Option<String>,
    team: Option<String>,
    name: Option<String>,
    ids: Option<BTreeSet<JobId>>,
    tasks: bool,
    newest: bool,
    limit: usize,
    after: Option<After>,
    since: Option<Time>,
    until: Option<Time>,
}

/// What is in memory comes first, then the archive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Task(TaskId),
    Archive(Option<Position>),
}

/// Behind everything that is in memory.
pub const ARCHIVE: &str = "archive";

impl After {
    fn parse(text: &str) -> Result<After, BadFilter> {
        match text {
            ARCHIVE => Ok(After::Archive(None)),
            _ if text.contains(':') => Ok(After::Archive(Some(text.parse()?))),
            _ => text.parse().map(After::Task).map_err(|e| BadFilter::Id("after", e)),
        }
    }
}

impl Filter {
    pub fn parse(query: JobQuery) -> Result<Filter, BadFilter> {
        let ids = query.id.as_deref().map(|list| {
            list.split(',').map(|s| s.trim().parse::<TaskId>().map(|t| t.job)).collect()
        });
        let windowed = query.since.is_some() || query.until.is_some();
        Ok(Filter {
            states: states(query.state.as_deref())?,
            user: query.user,
            team: query.team,
            name: query.name,
            ids: ids.transpose().map_err(|e| BadFilter::Id("id", e))?,
            tasks: query.tasks,
            newest: query.newest || windowed,
            limit: query.limit.unwrap_or(ROWS_DEFAULT).clamp(1, ROWS_MAX) as usize,
            after: query.after.as_deref().map(After::parse).transpose()?,
            since: query.since,
            until: query.until,
        })
    }

    /// The same for the archive, and from where on, if it is asked at all.
    pub fn of_archive(&self) -> Option<(Search, Option<Position>)> {
        (self.since.is_some() || self.until.is_some()).then(|| {
            let search = Search {
                since: self.since,
                until: self.until,
                states: self.states.clone(),
                user: self.user.clone(),
                team: self.team.clone(),
                name: self.name.clone(),
                tasks: self.tasks,
            };
            let from = match self.after {
                Some(After::Archive(from)) => from,
                _ => None,
            };
            (search, from)
        })
    }

    pub fn wants_id(&self, job: JobId) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&job))
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Whose jobs alone are asked for, on the first page of them.
    pub fn team(&self) -> Option<&str> {
        self.team.as_deref().filter(|_| self.after.is_none())
    }

    /// What has not ended may still end at any time.
    fn is_then(&self, row: &JobRow) -> bool {
        match row.ended_at.filter(|_| row.state.is_final()) {
            None => self.until.is_none(),
            Some(at) => {
                self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|u| at < u)
            }
        }
    }

    fn wants(&self, job: &Job) -> bool {
        let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|w| w == has);
        is(&self.user, &job.user)
            && is(&self.team, &job.team)
            && self.name.as_deref().is_none_or(|n| job.spec.display_name().contains(n))
    }
}

fn states(text: Option<&str>) -> Result<BTreeSet<JobState>, BadFilter> {
    let Some(text) = text.filter(|t| !t.is_empty()) else { return Ok(JobState::ALL.into()) };
    let mut out = BTreeSet::new();
    for word in text.split(',').map(str::trim) {
        match word {
            "active" => out.extend(JobState::ALL.into_iter().filter(|s| !s.is_final())),
            _ => {
                let state = JobState::named(word);
                out.insert(state.ok_or_else(|| BadFilter::State(word.to_owned()))?);
            }
        }
    }
    Ok(out)
}

/// A page while it is filled, slice by slice.
pub struct Page {
    /// Shared with the walk over candidates while rows are added.
    filter: Arc<Filter>,
    pub rows: Vec<JobRow>,
    /// The last task looked at; the next slice goes on behind it.
    position: Option<TaskId>,
    /// Where the next page starts, if there is one.
    pub next: Option<TaskId>,
}

impl Page {
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    pub fn new(filter: Filter) -> Page {
        let position = match filter.after {
            Some(After::Task(task)) => Some(task),
            _ => None,
        };
        Page { filter: Arc::new(filter), rows: Vec::new(), position, next: None }
    }

    /// True when the page is complete; else call again.
    pub fn fill(&mut self, world: &World, now: Time) -> bool {
        if matches!(self.filter.after, Some(After::Archive(_))) {
            return true;
        }
        let rows_before = self.rows.len();
        let filter = Arc::clone(&self.filter);
        let candidates = Candidates::new(&filter, world, self.position);
        for (seen, id) in candidates.enumerate() {
            if seen >= SLICE_JOBS || self.rows.len() >= rows_before + SLICE_ROWS {
                return false;
            }
            let job = world.engine.state().job(id).filter(|job| filter.wants(job));
            if job.is_some_and(|job| !self.add_job(world, job, now)) {
                return true;
            }
            // Also behind what is not there: ids that were asked for need not be of jobs.
            self.position = Some(self.end_of(id));
        }
        true
    }

    /// False when the page is full.
    fn add_job(&mut self, world: &World, job: &Job, now: Time) -> bool {
        for index in self.indices(world, job) {
            if self.rows.len() >= self.filter.limit {
                self.next = self.rows.last().map(|r| r.id);
                return false;
            }
            let row = row(world, job, index, now);
            self.rows.extend(row.filter(|row| self.filter.is_then(row)));
        }
        true
    }

    /// The rows that a job has in this listing, in order, from the position on.
    fn indices(&self, world: &World, job: &Job) -> Vec<Option<u32>> {
        let wanted = |s: JobState| self.filter.states.contains(&s);
        let mut all: Vec<Option<u32>> = match &job.tasks {
            Tasks::Array(a) if self.filter.tasks => {
                let rest = !a.waiting.is_empty() && wanted(JobState::Pending);
                let never = a.never_started.iter().flat_map(|n| n.0.iter());
                let started = a.live.keys().chain(a.ended.keys()).copied().chain(never);
                let started = started.filter(|&i| job.task_state(Some(i)).is_some_and(wanted));
                rest.then_some(None).into_iter().chain(started.map(Some)).collect()
            }
            Tasks::Array(_) => {
                let state = world.reads.array(job.id).map(|s| s.state());
                state.is_some_and(wanted).then_some(None).into_iter().collect()
            }
            Tasks::One(t) => wanted(t.state()).then_some(None).into_iter().collect(),
        };
        all.sort_unstable();
        if self.filter.newest {
            all.reverse();
        }
        let behind = |index: &Option<u32>| {
            let id = TaskId { job: job.id, index: *index };
            self.position.is_none_or(|p| if self.filter.newest { id < p } else { id > p })
        };
        all.retain(behind);
        all
    }

    /// The position after everything of this job.
    fn end_of(&self, job: JobId) -> TaskId {
        TaskId { job, index: (!self.filter.newest).then_some(u32::MAX) }
    }
}

type Ids<'a> = Peekable<Box<dyn Iterator<Item = JobId> + 'a>>;

/// Jobs that may have rows, in order: several ordered sets merged into one.
struct Candidates<'a> {
    sets: Vec<Ids<'a>>,
    newest: bool,
}

impl<'a> Candidates<'a> {
    fn new(filter: &'a Filter, world: &'a World, position: Option<TaskId>) -> Candidates<'a> {
        let newest = filter.newest;
        let range = range(position.map(|p| p.job), newest);
        let walk = |set: &'a BTreeSet<JobId>| {
            let ids = set.range(range).copied();
            ordered(ids, newest)
        };
        let sets = if let Some(ids) = &filter.ids {
            vec![walk(ids)]
        } else if filter.states.len() == JobState::ALL.len() {
            vec![ordered(world.engine.state().jobs.range(range).map(|(id, _)| *id), newest)]
        } else {
            state_sets(&world.reads, filter).into_iter().map(walk).collect()
        };
        Candidates { sets, newest }
    }
}

/// With `tasks`, an array as a whole may be in another state than some of its tasks.
fn state_sets<'a>(reads: &'a Reads, filter: &Filter) -> Vec<&'a BTreeSet<JobId>> {
    let arrays = filter.tasks.then(|| reads.arrays());
    filter.states.iter().map(|&s| reads.jobs_in(s)).chain(arrays).collect()
}

/// The job at the position is looked at again: it may have more tasks.
fn range(position: Option<JobId>, newest: bool) -> (Bound<JobId>, Bound<JobId>) {
    match (position, newest) {
        (None, _) => (Bound::Unbounded, Bound::Unbounded),
        (Some(id), false) => (Bound::Included(id), Bound::Unbounded),
        (Some(id), true) => (Bound::Unbounded, Bound::Included(id)),
    }
}

fn ordered<'a>(ids: impl DoubleEndedIterator<Item = JobId> + 'a, newest: bool) -> Ids<'a> {
    let ids: Box<dyn Iterator<Item = JobId> + 'a> =
        if newest { Box::new(ids.rev()) } else { Box::new(ids) };
    ids.peekable()
}

impl Iterator for Candidates<'_> {
    type Item = JobId;

    fn next(&mut self) -> Option<JobId> {
        let heads = self.sets.iter_mut().filter_map(|s| s.peek().copied());
        let next = if self.newest { heads.max() } else { heads.min() }?;
        for set in &mut self.sets {
            if set.peek() == Some(&next) {
                set.next();
            }
        }
        Some(next)
    }
}
