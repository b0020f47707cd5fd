//! Where GPU-hours went, summed up from the ledger.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tutti_engine::{goodput_at, job_goodput_at};
use tutti_model::{
    Amounts, Day, Goodput, Job, JobId, LedgerRow, Policy, Report, ReportBy, ReportLine, Reporter,
    State, Time, Waster,
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
    fn concerns(&self, policy: &Policy, team: &str, user: &str) -> bool {
        let of_team = |wanted: &String| policy.line_of(team).contains(&wanted.as_str());
        self.team.as_ref().is_none_or(of_team) && self.user.as_deref().is_none_or(|u| u == user)
    }
}

/// `archived` are rows of days that may have left memory; those that have not count as they are here.
pub fn report(state: &State, wanted: &Wanted, archived: &[LedgerRow], now: Time) -> Report {
    let goodput = goodput_at(state, now);
    let policy = &state.policy;
    let mut reporter = Reporter::new(wanted.by, wanted.since, wanted.until, &policy.prices);
    let left = archived.iter().filter(|row| !goodput.days.contains_key(&row.day));
    for row in left.filter(|r| wanted.concerns(policy, &r.team, &r.user)) {
        reporter.add(row);
    }
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

/// Jobs that are known, and had GPUs at that time.
fn wasters(state: &State, goodput: &Goodput, wanted: &Wanted) -> Vec<Waster> {
    let (from, until) = (wanted.since.begins(), wanted.until.next().begins());
    let of_time = |job: &Job| {
        let over = job.ended_at().is_some_and(|at| at < from);
        !over && job.submitted_at < until
    };
    let waste = |(id, models): (&JobId, &std::collections::BTreeMap<String, Amounts>)| {
        let wasted: u64 = models.values().map(Amounts::waste).sum();
        let job = state.job(*id).filter(|_| wasted > 0)?;
        let counts = wanted.concerns(&state.policy, &job.team, &job.user) && of_time(job);
        counts.then_some((Reverse(wasted), *id))
    };
    // A set that stays small: there may be many jobs.
    let mut worst = BTreeSet::new();
    for found in goodput.jobs.iter().filter_map(waste) {
        worst.insert(found);
        if worst.len() > WASTERS_MAX {
            worst.pop_last();
        }
    }
    let row = |(_, id): (Reverse<u64>, JobId)| {
        let job = state.job(id)?;
        Some(Waster {
            id,
            name: job.spec.name.clone(),
            user: job.user.clone(),
            team: job.team.clone(),
            line: line(state, goodput, id),
        })
    };
    worst.into_iter().filter_map(row).collect()
}

fn line(state: &State, goodput: &Goodput, job: JobId) -> ReportLine {
    let prices = &state.policy.prices;
    goodput.tally_of(job, prices).line(String::new(), prices)
}

/// What one job has had up to now.
pub fn job_line(state: &State, job: JobId, now: Time) -> ReportLine {
    line(state, &job_goodput_at(state, job, now), job)
}
