//! Ended jobs and past days of the ledger leave memory for daily files.
//!
//! ```text
//!  engine: too old or too many ─► rows ─► the files of their days, on disk for good ─► Forget
//! ```
//! Whatever breaks off in between is done again: what a file has already is not written twice. While
//! files can't be written, jobs stay in memory, and `tutti doctor` says why.

mod entries;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tutti_archive::jobs::key;
use tutti_archive::{ArchiveError, JobEntry, Key, Page, Position, Search, Table};
use tutti_engine::{Command, Settings, forgettable};
use tutti_model::{Day, Job, JobId, LedgerRow, Span, State, TaskId, Time};
use tutti_wire::api::JobDetail;

use crate::clock::now;
use crate::core::{CallError, Core, Stopped};
use crate::error::chain;
use crate::views::job_line;
use entries::Leaving;

/// Below the data dir, unless it is elsewhere.
pub const ARCHIVE_DIR: &str = "archive";

/// Rows written in one go, unless one job alone has more.
const ROWS_MAX: usize = 50_000;
/// Jobs forgotten by one command: each is applied while everybody waits.
const FORGET_MAX: usize = 500;

/// Days of the ledger are small, and most questions are about the last month.
const LEDGER_KEPT: Span = Span::secs(35 * 86_400);

/// Searches at once; others wait. They read files, and each takes a core while it does.
const SEARCHES_MAX: usize = 2;

pub struct Archive {
    folder: PathBuf,
    jobs: Table<JobEntry>,
    ledger: Table<LedgerRow>,
    /// Why files could not be written the last time.
    trouble: Mutex<Option<String>>,
    searches: Semaphore,
}

/// Why a search has no answer.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
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
            searches: Semaphore::new(SEARCHES_MAX),
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
        self.search(move |archive| archive.jobs.list(&search, from, limit)).await
    }

    pub async fn find(self: &Arc<Self>, id: TaskId) -> Result<Option<JobDetail>, SearchError> {
        self.search(move |archive| archive.jobs.find(id)).await
    }

    /// What the files have of these days, oldest first. A day that is also in memory was not dropped yet.
    pub async fn ledger(
        self: &Arc<Self>,
        days: RangeInclusive<Day>,
    ) -> Result<Vec<LedgerRow>, SearchError> {
        self.search(move |archive| {
            let mut rows = Vec::new();
            archive.ledger.each(days, |row| rows.push(row))?;
            Ok(rows)
        })
        .await
    }

    async fn search<T: Send + 'static>(
        self: &Arc<Self>,
        look: impl FnOnce(&Archive) -> Result<T, ArchiveError> + Send + 'static,
    ) -> Result<T, SearchError> {
        let turn = self.searches.acquire().await.map_err(|_| Stopped)?;
        let archive = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || look(&archive)).await;
        drop(turn);
        Ok(found.map_err(|_| Stopped)??)
    }

    /// Logs what is new about it, once.
    fn note(&self, result: Result<(), &ArchiveError>) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) if trouble.is_some() => {
                tracing::info!("ended jobs can be archived again");
                *trouble = None;
            }
            Ok(()) => {}
            Err(error) => {
                let words = chain(error);
                if trouble.as_ref() != Some(&words) {
                    tracing::error!("ended jobs stay in memory, they can't be archived: {words}");
                }
                *trouble = Some(words);
            }
        }
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
            Err(PassError::Archive(error)) => archive.note(Err(&error)),
            Err(PassError::Stopped(Stopped)) => return,
        }
    }
}

/// Everything that is due.
async fn round(core: &Core, archive: &Arc<Archive>) -> Result<(), PassError> {
    let due = || core.peek(|w| is_time(w.engine.state(), w.engine.settings(), now()));
    while due()? && pass(core, archive).await? > 0 {}
    while pass_ledger(core, archive, LEDGER_KEPT).await? {}
    Ok(())
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
    let crowded = state.index.ended.len() > settings.jobs_kept + settings.jobs_kept / 20;
    crowded || state.job(oldest).and_then(Job::ended_at).is_some_and(overdue)
}

