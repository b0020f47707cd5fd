use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use tutti_model::{
    Amounts, Day, EndReason, IndexRanges, JobId, JobSpec, JobState, LedgerRow, Milli, Priority,
    ReportLine, Restarts, Span, TaskId, Time, TimeClass,
};
use tutti_wire::api::JobRow;

use crate::file::{GROUP_ROWS, Reader};
use crate::jobs::{JobEntry, More, key, spec_json};
use crate::table::{BadContent, Cell, Columns, Field, Key, Kind, Row};
use crate::{ArchiveError, Position, Search, Step, Table};

const DAY: Day = Day(20_773);

fn entry(job: u64, index: Option<u32>, state: JobState) -> JobEntry {
    let (user, team) = if job.is_multiple_of(2) { ("ada", "vision") } else { ("bob", "speech") };
    let ended = Time(DAY.begins().0 + job * 10);
    JobEntry {
        row: JobRow {
            id: TaskId { job: JobId(job), index },
            name: format!("train-{}", job % 7),
            user: user.into(),
            team: Some(team.into()),
            class: "standard".into(),
            state,
            nodes: 2,
            gpus: 16,
            share: Milli::WHOLE,
            priority: Priority(-3),
            submitted_at: Time(ended.0 - 9_000),
            started_at: Some(Time(ended.0 - 5_000)),
            ended_at: Some(ended),
            suspended_for: Span(12),
            between_attempts: Span(7),
            exit_code: (state == JobState::Failed).then_some(137),
            restarts: 4,
            verdict: None,
            blockers: Vec::new(),
            note: "rank 3 was killed by signal 9".into(),
            array: None,
            node_names: vec!["n1".into(), "n2".into()],
            progress: None,
        },
        tasks: 1,
        indices: None,
        reason: "rank_failed".into(),
        attempts: 4,
        restarts: Restarts { node_failure: 1, preemption: 2, job_failure: 0, health: 1 },
        ran: Some(Span(5_000)),
        gpu_model: Some("h100".into()),
        cpus_per_node: 64,
        mem_per_node: 1 << 39,
        time: None,
        spec: spec_json(&JobSpec::shell("python train.py")),
        more: Some(More {
            end: EndReason::RankFailed { rank: tutti_model::Rank(3), signal: Some(9), saw: None },
            checkpoints: Vec::new(),
            suspensions: Vec::new(),
            stopped_before: Some("n1 was lost".into()),
            goodput: None,
            replica_of: None,
            output_dropped: 12,
        }),
    }
}

fn done(job: u64) -> JobEntry {
    entry(job, None, JobState::Completed)
}

fn keys(rows: &[JobEntry]) -> BTreeSet<Key> {
    rows.iter().map(Row::key).collect()
}

fn add(table: &Table<JobEntry>, rows: Vec<JobEntry>) -> Result<u64, ArchiveError> {
    table.add(DAY, &keys(&rows), rows)
}

/// All pages of a list.
fn ids(table: &Table<JobEntry>, search: &Search, limit: usize) -> Vec<String> {
    let (mut ids, mut from) = (Vec::new(), None);
    loop {
        let page = table.list(search, from, limit).unwrap();
        assert!(page.rows.len() <= limit);
        ids.extend(page.rows.iter().map(|r| r.id.to_string()));
        match page.next {
            Some(next) => from = Some(next.to_string().parse::<Position>().unwrap()),
            None => return ids,
        }
    }
}

#[test]
fn a_job_comes_back_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    let (first, second) = (entry(1, None, JobState::Failed), done(2));
    assert_eq!(add(&table, vec![first.clone(), second.clone()]).unwrap(), 2);
    for entry in [first, second] {
        let found = table.find(entry.row.id).unwrap().unwrap();
        assert_eq!(found, entry.detail().unwrap());
        assert_eq!(found.row, entry.row);
    }
    assert_eq!(table.find(TaskId::single(JobId(3))).unwrap(), None);
    let path = dir.path().join("jobs/2026/2026-11-16.parquet");
    let bytes = std::fs::read(path).unwrap();
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
}

#[test]
fn the_same_again_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    assert_eq!(add(&table, vec![done(1), done(2)]).unwrap(), 2);
    assert_eq!(add(&table, vec![done(1), done(2)]).unwrap(), 0);
    assert_eq!(add(&table, vec![done(2), done(3)]).unwrap(), 1);
    // A cluster that began anew has another job 1.
    let mut other = done(1);
    other.row.submitted_at = Time(DAY.begins().0 - 77);
    assert_eq!(add(&table, vec![other]).unwrap(), 1);
    assert_eq!(ids(&table, &Search::all(), 10), ["1", "3", "2", "1"]);
}

