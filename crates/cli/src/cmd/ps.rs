//! `tutti ps`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use tutti_model::{JobId, JobState, Span, TaskId, Time};
use tutti_wire::api::{JobPage, JobQuery, JobRow};
use tutti_wire::client::Client;

use crate::fail::Fail;
use crate::show::table::terminal_width;
use crate::show::{jobs, thousands, time};
use crate::style::Style;
use crate::{session, terminal};

/// Rows of the table, and of JSON, unless asked for more.
const TABLE_ROWS: u32 = 50;
const JSON_ROWS: u32 = 1000;
const PAGE: u32 = 10_000;

/// Of ended jobs, the table shows the newest few if they ended a moment ago.
const ENDED_ROWS: u32 = 5;
const ENDED_AGE: Span = Span::secs(15 * 60);

pub(super) const HAS_NODES: &str = "running,starting,stopping,suspended";
pub(super) const ENDED: &str = "completed,failed,cancelled";

#[derive(clap::Args)]
pub struct PsArgs {
    /// Only these jobs: 12, or 12_3 for one task of an array
    #[arg(value_name = "ID")]
    ids: Vec<TaskId>,
    /// Every job, ended ones too
    #[arg(long, short = 'a')]
    all: bool,
    /// Only these states, comma separated
    #[arg(long, value_name = "STATES", value_parser = states)]
    state: Option<String>,
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    #[arg(long, value_name = "TEAM")]
    team: Option<String>,
    /// Part of the name
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Each started task of an array as a row of its own: tutti ps --tasks 12 --state failed
    #[arg(long)]
    tasks: bool,
    /// What ended since then, however long ago: 30d, 2026-11-01 or 2026-11-01T08:00
    #[arg(long, value_name = "WHEN", value_parser = time::moment)]
    since: Option<Time>,
    /// ... and before then
    #[arg(long, value_name = "WHEN", value_parser = time::moment)]
    until: Option<Time>,
    /// At most so many rows
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    limit: Option<u32>,
    #[arg(long)]
    json: bool,
    /// Show again every second
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

pub fn run(cluster: Option<&str>, args: PsArgs) -> Result<ExitCode, Fail> {
    let client = session::open(cluster)?;
    if args.json {
        let list = collect(&client, &args)?;
        terminal::json(&list.jobs)?;
        if list.more && args.limit.is_none() {
            terminal::complain(&cut(&list));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = || {
        let list = collect(&client, &args)?;
        let (now, width) = (session::now(&client), terminal_width());
        let table = jobs::table(&list.jobs, &list.hidden, now, Style::of_stdout(), width);
        let is_cut = list.more && !args.ids.is_empty() && args.limit.is_none();
        Ok(if is_cut { format!("{table}\n{}", cut(&list)) } else { table })
    };
    if args.watch {
        return terminal::watch(text);
    }
    terminal::say(&text()?);
    Ok(ExitCode::SUCCESS)
}

struct List {
    jobs: Vec<JobRow>,
    /// What the cluster has beyond the rows, by state.
    hidden: BTreeMap<String, u64>,
    /// There are rows beyond these.
    more: bool,
}

/// Only without a filter is it known how many there are.
fn cut(list: &List) -> String {
    let shown = list.jobs.len() as u64;
    let all = match list.hidden.values().sum::<u64>() {
        0 => ", and there are more".to_owned(),
        hidden => format!(" of {}", thousands(shown + hidden)),
    };
    format!("showing {}{all}: --all or --limit", thousands(shown))
}

fn collect(client: &Client, args: &PsArgs) -> Result<List, Fail> {
    let base = JobQuery {
        user: args.user.clone(),
        team: args.team.clone(),
        name: args.name.clone(),
        tasks: args.tasks,
        ..JobQuery::default()
    };
    let rows = args.limit.unwrap_or(if args.json { JSON_ROWS } else { TABLE_ROWS });
    let all = |query: JobQuery| -> Result<List, Fail> {
        let page = pages(client, query, args.limit)?;
        Ok(List { jobs: page.jobs, hidden: BTreeMap::new(), more: page.next.is_some() })
    };
    if !args.ids.is_empty() {
        return by_id(client, args, &base);
    }
    if args.since.is_some() || args.until.is_some() {
        let (since, until, state) = (args.since, args.until, args.state.clone());
        let mut list = all(JobQuery { since, until, state, ..base })?;
        each_once(&mut list.jobs);
        return Ok(list);
    }
    if args.all {
        // The newest, if not all are wanted.
        let mut list = all(JobQuery { state: args.state.clone(), newest: true, ..base })?;
        list.jobs.reverse();
        return Ok(list);
    }
    if let Some(state) = &args.state {
        let query = JobQuery { state: Some(state.clone()), ..base.clone() };
        let page = pages(client, query, Some(rows))?;
        let shown = state.split(',').filter(|s| *s != "active");
        let hidden =
            if base == unfiltered(args.tasks) { hidden(&page, shown) } else { BTreeMap::new() };
        return Ok(List { jobs: page.jobs, hidden, more: page.next.is_some() });
    }
    current(client, base, rows, args)
}

/// One that left memory between two pages came with both. The newest last, as in every other list.
fn each_once(jobs: &mut Vec<JobRow>) {
    let mut seen = BTreeSet::new();
    jobs.retain(|job| seen.insert((job.id, job.submitted_at)));
    jobs.reverse();
}

fn unfiltered(tasks: bool) -> JobQuery {
    JobQuery { tasks, ..JobQuery::default() }
}

/// What has nodes, then what waits, then what ended a moment ago.
fn current(client: &Client, base: JobQuery, rows: u32, args: &PsArgs) -> Result<List, Fail> {
    let ask = |state: &str, limit: u32| {
        let query = JobQuery { state: Some(state.to_owned()), newest: true, ..base.clone() };
        pages(client, query, Some(limit))
    };
    // In the order in which a job goes through them: one that goes on between two questions is met
    // twice, but never missed.
    let waiting = ask(JobState::Pending.as_str(), rows)?;
    let mut page = ask(HAS_NODES, rows)?;
    let mut more = waiting.next.is_some() || page.next.is_some();
    let (mut jobs, cut) = unfinished(std::mem::take(&mut page.jobs), waiting.jobs, rows as usize);
    more |= cut;
    let left = rows.saturating_sub(jobs.len() as u32);
    let ended = if args.json { left } else { left.min(ENDED_ROWS) };
    if ended > 0 {
        let now = session::now(client);
        let recent = |j: &JobRow| args.json || j.ended_at.is_some_and(|t| now.since(t) < ENDED_AGE);
        let list = ask(ENDED, ended)?;
        more |= list.next.is_some();
        let new = |j: &JobRow| recent(j) && !jobs_contain(&jobs, j);
        let ended: Vec<JobRow> = list.jobs.into_iter().filter(new).collect();
        jobs.extend(ended);
    }
    // What was not even asked for may be there too.
    if args.json && ended == 0 && !more {
        let rest = [JobState::Pending.as_str(), ENDED].join(",");
        let rest = ask(&rest, rows.saturating_add(1))?.jobs;
        more = rest.iter().any(|j| !jobs_contain(&jobs, j));
    }
    page.jobs = jobs;
    let ended = if args.json { ENDED } else { "" };
    let active = [HAS_NODES, JobState::Pending.as_str(), ended];
    let filtered = base != unfiltered(args.tasks);
    let hidden = if filtered {
        BTreeMap::new()
    } else {
        hidden(&page, active.iter().flat_map(|s| s.split(',')))
    };
    Ok(List { jobs: page.jobs, hidden, more })
}

/// Both come newest first and leave oldest first. When there are too many, the newest stay, and each
/// kind has at least half. True if some were left out.
fn unfinished(
    mut placed: Vec<JobRow>,
    mut waiting: Vec<JobRow>,
    rows: usize,
) -> (Vec<JobRow>, bool) {
    // An array with running tasks may be listed under both, and so may a job that was just placed.
    waiting.retain(|j| !jobs_contain(&placed, j));
    let all = placed.len() + waiting.len();
    placed.truncate(rows.saturating_sub(waiting.len()).max(rows.div_ceil(2)));
    waiting.truncate(rows.saturating_sub(placed.len()));
    let jobs: Vec<JobRow> = placed.into_iter().rev().chain(waiting.into_iter().rev()).collect();
    let cut = jobs.len() < all;
    (jobs, cut)
}

fn jobs_contain(jobs: &[JobRow], job: &JobRow) -> bool {
    jobs.iter().any(|j| j.id == job.id)
}

/// Tasks of these states that no row stands for.
fn hidden<'a>(page: &JobPage, states: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut left: BTreeMap<String, u64> =
        states.filter_map(|s| page.totals.get(s).map(|&n| (s.to_owned(), n))).collect();
    for job in &page.jobs {
        let tasks = match &job.array {
            None => vec![(job.state.as_str(), 1)],
            Some(a) => vec![
                ("pending", a.pending),
                ("running", a.running),
                ("suspended", a.suspended),
                ("completed", a.completed),
                ("failed", a.failed),
                ("cancelled", a.cancelled),
            ],
        };
        for (state, n) in tasks {
            // An array counts those that start and stop as running.
            let states = match (state, &job.array) {
                ("running", Some(_)) => "running,starting,stopping",
                _ => state,
            };
            take_off(&mut left, states, n);
        }
    }
    left
}

/// Takes `n` tasks off the first of these states that has any left, then the next.
fn take_off(left: &mut BTreeMap<String, u64>, states: &str, mut n: u64) {
    for state in states.split(',') {
        if let Some(total) = left.get_mut(state) {
            let taken = n.min(*total);
            *total -= taken;
            n -= taken;
        }
    }
}

/// Each as one row, or with `--tasks` each of an array's tasks as one.
fn by_id(client: &Client, args: &PsArgs, base: &JobQuery) -> Result<List, Fail> {
    let mut list = List { jobs: Vec::new(), hidden: BTreeMap::new(), more: false };
    for &id in &args.ids {
        let row = client.job(id)?.row;
        if !args.tasks || row.array.is_none() {
            list.jobs.push(row);
            continue;
        }
        let wanted = JobQuery { state: args.state.clone(), ..base.clone() };
        let page = tasks_of(client, id.job, wanted, args.limit.unwrap_or(JSON_ROWS))?;
        list.more |= page.next.is_some();
        list.jobs.extend(page.jobs);
    }
    Ok(list)
}

/// The tasks of an array that started or ended, in the order of their indices, and a row for those that
/// did not.
pub(super) fn tasks_of(
    client: &Client,
    job: JobId,
    wanted: JobQuery,
    limit: u32,
) -> Result<JobPage, Fail> {
    let wanted = JobQuery { id: Some(job.to_string()), tasks: true, ..wanted };
    let page = pages(client, wanted.clone(), Some(limit))?;
    if !page.jobs.is_empty() {
        return Ok(page);
    }
    // It has left memory, or has none of these.
    let mut page = pages(client, JobQuery { since: Some(Time(0)), ..wanted }, Some(limit))?;
    page.jobs.reverse();
    Ok(page)
}

/// As one page, of as many as it takes.
pub(super) fn pages(
    client: &Client,
    mut query: JobQuery,
    limit: Option<u32>,
) -> Result<JobPage, Fail> {
    let limit = limit.map_or(usize::MAX, |n| n as usize);
    let mut jobs = Vec::new();
    loop {
        query.limit = Some(u32::try_from(limit - jobs.len()).unwrap_or(PAGE).clamp(1, PAGE));
        let mut page = client.jobs(&query)?;
        jobs.append(&mut page.jobs);
        match page.next {
            Some(next) if jobs.len() < limit => query.after = Some(next),
            next => return Ok(JobPage { jobs, next, ..page }),
        }
    }
}

pub(super) fn states(text: &str) -> Result<String, String> {
    let known = [HAS_NODES, "pending,active", ENDED].join(",");
    match text.split(',').find(|s| !known.split(',').any(|k| k == *s)) {
        None => Ok(text.to_owned()),
        Some(word) => {
            Err(format!("'{word}' is no state: write some of {}", known.replace(',', " ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::jobs::tests::row;
    use tutti_wire::api::ArrayCounts;

    #[test]
    fn what_the_rows_leave_out_is_counted() {
        let array = JobRow {
            array: Some(ArrayCounts { pending: 900, running: 3, ..ArrayCounts::default() }),
            ..row("3", JobState::Running)
        };
        let page = JobPage {
            jobs: vec![row("1", JobState::Pending), array],
            next: None,
            totals: BTreeMap::from([
                ("pending".into(), 1000),
                ("running".into(), 2),
                ("starting".into(), 1),
                ("failed".into(), 7),
            ]),
        };
        let left = hidden(&page, ["pending", "running", "starting"].into_iter());
        let want = [("pending".into(), 99), ("running".into(), 0), ("starting".into(), 0)];
        assert_eq!(left, BTreeMap::from(want));
    }

    #[test]
    fn the_newest_of_what_is_not_over_stay() {
        let rows = |ids: std::ops::RangeInclusive<u32>, state| -> Vec<JobRow> {
            ids.rev().map(|i| row(&i.to_string(), state)).collect()
        };
        let list = |placed, waiting, n| {
            let placed = rows(placed, JobState::Running);
            let (jobs, cut) = unfinished(placed, rows(waiting, JobState::Pending), n);
            (jobs.iter().map(|j| j.id.to_string()).collect::<Vec<_>>().join(" "), cut)
        };
        assert_eq!(list(1..=3, 4..=5, 5), ("1 2 3 4 5".to_owned(), false));
        assert_eq!(list(1..=9, 10..=10, 4), ("7 8 9 10".to_owned(), true));
        assert_eq!(list(1..=1, 2..=9, 4), ("1 7 8 9".to_owned(), true));
        assert_eq!(list(1..=9, 10..=19, 4), ("8 9 18 19".to_owned(), true));
        // Placed between the two questions: as it was seen last.
        assert_eq!(list(1..=3, 3..=4, 5), ("1 2 3 4".to_owned(), false));
    }

    #[test]
    fn a_cut_list_says_of_how_many() {
        let list = |hidden: BTreeMap<String, u64>| List {
            jobs: vec![row("1", JobState::Pending); 1000],
            hidden,
            more: true,
        };
        let known = BTreeMap::from([("pending".into(), 1000), ("failed".into(), 345)]);
        assert_eq!(cut(&list(known)), "showing 1,000 of 2,345: --all or --limit");
        let unknown = cut(&list(BTreeMap::new()));
        assert_eq!(unknown, "showing 1,000, and there are more: --all or --limit");
    }

    #[test]
    fn states_are_checked_here() {
        assert!(states("pending,failed").is_ok());
        assert!(states("pending,dead").unwrap_err().starts_with("'dead' is no state"));
    }
}
