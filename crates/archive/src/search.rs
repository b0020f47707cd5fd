//! Looking for ended jobs. The days that are asked for are read, newest first; columns that a list does
//! not show are not read at all, and a page never looks at more than so many rows.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tutti_model::{Day, Demand, JobState, TaskId, Time};
use tutti_wire::api::{JobDetail, JobRow};

use crate::file::Reader;
use crate::fold::Fold;
use crate::jobs::{HEAVY, JobEntry};
use crate::store::{ArchiveError, Table, Teams};
use crate::table::{BadContent, Columns, Field, Key, Row};

/// Looked at for one page; then it is given out as it is, and the next one goes on.
const LOOKED_AT_MAX: usize = 1_000_000;
/// So many teams of a day are remembered; more are hardly teams.
const TEAMS_MAX: usize = 200;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Search {
    /// Ended at or after this, and before that.
    pub since: Option<Time>,
    pub until: Option<Time>,
    pub states: BTreeSet<JobState>,
    pub user: Option<String>,
    pub team: Option<String>,
    /// Part of the name.
    pub name: Option<String>,
    /// Each task of an array by itself.
    pub tasks: bool,
}

impl Search {
    /// Everything there is.
    pub fn all() -> Search {
        Search {
            since: None,
            until: None,
            states: JobState::ALL.into(),
            user: None,
            team: None,
            name: None,
            tasks: false,
        }
    }

    fn wants(&self, row: &JobRow) -> bool {
        let ended = row.ended_at.unwrap_or_default();
        self.states.contains(&row.state)
            && self.since.is_none_or(|since| ended >= since)
            && self.until.is_none_or(|until| ended < until)
    }

    fn wants_owner(&self, columns: &Columns, row: usize) -> Result<bool, BadContent> {
        let is = |wanted: &Option<String>, column| match wanted {
            None => Ok(true),
            Some(wanted) => {
                columns.text_or_none(column, row).map(|has| has == Some(wanted.as_str()))
            }
        };
        let named = match &self.name {
            None => true,
            Some(part) => columns.text("name", row)?.contains(part.as_str()),
        };
        Ok(named && is(&self.user, "user")? && is(&self.team, "team")?)
    }

    fn days(&self, from: Option<Position>) -> std::ops::RangeInclusive<Day> {
        // A task is in the file of the day on which its whole array ended, which may be any later one.
        let last = self.until.filter(|_| !self.tasks).map_or(Day(u32::MAX), Day::of);
        let last = from.map_or(last, |p| p.day.min(last));
        self.since.map_or(Day(0), Day::of).min(last)..=last
    }
}

/// Rows of this day before this one are still to come, then the days before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub day: Day,
    pub row: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no place in the archive: write what `next` of the page before says")]
pub struct BadPosition(String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.day, self.row)
    }
}

impl FromStr for Position {
    type Err = BadPosition;
    fn from_str(text: &str) -> Result<Position, BadPosition> {
        let parts = text.split_once(':');
        let place = parts.and_then(|(day, row)| {
            Some(Position { day: day.parse().ok()?, row: row.parse().ok()? })
        });
        place.ok_or_else(|| BadPosition(text.to_owned()))
    }
}

/// Newest first. With `next` there may be more, also behind a page that is not full.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub rows: Vec<JobRow>,
    pub next: Option<Position>,
}

impl Table<JobEntry> {
    pub fn list(
        &self,
        search: &Search,
        from: Option<Position>,
        limit: usize,
    ) -> Result<Page, ArchiveError> {
        let mut walk = Walk { search, limit, page: Page::default(), looked_at: 0 };
        let days = self.days()?;
        let asked = search.days(from);
        for &day in days.range(asked.clone()).rev() {
            let upto = from.filter(|p| p.day == day).map_or(usize::MAX, |p| p.row);
            if self.may_have_team(day, &mut walk)? && self.walk(day, upto, &mut walk)? {
                break;
            }
            if walk.looked_at >= LOOKED_AT_MAX {
                walk.page.next = Some(Position { day, row: 0 });
                break;
            }
        }
        let Page { rows, next } = walk.page;
        let more = |p: &Position| p.row > 0 || days.range(*asked.start()..p.day).next().is_some();
        Ok(Page { rows, next: next.filter(more) })
    }

