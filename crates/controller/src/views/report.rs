//! Where GPU-hours went, summed up from the ledger.
//!
//! ```text
//!  files, in a thread of their own ─► Sums ───────┐
//!  memory, under the lock ────────────────────────┴► report ─┐
//!  files, in a thread of their own ─► LeftWasters ───────────┴► add_wasters
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tutti_archive::JobTime;
use tutti_engine::{goodput_at, job_goodput_at};
use tutti_model::{
    Amounts, Day, Goodput, GpuMicros, GpuTally, Job, JobId, LedgerRow, Policy, Prices, Report,
    ReportBy, ReportLine, Reporter, RowKey, State, Time, Waster,
};

/// So many of the worst are named.
const WASTERS_MAX: usize = 10;

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub by: ReportBy,
    /// The first and the last day.
    pub since: Day,
    pub until: Day,
    /// This team and those under it.
    pub team: Option<String>,
    pub user: Option<String>,
}

impl Wanted {
    pub(super) fn concerns(&self, policy: &Policy, team: &str, user: &str) -> bool {
        let of_team = |wanted: &String| policy.line_of(team).contains(&wanted.as_str());
        self.team.as_ref().is_none_or(of_team) && self.user.as_deref().is_none_or(|u| u == user)
    }

    /// A job or an endpoint is told of with all that it ever had, so it belongs to the days on which it ended, as in
    /// the files. One that goes on belongs to all days since it came.
    pub(super) fn is_of_time(&self, submitted: Time, ended: Option<Time>) -> bool {
        let (from, until) = (self.since.begins(), self.until.next().begins());
        submitted < until && ended.is_none_or(|at| from <= at && at < until)
    }

    fn is_about(&self, policy: &Policy, job: &Job) -> bool {
        self.concerns(policy, &job.team, &job.user)
            && self.is_of_time(job.submitted_at, job.ended_at())
    }

    /// What tells its line and its price from others; the rest of the row is left out.
    fn essence(&self, row: LedgerRow) -> (Day, RowKey) {
        let LedgerRow { day, team, user, model, .. } = row;
        let rest = RowKey::default();
        match self.by {
            ReportBy::Day => (day, RowKey { model, ..rest }),
            ReportBy::Team => (self.since, RowKey { team, model, ..rest }),
            ReportBy::User => (self.since, RowKey { user, model, ..rest }),
            ReportBy::Model => (self.since, RowKey { model, ..rest }),
        }
    }
}

/// Rows of days that have left memory, summed up while they are read: years have many rows and few
/// lines.
pub struct Sums {
    wanted: Wanted,
    policy: Arc<Policy>,
    sums: BTreeMap<(Day, RowKey), Amounts>,
}

impl Sums {
    pub fn new(wanted: Wanted, policy: Arc<Policy>) -> Sums {
        Sums { wanted, policy, sums: BTreeMap::new() }
    }

    pub fn add(&mut self, row: LedgerRow) {
        if self.wanted.concerns(&self.policy, &row.team, &row.user) {
            let (class, amount) = (row.class, row.gpu_micros);
            self.sums.entry(self.wanted.essence(row)).or_default().add(class, amount);
        }
    }

    /// As few rows that make the same report.
    pub fn rows(self) -> Vec<LedgerRow> {
        let rows = self.sums.into_iter().flat_map(|((day, key), amounts)| {
            amounts.0.into_iter().map(move |(class, gpu_micros)| {
                let RowKey { team, user, model } = key.clone();
                LedgerRow { day, team, user, model, class, gpu_micros }
            })
        });
        rows.collect()
    }
}

/// `archived` is what [`Sums`] has made of the days that have left memory. The wasters are those that
/// are in memory; endpoints are added by [`super::served_lines`].
pub fn report(state: &State, wanted: &Wanted, archived: &[LedgerRow], now: Time) -> Report {
    let goodput = goodput_at(state, now);
    let policy = &state.policy;
    let mut reporter = Reporter::new(wanted.by, wanted.since, wanted.until, &policy.prices);
    archived.iter().for_each(|row| reporter.add(row));
    for &day in goodput.days.range(wanted.since..=wanted.until).map(|(day, _)| day) {
        let rows = goodput.rows_of(day).into_iter();
        rows.filter(|r| wanted.concerns(policy, &r.team, &r.user)).for_each(|r| reporter.add(&r));
    }
    for (_, key, day, amount) in goodput.undecided() {
        if wanted.concerns(policy, &key.team, &key.user) {
            reporter.add_unsaved(day, &key, amount);
        }
    }
    reporter.done(wasters(state, &goodput, wanted))
}

