use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use tutti_archive::Step;
use tutti_engine::{Actor, Engine, Event, Record, Reply, apply};
use tutti_journal::{Journal, MemoryJournal};
use tutti_model::{
    ArraySpec, Bill, EndReason, Ended, GPU_HOUR, Gpu, GpuIndex, JobSpec, JobState, NodeFacts,
    NodeId, Outcome, Rank, ReplicaOf, Restarts, Role, RowKey, Seq, TimeClass,
};

use super::*;
use crate::core::{SnapshotRule, Started, World, start};
use crate::links::{GangKeys, Links};
use crate::views;

fn settings() -> Settings {
    Settings { keep_jobs_for: Span(0), archived: true, ..Settings::default() }
}

fn world(state: State) -> World {
    World::new(Engine::restore(state, settings()))
}

/// A state made by its events.
#[derive(Default)]
struct Past {
    state: State,
    /// Milliseconds since the first day began.
    later: u64,
}

/// The day on which all of it happens, unless it is later.
const DAY: Day = Day(20_773);

impl Past {
    fn put(&mut self, event: Event) {
        let seq = Seq(self.state.seq.0 + 1);
        let at = Time(DAY.begins().0 + self.later + seq.0);
        apply(&mut self.state, &Record { seq, at, event });
    }

    fn node(&mut self) {
        let gpu = Gpu {
            index: GpuIndex(0),
            model: "h100".into(),
            uuid: "u".into(),
            mem: tutti_model::Bytes::gib(80),
            island: None,
        };
        let facts = NodeFacts {
            name: "n1".into(),
            cpus: 8,
            mem: tutti_model::Bytes::gib(8),
            gpus: vec![gpu],
            ..NodeFacts::default()
        };
        self.put(Event::NodeJoined { node: NodeId(1), facts: Box::new(facts) });
    }

    fn job(&mut self, id: u64, spec: JobSpec) -> JobId {
        let (job, user) = (JobId(id), "ada".to_owned());
        let of = Some(ReplicaOf { endpoint: "chat".into(), revision: 3 });
        let (key, team) = (None, Some("vision".to_owned()));
        self.put(Event::JobSubmitted {
            job,
            user,
            spec: Arc::new(spec),
            key,
            team,
            replica_of: of.filter(|_| id == 2).map(Box::new),
            texts: Default::default(),
        });
        job
    }

    fn end(&mut self, task: TaskId, outcome: Outcome, reason: EndReason) {
        let at = self.state.at;
        // Of a job that is no array, the record beside it knows of no attempt either.
        let tried = if task.index.is_some() { 2 } else { 0 };
        let ended = Ended {
            outcome,
            exit_code: Some(if outcome == Outcome::Completed { 0 } else { 137 }),
            reason,
            started_at: Some(at),
            ended_at: Time(at.0 + 5),
            attempts: tried,
            restarts: Restarts { node_failure: tried, ..Restarts::default() },
            nodes: vec![NodeId(1)],
            gpus: 1,
            away: Span(0),
            last_ran: None,
            output_dropped: 0,
            between: Span(0),
        };
        self.put(Event::TaskEnded { task, ended });
    }
}

fn past() -> Past {
    let mut past = Past::default();
    past.node();
    let mut spec = JobSpec::shell("python train.py");
    spec.env.insert("TOKEN".into(), "secret".into());
    let one = past.job(1, spec);
    past.end(TaskId::single(one), Outcome::Completed, EndReason::Finished);
    let two = past.job(2, JobSpec::shell("false"));
    let reason = EndReason::RankFailed { rank: Rank(0), signal: Some(9), saw: None };
    past.end(TaskId::single(two), Outcome::Failed, reason);
    let array: ArraySpec = "0-99".parse().unwrap();
    let three = past.job(3, JobSpec { array: Some(array), ..JobSpec::shell("true") });
    past.end(TaskId::of_array(three, 0), Outcome::Completed, EndReason::Finished);
    past.end(TaskId::of_array(three, 7), Outcome::Completed, EndReason::Finished);
    let ended = Ended {
        outcome: Outcome::Cancelled,
        exit_code: None,
        reason: EndReason::Cancelled { by: "bob".into() },
        started_at: None,
        ended_at: past.state.at,
        attempts: 0,
        restarts: Restarts::default(),
        nodes: Vec::new(),
        gpus: 0,
        away: Span(0),
        last_ran: None,
        output_dropped: 0,
        between: Span(0),
    };
    past.put(Event::WaitingEnded { job: three, ended });
    past.job(4, JobSpec::shell("sleep 1"));
    past
}

fn bill(job: Option<JobId>) -> Bill {
    let key = RowKey { team: "vision".into(), user: "ada".into(), model: "h100".into() };
    Bill { key, node: NodeId(1), job }
}

/// All that is due, as rows of the archive are made of it.
fn all_leaving(state: &State) -> Vec<Leaving> {
    let jobs = due(state, &settings(), now(), &BTreeSet::new());
    leaving(state, &jobs, now())
}

