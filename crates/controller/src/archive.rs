//! Ended jobs and past days of the ledger leave memory for daily files.
//!
//! ```text
//!  engine: too old or too many ─► rows ─► the files of their days, on disk for good ─► Forget
//! ```
//! Whatever breaks off in between is done again: what a file has already is not written twice. While
//! the file of a day can't be written, what is to go there stays in memory, and `tutti doctor` says why.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tutti_archive::jobs::key;
use tutti_archive::{ArchiveError, JobEntry, Key, Page, Position, Search, Table};
use tutti_engine::{Command, Settings, forgettable};
use tutti_model::{Day, Job, JobId, LedgerRow, Policy, Span, State, TaskId, Time, Waster};
use tutti_wire::api::JobDetail;

use crate::clock::now;
use crate::core::{CallError, Core, Stopped};
use crate::error::chain;
use crate::views::{LeftWasters, Sums, Wanted, job_line};
use entries::Leaving;

/// Below the data dir, unless it is elsewhere.
pub const ARCHIVE_DIR: &str = "archive";

/// Rows written in one go, unless one job alone has more.
const ROWS_MAX: usize = 50_000;
/// Jobs whose time is summed up before the lock is given up.
const SUMMED_MAX: usize = 1_000;
/// Jobs forgotten by one command: each is applied while everybody waits.
const FORGET_MAX: usize = 500;

/// Days of the ledger are small, and most questions are about the last month.
const LEDGER_KEPT: Span = Span::secs(35 * 86_400);

/// Searches at once; others wait. They read files, and each takes a core while it does.
const SEARCHES_MAX: usize = 2;
/// The same for reports. They may take long, and a search does not wait for them.
const REPORTS_MAX: usize = 1;

pub struct Archive {
    folder: PathBuf,
    jobs: Table<JobEntry>,
    ledger: Table<LedgerRow>,
    /// Why something could not leave memory the last time.
    trouble: Mutex<Option<String>>,
    searches: Arc<Semaphore>,
    reports: Arc<Semaphore>,
}

/// What is wrong with the archive.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error(transparent)]
    Files(#[from] ArchiveError),
    #[error(
        "a thread that works on its files broke off: this is a bug, please report it with what the \
         log says"
    )]
    BrokeOff,
}

/// Why a search has no answer, or something stays in memory.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Archive(#[from] Trouble),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Archive {
    pub fn at(folder: &Path) -> Archive {
        Archive::with(folder, Table::at(folder))
    }

    fn with(folder: &Path, jobs: Table<JobEntry>) -> Archive {
        Archive {
            folder: folder.to_owned(),
            jobs,
            ledger: Table::at(folder),
            trouble: Mutex::new(None),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
            reports: Arc::new(Semaphore::new(REPORTS_MAX)),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The days that have files, and how many.
    pub fn span(&self) -> Result<Option<(Day, Day, usize)>, ArchiveError> {
        let days = self.jobs.days()?;
        Ok(days.first().zip(days.last()).map(|(first, last)| (*first, *last, days.len())))
    }

    pub async fn list(
        self: &Arc<Self>,
        search: Search,
        from: Option<Position>,
        limit: usize,
    ) -> Result<Page, SearchError> {
        self.look(&self.searches, move |archive| archive.jobs.list(&search, from, limit)).await
    }

    pub async fn find(self: &Arc<Self>, id: TaskId) -> Result<Option<JobDetail>, SearchError> {
        self.look(&self.searches, move |archive| archive.jobs.find(id)).await
    }

    /// What the files have for a report, summed up for it, without the days that are in memory.
    pub async fn sums(
        self: &Arc<Self>,
        wanted: Wanted,
        policy: Arc<Policy>,
        here: BTreeSet<Day>,
    ) -> Result<Vec<LedgerRow>, SearchError> {
        self.look(&self.reports, move |archive| {
            let days = wanted.since..=wanted.until;
            let mut sums = Sums::new(wanted, policy);
            archive.ledger.each(days, &here, |row| sums.add(row))?;
            Ok(sums.rows())
        })
        .await
    }

    /// The jobs that wasted most, of those that ended in the days of the report and are in files.
    pub async fn wasters(
        self: &Arc<Self>,
        wanted: Wanted,
        policy: Arc<Policy>,
    ) -> Result<Vec<Waster>, SearchError> {
        self.look(&self.reports, move |archive| {
            let days = wanted.since..=wanted.until;
            let mut worst = LeftWasters::new(wanted, policy);
            archive.jobs.times(days, |job| worst.add(&job))?;
            Ok(worst.done())
        })
        .await
    }

    /// The thread keeps its turn until it is done, also if nobody waits for it any more.
    async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        turns: &Arc<Semaphore>,
        look: impl FnOnce(&Archive) -> Result<T, ArchiveError> + Send + 'static,
    ) -> Result<T, SearchError> {
        let turn = Arc::clone(turns).acquire_owned().await.map_err(|_| Stopped)?;
        let archive = Arc::clone(self);
        aside(move || {
            let found = look(&archive);
            drop(turn);
            found
        })
        .await
    }

    /// Logs what is new about it, once.
    fn note(&self, result: Result<(), &Trouble>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) if trouble.is_some() => {
                tracing::info!("everything can be archived again");
                *trouble = None;
            }
            Ok(()) => {}
            Err(error) => {
                let words = chain(error);
                if trouble.as_ref() != Some(&words) {
                    tracing::error!("something stays in memory, it can't be archived: {words}");
                }
                *trouble = Some(words);
            }
        }
    }
}