#[test]
fn arrays_are_put_together_again() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    let mut rest = entry(5, None, JobState::Cancelled);
    let mut never = IndexRanges::default();
    never.insert_range(10, 99);
    (rest.tasks, rest.indices, rest.row.started_at) = (90, Some(never), None);
    let mut rows: Vec<JobEntry> = (0..10).map(|i| entry(5, Some(i), JobState::Completed)).collect();
    rows.push(rest);
    rows.insert(0, done(4));
    rows.push(done(6));
    add(&table, rows).unwrap();
    assert_eq!(ids(&table, &Search::all(), 2), ["6", "5", "4"]);
    let row = table.list(&Search::all(), None, 10).unwrap().rows[1].clone();
    let array = row.array.unwrap();
    assert_eq!((array.completed, array.cancelled, row.state), (10, 90, JobState::Cancelled));
    assert_eq!((row.restarts, row.exit_code), (44, Some(1)));

    let tasks = Search { tasks: true, ..Search::all() };
    let listed = ids(&table, &tasks, 4);
    assert_eq!(listed.len(), 13);
    assert_eq!(listed[..3], ["6", "5", "5_9"]);
    let task = |index| table.find(TaskId::of_array(JobId(5), index)).unwrap();
    assert_eq!(task(3).unwrap().row.state, JobState::Completed);
    assert_eq!(task(42).unwrap().row.id.to_string(), "5_42");
    assert_eq!(task(42).unwrap().row.state, JobState::Cancelled);
    assert_eq!(task(100), None);
    let whole = table.find(TaskId::single(JobId(5))).unwrap().unwrap();
    assert_eq!((whole.row.array.unwrap().cancelled, whole.end), (90, None));
}

#[test]
fn only_the_whole_array_says_what_it_made_of_its_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    let mut rows: Vec<JobEntry> = (0..3).map(|i| entry(5, Some(i), JobState::Completed)).collect();
    let line = ReportLine { held_hours: 4.0, ..ReportLine::default() };
    rows[0].more.as_mut().unwrap().goodput = Some(line.clone());
    add(&table, rows).unwrap();
    for index in 0..3 {
        let found = table.find(TaskId::of_array(JobId(5), index)).unwrap().unwrap();
        assert_eq!(found.goodput, None, "task {index}");
    }
    let whole = table.find(TaskId::single(JobId(5))).unwrap().unwrap();
    assert_eq!(whole.goodput, Some(line));
}

#[test]
fn tasks_are_found_by_their_own_end() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<JobEntry>::at(dir.path());
    // The array ended two days after its first task, and the file of that day has all of it.
    let last = Day(DAY.0 + 2);
    let mut rows = vec![done(4), entry(5, Some(0), JobState::Completed)];
    rows.push(entry(5, Some(1), JobState::Completed));
    rows[0].row.ended_at = Some(last.begins());
    rows[2].row.ended_at = Some(last.begins());
    table.add(last, &keys(&rows), rows).unwrap();
    let tasks = Search { until: Some(DAY.next().begins()), tasks: true, ..Search::all() };
    assert_eq!(ids(&table, &tasks, 10), ["5_0"]);
    assert!(ids(&table, &Search { tasks: false, ..tasks }, 10).is_empty(), "it ended later");
}

#[test]
fn a_search_finds_what_is_meant_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<JobEntry>::at(dir.path());
    for day in 0..5 {
        let rows: Vec<JobEntry> = (0..20)
            .map(|n| {
                let mut entry = done(day * 100 + n);
                let at = Day(DAY.0 + day as u32).begins().0 + n * 1000;
                (entry.row.ended_at, entry.row.submitted_at) = (Some(Time(at)), Time(at - 5));
                entry
            })
            .collect();
        table.add(Day(DAY.0 + day as u32), &keys(&rows), rows).unwrap();
    }
    let count = |search: &Search| ids(&table, search, 7).len();
    assert_eq!(count(&Search::all()), 100);
    let second = Day(DAY.0 + 1).begins();
    let since = Search { since: Some(second), ..Search::all() };
    assert_eq!(count(&since), 80);
    let window = Search { until: Some(Time(second.0 + 10_000)), ..since.clone() };
    assert_eq!(count(&window), 10);
    assert_eq!(count(&Search { user: Some("ada".into()), ..window.clone() }), 5);
    assert_eq!(count(&Search { team: Some("speech".into()), ..window.clone() }), 5);
    assert_eq!(count(&Search { user: Some("eve".into()), ..Search::all() }), 0);
    assert_eq!(count(&Search { states: [JobState::Failed].into(), ..Search::all() }), 0);
    assert_eq!(count(&Search { name: Some("in-3".into()), ..Search::all() }), 14);
    let listed = ids(&table, &Search::all(), 1000);
    assert_eq!((listed[0].as_str(), listed[99].as_str()), ("419", "0"));
}