#[test]
fn what_is_archived_reads_as_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = past().state;
    for (job, hours) in [(1, 1), (3, 2)] {
        let bill = bill(Some(JobId(job)));
        state.goodput.book(&bill, DAY, TimeClass::Productive, 3 * hours * GPU_HOUR);
        state.goodput.book(&bill, DAY, TimeClass::Idle, hours * GPU_HOUR);
    }
    let world = world(state);
    let state = world.engine.state();
    let jobs = all_leaving(state);
    assert_eq!(jobs.iter().map(|j| j.job.id.0).collect::<Vec<_>>(), [1, 2, 3], "4 has not ended");
    let table = Table::at(dir.path());
    let written = write(&table, &entries::names(state), &jobs);
    assert_eq!((written.jobs.len(), written.bad.len()), (3, 0));
    let task = table.find("3_7".parse().unwrap()).unwrap().unwrap();
    assert_eq!(task.goodput, None, "the hours are the whole array's");
    let whole = table.find("3".parse().unwrap()).unwrap().unwrap();
    assert_eq!(whole.goodput.map(|line| line.held_hours), Some(8.0));
    let served = table.find("2".parse().unwrap()).unwrap().unwrap().replica_of;
    assert_eq!(served, Some(ReplicaOf { endpoint: "chat".into(), revision: 3 }));
    for id in ["1", "2", "3_0", "3_7", "3_50", "3"] {
        let id: TaskId = id.parse().unwrap();
        let job = state.job(id.job).unwrap();
        let live = views::detail(&world, job, id.index, false, now()).unwrap();
        assert_eq!(table.find(id).unwrap().unwrap(), live, "{id}");
    }
    assert_eq!(table.find("4".parse().unwrap()).unwrap(), None);
}

/// A disk that is full while it is told so.
fn archive(folder: &Path) -> (Arc<Archive>, &'static AtomicBool) {
    let full: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let table = Table::gated(folder, move |step: Step| {
        if full.load(Ordering::SeqCst) && step == Step::Fill {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    });
    (Arc::new(Archive::with(folder, table)), full)
}

fn run(state: State) -> Core {
    let links = Arc::new(Links::new(GangKeys::fixed(1)));
    // Its records are those that come after the state.
    let mut journal = Box::new(MemoryJournal::default());
    journal.write_snapshot(state.seq, &[]).unwrap();
    let Started { core, ended } =
        start(world(state), journal, links, SnapshotRule::default()).unwrap();
    // Nobody asks how it ended.
    drop(ended);
    core
}

fn in_memory(core: &Core) -> usize {
    core.peek(|world| world.engine.state().jobs.len()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_leave_once_they_are_on_disk_and_stay_while_they_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, full) = archive(dir.path());
    let core = run(past().state);
    full.store(true, Ordering::SeqCst);
    archive.note(Err(&trouble(&core, &archive).await));
    assert_eq!(in_memory(&core), 4);
    assert!(archive.trouble().unwrap().contains("jobs"), "{:?}", archive.trouble());

    full.store(false, Ordering::SeqCst);
    jobs_leave(&core, &archive).await.unwrap();
    archive.note(Ok(()));
    assert_eq!((in_memory(&core), archive.trouble()), (1, None));
    assert!(!pass(&core, &archive, &mut Bad::default()).await.unwrap(), "nothing is left to do");
    let page = archive.list(Search::all(), None, 10).await.unwrap();
    let ids: Vec<String> = page.rows.iter().map(|row| row.id.to_string()).collect();
    assert_eq!(ids, ["3", "2", "1"]);
    assert_eq!(page.rows[0].state, JobState::Cancelled);
    core.stop().await;
}

async fn trouble(core: &Core, archive: &Arc<Archive>) -> Trouble {
    let result = jobs_leave(core, archive).await;
    let Err(SearchError::Archive(trouble)) = result else { panic!("{result:?}") };
    trouble
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_keeps_its_own_day_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, _) = archive(dir.path());
    let mut past = past();
    past.later = 86_400_000;
    let five = past.job(5, JobSpec::shell("true"));
    past.end(TaskId::single(five), Outcome::Completed, EndReason::Finished);
    let path = archive.jobs.path(DAY);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "no Parquet").unwrap();
    let core = run(past.state);
    let found = trouble(&core, &archive).await;
    assert!(matches!(found, Trouble::Files(ArchiveError::Read { .. })), "{found:?}");
    assert_eq!(in_memory(&core), 4, "5 has left");
    assert!(archive.find(TaskId::single(five)).await.unwrap().is_some());

    std::fs::remove_file(&path).unwrap();
    jobs_leave(&core, &archive).await.unwrap();
    assert_eq!(in_memory(&core), 1);
    core.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_that_breaks_off_is_told_and_is_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(true));
    let gate = Arc::clone(&broken);
    let table = Table::gated(dir.path(), move |_| {
        assert!(!gate.load(Ordering::SeqCst), "as if there were a bug");
        Ok(())
    });
    let archive = Arc::new(Archive::with(dir.path(), table));
    let core = run(past().state);
    let found = trouble(&core, &archive).await;
    assert!(matches!(found, Trouble::BrokeOff), "{found:?}");
    archive.note(Err(&found));
    assert!(archive.trouble().unwrap().contains("broke off"), "{:?}", archive.trouble());
    broken.store(false, Ordering::SeqCst);
    jobs_leave(&core, &archive).await.unwrap();
    assert_eq!(in_memory(&core), 1);
    core.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_nobody_waits_for_has_its_turn_until_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, _) = archive(dir.path());
    let (begins, begun) = tokio::sync::oneshot::channel();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let here = Arc::clone(&archive);
    let asks = tokio::spawn(async move {
        let search = move |_: &Archive| {
            // Whoever listened may have failed, and says so.
            let _ = begins.send(());
            let _ = end.recv();
            Ok(())
        };
        here.look(&here.searches, search).await
    });
    begun.await.unwrap();
    asks.abort();
    assert!(asks.await.unwrap_err().is_cancelled());
    assert_eq!(archive.searches.available_permits(), SEARCHES_MAX - 1);
    drop(ends);
    let all = archive.searches.acquire_many(SEARCHES_MAX as u32).await;
    assert!(all.is_ok(), "the turn comes back");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_somebody_waits_for_stays_and_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, _) = archive(dir.path());
    let state = past().state;
    // As if it had been killed between the file and the event.
    let written = write(&archive.jobs, &entries::names(&state), &all_leaving(&state));
    assert_eq!((written.jobs.len(), written.bad.len()), (3, 0));
    let core = run(state);
    let actor = Actor { user: "ada".into(), role: Role::Admin };
    let spec = JobSpec { after: vec!["1".parse().unwrap()], hold: true, ..JobSpec::shell("true") };
    let command = Command::Submit { actor, spec: Box::new(spec), user: None, key: None };
    let reply = core.call(command).await;
    assert!(matches!(reply, Ok(Reply::Submitted { .. })), "{reply:?}");
    jobs_leave(&core, &archive).await.unwrap();
    assert_eq!(in_memory(&core), 3, "1, which 5 waits for, 4 and 5");
    let page = archive.list(Search::all(), None, 10).await.unwrap();
    assert_eq!(page.rows.len(), 3);
    core.stop().await;
}