/// The worst so far. A list that stays short: there may be many jobs.
struct Worst<T>(BTreeMap<(Reverse<GpuMicros>, JobId), T>);

impl<T> Worst<T> {
    fn takes(&self, wasted: GpuMicros, job: JobId) -> bool {
        let room = self.0.len() < WASTERS_MAX;
        let last = self.0.last_key_value();
        wasted > 0 && (room || last.is_some_and(|(last, _)| (Reverse(wasted), job) < *last))
    }

    fn put(&mut self, wasted: GpuMicros, job: JobId, of: T) {
        self.0.insert((Reverse(wasted), job), of);
        if self.0.len() > WASTERS_MAX {
            self.0.pop_last();
        }
    }
}

fn wasters(state: &State, goodput: &Goodput, wanted: &Wanted) -> Vec<Waster> {
    let mut worst = Worst(BTreeMap::new());
    for (id, models) in &goodput.jobs {
        let wasted: GpuMicros = models.values().map(Amounts::waste).sum();
        if worst.takes(wasted, *id)
            && let Some(job) = state.job(*id)
            && wanted.is_about(&state.policy, job)
        {
            worst.put(wasted, *id, job);
        }
    }
    let row = |((_, id), job): ((Reverse<GpuMicros>, JobId), &Job)| Waster {
        id,
        name: Some(job.spec.display_name().to_owned()),
        user: job.user.clone(),
        team: job.team.clone(),
        line: line(state, goodput, id),
    };
    worst.0.into_iter().map(row).collect()
}

/// The worst of the jobs that have left memory, while they are read.
pub struct LeftWasters {
    wanted: Wanted,
    policy: Arc<Policy>,
    worst: Worst<Waster>,
}

impl LeftWasters {
    pub fn new(wanted: Wanted, policy: Arc<Policy>) -> LeftWasters {
        LeftWasters { wanted, policy, worst: Worst(BTreeMap::new()) }
    }

    /// One that ended in the days that are asked for.
    pub fn add(&mut self, of: &JobTime<'_>) {
        let wasted = of.time.waste();
        if self.worst.takes(wasted, of.job) && self.wanted.concerns(&self.policy, of.team, of.user)
        {
            self.worst.put(wasted, of.job, left(of, &self.policy.prices));
        }
    }

    pub fn done(self) -> Vec<Waster> {
        self.worst.0.into_values().collect()
    }
}

/// At the prices of today, like all of the report.
fn left(of: &JobTime<'_>, prices: &Prices) -> Waster {
    let mut tally = GpuTally::default();
    of.time.0.iter().for_each(|(class, n)| tally.add(of.gpu_model, *class, *n, prices));
    Waster {
        id: of.job,
        name: Some(of.name.to_owned()),
        user: of.user.to_owned(),
        team: of.team.to_owned(),
        line: tally.line(String::new(), prices),
    }
}

/// Those of the report were read before these, so that one that left in between is in both, not in
/// neither.
pub fn add_wasters(report: &mut Report, left: Vec<Waster>) {
    let here: BTreeSet<JobId> = report.wasters.iter().map(|waster| waster.id).collect();
    let wasters = &mut report.wasters;
    wasters.extend(left.into_iter().filter(|waster| !here.contains(&waster.id)));
    wasters
        .sort_by(|a, b| b.line.wasted_hours.total_cmp(&a.line.wasted_hours).then(a.id.cmp(&b.id)));
    wasters.truncate(WASTERS_MAX);
}

fn line(state: &State, goodput: &Goodput, job: JobId) -> ReportLine {
    let prices = &state.policy.prices;
    goodput.tally_of(job, prices).line(String::new(), prices)
}

/// What one job has had up to now.
pub fn job_line(state: &State, job: JobId, now: Time) -> ReportLine {
    line(state, &job_goodput_at(state, job, now), job)
}

#[cfg(test)]
mod tests {
    use tutti_model::{GPU_HOUR, Price, TimeClass};

    use super::*;

    fn policy() -> Arc<Policy> {
        let price = Price { micros: 2_500_000, shape: None };
        let gpus = [("h100".to_owned(), price)].into();
        let prices = Prices { gpus, ..Prices::default() };
        Arc::new(Policy { prices, ..Policy::default() })
    }