#[test]
fn days_that_are_not_asked_for_are_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<JobEntry>::at(dir.path());
    add(&table, vec![done(1)]).unwrap();
    std::fs::write(table.path(Day(DAY.0 - 1)), "no Parquet").unwrap();
    std::fs::write(table.path(Day(DAY.0 + 1)), "no Parquet").unwrap();
    let window = (Some(DAY.begins()), Some(Time(DAY.next().begins().0 - 1)));
    let day = Search { since: window.0, until: window.1, ..Search::all() };
    assert_eq!(ids(&table, &day, 10), ["1"]);
    let error = table.list(&Search::all(), None, 10).unwrap_err().to_string();
    assert!(error.contains("2026-11-17.parquet can't be read"), "{error}");
}

#[test]
fn a_damaged_file_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<JobEntry>::at(dir.path());
    add(&table, vec![done(1)]).unwrap();
    let path = table.path(DAY);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
    assert!(matches!(add(&table, vec![done(2)]), Err(ArchiveError::Read { .. })));
    assert_eq!(std::fs::read(&path).unwrap().len(), whole.len() - 9);
}

#[test]
fn many_rows_are_many_groups_and_full_ones_are_copied() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<JobEntry>::at(dir.path());
    let many = |from: u64, n: usize| (from..from + n as u64).map(done).collect::<Vec<_>>();
    let all = 2 * GROUP_ROWS + 4;
    assert_eq!(add(&table, many(1, GROUP_ROWS + 2)).unwrap(), GROUP_ROWS as u64 + 2);
    assert_eq!(
        add(&table, many(GROUP_ROWS as u64, GROUP_ROWS + 5)).unwrap(),
        GROUP_ROWS as u64 + 2
    );
    let reader = Reader::<JobEntry>::open(&table.path(DAY)).unwrap();
    let sizes: Vec<usize> = (0..reader.groups()).map(|g| reader.group_rows(g)).collect();
    assert_eq!(sizes, [GROUP_ROWS, GROUP_ROWS, 4]);
    assert_eq!(reader.range(1, "job"), Some((GROUP_ROWS as i64 + 1, 2 * GROUP_ROWS as i64)));
    let listed = ids(&table, &Search::all(), 9_999);
    assert_eq!(listed.len(), all);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), all);
    for job in [1, GROUP_ROWS as u64, GROUP_ROWS as u64 + 1, all as u64] {
        let found = table.find(TaskId::single(JobId(job))).unwrap().unwrap();
        assert_eq!(found, done(job).detail().unwrap());
    }
    assert!(std::fs::metadata(table.path(DAY)).unwrap().len() < 40 * all as u64);
}