    /// True when the page is done.
    fn walk(&self, day: Day, upto: usize, walk: &mut Walk<'_>) -> Result<bool, ArchiveError> {
        let Some(reader) = self.open(day)? else { return Ok(false) };
        let path = self.path(day);
        walk.day(day, &reader, upto).map_err(|source| ArchiveError::Read { path, source })
    }

    /// Who asks for a team that has little or nothing would read every day to its end, each time anew.
    fn may_have_team(&self, day: Day, walk: &mut Walk<'_>) -> Result<bool, ArchiveError> {
        let Some(wanted) = &walk.search.team else { return Ok(true) };
        let Some(summary) = self.summary(day)? else { return Ok(false) };
        let teams = match summary.teams() {
            Some(teams) => teams,
            None => {
                let Some(reader) = self.open(day)? else { return Ok(false) };
                let path = self.path(day);
                let found = teams_of(&reader);
                let found = found.map_err(|source| ArchiveError::Read { path, source })?;
                walk.looked_at += reader.rows();
                let teams = Arc::new(found);
                self.remember(day, summary.with_teams(Arc::clone(&teams)));
                teams
            }
        };
        Ok((*teams).as_ref().is_none_or(|teams| teams.contains(wanted)))
    }

    /// All about one job or task, if it is here. `12` is all of the array 12.
    pub fn find(&self, id: TaskId) -> Result<Option<JobDetail>, ArchiveError> {
        let job = i64::try_from(id.job.0).unwrap_or(i64::MAX);
        for &day in self.days()?.iter().rev() {
            if !self.may_have(day, job)? {
                continue;
            }
            let Some(reader) = self.open(day)? else { continue };
            let path = self.path(day);
            let found = find_in(&reader, job, id.index);
            let found = found.map_err(|source| ArchiveError::Read { path, source })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

fn teams_of(reader: &Reader<JobEntry>) -> Result<Teams, BadContent> {
    let mut teams: BTreeSet<String> = BTreeSet::new();
    for group in 0..reader.groups() {
        let mut columns = Columns::default();
        reader.read(group, |f| f.name == "team", &mut columns)?;
        for row in 0..columns.rows() {
            if let Some(team) = columns.text_or_none("team", row)?.filter(|t| !teams.contains(*t)) {
                teams.insert(team.to_owned());
            }
        }
        if teams.len() > TEAMS_MAX {
            return Ok(None);
        }
    }
    Ok(Some(teams))
}

struct Walk<'a> {
    search: &'a Search,
    limit: usize,
    page: Page,
    looked_at: usize,
}

impl Walk<'_> {
    /// From the last row to the first, so that the newest come first. True when the page is done.
    fn day(
        &mut self,
        day: Day,
        reader: &Reader<JobEntry>,
        upto: usize,
    ) -> Result<bool, BadContent> {
        let mut first = reader.rows();
        let mut open: Option<(Key, Fold)> = None;
        for group in (0..reader.groups()).rev() {
            let end = first;
            first -= reader.group_rows(group);
            if first >= upto {
                continue;
            }
            let Some(columns) = self.columns(reader, group)? else { continue };
            for row in (0..upto.min(end) - first).rev() {
                if !self.search.wants_owner(&columns, row)? {
                    continue;
                }
                let key = columns.key::<JobEntry>(row)?;
                let entry = JobEntry::read(&columns, row)?;
                match &mut open {
                    Some((k, fold)) if *k == key && !self.search.tasks => fold.add(&entry),
                    _ => {
                        let before = open.replace((key, self.fold(entry)));
                        let at = Position { day, row: first + row + 1 };
                        if before.is_some_and(|(_, fold)| self.put(fold.row(), at)) {
                            return Ok(true);
                        }
                    }
                }
            }
        }
        let at = Position { day, row: 0 };
        Ok(open.is_some_and(|(_, fold)| self.put(fold.row(), at)))
    }

    /// By itself, a task is no array; those that never started stay together.
    fn fold(&self, entry: JobEntry) -> Fold {
        if self.search.tasks && entry.indices.is_none() {
            Fold::task(entry)
        } else {
            Fold::of(entry)
        }
    }

    /// The columns of a list, or nothing if nobody here is meant.
    fn columns(
        &mut self,
        reader: &Reader<JobEntry>,
        group: usize,
    ) -> Result<Option<Columns>, BadContent> {
        self.looked_at += reader.group_rows(group);
        let mut columns = Columns::default();
        let owner = |f: &Field| ["name", "user", "team"].contains(&f.name);
        reader.read(group, owner, &mut columns)?;
        for row in 0..columns.rows() {
            if self.search.wants_owner(&columns, row)? {
                reader.read(group, |f| !HEAVY.contains(&f.name), &mut columns)?;
                return Ok(Some(columns));
            }
        }
        Ok(None)
    }

    /// True when the page is done; what comes before `at` has not been looked at.
    fn put(&mut self, row: JobRow, at: Position) -> bool {
        if self.search.wants(&row) {
            self.page.rows.push(row);
        }
        let done = self.page.rows.len() >= self.limit || self.looked_at >= LOOKED_AT_MAX;
        if done {
            self.page.next = Some(at);
        }
        done
    }
}

/// A group, and a row of it.
type Spot = (usize, usize);

fn find_in(
    reader: &Reader<JobEntry>,
    job: i64,
    index: Option<u32>,
) -> Result<Option<JobDetail>, BadContent> {
    let mut whole: Option<(Fold, Spot)> = None;
    for group in 0..reader.groups() {
        let (min, max) = reader.range(group, "job").unwrap_or((i64::MIN, i64::MAX));
        if job < min || max < job {
            continue;
        }
        let mut columns = Columns::default();
        reader.read(group, |f| f.name == "job", &mut columns)?;
        let mut rows = Vec::new();
        for row in 0..columns.rows() {
            if columns.int("job", row)? == job {
                rows.push(row);
            }
        }
        if rows.is_empty() {
            continue;
        }
        reader.read(group, |f| !HEAVY.contains(&f.name), &mut columns)?;
        for row in rows {
            let entry = JobEntry::read(&columns, row)?;
            match index {
                Some(index) if is_task(&entry, index) => {
                    return task_detail(reader, (group, row), index).map(Some);
                }
                Some(_) => {}
                None => match &mut whole {
                    Some((fold, _)) => fold.add(&entry),
                    None => whole = Some((Fold::of(entry), (group, row))),
                },
            }
        }
    }
    let Some((fold, (group, row))) = whole else { return Ok(None) };
    whole_detail(fold, reader.one(group, row)?).map(Some)
}

fn is_task(entry: &JobEntry, index: u32) -> bool {
    entry.row.id.index == Some(index) || entry.indices.as_ref().is_some_and(|i| i.contains(index))
}

fn task_detail(
    reader: &Reader<JobEntry>,
    (group, row): Spot,
    index: u32,
) -> Result<JobDetail, BadContent> {
    let mut detail = reader.one(group, row)?.detail()?;
    detail.row.id.index = Some(index);
    // What the whole array made of its GPUs is with the first of its rows. It is no task's own.
    detail.goodput = None;
    Ok(detail)
}

/// Of an array only what all of its tasks have in common.
fn whole_detail(fold: Fold, entry: JobEntry) -> Result<JobDetail, BadContent> {
    let (row, detail) = (fold.row(), entry.detail()?);
    if row.array.is_none() {
        return Ok(detail);
    }
    let (nodes, gpus) = Demand::of(&detail.spec).asked();
    Ok(JobDetail {
        row: JobRow { nodes, gpus, ..row },
        attempt: None,
        restarts_by_cause: Default::default(),
        end: None,
        checkpoints: Vec::new(),
        suspensions: Vec::new(),
        stopped_before: None,
        output_dropped: 0,
        ..detail
    })
}