/// Does what reads or writes files in a thread of its own. If that breaks off it is trouble like any
/// other, and not the end of the archiver.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, SearchError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done.map_err(Trouble::Files)?),
        Err(error) if error.is_panic() => Err(Trouble::BrokeOff.into()),
        // Nothing is begun any more.
        Err(_) => Err(Stopped.into()),
    }
}

/// Archives what is due, until the controller stops.
pub async fn keep(core: Core, archive: Arc<Archive>, mut stopping: watch::Receiver<bool>) {
    loop {
        let keep_for = core.peek(|world| world.engine.settings().keep_jobs_for);
        let Ok(pause) = keep_for.map(pause) else { return };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        match round(&core, &archive).await {
            Ok(()) => archive.note(Ok(())),
            Err(SearchError::Archive(trouble)) => archive.note(Err(&trouble)),
            Err(SearchError::Stopped(Stopped)) => return,
        }
    }
}

/// Everything that is due. What is wrong with one thing keeps no other here; the first is told.
async fn round(core: &Core, archive: &Arc<Archive>) -> Result<(), SearchError> {
    let jobs = jobs_leave(core, archive).await;
    let days = days_leave(core, archive, LEDGER_KEPT).await;
    jobs.and(days)
}

/// How often to look.
fn pause(keep_for: Span) -> Duration {
    Duration::from_millis((keep_for.0 / 10).clamp(1_000, 10_000))
}

/// So long after its time a job may stay, so that many are written at once.
fn patience(keep_for: Span) -> Span {
    Span((keep_for.0 / 24).min(3_600_000))
}

fn is_time(state: &State, settings: &Settings, now: Time) -> bool {
    let Some(oldest) = forgettable(state, settings, now).next() else { return false };
    let keep = settings.keep_jobs_for;
    let overdue = |at: Time| now.since(at).0 >= keep.0.saturating_add(patience(keep).0);
    let bytes = settings.ended_bytes_kept.0;
    let crowded = state.index.ended.len() > settings.jobs_kept + settings.jobs_kept / 20
        || state.index.ended_specs.bytes > bytes + bytes / 20;
    crowded || state.job(oldest).and_then(Job::ended_at).is_some_and(overdue)
}

/// Days whose files did not take their jobs in this round, and why the first did not.
#[derive(Default)]
struct Bad {
    days: BTreeSet<Day>,
    first: Option<ArchiveError>,
}

async fn jobs_leave(core: &Core, archive: &Arc<Archive>) -> Result<(), SearchError> {
    let due = || core.peek(|w| is_time(w.engine.state(), w.engine.settings(), now()));
    let mut bad = Bad::default();
    while due()? && pass(core, archive, &mut bad).await? {}
    match bad.first {
        Some(error) => Err(Trouble::Files(error).into()),
        None => Ok(()),
    }
}

/// One go: from memory to files, and out of memory. False if it came no further.
async fn pass(core: &Core, archive: &Arc<Archive>, bad: &mut Bad) -> Result<bool, SearchError> {
    // Only what is durable may be written down: it can't come out otherwise after a crash.
    let (jobs, names) = core
        .read(|world| {
            let (state, settings) = (world.engine.state(), world.engine.settings());
            (due(state, settings, now(), &bad.days), entries::names(state))
        })
        .await?;
    let mut all = Vec::with_capacity(jobs.len());
    for few in jobs.chunks(SUMMED_MAX) {
        all.extend(core.read(|world| leaving(world.engine.state(), few, now())).await?);
    }
    let writer = Arc::clone(archive);
    let written = aside(move || Ok(write(&writer.jobs, &names, &all))).await?;
    let any_bad = !written.bad.is_empty();
    for (day, error) in written.bad {
        bad.days.insert(day);
        bad.first = bad.first.take().or(Some(error));
    }
    Ok(forget(core, &written.jobs).await? > 0 || any_bad)
}