/// Fails at the nth step that is asked for.
fn failing(dir: &Path, at: usize) -> Table<JobEntry> {
    let steps = AtomicUsize::new(0);
    Table::gated(dir, move |step| {
        if steps.fetch_add(1, Ordering::Relaxed) == at {
            return Err(io::Error::new(io::ErrorKind::StorageFull, format!("{step:?}")));
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Jobs leave memory only after they are on disk; whatever breaks off in between, each of them is
    /// there exactly once in the end, and at every moment each is in memory or on disk.
    #[test]
    fn no_job_is_lost_or_there_twice(
        rounds in proptest::collection::vec(
            (1..4u64, 0..Step::ALL.len() + 2, proptest::bool::ANY, proptest::bool::ANY), 1..12,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut memory, mut submitted) = (BTreeSet::new(), 0);
        let look = || {
            let table = Table::at(dir.path());
            ids(&table, &Search::all(), 3).iter().map(|i| i.parse().unwrap()).collect::<Vec<u64>>()
        };
        for (new, breaks_at, litter, killed) in rounds {
            memory.extend(submitted + 1..=submitted + new);
            submitted += new;
            let table = failing(dir.path(), breaks_at);
            if litter && let Some(year) = table.path(DAY).parent().filter(|y| y.exists()) {
                std::fs::write(year.join(".2026-11-16.parquet.new"), "half a fi").unwrap();
            }
            let added = add(&table, memory.iter().copied().map(done).collect());
            // Killed between the file and the event: they stay in memory.
            if added.is_ok() && !killed {
                memory.clear();
            }
            let there = look();
            let both: BTreeSet<u64> = there.iter().copied().chain(memory.iter().copied()).collect();
            prop_assert_eq!(both, (1..=submitted).collect::<BTreeSet<_>>());
        }
        add(&Table::at(dir.path()), memory.iter().copied().map(done).collect()).unwrap();
        let mut there = look();
        there.sort_unstable();
        prop_assert_eq!(there, (1..=submitted).collect::<Vec<_>>());
    }
}

/// Of a file that looks the same, what it has of a team is known.
#[test]
fn a_team_without_jobs_is_looked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    add(&table, vec![done(1), done(2)]).unwrap();
    let of = |team: &str| Search { team: Some(team.to_owned()), ..Search::all() };
    assert!(ids(&table, &of("robots"), 10).is_empty());
    let path = table.path(DAY);
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let replace = |bytes: &[u8], modified| {
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    };
    replace(&vec![b'x'; whole.len()], modified);
    assert!(ids(&table, &of("robots"), 10).is_empty(), "nobody reads it");
    assert!(table.list(&of("vision"), None, 10).is_err());
    // One that has changed is read again.
    let later = modified + std::time::Duration::from_secs(1);
    replace(&whole, later);
    add(
        &table,
        vec![JobEntry { row: JobRow { team: Some("robots".into()), ..done(3).row }, ..done(3) }],
    )
    .unwrap();
    assert_eq!(ids(&table, &of("robots"), 10), ["3"]);
    assert_eq!(ids(&table, &of("vision"), 10), ["2"]);
}

#[test]
fn a_full_disk_leaves_the_old_file_and_no_litter() {
    let dir = tempfile::tempdir().unwrap();
    add(&Table::at(dir.path()), vec![done(1)]).unwrap();
    for at in 0..Step::ALL.len() - 1 {
        let table = failing(dir.path(), at);
        let error = add(&table, vec![done(2)]).unwrap_err();
        assert!(matches!(error, ArchiveError::Io { .. }), "{error}");
        assert_eq!(ids(&table, &Search::all(), 10), ["1"]);
        let year = table.path(DAY).parent().unwrap().to_owned();
        assert_eq!(std::fs::read_dir(year).unwrap().count(), 1, "after {at} steps");
    }
}

/// A table before and after it got a column.
struct Old(i64);
struct New(i64, Option<i64>);

const OLD: [Field; 2] = [
    Field { name: "a", kind: Kind::Int, optional: false },
    Field { name: "b", kind: Kind::Int, optional: false },
];
const NEW: [Field; 3] = [OLD[0], OLD[1], Field { name: "c", kind: Kind::Int, optional: true }];

impl Row for Old {
    const TABLE: &'static str = "t";
    const FIELDS: &'static [Field] = &OLD;
    fn key(&self) -> Key {
        (self.0, 0)
    }
    fn cells(&self) -> Vec<Cell> {
        vec![Cell::Int(self.0), Cell::Int(0)]
    }
    fn read(columns: &Columns, row: usize) -> Result<Self, BadContent> {
        Ok(Old(columns.int("a", row)?))
    }
}

impl Row for New {
    const TABLE: &'static str = "t";
    const FIELDS: &'static [Field] = &NEW;
    fn key(&self) -> Key {
        (self.0, 0)
    }
    fn cells(&self) -> Vec<Cell> {
        vec![Cell::Int(self.0), Cell::Int(0), self.1.map_or(Cell::Null, Cell::Int)]
    }
    fn read(columns: &Columns, row: usize) -> Result<Self, BadContent> {
        Ok(New(columns.int("a", row)?, columns.int_or_none("c", row)?))
    }
}

#[test]
fn columns_can_be_added() {
    let dir = tempfile::tempdir().unwrap();
    let old = (1..=GROUP_ROWS as i64 + 1).map(Old);
    let all: BTreeSet<Key> = (1..=GROUP_ROWS as i64 + 1).map(|n| (n, 0)).collect();
    Table::<Old>::at(dir.path()).add(DAY, &all, old).unwrap();
    let table = Table::<New>::at(dir.path());
    let new = New(0, Some(7));
    table.add(DAY, &[new.key()].into(), [new]).unwrap();
    let reader = Reader::<New>::open(&table.path(DAY)).unwrap();
    let rows: Vec<New> = (0..reader.groups()).flat_map(|g| reader.all(g).unwrap()).collect();
    assert_eq!(rows.len(), GROUP_ROWS + 2);
    assert!(rows[..=GROUP_ROWS].iter().all(|r| r.1.is_none()));
    assert_eq!((rows[GROUP_ROWS + 1].0, rows[GROUP_ROWS + 1].1), (0, Some(7)));
    // And one who does not know the column reads the rest.
    let reader = Reader::<Old>::open(&table.path(DAY)).unwrap();
    assert_eq!(reader.all(reader.groups() - 1).unwrap().last().unwrap().0, 0);
}

#[test]
fn keys_are_the_id_and_the_time() {
    assert_eq!(key(JobId(7), Time(9)), (7, 9));
}

fn ledger_row(day: Day, user: &str, class: TimeClass, gpu_micros: u64) -> LedgerRow {
    let (team, user, model) = ("vision".to_owned(), user.to_owned(), "h100".to_owned());
    LedgerRow { day, team, user, model, class, gpu_micros }
}

#[test]
fn days_of_the_ledger_are_written_once_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<LedgerRow>::at(dir.path());
    let day = |n: u32| {
        let day = Day(DAY.0 + n);
        let free = LedgerRow { user: String::new(), ..ledger_row(day, "", TimeClass::Free, 7) };
        vec![ledger_row(day, "ada", TimeClass::Productive, 86_400_000_000), free]
    };
    for n in 0..4 {
        assert_eq!(table.add_day(Day(DAY.0 + n), day(n)).unwrap(), 2);
    }
    assert_eq!(table.add_day(DAY, day(0)).unwrap(), 0, "it was not dropped yet");
    let days = Day(DAY.0 + 1)..=Day(DAY.0 + 2);
    let mut rows = Vec::new();
    table.each(days.clone(), &BTreeSet::new(), |row| rows.push(row)).unwrap();
    assert_eq!(rows, [day(1), day(2)].concat());
    let mut rows = Vec::new();
    table.each(days, &[Day(DAY.0 + 1)].into(), |row| rows.push(row)).unwrap();
    assert_eq!(rows, day(2));
}

#[test]
fn a_day_of_another_cluster_is_not_taken_for_ours() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::<LedgerRow>::at(dir.path());
    let theirs = vec![ledger_row(DAY, "ada", TimeClass::Productive, 7)];
    table.add_day(DAY, theirs.clone()).unwrap();
    let ours = vec![ledger_row(DAY, "bob", TimeClass::Idle, 9)];
    let error = table.add_day(DAY, ours).unwrap_err();
    assert!(matches!(error, ArchiveError::Differs { .. }), "{error}");
    assert!(error.to_string().contains("--archive"), "{error}");
    let mut rows = Vec::new();
    table.each(DAY..=DAY, &BTreeSet::new(), |row| rows.push(row)).unwrap();
    assert_eq!(rows, theirs);
}