#[test]
fn they_go_in_batches() {
    let state = past().state;
    let ended = state.index.ended.first().unwrap().0;
    let kept =
        |keep, jobs_kept| Settings { keep_jobs_for: Span::secs(keep), jobs_kept, ..settings() };
    let after = |s: u64| Time(ended.0 + s * 1000 + 100);
    assert!(is_time(&state, &kept(0, 100), after(0)));
    assert!(!is_time(&state, &kept(86_400, 100), after(86_400)), "more will be due soon");
    assert!(is_time(&state, &kept(86_400, 100), after(90_000)));
    assert!(is_time(&state, &kept(86_400, 1), after(1)), "too many");
    assert!(!is_time(&state, &kept(86_400, 3), after(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn past_days_of_the_ledger_leave_and_the_one_that_is_not_over_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, _) = archive(dir.path());
    let today = Day::of(now());
    let mut state = past().state;
    let days = [Day(today.0 - 3), Day(today.0 - 2), Day(today.0 - 1), today];
    for day in days {
        state.goodput.book(&bill(None), day, TimeClass::Productive, 42);
        state.goodput.book(&bill(None), day, TimeClass::Idle, 7);
    }
    state.goodput.settled = now();
    let core = run(state);
    let left = || -> Vec<Day> {
        core.peek(|world| world.engine.state().goodput.days.keys().copied().collect()).unwrap()
    };
    days_leave(&core, &archive, LEDGER_KEPT).await.unwrap();
    assert_eq!(left(), days, "none is old enough");
    // The file of the first is of another cluster.
    let RowKey { team, user, model } = bill(None).key;
    let (class, gpu_micros) = (TimeClass::Productive, 41);
    let other = LedgerRow { day: days[0], team, user, model, class, gpu_micros };
    archive.ledger.add_day(days[0], vec![other]).unwrap();
    let result = days_leave(&core, &archive, Span(0)).await;
    let Err(SearchError::Archive(trouble)) = result else { panic!("{result:?}") };
    assert!(trouble.to_string().contains("--archive"), "{trouble}");
    assert_eq!(left(), [days[0], today], "those after it have left");
    let mut amounts = Vec::new();
    let add = |row: LedgerRow| amounts.push(row.gpu_micros);
    archive.ledger.each(days[1]..=days[2], &BTreeSet::new(), add).unwrap();
    assert_eq!(amounts, [42, 7, 42, 7]);
    core.stop().await;
}