/// One go: from memory to files, and out of memory. How many jobs were forgotten.
async fn pass(core: &Core, archive: &Arc<Archive>) -> Result<usize, PassError> {
    // Only what is durable may be written down: it can't come out otherwise after a crash.
    let (jobs, names) = core
        .read(|world| {
            let (state, settings) = (world.engine.state(), world.engine.settings());
            (due(state, settings, now()), entries::names(state))
        })
        .await?;
    let ids: Vec<JobId> = jobs.iter().map(|leaving| leaving.job.id).collect();
    let writer = Arc::clone(archive);
    let written = tokio::task::spawn_blocking(move || write(&writer.jobs, &names, &jobs)).await;
    written.map_err(|_| Stopped)??;
    let commands = ids.chunks(FORGET_MAX).map(|jobs| Command::Forget { jobs: jobs.to_vec() });
    let mut forgotten = 0;
    for answer in core.call_many(commands.collect()).await? {
        if let Ok(tutti_engine::Reply::Tasks(n)) = answer {
            forgotten += n as usize;
        }
    }
    Ok(forgotten)
}

/// The oldest day of the ledger that can't change any more and is old enough. False if there is none.
async fn pass_ledger(core: &Core, archive: &Arc<Archive>, keep: Span) -> Result<bool, PassError> {
    let sealed = core.read(|world| {
        let goodput = &world.engine.state().goodput;
        let old = |day: &Day| now().since(day.next().begins()) >= keep;
        let day = goodput.sealed_days().into_iter().find(old)?;
        Some((day, goodput.rows_of(day)))
    });
    let Some((day, rows)) = sealed.await? else { return Ok(false) };
    let writer = Arc::clone(archive);
    let written = tokio::task::spawn_blocking(move || writer.ledger.add_day(day, rows)).await;
    let added = written.map_err(|_| Stopped)??;
    tracing::debug!(%day, added, "archived a day of the ledger");
    match core.call(Command::DropLedger { day }).await {
        Ok(_) => Ok(true),
        Err(CallError::Stopped(stopped)) => Err(stopped.into()),
        Err(CallError::Rejected(refused)) => {
            tracing::debug!(%refused, "it stays for now");
            Ok(false)
        }
    }
}

/// As many as are written in one go.
fn due(state: &State, settings: &Settings, now: Time) -> Vec<Leaving> {
    let mut rows = 0;
    let jobs = forgettable(state, settings, now).filter_map(|id| state.jobs.get(&id));
    let room = |job: &&Arc<Job>| {
        let before = rows;
        rows += entries::rows(job);
        before == 0 || rows <= ROWS_MAX
    };
    let leaving = |job: &Arc<Job>| Leaving {
        job: Arc::clone(job),
        time: state.goodput.of_job(job.id),
        goodput: Some(job_line(state, job.id, now)).filter(|line| line.held_hours > 0.0),
    };
    jobs.take_while(room).map(leaving).collect()
}

fn write(table: &Table<JobEntry>, names: &State, jobs: &[Leaving]) -> Result<(), ArchiveError> {
    let mut days: BTreeMap<Day, Vec<&Leaving>> = BTreeMap::new();
    for leaving in jobs {
        if let Some(day) = entries::day(&leaving.job) {
            days.entry(day).or_default().push(leaving);
        }
    }
    for (day, jobs) in days {
        let key = |leaving: &&Leaving| key(leaving.job.id, leaving.job.submitted_at);
        let keys: BTreeSet<Key> = jobs.iter().map(key).collect();
        let rows = jobs.into_iter().flat_map(|leaving| entries::entries(names, leaving));
        let added = table.add(day, &keys, rows)?;
        tracing::debug!(%day, added, "archived ended jobs");
    }
    Ok(())
}