/// How many are forgotten: one that somebody waits for since stays.
async fn forget(core: &Core, jobs: &[JobId]) -> Result<usize, Stopped> {
    let commands = jobs.chunks(FORGET_MAX).map(|jobs| Command::Forget { jobs: jobs.to_vec() });
    let mut forgotten = 0;
    for answer in core.call_many(commands.collect()).await? {
        if let Ok(tutti_engine::Reply::Tasks(n)) = answer {
            forgotten += n as usize;
        }
    }
    Ok(forgotten)
}

/// Every day of the ledger that can't change any more and is old enough, oldest first.
async fn days_leave(core: &Core, archive: &Arc<Archive>, keep: Span) -> Result<(), SearchError> {
    let mut from = Day(0);
    let mut first = Ok(());
    while let Some((day, rows)) = sealed(core, keep, from).await? {
        match day_leaves(core, archive, day, rows).await {
            Err(SearchError::Stopped(stopped)) => return Err(stopped.into()),
            result => first = first.and(result),
        }
        // Each is tried once: one that can't leave does not keep those after it.
        from = day.next();
    }
    first
}

/// The first such day of those from `from` on.
async fn sealed(
    core: &Core,
    keep: Span,
    from: Day,
) -> Result<Option<(Day, Vec<LedgerRow>)>, Stopped> {
    let look = core.read(|world| {
        let goodput = &world.engine.state().goodput;
        let old = |day: &Day| *day >= from && now().since(day.next().begins()) >= keep;
        let day = goodput.sealed_days().into_iter().find(old)?;
        Some((day, goodput.rows_of(day)))
    });
    look.await
}

async fn day_leaves(
    core: &Core,
    archive: &Arc<Archive>,
    day: Day,
    rows: Vec<LedgerRow>,
) -> Result<(), SearchError> {
    let writer = Arc::clone(archive);
    let added = aside(move || writer.ledger.add_day(day, rows)).await?;
    tracing::debug!(%day, added, "archived a day of the ledger");
    match core.call(Command::DropLedger { day }).await {
        Ok(_) => Ok(()),
        Err(CallError::Stopped(stopped)) => Err(stopped.into()),
        Err(CallError::Rejected(refused)) => {
            tracing::debug!(%refused, "it stays for now");
            Ok(())
        }
    }
}

/// As many as are written in one go, without those of bad days.
fn due(state: &State, settings: &Settings, now: Time, bad: &BTreeSet<Day>) -> Vec<Arc<Job>> {
    let mut rows = 0;
    let jobs = forgettable(state, settings, now).filter_map(|id| state.jobs.get(&id));
    // When an array ended takes a look at all of its tasks, so it is not asked without need.
    let may_leave =
        |job: &&Arc<Job>| bad.is_empty() || entries::day(job).is_none_or(|day| !bad.contains(&day));
    let room = |job: &&Arc<Job>| {
        let before = rows;
        rows += entries::rows(job);
        before == 0 || rows <= ROWS_MAX
    };
    jobs.filter(may_leave).take_while(room).cloned().collect()
}

fn leaving(state: &State, jobs: &[Arc<Job>], now: Time) -> Vec<Leaving> {
    let leaving = |job: &Arc<Job>| Leaving {
        job: Arc::clone(job),
        time: state.goodput.of_job(job.id),
        goodput: Some(job_line(state, job.id, now)).filter(|line| line.held_hours > 0.0),
    };
    jobs.iter().map(leaving).collect()
}

/// What is in files for good now, and the days whose files did not take theirs.
#[derive(Default)]
struct Written {
    jobs: Vec<JobId>,
    bad: Vec<(Day, ArchiveError)>,
}

fn write(table: &Table<JobEntry>, names: &State, jobs: &[Leaving]) -> Written {
    let mut days: BTreeMap<Day, Vec<&Leaving>> = BTreeMap::new();
    for leaving in jobs {
        if let Some(day) = entries::day(&leaving.job) {
            days.entry(day).or_default().push(leaving);
        }
    }
    let mut written = Written::default();
    for (day, jobs) in days {
        match write_day(table, names, day, &jobs) {
            Ok(added) => {
                tracing::debug!(%day, added, "archived ended jobs");
                written.jobs.extend(jobs.iter().map(|leaving| leaving.job.id));
            }
            Err(error) => written.bad.push((day, error)),
        }
    }
    written
}

fn write_day(
    table: &Table<JobEntry>,
    names: &State,
    day: Day,
    jobs: &[&Leaving],
) -> Result<u64, ArchiveError> {
    let key = |leaving: &&Leaving| key(leaving.job.id, leaving.job.submitted_at);
    let keys: BTreeSet<Key> = jobs.iter().map(key).collect();
    let rows = jobs.iter().flat_map(|leaving| entries::entries(names, leaving));
    table.add(day, &keys, rows)
}