    fn wanted(by: ReportBy, user: Option<&str>) -> Wanted {
        let user = user.map(str::to_owned);
        Wanted { by, since: Day(1), until: Day(3), team: None, user }
    }

    fn rows() -> Vec<LedgerRow> {
        let row = |day, team: &str, user: &str, model: &str, class| LedgerRow {
            day: Day(day),
            team: team.into(),
            user: user.into(),
            model: model.into(),
            class,
            gpu_micros: GPU_HOUR,
        };
        vec![
            row(1, "lab", "ada", "h100", TimeClass::Productive),
            row(2, "lab", "ada", "h100", TimeClass::Productive),
            row(2, "lab", "ada", "b200", TimeClass::Idle),
            row(2, "ops", "ada", "h100", TimeClass::LostToFailure),
            row(3, "ops", "bob", "h100", TimeClass::Productive),
            row(3, "", "", "h100", TimeClass::Free),
        ]
    }

    #[test]
    fn sums_make_the_same_report_as_their_rows() {
        let policy = policy();
        for (by, user) in ReportBy::ALL.into_iter().flat_map(|by| [(by, None), (by, Some("ada"))]) {
            let wanted = wanted(by, user);
            let mut sums = Sums::new(wanted.clone(), Arc::clone(&policy));
            rows().into_iter().for_each(|row| sums.add(row));
            let report = |rows: &[LedgerRow]| {
                let mut reporter = Reporter::new(by, Day(1), Day(3), &policy.prices);
                rows.iter().for_each(|row| reporter.add(row));
                reporter.done(Vec::new())
            };
            let mut asked = rows();
            asked.retain(|row| wanted.concerns(&policy, &row.team, &row.user));
            assert_eq!(report(&sums.rows()), report(&asked), "{by:?} {user:?}");
        }
    }

    #[test]
    fn lines_are_fewer_than_rows() {
        let mut sums = Sums::new(wanted(ReportBy::Team, None), policy());
        for _ in 0..100 {
            rows().into_iter().for_each(|row| sums.add(row));
        }
        assert_eq!(sums.rows().len(), 5, "of a team, a model and a class each");
    }

    #[test]
    fn a_job_belongs_to_the_days_on_which_it_ended() {
        let wanted = wanted(ReportBy::Team, None);
        let at = |day: u32| Day(day).begins();
        assert!(wanted.is_of_time(at(0), Some(at(1))), "it came before");
        assert!(wanted.is_of_time(at(3), Some(at(3))));
        assert!(!wanted.is_of_time(at(0), Some(Time(at(1).0 - 1))));
        assert!(!wanted.is_of_time(at(0), Some(at(4))), "it is of a later report");
        assert!(wanted.is_of_time(at(0), None) && !wanted.is_of_time(at(4), None));
    }

    #[test]
    fn the_worst_of_both_are_named_once() {
        let policy = policy();
        let of = |job, hours: u64, user: &'static str| JobTime {
            job: JobId(job),
            name: "train",
            user,
            team: "lab",
            gpu_model: "h100",
            time: Amounts([(TimeClass::Idle, hours * GPU_HOUR)].into()),
        };
        let wanted = wanted(ReportBy::Team, Some("ada"));
        let mut worst = LeftWasters::new(wanted, Arc::clone(&policy));
        (0..=30).for_each(|n| worst.add(&of(n, n, "ada")));
        worst.add(&of(31, 1000, "bob"));
        let reporter = Reporter::new(ReportBy::Team, Day(1), Day(3), &policy.prices);
        // In memory: one that is in a file as well, and one that goes on.
        let here = [of(30, 30, "ada"), of(99, 26, "ada")];
        let here = here.iter().map(|of| left(of, &policy.prices)).collect();
        let mut report = reporter.done(here);
        add_wasters(&mut report, worst.done());
        let ids: Vec<u64> = report.wasters.iter().map(|waster| waster.id.0).collect();
        assert_eq!(ids, [30, 29, 28, 27, 26, 99, 25, 24, 23, 22]);
        assert!(report.wasters.iter().all(|waster| waster.name.as_deref() == Some("train")));
        let cost = report.wasters[0].line.cost.unwrap();
        assert_eq!((report.wasters[0].line.wasted_hours, cost.wasted), (30.0, 75.0));
    }
}