#[test]
fn a_job_is_counted_once_with_all_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    let mut time = Amounts::default();
    time.add(TimeClass::Idle, 7);
    let mut rows: Vec<JobEntry> = (0..3).map(|i| entry(5, Some(i), JobState::Completed)).collect();
    rows[0].time = Some(time.clone());
    rows.push(JobEntry { time: Some(Amounts::default()), ..done(6) });
    // From before times were kept.
    rows.push(done(7));
    add(&table, rows).unwrap();
    let mut seen = Vec::new();
    table.times(DAY..=DAY, |of| seen.push((of.job, of.user.to_owned(), of.time))).unwrap();
    let none = Amounts::default();
    assert_eq!(seen, [(JobId(5), "bob".to_owned(), time), (JobId(6), "ada".to_owned(), none)]);
    table.times(DAY.next()..=DAY.next(), |of| panic!("{of:?}")).unwrap();
}

#[test]
fn every_class_of_a_job_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let table = Table::at(dir.path());
    let mut time = Amounts::default();
    let held = TimeClass::ALL.into_iter().filter(|c| c.is_held() || *c == TimeClass::Reserved);
    held.zip(1..).for_each(|(class, n)| time.add(class, n * 1_000_000_007));
    let entry = JobEntry { time: Some(time), ..done(1) };
    add(&table, vec![entry.clone(), done(2)]).unwrap();
    let reader = Reader::<JobEntry>::open(&table.path(DAY)).unwrap();
    assert_eq!(reader.all(0).unwrap(), [entry, done(2)]);
}
